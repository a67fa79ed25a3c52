"""Runs: what is listed of a folder, in which order, and what can be done with a row."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

import pytest
from console_helpers import rewritten, text_of, wait_for
from recorded_kit import T0, a_spec, ended_run, recorded_run
from textual.pilot import Pilot

from console.app import PacelineApp
from console.feeds.replay import ReplayFeed
from console.screens.live import LiveScreen
from console.screens.record import RecordScreen
from console.screens.runs import RunsScreen
from console.store.runs import SORTS, BadRunFilter, RunRow, filter_of, ordered, scan, size_of
from console.themes import shipped_folder


def rows_of(root: Path) -> dict[str, RunRow]:
    return {row.name: row for row in scan(root, {})}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    return tmp_path


@pytest.fixture
def some_runs(root: Path) -> Path:
    ended_run(root, "old-1", at=T0)
    ended_run(root, "slow-2", a_spec(qps=200), at=T0 + 1000, verdict="INVALID", ttft_p99_ms=900.0)
    ended_run(root, "new-3", at=T0 + 2000)
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    (root / "never-began").mkdir()
    (root / "never-began" / "spec.json").write_text("{}")
    (root / "holiday-photos").mkdir()
    return root


async def on_runs(pilot: Pilot[object], app: PacelineApp) -> RunsScreen:
    await pilot.press("5")
    screen = app.screen
    assert isinstance(screen, RunsScreen)
    await wait_for(lambda: not screen.pane.reading)
    return screen


# --- the store -----------------------------------------------------------------------------------------------


def test_rows_say_what_the_records_say_and_damaged_folders_why(some_runs: Path) -> None:
    rows = rows_of(some_runs)
    assert set(rows) == {"old-1", "slow-2", "new-3", "broken", "never-began"}
    slow = rows["slow-2"]
    assert (slow.state, slow.outcome, slow.target_qps, slow.ttft_p99_ms) == ("ended", "INVALID", 200.0, 900.0)
    assert (slow.scenario, slow.kind, slow.replicas, slow.acts) == ("Server", "performance", 4, 0)
    assert rows["broken"].state == rows["never-began"].state == "damaged"
    assert "not a run record" in rows["broken"].problem
    assert "no run.json" in rows["never-began"].problem
    assert size_of(some_runs / "old-1") == (some_runs / "old-1" / "run.json").stat().st_size


def test_a_row_is_read_again_only_when_its_record_has_changed(some_runs: Path) -> None:
    known = {row.path: row for row in scan(some_runs, {})}
    again = {row.path: row for row in scan(some_runs, known)}
    assert all(again[path] is row for path, row in known.items())
    run_json = some_runs / "old-1" / "run.json"
    rewritten(run_json, run_json.read_text().replace('"VALID"', '"ABORTED"'))
    third = {row.path: row for row in scan(some_runs, again)}
    assert third[some_runs / "old-1"].verdict == "ABORTED"


def test_no_folder_is_no_runs(tmp_path: Path) -> None:
    assert list(scan(tmp_path / "nothing-here", {})) == []


def test_300_runs_are_read_in_a_moment(tmp_path: Path) -> None:
    for number in range(300):
        ended_run(tmp_path, f"run-{number:03d}", at=T0 + number)
    start_s = time.process_time()
    known = {row.path: row for row in scan(tmp_path, {})}
    first_s = time.process_time() - start_s
    start_s = time.process_time()
    assert len(list(scan(tmp_path, known))) == 300
    assert first_s < 2.0
    assert time.process_time() - start_s < 0.5


def test_unknown_figures_come_last_in_every_order(some_runs: Path) -> None:
    rows = list(rows_of(some_runs).values())
    by_name = {sort.name: sort for sort in SORTS}
    assert [row.name for row in ordered(rows, by_name["ttft"])][:1] == ["slow-2"]
    for sort in (by_name["ttft"], by_name["target"]):
        for reverse in (False, True):
            assert {row.name for row in ordered(rows, sort, reverse)[-2:]} == {"broken", "never-began"}
    names = [row.name for row in ordered(rows, by_name["when"]) if row.state == "ended"]
    assert names == ["new-3", "slow-2", "old-1"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("valid", {"old-1", "new-3"}),
        ("!valid", {"slow-2", "broken", "never-began"}),
        ("ttft>0.5s", {"slow-2"}),
        ("target<=100 server", {"old-1", "new-3"}),
        ("old|broken", {"old-1", "broken"}),
        ("!valid|old", {"old-1", "slow-2", "broken", "never-began"}),
        ("ttft > 500ms", {"slow-2"}),
        ("ttft<2m server", {"old-1", "slow-2", "new-3"}),
        ("ttft!=1h", {"old-1", "slow-2", "new-3"}),
        ("", {"old-1", "slow-2", "new-3", "broken", "never-began"}),
    ],
)
def test_a_filter_is_words_and_comparisons(some_runs: Path, text: str, names: set[str]) -> None:
    keeps = filter_of(text)
    assert {name for name, row in rows_of(some_runs).items() if keeps(row)} == names


def test_a_comparison_that_cannot_be_read_says_what_could(some_runs: Path) -> None:
    with pytest.raises(BadRunFilter, match="compare one of qps, target"):
        filter_of("colour>3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acts>1s", "1s: no unit s; write it like 500 or 10k"),
        ("ttft>2k", "2k: no unit k; write it like 2500, 2.5s or 80ms"),
        ("acts~1", "acts~1: compare one of qps"),
        ("valid|", "valid|: a word is missing beside |"),
    ],
)
def test_units_and_signs_belong_to_the_column(text: str, said: str) -> None:
    with pytest.raises(BadRunFilter, match=f"^{re.escape(said)}"):
        filter_of(text)


# --- the screen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (160, 48)])
async def test_the_list_has_verdicts_figures_and_reasons(some_runs: Path, size: tuple[int, int]) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=size) as pilot:
        screen = await on_runs(pilot, app)
        shown = text_of(screen.pane)
        for text in ("new-3", "● VALID", "× INVALID", "900 ms", "310 ms", "damaged: it has no run.json"):
            assert text in shown
        assert "Runs 5" in str(screen.pane.border_title)


async def test_an_empty_folder_says_how_to_begin(root: Path) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await on_runs(pilot, app)
        assert "0 Launch starts one" in text_of(screen.pane)
        await pilot.press("enter", "R", "space", "c", "y")  # nothing to do them with, and no harm
        assert app.screen is screen


async def test_the_cursor_stays_on_its_run_when_the_order_changes(some_runs: Path) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_runs(pilot, app)
        await pilot.press("j", "j", "j")
        assert screen.pane.row is not None
        name = screen.pane.row.name
        await pilot.press("o", "O")
        assert screen.pane.row.name == name
        assert "name, reversed" in str(screen.pane.border_title)
        await pilot.press("slash", *"invalid", "enter")
        assert [row.name for row in screen.pane.rows] == ["slow-2"]
        await pilot.press("escape")
        assert len(screen.pane.rows) == 5


async def test_enter_opens_a_record_and_from_there_its_replay_and_the_way_back(root: Path) -> None:
    recorded_run(root, "kit-1", seconds=10)
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        await on_runs(pilot, app)
        await pilot.press("enter")
        await wait_for(lambda: isinstance(app.screen, RecordScreen))
        await pilot.press("escape")
        await wait_for(lambda: isinstance(app.screen, RunsScreen))
        await pilot.press("1")
        await wait_for(lambda: isinstance(app.screen, RecordScreen))
        await pilot.press("R")
        await wait_for(lambda: isinstance(app.screen, LiveScreen) and isinstance(app.session.feed, ReplayFeed))
        await wait_for(lambda: app.store.snapshot is not None)
        assert app.looks_only


async def test_figures_of_a_run_that_goes_on_say_when_they_come(some_runs: Path) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_runs(pilot, app)
        row = next(row for row in screen.pane.rows if row.name == "new-3")
        row.state, row.phase, row.completed_qps, row.ttft_p99_ms = "running", "MEASURING", math.nan, math.nan
        screen.pane.move_to(screen.pane.rows.index(row))
        screen._tell_row()
        screen.pane.repaint()
        line = next(line for line in text_of(screen.pane).splitlines() if "new-3" in line)
        assert line.count("at end") == 2
        assert "enter shows them live" in screen.about.text
