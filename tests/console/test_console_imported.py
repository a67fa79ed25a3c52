"""Runs that were imported are listed and opened like those of a head, also where they have no samples."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from console_helpers import wait_for

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from imports_kit import write_client

from console.app import PacelineApp
from console.screens.record import RecordScreen
from console.screens.runs import RunsScreen
from harness.imports.importing import import_run


def shown(app: PacelineApp) -> str:
    """The whole screen."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


@pytest.mark.parametrize("events", [True, False])
async def test_an_imported_run_is_listed_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: bool) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    made = import_run(write_client(tmp_path / "point-c16", events=events), tmp_path / "runs")
    app = PacelineApp(made.folder.path, fps=1)
    async with app.run_test(size=(120, 36)) as pilot:
        await wait_for(lambda: isinstance(app.screen, RecordScreen))
        await wait_for(lambda: "EXPLORATION" in shown(app))
        assert "point-c16" in shown(app)
        await pilot.press("5")
        runs = app.screen
        assert isinstance(runs, RunsScreen)
        await wait_for(lambda: not runs.pane.reading and "point-c16" in shown(app))
