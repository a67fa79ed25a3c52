"""Runs: all that lie in the runs' folder, going on or ended, with what they measured; the way to their records and replays."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.css.query import NoMatches
from textual.widgets import Input

from console import locations
from console.actions import BY_ID, Where, bindings, footer_of
from console.feeds.replay import ReplayFeed
from console.screens.base import ConsoleApp, Tables
from console.screens.compare import AT_ONCE, CompareScreen
from console.screens.lines import LinesKeys
from console.screens.runs_keeping import Keeping
from console.screens.scaling import ScalingScreen
from console.session import Session
from console.store.fleet import FleetStore
from console.store.runs import SORTS, BadRunFilter, RunRow, filter_of, scan, size_of
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.launching import AboutLine
from console.widgets.listing import LinesPane
from console.widgets.runs import RunsPane

LOOK_EVERY_S: Final = 3.0
#: While a folder is read for the first time, rows are shown at least this often.
SHOW_EVERY_S: Final = 0.25
#: In the order of use: a narrow terminal shows the first ones.
_FOOTER: Final = ("open", "replay", "filter", "mark", "compare", "sort", "scaling", "tag", "delete")


def replay_session(app: ConsoleApp, path: Path) -> Session:
    """Nobody acts in a replay, whoever looks."""
    return Session(ReplayFeed(path), FleetStore(app.now_s), path, kind="replay", looks_only=True)


class RunsScreen(LinesKeys, Keeping):
    BINDINGS = bindings("runs")
    WHERE: ClassVar[Where] = "runs"

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Path, RunRow] = {}

    def compose(self) -> ComposeResult:
        app = self.console_app
        yield HeaderLine(None, "Runs", id="header")
        yield RunsPane(id="runs")
        yield AboutLine(id="about")
        yield Input(
            placeholder="words of name, verdict, load …  !word  a|b  ttft>2500  tag:x  note:x  pinned", id="filter", compact=True
        )
        rest = [one for one in footer_of("runs") if "runs" not in one.where and not one.acts]
        yield KeyFooter([*(BY_ID[name] for name in _FOOTER), *rest], app.why_not, id="footer")

    @property
    def pane(self) -> RunsPane:
        return self.query_one("#runs", RunsPane)

    def moving(self) -> LinesPane:
        return self.pane

    @property
    def about(self) -> AboutLine:
        return self.query_one("#about", AboutLine)

    def on_mount(self) -> None:
        self.pane.focus()
        self.every(LOOK_EVERY_S, self._look, "runs")

    # --- reading ---------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Rows are shown as they come; sizes, for which every file must be asked, after all rows are there."""
        await asyncio.to_thread(self._read, locations.runs())
        for row in list(self._known.values()):
            if row.size_bytes != row.size_bytes:
                row.size_bytes = await asyncio.to_thread(size_of, row.path)
        self._show(False)

    async def look_again(self) -> None:
        await self._look()

    def _read(self, root: Path) -> None:
        found: dict[Path, RunRow] = {}
        shown_s, first = time.monotonic(), not self._known
        for row in scan(root, self._known):
            found[row.path] = row
            if first and time.monotonic() - shown_s > SHOW_EVERY_S:
                shown_s = time.monotonic()
                self.app.call_from_thread(self._show_some, list(found.values()))
        for path, row in found.items():
            before = self._known.get(path)
            if before is not None and before is not row:  # of a run that goes on: better an old size than none
                row.size_bytes = before.size_bytes if row.state != "ended" else row.size_bytes
        self._known = found

    def _show_some(self, rows: list[RunRow]) -> None:
        with contextlib.suppress(NoMatches):
            self.pane.put(rows)

    def _show(self, reading: bool) -> None:
        with contextlib.suppress(NoMatches):  # the app closes meanwhile: parts of the screen are gone already
            self.pane.reading = reading
            self.pane.put(list(self._known.values()))
            self._tell_row()

    @on(LinesPane.Moved)
    def _tell_row(self) -> None:
        row = self.pane.row
        if row is None:
            self.about.say(f"{locations.runs()} · $PACELINE_RUNS names another folder")
            return
        why = "; ".join(row.reasons) or row.problem
        if row.state == "running":
            why = "going on: its figures are written at the end of the attempt; enter shows them live"
        load = f"{row.kind} {row.scenario}, {row.attempts} attempt{'s' * (row.attempts != 1)}" if row.kind else ""
        fake = "synthetic" if row.synthetic else ""
        labels = " ".join([*(["pinned"] if row.pinned else []), *(f"#{tag}" for tag in row.tags), row.note]).strip()
        made = f"imported from {row.imported}" if row.imported else ""
        parts = [part for part in (labels, row.label_problem, row.model, load, fake, made, why) if part]
        self.about.say(f"{row.path} · {' · '.join(parts)}")

    # --- keys ------------------------------------------------------------------------------------------------

    def action_open(self) -> None:
        row = self.pane.row
        if row is None:
            self._no_row("open")
            return
        if row.state == "damaged":
            self.console_app.tell(row.problem, f"{row.name} cannot be opened", "warning")
        else:
            self.console_app.open_run(row.path)

    def _no_row(self, action: str) -> None:
        self.console_app.tell("no run under the cursor", BY_ID[action].title, "warning")

    def action_replay(self) -> None:
        row = self.pane.row
        if row is None:
            self._no_row("replay")
            return
        if row.state == "damaged":
            self.console_app.tell(row.problem, f"{row.name} cannot be replayed", "warning")
        else:
            self.console_app.open_session(replay_session(self.console_app, row.path))

    def action_compare(self) -> None:
        by_name = {row.name: row for row in self.pane.all}
        chosen = [by_name[name] for name in self.pane.marked if name in by_name]
        if not 2 <= len(chosen) <= AT_ONCE:
            said = f"mark 2 to {AT_ONCE} runs with space first; {len(chosen)} are marked"
            self.console_app.tell(said, BY_ID["compare"].title, "warning")
        else:
            self.app.push_screen(CompareScreen([(row.path, None) for row in chosen]))

    def action_scaling(self) -> None:
        """Of the marked runs; of all, where none is marked."""
        marked = [row.path for row in self.pane.all if row.name in self.pane.marked]
        self.app.push_screen(ScalingScreen(marked))

    def sort_names(self) -> list[str]:
        return [sort.name for sort in SORTS]

    def action_sort(self) -> None:
        self._sort_by((SORTS.index(self.pane.sort) + 1) % len(SORTS))

    def command_sort(self, name: str) -> None:
        names = self.sort_names()
        if name in names:
            self._sort_by(names.index(name))
        else:
            self.console_app.tell(f"no order {name!r}; there are {', '.join(names)}", "sort", "warning")

    def _sort_by(self, number: int) -> None:
        self.pane.sort, self.pane.reverse = SORTS[number], False
        self.pane.order_again()

    def action_reverse(self) -> None:
        self.pane.reverse = not self.pane.reverse
        self.pane.order_again()

    def action_mark(self) -> None:
        self.pane.toggle_mark()

    def action_mark_range(self) -> None:
        self.pane.mark_range()

    def action_unmark(self) -> None:
        self.pane.unmark()

    def action_filter(self) -> None:
        self.console_app.expect_typing()
        self.add_class("-filtering")
        box = self.query_one("#filter", Input)
        box.value = self.pane.text
        box.focus()

    def command_filter(self, text: str) -> None:
        self._keep(text)

    @on(Input.Changed, "#filter")
    def _filter_as_typed(self, event: Input.Changed) -> None:
        if self.has_class("-filtering"):
            self._keep(event.value)

    def _keep(self, text: str) -> None:
        try:
            self.pane.keep(text.strip(), filter_of(text))
        except BadRunFilter as problem:
            self.about.say(str(problem), wrong=True)
        else:
            self._tell_row()

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self.remove_class("-filtering")
        self.pane.focus()

    def action_back(self) -> None:
        if self.has_class("-filtering") or self.pane.text:
            self.remove_class("-filtering")
            self._keep("")
        elif self.pane.marked:
            self.pane.unmark()
        self.pane.focus()

    def action_copy(self) -> None:
        if self.pane.row is not None:
            self.console_app.copy(str(self.pane.row.path), "path of the record")

    @on(LinesPane.Chosen)
    def _open_clicked(self) -> None:
        self.action_open()

    def tables(self) -> Tables:
        return {"runs": [row_data(row) for row in self.pane.rows]}


def row_data(row: RunRow) -> dict[str, Any]:
    return {
        "run": row.name, "state": row.state, "phase": row.phase, "verdict": row.verdict, "reasons": "; ".join(row.reasons),
        "started_unix": row.started_unix, "ended_unix": row.ended_unix, "model": row.model, "scenario": row.scenario,
        "kind": row.kind, "nodes": row.nodes, "replicas_per_node": row.per_node, "attempts": row.attempts, "acts": row.acts,
        "target_qps": row.target_qps, "completed_qps": row.completed_qps, "tokens_per_s": row.tokens_per_s,
        "ttft_p99_ms": row.ttft_p99_ms, "ttft_limit_ms": row.ttft_limit_ms, "tpot_p99_ms": row.tpot_p99_ms,
        "tpot_limit_ms": row.tpot_limit_ms, "size_bytes": row.size_bytes, "synthetic": row.synthetic, "problem": row.problem,
        "tags": " ".join(row.tags), "note": row.note, "pinned": row.pinned, "imported": row.imported,
        "record": str(row.path),
    }  # fmt: skip
