"""Queries in PromQL: checked with the place of what is wrong, asked of the head, shown as chart and table; and every metric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from console_helpers import AppMaker, settle, text_of, wait_for
from gpu_kit import gpus_of, store_of, with_gpus
from textual.widgets import Input

from console.app import PacelineApp
from console.screens.metrics import MetricsScreen
from console.store import promql
from console.widgets.clock import EVERYTHING
from console.widgets.promql import AskedPane, NamesPane, SeriesTable, drawn, figure
from harness.wire.inquiry import MetricCurve, MetricCurves, MetricName


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def screen_of(app: PacelineApp) -> MetricsScreen:
    assert isinstance(app.screen, MetricsScreen)
    return app.screen


def curves(*labels: dict[str, str]) -> MetricCurves:
    unix, values = np.array([1.0, 2.0]).astype("<f8"), np.array([3.0, 4.0]).astype("<f8")
    return MetricCurves("", [MetricCurve(each, unix.tobytes(), values.tobytes()) for each in labels], "matrix")


# --- pure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "at", "words"),
    [
        ("sum(", 4, "not closed"), ("max by (a) (b", 12, "not closed"), ("a + ) b", 5, "closes nothing"),
        ('foo{a="b"} foo', 12, "'foo'"), ("foo{a=}", 7, "'}'"), ("rate(x)", 1, "expected type matrix"),
        ("1 +", 3, "the end"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_query_is_said_with_its_place(query: str, at: int, words: str) -> None:
    problem = promql.problem_of(query)
    assert problem.startswith(f"at {at},"), problem
    assert words in problem


@pytest.mark.parametrize(
    "query", ["up", "sum by (le) (rate(foo_bucket[1m]))", '{__name__=~"a|b"}', "vllm:num_requests_waiting > 3", "a offset 5m"]
)
def test_a_query_is_left_alone(query: str) -> None:
    assert promql.problem_of(query) == ""


def test_a_legend_has_only_the_labels_that_differ() -> None:
    both = [{"__name__": "power", "hostname": "n1", "gpu_id": str(gpu), "job": "amd"} for gpu in (0, 1)]
    assert promql.legend(both) == ["gpu_id=0", "gpu_id=1"]
    assert promql.legend(both[:1]) == ["power"]
    assert promql.legend([{}]) == ["value"]
    assert promql.legend([{"hostname": "n1"}, {"hostname": "n2"}]) == ["n1", "n2"]


def test_a_legend_leaves_out_what_only_repeats_host_and_number() -> None:
    gpus = [{"hostname": "n1", "gpu_id": str(gpu), "gpu_uuid": f"GPU-{gpu}", "serial_number": f"S{gpu}"} for gpu in (0, 1)]
    assert promql.legend(gpus) == ["gpu_id=0", "gpu_id=1"]
    assert promql.legend([{"gpu_uuid": "GPU-0"}, {"gpu_uuid": "GPU-1"}]) == ["gpu_uuid=GPU-0", "gpu_uuid=GPU-1"]


def test_metrics_are_matched_whether_or_not_the_key_of_filters_was_typed_too() -> None:
    names = [MetricName("gpu_package_power"), MetricName("gpu_clock")]
    assert promql.matching(names, "/power") == promql.matching(names, "power") == names[:1]


def test_series_of_other_times_share_an_axis_without_made_up_values() -> None:
    answer = curves({"a": "1"}, {"a": "2"})
    answer.curves[1].unix = np.array([2.0, 5.0]).astype("<f8").tobytes()
    unix, rows = promql.together(promql.series_of(answer))
    assert unix.tolist() == [1.0, 2.0, 5.0]
    assert [int(np.isnan(row).sum()) for row in rows] == [1, 1]


def test_a_chart_of_many_series_shows_both_ends() -> None:
    assert list(drawn(3)) == [0, 1, 2]
    assert len(drawn(500)) == promql.DRAWN
    assert 0 in drawn(500)
    assert 499 in drawn(500)


def test_a_metric_is_put_into_a_query_as_one_would_ask_for_it() -> None:
    assert promql.query_for(MetricName("gpu_package_power", "gauge", "", ["power"])) == (
        "max by (hostname, gpu_id) (gpu_package_power)"
    )
    assert promql.query_for(MetricName("DCGM_FI_DEV_GPU_UTIL", "gauge", "", ["gpu_util"])).startswith("max by (Hostname, gpu) ")
    assert promql.query_for(MetricName("x_total", "counter")) == "rate(x_total[1m])"
    assert promql.query_for(MetricName("vllm:num_requests_waiting", "gauge", "", ["waiting"])) == "vllm:num_requests_waiting"
    for kind in ("counter", "gauge", "histogram", "summary", ""):
        assert promql.problem_of(promql.query_for(MetricName("x", kind))) == ""


def test_queries_are_kept_for_the_user_newest_last_and_once() -> None:
    for query in ("up", "sum(up)", "up"):
        promql.remember(query)
    assert promql.earlier() == ["sum(up)", "up"]


def test_spans_end_now_and_begin_with_what_they_are_named_after() -> None:
    store = store_of(with_gpus(nodes=2, gpus=2))
    now = store.unix
    assert promql.times_of(store, "now") == (0.0, 0.0)
    assert promql.times_of(store, "15 min") == (now - 900, now)
    attempt = store.attempt
    assert attempt is not None
    assert promql.times_of(store, "attempt") == (attempt.started_unix, now)
    assert promql.times_of(store, "run")[0] <= attempt.started_unix


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (1024.7, "1,025"), (0.012345, "0.01235"), (float("inf"), "+Inf")])
def test_figures_of_any_unit_are_short(value: float, text: str) -> None:
    assert figure(value) == text


# --- the screen ----------------------------------------------------------------------------------------------


async def test_a_typed_query_is_asked_and_its_answer_shown(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=2, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "slash")
        await pilot.press(*"gpu_package_power", "enter")
        screen = screen_of(app)
        await wait_for(lambda: screen.asked.answer is not None)
        await settle(pilot, app)
        rows = text_of(screen.query_one(AskedPane))
        assert "8 series" in rows
        assert "now (w)" in rows
        assert screen.query_one(SeriesTable).count() == 8
        await pilot.press("w")
        await wait_for(lambda: screen.asked.over_time)
        await settle(pilot, app)
        rows = text_of(screen.query_one(AskedPane))
        assert "last 15 min" in rows
        assert "1 WARNING" in rows
        assert "step 15 s" in rows
        assert screen.query_one("#answer-chart").display
        assert [row["series"] for row in screen.tables()["points"]]


async def test_a_query_that_cannot_be_right_is_not_sent(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=2, gpus=4))
    async with app.run_test(size=(80, 24)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "slash", *"sum(", "enter")
        await settle(pilot, app)
        screen = screen_of(app)
        assert screen.asked.answer is None
        assert "at 4, '(' is not closed" in text_of(screen.query_one(AskedPane))
        assert promql.earlier() == []


async def test_an_answer_that_stays_is_called_that_of_the_query_before(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=2, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "slash", *"up", "enter")
        screen = screen_of(app)
        await wait_for(lambda: screen.asked.answer is not None)
        await settle(pilot, app)
        assert "query before" not in text_of(screen.query_one(AskedPane))
        screen.put("sum(up")
        await settle(pilot, app)
        assert "of the query before" in text_of(screen.query_one(AskedPane))
        assert screen.tables()["query"][0]["query"] == "up"


async def test_the_scrollbar_covers_no_digits(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=8, gpus=8))
    async with app.run_test(size=(80, 24)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "slash", *"gpu_package_power", "enter")
        screen = screen_of(app)
        await wait_for(lambda: screen.asked.answer is not None)
        table = screen.query_one(SeriesTable)
        screen.paint(EVERYTHING)  # before a layout has made room for a scrollbar
        assert table.count() > table.scrollable_content_region.height
        lines = text_of(table).splitlines()
        room = table.scrollable_content_region.width
        assert lines[0].rstrip().endswith("VALUE" if not screen.asked.over_time else "MAX")
        await settle(pilot, app)
        assert table.scrollable_content_region.width == room, "the room of the scrollbar was kept free"


async def test_a_query_can_be_asked_by_name_from_anywhere(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=2, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("2", "colon")
        await pilot.press(*"promql gpu_package_power > 3", "enter")
        await wait_for(lambda: isinstance(app.screen, MetricsScreen))
        screen = screen_of(app)
        await wait_for(lambda: screen.asked.answer is not None)
        assert screen.asked.query == "gpu_package_power > 3"


async def test_a_source_without_promql_says_what_to_set_and_its_metrics_can_be_looked_through(make_app: AppMaker) -> None:
    fleet = with_gpus(nodes=2, gpus=4)
    gpus_of(fleet).promql = False
    app = make_app(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "slash", *"up", "enter")
        screen = screen_of(app)
        await wait_for(lambda: screen.asked.problem)
        await settle(pilot, app)
        assert "metrics.gpu.url" in text_of(screen.query_one(AskedPane))
        await pilot.press("m")
        await wait_for(lambda: screen.query_one(NamesPane).count() > 5)


async def test_metrics_are_found_as_one_types_and_put_into_the_query(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=2, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "m")
        screen = screen_of(app)
        pane = screen.query_one(NamesPane)
        await wait_for(lambda: pane.count() > 5)
        await pilot.press(*"memory errors", "down", "up", "enter")
        await settle(pilot, app)
        box = screen.query_one("#query", Input)
        assert box.value == "max by (hostname, gpu_id) (gpu_ecc_correct_total)"
        assert box.has_focus
        await pilot.press("enter")
        await wait_for(lambda: screen.asked.answer is not None)


async def test_earlier_queries_come_back_with_the_arrow(make_app: AppMaker) -> None:
    promql.remember("up")
    promql.remember("sum(up)")
    app = make_app(with_gpus(nodes=2, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "slash", "u", "up", "up")
        box = screen_of(app).query_one("#query", Input)
        assert box.value == "up"
        await pilot.press("down", "down")
        assert box.value == "u"
        await pilot.press("escape")
        assert not box.has_focus


async def test_a_silent_head_is_said_so(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=2, gpus=4))
    app.session.feed.silent = True  # type: ignore[attr-defined]
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "slash", *"up", "enter")
        screen = screen_of(app)
        await wait_for(lambda: screen.asked.problem == "the head does not answer")


async def test_after_the_end_nobody_is_asked(make_app: AppMaker) -> None:
    fleet = with_gpus(nodes=2, gpus=4)
    fleet.phase, fleet.verdict = "DONE", "VALID"
    app = make_app(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("6", "slash", *"up", "enter")
        screen = screen_of(app)
        await wait_for(lambda: "the run has ended" in screen.asked.problem)
