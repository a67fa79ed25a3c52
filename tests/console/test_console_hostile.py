"""What a careless hand, a damaged disk or bad luck with the moment does to the console: nothing worse than a sentence."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from console_helpers import settle, text_of
from textual.pilot import Pilot

from console.app import PacelineApp
from console.feeds import tape
from console.feeds.scripted import ScriptedFeed
from console.screens.dialogs import AskOnQuit, Dialog
from console.screens.launch import LaunchScreen
from console.session import Session
from console.store import preflight
from console.store.fleet import FleetStore
from console.store.launching import Draft, spec_files
from console.store.runs import BadRunFilter, filter_of, scan
from console.themes import shipped_folder
from console.widgets.header import HeaderLine
from harness.doctor import Check
from harness.records.columns import TIMELINE_SCHEMA
from harness.records.layout import NoSuchRun, find_run, list_runs
from harness.records.reader import Record
from harness.specfile import SpecError, load_spec


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def a_record(folder: Path, **fields: object) -> None:
    folder.mkdir(parents=True)
    run = {"run": folder.name, "spec": {}, "phase": "DONE", "synthetic": True, **fields}
    (folder / "run.json").write_text(json.dumps(run))


# --- runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["ttft>.", "ttft>1.2.3", "qps=..", "acts>1e9"])
def test_a_number_that_is_none_in_the_filter_of_runs_is_told(text: str) -> None:
    with pytest.raises(BadRunFilter):
        filter_of(text)


def test_the_filter_of_runs_takes_any_number_of_exclamation_marks(root: Path) -> None:
    a_record(root / "one")
    (row,) = scan(root, {})
    assert filter_of("!" * 5000 + "one")(row)
    assert not filter_of("!" * 5001 + "one")(row)


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": {"fleet": {"nodes": "many"}}},
        {"spec": {"limits": {"ttft_p99_ms": "abc"}}},
        {"spec": {"load": {"target_qps": [1]}}},
        {"started_unix": 1e30},
        {
            "attempts": [
                {"number": 1, "kind": "performance", "scenario": "Server", "target_qps": 1.0, "epoch": 1, "started_unix": 1e300}
            ]
        },
    ],
)
def test_a_record_with_values_that_cannot_be_is_a_damaged_row_beside_the_others(root: Path, fields: dict[str, object]) -> None:
    a_record(root / "broken", **fields)
    a_record(root / "sound")
    assert {row.name: row.state for row in scan(root, {})} == {"broken": "damaged", "sound": "ended"}


def test_a_link_to_itself_in_the_folder_of_runs_hides_no_run(root: Path) -> None:
    (root / "loop").symlink_to(root / "loop")
    a_record(root / "sound")
    assert [row.name for row in scan(root, {})] == ["sound"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_run_in_a_closed_folder_hides_no_run(root: Path) -> None:
    a_record(root / "closed")
    a_record(root / "sound")
    (root / "closed").chmod(0)
    try:
        assert [run.name for run in list_runs(root)] == ["sound"]
    finally:
        (root / "closed").chmod(0o700)


def test_a_name_too_long_for_a_file_is_no_run(root: Path) -> None:
    with pytest.raises(NoSuchRun):
        find_run("x" * 500, root)


def test_brackets_in_the_path_of_a_record_are_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "[bench] a*" / "run"
    a_record(folder)
    (folder / "timeline").mkdir()
    pl.DataFrame(schema=TIMELINE_SCHEMA).clear(1).write_parquet(folder / "timeline" / "000001.parquet")
    record = Record(folder)
    assert record.timeline().collect().height == 1
    assert not record.problems


def test_a_replay_of_a_run_that_goes_on_reads_one_moment_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that is written while the columns are read would give them different lengths."""
    looks = []

    class Growing(Record):
        def timeline(self, attempt: int | None = None) -> pl.LazyFrame:
            looks.append(attempt)
            return pl.DataFrame(schema=TIMELINE_SCHEMA).clear(len(looks)).with_columns(unix=1.0, slot=pl.lit("a")).lazy()

    assert len(tape.read_timeline(Growing(tmp_path), ["a"]).unix) == 1
    assert len(looks) == 1


# --- files and folders that are typed ------------------------------------------------------------------------


def test_a_home_that_nobody_has_is_a_path_like_any_other() -> None:
    assert "~nobody-here" in str(load_spec("demo", ["record.dir=~nobody-here/x"]).record.dir)
    with pytest.raises(SpecError, match="no such file"):
        load_spec("~nobody-here/x.toml")


def test_a_spec_file_with_a_name_too_long_is_told_and_not_remembered_to_death(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        Draft(f"{'x' * 500}.toml")
    (tmp_path / "state" / "paceline").mkdir(parents=True)
    (tmp_path / "state" / "paceline" / "specs.txt").write_text(f"/{'x' * 500}.toml\n")
    assert spec_files(tmp_path / "here") == []


async def test_launch_says_that_there_is_no_such_file_whatever_is_typed() -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        screen = app.screen
        assert isinstance(screen, LaunchScreen)
        await until(pilot, lambda: screen.draft is not None)  # the line is about the spec then
        for text in ("x" * 500, "~nobody-here/x", "[red]x", ""):
            screen._editing = "path"
            screen._take_path(text)
            await pilot.pause()
            assert "no such file" in text_of(screen.about)


async def test_a_start_whose_checks_never_end_does_not_block_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """G while the checks run, then another spec: the first question is taken back, and G asks again."""
    gate = threading.Event()
    slow = preflight.Probe("slow", lambda: Check("slow", gate.wait(100), "fine"), of_machine=False)
    monkeypatch.setattr(preflight, "probes", lambda spec: [slow])
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        screen = app.screen
        assert isinstance(screen, LaunchScreen)
        await until(pilot, lambda: screen.draft is not None)
        try:
            first = screen.draft
            await pilot.press("G", "down")
            await until(pilot, lambda: not screen._busy and screen.draft not in (None, first))
            assert app.screen is screen
        finally:
            gate.set()
        await until(pilot, screen._checked.is_set)
        await pilot.press("G")
        await until(pilot, lambda: isinstance(app.screen, Dialog))
        await pilot.press("escape")


# --- another run in the same console ---------------------------------------------------------------------------


def a_scripted_session(app: PacelineApp) -> Session:
    return Session(ScriptedFeed(), FleetStore(app.now_s))


async def test_the_header_of_runs_is_about_the_run_that_is_open() -> None:
    app = PacelineApp(feed=ScriptedFeed(), theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("5")
        await until(pilot, lambda: app.current_mode == "runs")
        other = a_scripted_session(app)
        app.open_session(other)
        await until(pilot, lambda: app.session is other and app.current_mode == "live" and other.store.snapshot is not None)
        await pilot.press("5")
        await until(pilot, lambda: app.current_mode == "runs")
        app.store.run = "the-other-run"
        await settle(pilot, app)
        assert "the-other-run" in text_of(app.screen.query_one(HeaderLine))


async def test_leaving_another_run_does_not_offer_to_end_it(tmp_path: Path) -> None:
    """`paceline demo` asks whether its own run should end; never one that was only opened there."""
    app = PacelineApp(tmp_path / "mine", feed=ScriptedFeed(), ask_on_quit=True, theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, AskOnQuit))
        await pilot.press("escape")
        other = a_scripted_session(app)
        app.open_session(other)
        await until(pilot, lambda: app.session is other and app.current_mode == "live" and other.store.snapshot is not None)
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value == "detached"


async def until(pilot: Pilot[object], true: object, within_s: float = 60.0) -> None:
    ends_s = time.monotonic() + within_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < ends_s, "never became true"
        await pilot.pause()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("key", ["enter", "R"])
async def test_a_key_on_an_empty_list_of_runs_says_that_no_run_is_there(key: str) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("5", key)
        await pilot.pause()
        assert [note.message for note in app._notifications] == ["no run under the cursor"]


def test_a_working_directory_that_is_gone_has_no_spec_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert spec_files() == []
