"""The record screen: from a verdict down to one sample, back the way one came, whatever the record lacks."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from console_helpers import settle, text_of, wait_for
from textual.pilot import Pilot

from console.app import PacelineApp
from console.feeds.replay import ReplayFeed
from console.screens.compare import CompareScreen
from console.screens.drill_definitions import DefinitionsScreen
from console.screens.drill_moment import LifeScreen, LogsScreen
from console.screens.live import LiveScreen
from console.screens.record import RecordScreen
from console.store.drill import VIEWS, Ask, Choice, DrillStore
from console.themes import shipped_folder
from console.widgets.drill_rows import ConfigPane
from harness.analysis.drill import Drill
from harness.analysis.views import Difference, Finding, Life, Variant, Where
from harness.records.runfile import AttemptRecord, read_run, write_run

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from made_run import Made, make_run

SIZES = [(120, 36), (80, 24)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = make_run(tmp_path_factory.mktemp("small"), Made(seconds=20, qps=100.0, stall_s=8, again_every=200))
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """One that a test may damage."""
    path: Path = make_run(tmp_path, Made(seconds=12, qps=60.0))
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def an_app(path: Path) -> PacelineApp:
    return PacelineApp(path, theme_folders=[shipped_folder()])


def has_heard(drill: DrillStore, ask: Ask) -> bool:
    """The screen has, not only the thread that reads."""
    return (drill.known(ask) is not None or ask in drill.failures) and ask not in drill._asked


async def read(pilot: Pilot[Any], app: PacelineApp) -> RecordScreen:
    """Until the view on show has its answer."""
    screen = app.screen
    assert isinstance(screen, RecordScreen)
    ask = screen.choice.ask
    await wait_for(lambda: has_heard(screen.drill, ask))
    await settle(pilot, app)
    return screen


async def on_view(pilot: Pilot[Any], app: PacelineApp, key: str) -> RecordScreen:
    await read(pilot, app)
    await pilot.press(key)
    return await read(pilot, app)


def items_of(screen: RecordScreen) -> list[Any]:
    return list(screen.pane.items)


def item_of(screen: RecordScreen) -> Any:
    return screen.pane.item


def shown(app: PacelineApp) -> str:
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


def toasts(app: PacelineApp) -> str:
    return " ".join(str(note.message) for note in app._notifications)


# --- down and back -------------------------------------------------------------------------------------------


async def test_a_run_of_512_replicas_is_drilled_from_its_verdict_to_one_sample_in_at_most_six_keys(tmp_path: Path) -> None:
    made = Made("fleet-512", nodes=64, per_node=8, qps=400.0, seconds=20, slow_node=17)
    app, pressed = an_app(make_run(tmp_path, made)), 0
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await read(pilot, app)
        assert "VALID" in shown(app)
        assert "node017" in text_of(screen.query_one("#findings"))
        while not isinstance(app.screen, LifeScreen):
            await pilot.press("enter")
            pressed += 1
            assert pressed <= 6
            if isinstance(app.screen, RecordScreen):
                await read(pilot, app)
        await wait_for(lambda: isinstance(app.screen, LifeScreen) and app.screen.pane.item is not None)
        assert app.screen.sample.slot is not None
        assert app.screen.sample.slot.startswith("node017/")
        await settle(pilot, app)
        assert all(word in shown(app) for word in ("decode", "prefill", "USUAL", "ITS REPLICA THEN"))
        for _ in range(pressed):
            await pilot.press("escape")
            await settle(pilot, app)
        assert isinstance(app.screen, RecordScreen)
        assert app.screen.choice.view == "verdict"


@pytest.mark.parametrize("size", SIZES)
async def test_tab_goes_through_all_views_and_each_has_something_to_say(small: Path, size: tuple[int, int]) -> None:
    wanted = {
        "verdict": "HEAD-ROOM", "timeline": "in flight", "distributions": "P99.9", "tail": "OF MORE", "fleet": "TTFTp99",
        "slowest": "LATENCY", "acts": "no clear change", "config": "no setting is known",
    }  # fmt: skip
    app = an_app(small)
    async with app.run_test(size=size) as pilot:
        for view in VIEWS:
            screen = await read(pilot, app)
            assert screen.choice.view == view
            assert wanted[view] in shown(app), shown(app)
            assert "reading" not in shown(app)
            assert f"▸{view.capitalize()}" in text_of(screen.query_one("#views"))
            await pilot.press("tab")
        await pilot.press("shift+tab")
        assert (await read(pilot, app)).choice.view == "config"


async def test_a_tail_is_taken_apart_by_other_groupings_and_leads_to_its_samples(small: Path) -> None:
    app = an_app(small)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_view(pilot, app, "t")
        await pilot.press("n", "n")
        await settle(pilot, app)
        group = item_of(screen)
        assert group.by == "time"
        assert group.lift > 2, "the cursor begins where the tail is"
        await pilot.press("enter")
        await read(pilot, app)
        assert screen.choice.view == "slowest"
        assert screen.choice.where == group.where
        assert group.where.words in text_of(screen.query_one("#context"))
        rows = items_of(screen)
        assert all(group.where.from_s <= row.scheduled_s < group.where.to_s for row in rows)
        await pilot.press("escape")
        await read(pilot, app)
        assert (screen.choice.view, screen.choice.by, screen.choice.where) == ("tail", "time", Where())
        assert item_of(screen) == group
        await pilot.press("m")
        assert "TPOT" in text_of((await read(pilot, app)).query_one("#context"))
        await pilot.press("w")
        await read(pilot, app)
        assert "limit" in text_of(screen.query_one("#context"))


async def test_replicas_are_sorted_filtered_and_put_together_by_node(small: Path) -> None:
    app = an_app(small)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_view(pilot, app, "f")
        assert item_of(screen).name.startswith("node001/"), "the slow node has the largest z"
        await pilot.press("slash", *"node002|gpu3", "enter")
        await settle(pilot, app)
        assert {row.name for row in items_of(screen)} == {
            *(f"node002/gpu{gpu}" for gpu in range(4)), "node000/gpu3", "node001/gpu3", "node003/gpu3",
        }  # fmt: skip
        await pilot.press("escape", "n")
        await read(pilot, app)
        assert next(row.name for row in items_of(screen)) == "node001"
        assert len(items_of(screen)) == 4
        screen.command_sort("name")
        screen.action_reverse()
        assert [row.name for row in items_of(screen)] == ["node003", "node002", "node001", "node000"]
        screen.command_sort("colour")
        await pilot.pause()
        assert "there are z, ttft" in toasts(app)
        await pilot.press("enter")
        await read(pilot, app)
        assert {row.slot.partition("/")[0] for row in items_of(screen)} == {"node003"}


async def test_a_setting_leads_to_the_replicas_that_have_it(small: Path) -> None:
    app = an_app(small)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await read(pilot, app)
        some, rest = ["node000/gpu1", "node002/gpu0"], ["node000/gpu0", "node001/gpu0", "node003/gpu0"]
        screen.drill.answers[Ask("config")] = [Difference("engine.version", [Variant("1.2", rest), Variant("1.1", some)])]
        await pilot.press("c", "down", "enter")
        await read(pilot, app)
        assert isinstance(screen.query_one("#settings"), ConfigPane)
        assert {row.name for row in items_of(screen)} == set(some)
        assert "engine.version = 1.1" in text_of(screen.query_one("#context"))
        await pilot.press("escape")
        assert "2 replicas" in text_of((await read(pilot, app)).query_one("#settings"))


async def test_a_view_is_chosen_by_name_and_a_wrong_name_is_told(small: Path) -> None:
    app = an_app(small)
    async with app.run_test(size=(120, 36)) as pilot:
        await read(pilot, app)
        await pilot.press("colon", *"view tail", "enter")
        screen = await read(pilot, app)
        assert screen.choice.view == "tail"
        screen.command_view("nowhere")
        await pilot.pause()
        assert "there are verdict, timeline" in toasts(app)
        screen.command_group("output")
        assert screen.choice.by == "output length"
        await pilot.press("l")
        assert "not in the tail view" in toasts(app)


async def test_another_view_takes_the_field_of_a_filter_away(small: Path) -> None:
    app = an_app(small)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_view(pilot, app, "s")
        await pilot.press("slash", *"node001 [b", "tab", "x", "t")
        await read(pilot, app)
        assert not screen.has_class("-filtering")
        assert (screen.choice.view, screen.choice.text) == ("tail", ""), "keys are the screen's again"


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (40, 12)])
async def test_a_view_is_chosen_by_a_click_on_its_name(small: Path, size: tuple[int, int]) -> None:
    app = an_app(small)
    async with app.run_test(size=size) as pilot:
        screen = await read(pilot, app)
        for view, key in (("fleet", "f"), ("config", "c"), ("verdict", "v")):
            line = text_of(screen.query_one("#views"))
            name = view.capitalize() if view.capitalize() in line else key
            await pilot.click("#views", offset=(line.rindex(name), 0))
            await settle(pilot, app)
            assert screen.choice.view == view
            assert f"▸{view.capitalize()}" in text_of(screen.query_one("#views")), "the one on show has its name at any width"


# --- moments ---------------------------------------------------------------------------------------------------


async def test_a_mark_leads_to_the_logs_around_it_and_to_a_replay_from_there(own: Path) -> None:
    unix = 1_795_000_000.0 + 5 + 8  # the eviction
    lines = [(unix - 300, "long before"), (unix - 1, "replica lags"), (unix + 1, "evicted it"), (unix + 60, "long after")]
    stamp = "%Y-%m-%d %H:%M:%S"
    text = [f"{time.strftime(stamp, time.localtime(at))},000 WARNING {said}" for at, said in lines]
    (own / "logs").mkdir(exist_ok=True)
    (own / "logs" / "head.log").write_text("\n".join(text) + "\n")
    app = an_app(own)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await on_view(pilot, app, "i")
        await pilot.press("slash", *"evict", "enter")
        await settle(pilot, app)
        assert item_of(screen).kind == "act"
        assert "┊" in text_of(screen.query_one("#lanes"))
        await pilot.press("enter")
        logs = app.screen
        assert isinstance(logs, LogsScreen)
        await wait_for(lambda: len(logs.view.rows) == 3)
        await settle(pilot, app)
        told = text_of(logs.view).splitlines()
        places = [next((at for at, line in enumerate(told) if said in line), -1) for said in ("lags", "── ", "evicted it")]
        assert places == [0, 1, 2]
        await pilot.press("slash", *"lags", "enter")
        await settle(pilot, app)
        assert "evicted it" not in text_of(logs.view)
        await pilot.press("escape", "escape")
        await settle(pilot, app)
        assert app.screen is screen
        began_s = time.monotonic()
        await pilot.press("R")
        await wait_for(lambda: isinstance(app.screen, LiveScreen) and app.store.snapshot is not None)
        feed = app.session.feed
        assert isinstance(feed, ReplayFeed)
        assert 10 <= feed.position_s < 11 + time.monotonic() - began_s, "three seconds before it, and playing"


async def test_samples_are_leafed_through_and_lead_to_their_logs(small: Path) -> None:
    app = an_app(small)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await on_view(pilot, app, "s")
        slowest = [row.seq for row in items_of(screen)]
        await pilot.press("enter", "right")
        life = app.screen
        assert isinstance(life, LifeScreen)
        await wait_for(lambda: has_heard(life._drill, life._ask))
        assert isinstance(life._drill.known(life._ask), Life)
        await settle(pilot, app)
        assert life.sample.seq == slowest[1]
        assert "2 of 200" in text_of(life.query_one("#context"))
        assert len(life.tables()["segments"]) >= 4
        await pilot.press("left", "left", "l")
        await settle(pilot, app)
        assert isinstance(app.screen, LogsScreen)
        assert f"sample {slowest[0]:,d}" in text_of(app.screen.query_one("#context"))


# --- what a record may lack ------------------------------------------------------------------------------------


async def test_a_record_without_samples_has_its_figures_and_no_view_fails(tmp_path: Path) -> None:
    path = make_run(tmp_path, Made(seconds=6, qps=20.0))
    for file in (path / "samples").iterdir():
        file.unlink()
    app = an_app(path)
    async with app.run_test(size=(80, 24)) as pilot:
        for view in VIEWS:
            screen = await read(pilot, app)
            assert screen.choice.view == view
            assert screen.drill.failures == {}
            await pilot.press("enter" if view == "fleet" else "down")
            await settle(pilot, app)
            screen.choice = replace(Choice(), view=view)
            await pilot.press("tab")


async def test_a_damaged_file_is_named_in_every_view(own: Path) -> None:
    chunk = sorted((own / "samples").iterdir())[0]
    chunk.write_bytes(chunk.read_bytes()[:200])
    app = an_app(own)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await read(pilot, app)
        await wait_for(lambda: chunk.name in text_of(screen.query_one("#findings")))
        await on_view(pilot, app, "s")
        assert "▲" in text_of(screen.query_one("#context"))
        assert items_of(screen), "the other chunks are there"


async def test_a_folder_that_was_copied_badly_does_not_hide_what_was_found(own: Path) -> None:
    for chunk in (own / "samples").iterdir():
        chunk.write_bytes(b"not parquet")
    app = an_app(own)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await read(pilot, app)
        await wait_for(lambda: "more of this record" in text_of(screen.pane))
        assert "has no row of them" in " ".join(text_of(screen.pane).split())
        assert isinstance(item_of(screen), Finding), "the cursor is on what was found"
        assert "hold against the limits" in text_of(screen.query_one("#margins"))
        await on_view(pilot, app, "d")
        assert "samples/0" in text_of(screen.query_one("#context")), "not the folder, which is the same for all"


async def test_a_question_that_fails_is_told_in_its_view(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Drill) -> None:
        raise OSError("Stale file handle")

    monkeypatch.setattr(Drill, "effects", refuse)
    app = an_app(small)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await on_view(pilot, app, "a")
        assert "Stale file handle" in text_of(screen.pane)


async def test_attempts_are_gone_through_and_each_has_its_own_verdict(own: Path) -> None:
    run = read_run(own)
    second = AttemptRecord(2, "performance", "Server", 60.0, 1, run.ended_unix, run.ended_unix + 1, "ENDED", "INVALID")
    second.reasons = ["aborted by the operator"]
    run.attempts.append(second)
    write_run(own, run)
    app = an_app(own)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await read(pilot, app)
        assert "attempt 2 of 2" in text_of(screen.query_one("#views"))
        assert "aborted by the operator" in text_of(screen.query_one("#verdict"))
        await pilot.press("left_square_bracket")
        await read(pilot, app)
        assert "● VALID  attempt 1" in text_of(screen.query_one("#verdict"))
        await pilot.press("left_square_bracket")
        assert "no attempt before" in toasts(app)
        await on_view(pilot, app, "f")
        assert len(items_of(screen)) == 16


async def test_the_attempts_of_a_run_are_compared_from_its_record(own: Path) -> None:
    app = an_app(own)
    async with app.run_test(size=(120, 36)) as pilot:
        await read(pilot, app)
        await pilot.press("K")
        assert "this record has one attempt" in toasts(app)
    run = read_run(own)
    run.attempts.append(
        AttemptRecord(2, "performance", "Server", 60.0, 1, run.ended_unix, run.ended_unix + 1, "ENDED", "INVALID")
    )
    write_run(own, run)
    app = an_app(own)
    async with app.run_test(size=(120, 36)) as pilot:
        await read(pilot, app)
        await pilot.press("K")
        await wait_for(lambda: isinstance(app.screen, CompareScreen) and app.screen.pane.found is not None)
        assert isinstance(app.screen, CompareScreen)
        assert app.screen.pane.found is not None
        assert [(side.attempt, side.verdict) for side in app.screen.pane.found.sides] == [(1, "VALID"), (2, "INVALID")]
        await pilot.press("escape")
        assert isinstance(app.screen, RecordScreen)


async def test_a_view_that_is_being_read_keeps_the_keys_alive(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, slowest = threading.Event(), Drill.slowest

    def held(self: Drill, *args: Any, **given: Any) -> Any:
        gate.wait(30)
        return slowest(self, *args, **given)

    monkeypatch.setattr(Drill, "slowest", held)
    app = an_app(small)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await read(pilot, app)
        try:
            await pilot.press("s")
            await settle(pilot, app)
            assert "reading the record" in text_of(screen.pane)
            await pilot.press("v")
            await settle(pilot, app)
            assert "VALID" in shown(app)
            await pilot.press("s")
        finally:
            gate.set()
        await read(pilot, app)
        assert "LATENCY" in shown(app)
        assert items_of(screen)


# --- what leaves it ----------------------------------------------------------------------------------------------


async def test_rows_are_exported_unrounded_and_copied(own: Path) -> None:
    app = an_app(own)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_view(pilot, app, "f")
        await pilot.press("ctrl+e", "y")
        await settle(pilot, app)
        (file,) = (own / "exports").glob("*.json")
        rows = json.loads(file.read_text())["fleet"]
        assert len(rows) == 16
        assert {"name", "ttft_p99_ms", "z_tpot"} <= rows[0].keys()
        assert item_of(screen).name in app.clipboard
        for key, table in (("v", "limits"), ("i", "ticks"), ("d", "cdf"), ("t", "parts"), ("s", "samples"), ("a", "acts")):
            screen = await on_view(pilot, app, key)
            assert screen.tables()[table], key


async def test_figures_of_a_view_are_defined_over_it(small: Path) -> None:
    app = an_app(small)
    async with app.run_test(size=(80, 24)) as pilot:
        await on_view(pilot, app, "t")
        await pilot.press("D")
        await settle(pilot, app)
        assert isinstance(app.screen, DefinitionsScreen)
        assert "first token - scheduled time" in " ".join(shown(app).replace("│", "").split())
        await pilot.press("escape")
        assert isinstance(app.screen, RecordScreen)
