"""Runs side by side and by number of nodes: what the two screens show, in any size, and how to get about in them."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from console_helpers import text_of, wait_for
from textual.pilot import Pilot

from console.app import PacelineApp
from console.screens.compare import CompareScreen
from console.screens.drill_definitions import DefinitionsScreen
from console.screens.record import RecordScreen
from console.screens.runs import RunsScreen
from console.screens.scaling import ScalingScreen
from console.store.tables import Tables
from console.themes import shipped_folder
from console.widgets.compare import changed, figure
from console.widgets.curves import Curves
from harness.analysis.comparing import Change

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from made_run import T0, Made, make_run

SIZES = [(120, 36), (80, 24)]
FASTER = Made(nodes=2, per_node=4, qps=80.0, seconds=12, slow_node=None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two-node runs (one of them slower, one failed its limits), one of one node, and a folder that cannot be read."""
    root = tmp_path_factory.mktemp("runs")
    make_run(root, dataclasses.replace(FASTER, name="new-b", seed=3, tpot_ms=15.0), at_unix=T0 + 3000)
    make_run(root, dataclasses.replace(FASTER, name="old-a"), at_unix=T0 + 2000)
    make_run(root, dataclasses.replace(FASTER, name="one-c", nodes=1, qps=44.0, seed=4), at_unix=T0 + 1000)
    make_run(root, dataclasses.replace(FASTER, name="over-d", qps=120.0, seed=5, verdict="INVALID"), at_unix=T0)
    return root


@asynccontextmanager
async def on_runs(
    made: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> AsyncIterator[tuple[Pilot[Any], RunsScreen]]:
    monkeypatch.setenv("PACELINE_RUNS", str(made))
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=size) as pilot:
        await pilot.press("5")
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        await wait_for(lambda: not screen.pane.reading and len(screen.pane.rows) == len(list(made.iterdir())))
        yield pilot, screen


def is_median(line: str) -> bool:
    return line.lstrip(" ▌").startswith("TPOT p50")


async def compared(pilot: Pilot[Any], n: int) -> CompareScreen:
    """Marks the first n runs and opens the comparison."""
    await pilot.press(*["space"] * n, "c")
    await wait_for(lambda: isinstance(pilot.app.screen, CompareScreen))
    screen = pilot.app.screen
    assert isinstance(screen, CompareScreen)
    await wait_for(lambda: screen.pane.found is not None)
    await pilot.pause()
    return screen


@pytest.mark.parametrize("size", SIZES)
async def test_figures_stand_side_by_side_with_what_their_differences_are_worth(
    made: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    async with on_runs(made, monkeypatch, size) as (pilot, runs):
        await pilot.press("c")
        assert any("mark 2 to 8 runs" in str(toast.message) for toast in pilot.app._notifications)
        await pilot.press("j", "k")
        screen = await compared(pilot, 2)
        assert runs.pane.marked
        for _ in range(10):
            if any(is_median(line) for line in text_of(screen.pane).splitlines()):
                break
            await pilot.press("pagedown")
        (line,) = filter(is_median, text_of(screen.pane).splitlines())
        assert "15.0 ms" in line
        assert "19.9 ms" in line
        assert "+32." in line
        assert "▾" in line
        await pilot.press("v")  # the other run is what is compared with now
        (line,) = filter(is_median, text_of(screen.pane).splitlines())
        assert "-24." in line
        assert "▴" in line
        assert screen.pane.row is not None
        about = text_of(screen.query_one("#about"))
        assert "new-b: " in about
        assert "old-a: " in about
        await pilot.press("escape")
        assert pilot.app.screen is runs


async def test_distributions_lie_over_one_another_with_a_number_on_each_curve(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_runs(made, monkeypatch, (80, 24)) as (pilot, _):
        screen = await compared(pilot, 3)
        await pilot.press("tab")
        await pilot.pause()
        curves = screen.query_one(Curves)
        assert "TTFT · share at or below" in str(curves.border_title)
        await pilot.press("m")
        await pilot.pause()
        drawn = text_of(curves)
        assert "TPOT" in str(curves.border_title)
        assert all(number in drawn for number in "123")
        assert "20ms" in drawn
        assert "100%┤" in drawn
        assert "TPOT p50" in text_of(screen.pane)
        await pilot.press("t")
        await pilot.pause()
        assert "share above" in str(curves.border_title)
        assert "0.1%┤" in text_of(curves)
        await pilot.press("tab")
        await pilot.pause()
        assert not curves.display
        shown = text_of(screen.pane)
        assert "fleet.nodes" in shown or "load.target_qps" in shown


async def test_more_runs_than_have_room_are_scrolled_and_the_baseline_stays(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_runs(made, monkeypatch, (80, 24)) as (pilot, _):
        screen = await compared(pilot, 4)
        assert "← → 1 more" in text_of(screen.pane)
        assert "over-d" not in text_of(screen.pane).splitlines()[0]
        await pilot.press("right")
        await pilot.pause()
        shown = text_of(screen.pane)
        assert "base new-b" in shown.splitlines()[0]
        assert "over-d" in shown.splitlines()[0]
        assert "! target QPS differs" in shown


async def test_a_comparison_is_exported_and_its_figures_are_defined(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_runs(made, monkeypatch, (120, 36)) as (pilot, _):
        screen = await compared(pilot, 2)
        tables: Tables = screen.tables()
        assert {row["run"] for row in tables["figures"]} == {"new-b", "old-a"}
        assert {row["metric"] for row in tables["distributions"]} == {"ttft", "tpot", "latency"}
        await pilot.press("D")
        await wait_for(lambda: isinstance(pilot.app.screen, DefinitionsScreen))
        await pilot.press("escape", "escape")
        assert isinstance(pilot.app.screen, RunsScreen)


async def test_a_run_that_cannot_be_read_is_named_and_nothing_breaks(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    (root / "old-a").symlink_to(made / "old-a")
    (root / "torn").mkdir()
    (root / "torn" / "run.json").write_text("{")
    async with on_runs(root, monkeypatch, (80, 24)) as (pilot, _):
        await pilot.press("space", "space", "c")
        await wait_for(lambda: "cannot be compared" in text_of(pilot.app.screen.query_one("#compare")))
        await pilot.press("tab", "m", "t", "v", "left", "right", "j", "D", "escape")
        assert isinstance(pilot.app.screen, RunsScreen)


@pytest.mark.parametrize("size", SIZES)
async def test_scaling_has_a_line_a_run_the_best_valid_one_first_and_published_results_below(
    made: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    async with on_runs(made, monkeypatch, size) as (pilot, _):
        await pilot.press(":", *"scaling", "enter")
        await wait_for(lambda: isinstance(pilot.app.screen, ScalingScreen))
        screen = pilot.app.screen
        assert isinstance(screen, ScalingScreen)
        await wait_for(lambda: screen.pane.found is not None)
        await pilot.pause()
        lines = text_of(screen.pane).splitlines()
        where = {
            name: next(at for at, line in enumerate(lines) if name in line) for name in ("one-c", "new-b", "over-d", "Crusoe")
        }
        assert where["one-c"] < where["new-b"] < where["over-d"] < where["Crusoe"]
        assert "100.0%" in lines[where["one-c"]]
        assert "5,392,930" in lines[where["Crusoe"]]
        assert "published" in lines[where["Crusoe"]]
        assert "%" not in lines[where["over-d"]]
        assert "100 % is linear" in text_of(screen.query_one("#about")) or size[0] < 100
        await pilot.press("end", "enter")
        assert any("no record here" in str(toast.message) for toast in pilot.app._notifications)
        await pilot.press("g", "enter")
        await wait_for(lambda: isinstance(pilot.app.screen, RecordScreen))


async def test_scaling_of_the_marked_runs_is_of_those_only(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_runs(made, monkeypatch, (120, 36)) as (pilot, _):
        await pilot.press("space", "s")
        await wait_for(lambda: isinstance(pilot.app.screen, ScalingScreen))
        screen = pilot.app.screen
        assert isinstance(screen, ScalingScreen)
        await wait_for(lambda: screen.pane.found is not None)
        await pilot.pause()
        shown = text_of(screen.pane)
        assert "new-b" in shown
        assert "old-a" not in shown
        assert "efficiency needs a second N" in shown
        assert [row["name"] for row in screen.tables()["scaling"]] == ["new-b", "Crusoe, 512x MI355X"]
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, RunsScreen)


def test_figures_and_changes_are_short() -> None:
    asked = ((None, "ms"), (math.nan, ""), (2690.0, "ms"), (0.0416, "%"), (1234.5, ""))
    assert [figure(value, unit) for value, unit in asked] == ["–", "–", "2.69 s", "0.0416%", "1,234"]
    assert changed(Change(1.0, None, 0.325, "")) == "+32.5%"
    assert changed(Change(9.0, None, 9.0, "")) == "x10.0"
    assert changed(Change(1.0, None, None, "")) == changed(Change(0.0, None, 0.0, "")) == ""
