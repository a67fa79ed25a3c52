"""Runs: tags, notes, pins, and runs that are deleted, from the screen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from console_helpers import rewritten, text_of, wait_for
from recorded_kit import T0, ended_run, recorded_run
from textual.pilot import Pilot
from textual.widgets import Button, Input, Static

from console.app import PacelineApp
from console.screens.dialogs import Dialog
from console.screens.runs import RunsScreen
from console.store.deleting import Deleted, delete
from console.store.runs import filter_of, scan
from console.themes import shipped_folder
from harness.records.labels import Labels, change_labels, read_labels, with_pin, with_tags
from harness.records.layout import RunFolder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    for number, name in enumerate(("old-1", "mid-2", "new-3")):
        ended_run(tmp_path, name, at=T0 + number * 1000)
    return tmp_path


async def on_runs(pilot: Pilot[Any], app: PacelineApp) -> RunsScreen:
    await pilot.press("5")
    screen = app.screen
    assert isinstance(screen, RunsScreen)
    await wait_for(lambda: not screen.pane.reading)
    return screen


def an_app(*, read_only: bool = False) -> PacelineApp:
    return PacelineApp(theme_folders=[shipped_folder()], read_only=read_only)


def labels_of(root: Path, name: str) -> Labels:
    return read_labels(RunFolder(root / name))


async def dialog(app: PacelineApp) -> Dialog:
    await wait_for(lambda: isinstance(app.screen, Dialog) and app.screen.is_attached and app.focused is not None)
    assert isinstance(app.screen, Dialog)
    return app.screen


async def closed(app: PacelineApp, then: Callable[[], object]) -> None:
    await wait_for(lambda: isinstance(app.screen, RunsScreen) and then())


def told(app: PacelineApp) -> str:
    return " ".join(str(toast.message) for toast in app._notifications)


def test_a_row_is_read_again_when_its_labels_have_changed_and_only_then(root: Path) -> None:
    known = {row.path: row for row in scan(root, {})}
    change_labels(RunFolder(root / "old-1"), lambda labels: with_tags(labels, ["Baseline"]))
    again = {row.path: row for row in scan(root, known)}
    assert [path.name for path, row in again.items() if known[path] is not row] == ["old-1"]
    assert [row.name for row in again.values() if filter_of("tag:baseline")(row)] == ["old-1"]
    rewritten(root / "old-1" / "labels.json", "{")
    third = {row.path: row for row in scan(root, again)}
    assert third[root / "old-1"].label_problem.startswith("labels.json damaged")
    assert third[root / "old-1"].verdict == "VALID"


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_tags_note_and_pin_of_the_run_under_the_cursor(root: Path, size: tuple[int, int]) -> None:
    app = an_app()
    async with app.run_test(size=size) as pilot:
        screen = await on_runs(pilot, app)
        await pilot.press("t", *"fp8 baseline", "enter")
        await closed(app, lambda: labels_of(root, "new-3").tags == ["fp8", "baseline"])
        await pilot.press("n", *"to beat", "enter")
        await closed(app, lambda: labels_of(root, "new-3").note == "to beat")
        await pilot.press("p")
        await wait_for(lambda: labels_of(root, "new-3").pinned and screen.pane.row is not None and screen.pane.row.pinned)
        await wait_for(lambda: "pinned #fp8 #baseline to beat" in screen.about.text)
        line = next(line for line in text_of(screen.pane).splitlines() if "new-3" in line)
        assert "◆new-3" in line
        assert ("fp8" in line) is (size[0] > 80)
        await pilot.press("t")
        box = (await dialog(app)).query_one("#text", Input)
        assert box.value == "fp8 baseline "
        box.value = "baseline"
        await pilot.press("enter")
        await closed(app, lambda: labels_of(root, "new-3") == Labels(["baseline"], "to beat", True))


async def test_what_is_no_tag_is_told_while_it_is_typed(root: Path) -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await on_runs(pilot, app)
        await pilot.press("t")
        asked = await dialog(app)
        asked.query_one("#text", Input).value = "a|b"
        await pilot.pause()
        assert "'a|b' is not a tag" in str(asked.query_one("#complaint", Static).render())
        await pilot.press("enter")
        assert app.screen is asked
        await pilot.press("escape")
        await closed(app, lambda: not (root / "new-3" / "labels.json").exists())


async def test_marked_runs_are_labelled_together_by_name_as_well(root: Path) -> None:
    app = an_app()
    change_labels(RunFolder(root / "old-1"), lambda labels: with_tags(labels, ["stale"]))
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_runs(pilot, app)
        await pilot.press("space", "space", "space", "colon", *"tag good -stale", "enter")
        await wait_for(lambda: all(labels_of(root, name).tags == ["good"] for name in ("old-1", "mid-2", "new-3")))
        await pilot.press("p")
        await wait_for(lambda: all(row.pinned for row in screen.pane.all))
        await pilot.press("p")
        await wait_for(lambda: not any(row.pinned for row in screen.pane.all))
        await pilot.press("colon", *"note seen", "enter")
        await wait_for(lambda: all(row.note == "seen" for row in screen.pane.all))
        await pilot.press("colon", *"tag a|b", "enter")
        await wait_for(lambda: "is not a tag" in told(app))


async def test_a_run_is_deleted_once_its_name_is_typed(root: Path) -> None:
    app = an_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await on_runs(pilot, app)
        await pilot.press("D")
        asked = await dialog(app)
        assert asked.query_one("#yes", Button).disabled
        await pilot.press("enter")
        assert "the run's name is new-3" in str(asked.query_one("#complaint", Static).render())
        await pilot.press("escape")
        await closed(app, lambda: (root / "new-3" / "run.json").exists())
        await pilot.press("D")
        await dialog(app)
        await pilot.press(*"new-3", "enter", "enter")
        await closed(app, lambda: not (root / "new-3").exists())
        await wait_for(lambda: [row.name for row in screen.pane.rows] == ["mid-2", "old-1"])
        await wait_for(lambda: "1 run deleted" in told(app))
        assert not (root / ".deleted").exists()


async def test_a_change_of_another_run_does_not_end_a_deletion(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(paths: list[Path], place: Path) -> Deleted:
        begun.set()
        may_go_on.wait(60)
        return delete(paths, place)

    monkeypatch.setattr("console.screens.runs_keeping.delete", slow)
    app = an_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await on_runs(pilot, app)
        try:
            await pilot.press("D")
            await dialog(app)
            await pilot.press(*"new-3", "enter", "enter")
            await wait_for(begun.is_set)
            await closed(app, lambda: True)
            await pilot.press("end", "p")
            await wait_for(lambda: read_labels(RunFolder(root / "old-1")).pinned)
        finally:
            may_go_on.set()
        await wait_for(lambda: "1 run deleted" in told(app))
        assert sorted(path.name for path in root.iterdir()) == ["mid-2", "old-1"]


async def test_several_are_deleted_at_once_and_a_pin_keeps_all_of_them(root: Path) -> None:
    app = an_app()
    change_labels(RunFolder(root / "mid-2"), lambda labels: with_pin(labels, True))
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_runs(pilot, app)
        await pilot.press("space", "space", "D")
        await wait_for(lambda: "mid-2: it is pinned" in told(app))
        assert app.screen is screen
        await pilot.press("u", "home", "space", "end", "space", "D")
        asked = await dialog(app)
        assert "new-3, old-1" in " ".join(str(fact.render()) for fact in asked.query(".fact-text"))
        await pilot.press(*"delete 2", "enter", "enter")
        await closed(app, lambda: sorted(path.name for path in root.iterdir()) == ["mid-2"])
        await wait_for(lambda: not screen.pane.marked)


async def test_a_run_that_is_open_here_is_not_deleted(root: Path) -> None:
    app = PacelineApp(root / "new-3", theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        await on_runs(pilot, app)
        await pilot.press("D")
        await wait_for(lambda: "new-3 is open in this console" in told(app))
        assert (root / "new-3").exists()


async def test_a_run_from_elsewhere_is_imported_and_the_cursor_is_on_it(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = recorded_run(tmp_path_factory.mktemp("elsewhere"), "theirs-7", seconds=3)
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_runs(pilot, app)
        await pilot.press("I")
        box = (await dialog(app)).query_one("#text", Input)
        box.value = str(elsewhere)
        await pilot.press("enter")
        await closed(app, lambda: screen.pane.row is not None and screen.pane.row.name == "theirs-7")
        assert "theirs-7: VALID" in told(app)
        await pilot.press("colon", *"import /nowhere", "enter")
        await wait_for(lambda: "/nowhere: No such file" in told(app))


async def test_a_read_only_console_changes_nothing(root: Path) -> None:
    app = an_app(read_only=True)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_runs(pilot, app)
        for keys in (("t",), ("n",), ("p",), ("D",), ("I",), ("colon", *"tag x", "enter")):
            app.clear_notifications()
            await pilot.press(*keys)
            await wait_for(lambda: "opened read-only" in told(app))
            assert app.screen is screen
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["run.json"] * 3
