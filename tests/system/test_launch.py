"""A run from the first key to the last: chosen, changed and started on Launch, stopped on Live, found in Runs, replayed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal_kit import Terminal, environment
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import PacelineApp
from console.feeds.replay import ReplayFeed
from console.screens.dialogs import Dialog
from console.screens.launch import LaunchScreen
from console.screens.live import LiveScreen
from console.screens.runs import RunsScreen
from console.themes import shipped_folder
from console.widgets.launching import FieldBox
from harness.cluster.local import head_alive, kill_run
from harness.records.layout import RunFolder, list_runs
from harness.records.runfile import read_run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "runs"
    for folder in list_runs(tmp_path / "runs"):
        kill_run(folder)


async def wait_for(true: Callable[[], object], what: str, within_s: float = 45.0) -> None:
    until_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until_s, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.05)


async def focused(app: PacelineApp, name: str) -> None:
    """The next key is for that widget."""
    await wait_for(lambda: app.focused is not None and app.focused.id == name, f"the focus on {name}")


async def confirm(pilot: Pilot[object], app: PacelineApp, key: str) -> None:
    """The key takes the focus to the button; enter presses it."""
    await pilot.press(key)
    await focused(app, "yes")
    await pilot.press("enter")


async def change(pilot: Pilot[object], app: PacelineApp, screen: LaunchScreen, field: str, value: str) -> None:
    while screen.form.field is None or screen.form.field.dotted != field:
        await pilot.press("down")
    await pilot.press("enter")
    await focused(app, "field")
    box = screen.query_one("#field", FieldBox)
    await pilot.press("ctrl+u", *value)
    await wait_for(lambda: box.value == value, f"{value} in the box of {field}")
    await pilot.press("enter")
    await wait_for(lambda: screen.draft is not None and screen.draft.changes.get(field) == value, f"{field} = {value}")


async def start(pilot: Pilot[object], app: PacelineApp) -> RunFolder:
    await wait_for(lambda: isinstance(app.screen, LaunchScreen), "Launch")
    screen = app.screen
    assert isinstance(screen, LaunchScreen)
    await wait_for(lambda: screen.draft is not None and screen._checked.is_set(), "the checks")
    assert screen.draft is not None
    assert screen.draft.which == "demo"
    assert not screen.checks.failed
    await pilot.press("enter")
    for field, value in (("load.target_qps", "20"), ("load.duration_s", "60"), ("fleet.nodes", "1")):
        await change(pilot, app, screen, field, value)
    await pilot.press("G")
    await wait_for(lambda: isinstance(app.screen, Dialog), "the question")
    await focused(app, "cancel")
    await confirm(pilot, app, "right")
    await wait_for(lambda: isinstance(app.screen, LiveScreen), "Live")
    assert app.session.path is not None
    return RunFolder(app.session.path)


async def test_a_run_is_started_by_keys_watched_stopped_found_and_replayed(root: Path) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        folder = await start(pilot, app)
        await wait_for(lambda: app.store.count_states().get("READY") == 8, "eight READY replicas")
        await wait_for(lambda: app.store.snapshot is not None and app.store.snapshot.completed > 80, "completions")
        await pilot.press("S")
        await wait_for(lambda: isinstance(app.screen, Dialog), "the question about the stop")
        await focused(app, "word")
        app.screen.query_one("#word", Input).value = folder.name
        await confirm(pilot, app, "enter")
        await wait_for(lambda: app.store.ended and not head_alive(folder), "the end")

        await pilot.press("5")
        await wait_for(lambda: isinstance(app.screen, RunsScreen), "Runs")
        runs = app.screen
        assert isinstance(runs, RunsScreen)
        await wait_for(lambda: runs.pane.row is not None and runs.pane.row.state == "ended", "the run in the list")
        assert runs.pane.row is not None
        assert runs.pane.row.verdict == read_run(folder.path).verdict == "ABORTED"

        await pilot.press("R")
        await wait_for(lambda: isinstance(app.session.feed, ReplayFeed) and app.store.snapshot is not None, "the replay")
        feed = app.session.feed
        assert isinstance(feed, ReplayFeed)
        feed.seek_to(feed.length_s / 2)
        await wait_for(lambda: app.store.count_states().get("READY") == 8, "the fleet as it was")
        feed.set_speed(60)
        await wait_for(lambda: feed.at_end and app.store.ended, "the end of the replay")
        assert app.store.attempt is not None
        assert app.store.attempt.verdict == "ABORTED"
        assert len(app.store.series) > 5


async def test_a_run_started_here_goes_on_when_the_console_is_left(root: Path) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(80, 24)) as pilot:
        folder = await start(pilot, app)
        await pilot.press("q")
    assert head_alive(folder)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_paceline_alone_on_a_terminal_is_the_console_on_launch(root: Path) -> None:
    env = environment(PACELINE_RUNS=str(root))
    terminal = Terminal(f"paceline-launch-{os.getpid()}", [sys.executable, "-m", "console.cli"], env, 100, 30)
    try:
        terminal.wait("Preflight")
        terminal.wait("demo")
        terminal.press_until("5", "0 Launch starts one")
    finally:
        terminal.close()
    assert not root.exists()
