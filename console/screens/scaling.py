"""How the fleet scales: all runs of the folder (or the marked ones) by their number of nodes; opened from the list of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.app import ComposeResult

from console import locations
from console.actions import BY_ID, Where, bindings
from console.errors import describe
from console.screens.base import PaintedScreen, Tables
from console.screens.drill_definitions import DefinitionsScreen
from console.screens.lines import LinesKeys
from console.widgets.fmt import plural
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.launching import AboutLine
from console.widgets.listing import LinesPane
from console.widgets.scaling import ScalingPane
from harness.analysis.scaling import FIGURES

if TYPE_CHECKING:
    from harness.analysis.scaling import Scaling

_FOOTER: Final = ("open", "definitions", "back", "export", "help", "leave")


class ScalingScreen(LinesKeys, PaintedScreen):
    BINDINGS = bindings("scaling")
    WHERE: ClassVar[Where] = "scaling"

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        """No paths: every run of the folder."""
        super().__init__()
        self._paths = list(paths)

    def compose(self) -> ComposeResult:
        app = self.console_app
        yield HeaderLine(None, "Runs ▸ Scaling", id="header")
        yield ScalingPane(id="compare")
        yield AboutLine(id="about")
        yield KeyFooter([BY_ID[name] for name in _FOOTER], app.why_not, id="footer")

    @property
    def pane(self) -> ScalingPane:
        return self.query_one("#compare", ScalingPane)

    @property
    def about(self) -> AboutLine:
        return self.query_one("#about", AboutLine)

    def moving(self) -> LinesPane:
        return self.pane

    def on_mount(self) -> None:
        self.pane.focus()
        self.run_worker(self._read(), group="scaling", exclusive=True)

    async def _read(self) -> None:
        try:
            found = await asyncio.to_thread(self._scaling)
        except Exception as error:
            self.pane.say(describe(error)[0])
            return
        self.pane.put(found)
        self._tell_row()

    def _scaling(self) -> Scaling:
        """In a thread: reads every run.json."""
        from harness.analysis.published import shipped
        from harness.analysis.scaling import scaling
        from harness.records.layout import RunFolder, list_runs

        folders = [RunFolder(path) for path in self._paths] or list_runs(locations.runs())
        return scaling(folders, shipped())

    @on(LinesPane.Moved)
    def _tell_row(self) -> None:
        found, line = self.pane.found, self.pane.current
        if found is None:
            return
        left = f" · {len(found.left_out)} runs left out: no performance attempt, or unreadable" if found.left_out else ""
        if line is not None and line.run is not None:
            run = line.run
            size = ", ".join(plural(n, thing) for n, thing in ((run.nodes, "node"), (run.replicas, "replica"), (run.gpus, "GPU")))
            self.about.say(
                f"{run.record} · attempt {run.attempt} at {run.target_qps:g} QPS · {run.engine} · {size}. {found.formula}{left}"
            )
        elif line is not None and line.beside is not None:
            point, share = line.beside.point, line.beside.share_per_gpu
            beside = f" · {share * 100:.0f} % of its tokens/s a GPU here" if share is not None else ""
            self.about.say(f"{line.beside.source} · {point.engine} · {point.gpus} GPUs{beside}")
        else:
            self.about.say(f"{found.formula}{left}")

    def action_open(self) -> None:
        line = self.pane.current
        if line is None or line.run is None:
            self.console_app.tell("a published result has no record here", BY_ID["open"].title, "warning")
        else:
            path = Path(line.run.record)
            self.app.pop_screen()
            self.console_app.open_run(path)

    @on(LinesPane.Chosen)
    def _open_clicked(self) -> None:
        self.action_open()

    def action_definitions(self) -> None:
        self.app.push_screen(DefinitionsScreen("What these figures are", FIGURES))

    def action_copy(self) -> None:
        if self.pane.current is not None:
            self.console_app.copy(self.about.text, "row")

    def action_back(self) -> None:
        self.app.pop_screen()

    def tables(self) -> Tables:
        found = self.pane.found
        if found is None:
            return {}
        from harness.analysis.scaling import rows_of

        return {"scaling": rows_of(found), "left_out": [{"run": name, "why": why} for name, why in found.left_out]}
