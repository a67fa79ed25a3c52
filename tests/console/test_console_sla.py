"""The SLA screen: histograms against limits, percentiles, parts of TTFT, and whose samples are late."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from console_helpers import AppMaker, HandClock, settle, text_of, wait_for
from textual.pilot import Pilot

from console.app import PacelineApp
from console.feeds.answers import sla_detail
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.screens.sla import OLD_AFTER_S, SlaScreen
from console.store.fleet import FleetStore
from console.store.latency import columns_of, over_share, tail_of, tail_shares, ticks
from console.widgets import fmt
from console.widgets.histogram import percent
from console.widgets.paint import size_of
from console.widgets.rows import sparkline
from console.widgets.sla import Gauge
from harness.wire.control import Percentiles, SlaView
from harness.wire.inquiry import GetSla, LatencyDetail, SlaDetail

SIZES = [(120, 36), (80, 24)]


def feed_of(app: PacelineApp) -> ScriptedFeed:
    feed = app.session.feed
    assert isinstance(feed, ScriptedFeed)
    return feed


async def open_sla(pilot: Pilot[Any], app: PacelineApp) -> SlaScreen:
    await settle(pilot, app)
    await pilot.press("3")
    await settle(pilot, app)
    screen = app.screen
    assert isinstance(screen, SlaScreen)
    return screen


def pane(screen: SlaScreen, name: str) -> str:
    return text_of(screen.query_one(f"#{name}"))


def title(screen: SlaScreen, name: str) -> str:
    return str(screen.query_one(f"#{name}").border_title)


@pytest.fixture
def detail() -> SlaDetail:
    return sla_detail(ScriptedFleet(), GetSla("1"), 3000.0, 80.0)


# --- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [30, 57, 118])
def test_columns_keep_every_sample_and_part_at_the_limit(detail: SlaDetail, width: int) -> None:
    columns = columns_of(detail.ttft, "window", width)
    assert columns is not None
    assert columns.counts.sum() == pytest.approx(detail.ttft.window_n)
    limit = columns.column_of(3000.0 * (1 + 1e-9))
    assert 0 < limit < width
    assert columns.start_ms(limit) == pytest.approx(3000.0)
    cells = np.asarray(detail.ttft.window)
    beyond = cells[np.asarray(detail.ttft.edges_ms[:-1]) >= 3000.0].sum()
    assert columns.counts[limit:].sum() == pytest.approx(beyond, rel=0.15)
    assert all(columns.low_ms <= value < columns.high_ms for value in ticks(columns))


@pytest.mark.parametrize("edges", [[0.01, 0.02], [5.0, 5.1], [20_000.0, 30_000.0]])
def test_an_axis_reaches_the_limit_wherever_the_samples_are(edges: list[float]) -> None:
    columns = columns_of(LatencyDetail(3000.0, edges, [7], [7], window_n=7, whole_n=7), "window", 40)
    assert columns is not None
    assert columns.counts.sum() == pytest.approx(7)
    assert columns.low_ms < 3000.0 < columns.high_ms


def test_without_samples_there_is_no_histogram() -> None:
    assert columns_of(LatencyDetail(3000.0, [1.0, 2.0], [0], [0]), "window", 40) is None
    assert math.isnan(over_share(LatencyDetail(3000.0), "window"))


def test_the_tail_names_the_straggler_beside_what_is_expected(store: FleetStore, detail: SlaDetail) -> None:
    tail = tail_of(store, detail.ttft, "window", by_node=False)
    assert tail is not None
    first = tail.rows[0]
    assert first.name == "node015/gpu3"
    assert first.expected == pytest.approx(1 / 510, rel=0.01)  # a lost and an evicted replica never served
    assert first.times > 20
    assert sum(row.over for row in tail.rows) == tail.total
    by_node = tail_of(store, detail.ttft, "whole", by_node=True)
    assert by_node is not None
    assert by_node.rows[0].name == "node015"
    assert by_node.rows[0].replicas == 8
    assert sum(row.share for row in by_node.rows) == pytest.approx(1.0)


def test_numbers_of_another_roster_are_not_put_beside_our_names(store: FleetStore, detail: SlaDetail) -> None:
    other = msgspec.structs.replace(detail.ttft, over_window=b"\0" * 40)
    assert tail_of(store, other, "window", by_node=False) is None


def test_parts_of_the_tail_add_up(detail: SlaDetail) -> None:
    assert sum(tail_shares(detail.parts)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("share", "text"), [(0.38, "38%"), (0.0316, "3.2%"), (0.0029, "0.29%"), (1e-6, "<0.01%"), (0.0, "0.0%"), (math.nan, "–")]
)
def test_shares_of_a_tail_are_never_rounded_to_nothing(share: float, text: str) -> None:
    assert percent(share) == text


# --- the screen --------------------------------------------------------------------------------------------


async def test_all_panes_are_on_one_screen_at_120x36(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_sla(pilot, app)
        assert screen.query_one("#sla-panes").max_scroll_y == 0
        budget = pane(screen, "budget").splitlines()
        assert "over" in budget[0]
        assert "left" in budget[0]
        assert "end ≈" in budget[0]
        assert "…" in budget[0]
        histogram = pane(screen, "ttft-histogram")
        assert "beyond 3.00 s" in histogram
        assert "╵3s" in histogram
        assert "p99" in histogram
        assert title(screen, "ttft-histogram") == "TTFT · last 60 s"
        table = pane(screen, "percentiles").splitlines()
        assert [line.split()[0] for line in table] == ["TTFT", "p50", "p90", "p95", "p99", "p99.9", "limit", "n"]
        assert "239,065" in table[-1]
        parts = pane(screen, "ttft-parts")
        for name in ("schedule lag", "head queue", "replica queue", "prefill", "other", "together"):
            assert name in parts
        tail = pane(screen, "tail").splitlines()
        assert tail[1].startswith("node015/gpu3")
        assert tail[0].split() == ["REPLICA", "SHARE", "OVER", "EXPECTED", "TIMES"]
        assert "first 5" in tail[-1]


async def test_at_80x24_one_histogram_and_everything_within_reach(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_sla(pilot, app)
        assert pane(screen, "budget").count("end ≈ ") == 2, "the same words as on a wide terminal"
        assert "more below: PgDn" in pane(screen, "budget")
        assert "n Nodes" in text_of(screen.query_one("#footer"))
        assert "p99 expected at the end" in title(screen, "budget")
        assert screen.query_one("#ttft-histogram").region.height > 0
        assert screen.query_one("#tpot-histogram").region.height == 0
        await pilot.press("m")
        await settle(pilot, app)
        assert screen.query_one("#ttft-histogram").region.height == 0
        assert "beyond 80.0 ms" in pane(screen, "tpot-histogram")
        await pilot.press("end")
        await wait_for(lambda: screen.query_one("#tail").region.bottom <= 23)


@pytest.mark.parametrize("size", [*SIZES, (160, 48), (60, 15)])
async def test_no_line_is_wider_than_its_pane(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        screen = await open_sla(pilot, app)
        for widget in screen.query("Painted"):
            for y in range(widget.content_size.height):
                assert widget.render_line(y).cell_length <= widget.content_size.width, widget.id


async def test_keys_choose_window_metric_and_nodes_and_esc_goes_back_to_the_first_picture(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_sla(pilot, app)
        await pilot.press("w", "n")
        await settle(pilot, app)
        assert title(screen, "tail") == "TTFT samples over 3.00 s by node · whole attempt"
        assert "whole attempt" in title(screen, "tpot-histogram")
        assert pane(screen, "tail").splitlines()[0].endswith("OF ITS OWN")
        await pilot.press("m")
        await settle(pilot, app)
        assert title(screen, "tail").startswith("TPOT samples over 80.0 ms")
        assert "● none of " in pane(screen, "tail")
        assert "Once samples are over 80.0 ms" in pane(screen, "tail"), "what it would show"
        await pilot.press("escape")
        await settle(pilot, app)
        assert title(screen, "tail") == "TTFT samples over 3.00 s by replica · last 60 s"


@pytest.mark.parametrize("size", SIZES)
async def test_percentiles_limits_and_counts_end_in_the_same_columns(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        screen = await open_sla(pilot, app)
        lines = pane(screen, "percentiles").splitlines()
        ends = [match.end() for match in re.finditer(r"3\.00 s|80\.0 ms", lines[6])]
        assert len(ends) == 4
        for line in (lines[0], lines[1], lines[7]):
            assert all(line[end - 1] != " " and line[end : end + 1].strip() == "" for end in ends), line


async def test_few_samples_tell_how_many_a_p99_needs(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)):
        view = SlaView(limit_ms=500.0, window=Percentiles(n=755, p50=21.0))
        text = "".join(run for run, _ in Gauge("TTFT").runs(view, 60.0, 90, app.inks))
        assert text == "TTFT p99 60 s  –  755 of 1,000 samples for a p99 · p50 21.0 ms · limit 500 ms"
        assert size_of(Gauge("TTFT").runs(view, 60.0, 50, app.inks)) <= 50


def test_bars_of_neighbouring_lines_do_not_touch() -> None:
    assert fmt.gauge(0.5, 8) == ("━━━━", "────")
    assert fmt.gauge(2.0, 4) == ("━━━━", "")
    assert fmt.gauge(0.001, 4) == ("━", "───"), "a little is not nothing"
    assert fmt.gauge(math.nan, 4) == ("", "    ")
    assert sparkline([0.0, 1.0, 9.0], 1.0) == "▁▅▆"


async def test_an_old_answer_says_its_age_and_is_greyed(make_app: AppMaker, hand_clock: HandClock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_sla(pilot, app)
        assert not screen.has_class("-stale")
        feed_of(app).silent = True
        hand_clock.s += OLD_AFTER_S + 2
        feed_of(app).push()  # snapshots go on, answers do not
        await settle(pilot, app)
        assert screen.has_class("-stale")
        assert "as of 8s ago: no answer since" in pane(screen, "budget")


async def test_before_an_answer_only_what_snapshots_carry_is_shown(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        feed_of(app).silent = True
        screen = await open_sla(pilot, app)
        assert "the head does not answer" in pane(screen, "ttft-histogram")
        table = pane(screen, "percentiles").splitlines()
        assert "–" in table[3]  # p95 is not in snapshots
        assert " s" in table[4]
        assert "the head does not answer" in pane(screen, "tail")
        assert "histogram" not in screen.tables()


async def test_an_ended_run_shows_no_figure_that_nobody_told(make_app: AppMaker) -> None:
    fleet = ScriptedFleet()
    fleet.phase, fleet.verdict = "DONE", "VALID"
    app = make_app(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        feed_of(app).silent = True
        screen = await open_sla(pilot, app)
        assert "the run has ended" in pane(screen, "ttft-histogram")
        assert "nothing is left to spend" in pane(screen, "budget")
        assert "%" not in pane(screen, "percentiles")


async def test_before_the_first_sample_nothing_is_drawn(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(phase="WARMING", at_s=0.0))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_sla(pilot, app)
        assert "no sample has ended yet" in pane(screen, "ttft-histogram")
        assert "%" not in pane(screen, "percentiles")


async def test_replay_keys_say_when_nothing_is_replayed(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_sla(pilot, app)
        await pilot.press("comma")
        await pilot.pause()
        assert any("nothing is being replayed" in note.message for note in app._notifications)


async def test_export_has_cells_percentiles_parts_and_the_tail(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_sla(pilot, app)
        tables = screen.tables()
        assert {"limits", "percentiles", "histogram", "ttft_parts", "tail"} <= set(tables)
        assert all(tables.values())
