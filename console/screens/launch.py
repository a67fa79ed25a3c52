"""Launch: choose a profile or a spec file, change its fields, see what must hold and what would start, and start it.

Also where a console without a run begins: running heads and recent runs are in the same list. Nothing here draws or knows
rules: the form is `store/launching`, the checks `store/preflight`, the start itself what `paceline run` does. The head is
a process of its own, so leaving the console (or killing it) a moment after the start changes nothing.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import Input

from console import locations
from console.actions import BY_ID, Where, bindings, footer_of
from console.errors import describe
from console.screens.base import Tables
from console.screens.dialogs import Dialog, Fact
from console.screens.launch_form import LaunchForm
from console.starting import new_run
from console.store import preflight
from console.store.launching import Draft, plan_of, remember, shipped, spec_files
from console.store.runs import RunRow, scan
from console.typed import typed
from console.widgets import fmt
from console.widgets.header import HeaderLine
from console.widgets.launching import (
    AboutLine,
    ChecksPane,
    Choice,
    ChoicePane,
    FieldBox,
    FormPane,
    LaunchFooter,
    PlanPane,
    choices_of,
    run_notes,
)
from console.widgets.listing import LinesPane
from harness.doctor import Check
from harness.records.layout import at_home
from harness.specfile import SpecError

RECENT: Final = 12
FIRST: Final = "demo"  # the cursor begins on the run that every machine can do
LOOK_EVERY_S: Final = 3.0
#: After a change: typing on should not start all checks again and again.
SETTLED_S: Final = 0.3


class LaunchScreen(LaunchForm):
    BINDINGS = bindings("launch")
    WHERE: ClassVar[Where] = "launch"

    def __init__(self) -> None:
        super().__init__()
        self._drafts: dict[str, Draft] = {}  # changes made to others wait
        self._rows: dict[Path, RunRow] = {}
        self._looked = False
        self._typed_files: list[Path] = []
        self._files: list[Path] = []
        self._of_machine: dict[str, Check] = {}
        self._checked = asyncio.Event()
        self._busy = False

    def compose(self) -> ComposeResult:
        app = self.console_app
        yield HeaderLine(None, "Launch", id="header")
        with Horizontal(id="launch"):
            choices = ChoicePane(id="choices")
            choices.border_title = "Choose"
            yield choices
            with Vertical(id="launch-right"):
                with Container(id="form-box"):
                    yield FormPane(id="form")
                    yield FieldBox(id="field")
                yield Input(placeholder="a part of a field's name", id="filter", compact=True, select_on_focus=False)
                yield AboutLine(id="about")
                with Horizontal(id="launch-tier"):
                    yield ChecksPane(id="checks")
                    yield PlanPane(id="plan")
        of_screen = [action for action in footer_of("launch") if "launch" in action.where]
        rest = [action for action in footer_of("launch") if action not in of_screen and not action.acts]
        yield LaunchFooter([*of_screen, BY_ID["copy"], *rest], app.why_not, self._typing, id="footer")

    @property
    def checks(self) -> ChecksPane:
        return self.query_one("#checks", ChecksPane)

    def on_mount(self) -> None:
        self._list()
        self.choices.at = next((at for at, one in enumerate(self.choices.choices) if one.which == FIRST), self.choices.at)
        self.choices.focus()
        self._choose()
        self.every(LOOK_EVERY_S, self._look, "runs and spec files")

    # --- what can be chosen ----------------------------------------------------------------------------------

    def _list(self) -> None:
        files = list(dict.fromkeys([*self._typed_files, *self._files]))
        self.choices.put(choices_of(shipped(), files, list(self._rows.values()), RECENT, self._looked))

    async def _look(self) -> None:
        rows, files = await asyncio.to_thread(lambda: (list(scan(locations.runs(), self._rows)), spec_files()))
        before, first = (self._rows, self._files), not self._looked
        self._rows, self._files, self._looked = {row.path: row for row in rows}, files, True
        if self.is_attached and (first or before != (self._rows, self._files)):
            self._list()

    @on(LinesPane.Moved)
    def _moved(self, event: LinesPane.Moved) -> None:
        if event.pane is self.choices and self._editing:
            self.run_worker(self._choose_after_typing(), group="settle")
        elif event.pane is self.choices:
            self._choose()
        elif event.pane is self.form and not self._editing:
            self._tell_field()

    async def _choose_after_typing(self) -> None:
        """Another spec was clicked while a value was typed: it is taken first; what cannot be taken keeps its spec on show."""
        if await self._settle():
            self._choose()
        elif self._edited is not None:
            which = self._edited.which
            self.choices.move_to(next((at for at, one in enumerate(self.choices.choices) if one.which == which), 0))

    def _choose(self) -> None:
        chosen = self.choices.chosen
        if chosen is None:
            return
        if chosen.kind in ("profile", "file"):
            self.run_worker(self._load(chosen), group="load", exclusive=True)
            return
        self.draft = None
        self._check()
        if chosen.run is not None:
            self.form.entitle("Run")
            self.form.say(run_notes(chosen.run, self.console_app.inks))
            self.about.say("")
        else:
            self.form.entitle("Spec")
            self.form.say([])
            self.about.say("enter: type the path of a TOML file with a spec")

    async def _load(self, chosen: Choice) -> None:
        """In a thread: the first one imports the engine."""
        draft = self._drafts.get(chosen.which)
        if draft is None:
            try:
                draft = await asyncio.to_thread(Draft, chosen.which)
            except SpecError as error:
                if not self.is_attached:
                    return
                self.draft = None
                self._check()
                self.form.entitle(chosen.label)
                self.form.say(self.form.sentences(str(error)))
                self.about.say("this file cannot be used as it is", wrong=True)
                return
            self._drafts[chosen.which] = draft
        if self.is_attached:
            self.draft = draft
            self._show_draft(chosen.about)

    def _take_path(self, text: str) -> None:
        path = at_home(text)
        if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
            self.about.say(f"{fmt.middle(text, 60) or 'nothing typed'}: no such file; esc leaves it", wrong=True)
            return
        self._typed_files = [path.resolve(), *self._typed_files]
        self._close_box()
        self._list()
        files = [at for at, one in enumerate(self.choices.choices) if one.which == str(path.resolve())]
        self.choices.focus()
        self.choices.move_to(files[0])
        self._choose()

    # --- preflight -------------------------------------------------------------------------------------------

    def action_preflight(self) -> None:
        self._of_machine = {}
        self._check()

    def _check(self) -> None:
        plan = self.query_one("#plan", PlanPane)
        self._checked.set()  # who waits for the checks before these must not wait for ever
        self._checked = asyncio.Event()
        if self.draft is None:
            self.workers.cancel_group(self, "preflight")
            plan.plan = None
            self.checks.begin([])
        else:
            plan.plan, plan.command = plan_of(self.draft.spec), self.command_line()
            self.run_worker(self._run_checks(self.draft, self._checked), group="preflight", exclusive=True)
        plan.repaint()

    async def _run_checks(self, draft: Draft, done: asyncio.Event) -> None:
        wanted, pane = preflight.probes(draft.spec), self.checks
        pane.begin([probe.name for probe in wanted])
        await asyncio.sleep(SETTLED_S)
        for at, probe in enumerate(wanted):
            check = self._of_machine.get(probe.name) if probe.of_machine else None
            if check is None:
                check = await asyncio.to_thread(probe.answer)
                if probe.of_machine:
                    self._of_machine[probe.name] = check
            if not pane.is_attached:
                return
            pane.checks[at] = check
            pane.show()
        done.set()

    # --- starting --------------------------------------------------------------------------------------------

    def command_line(self) -> str:
        return typed(self.draft.command()) if self.draft is not None else ""

    def action_copy(self) -> None:
        if self.draft is None:
            self.console_app.tell("no spec is chosen: there is no command line to copy", severity="warning")
        else:
            self.console_app.copy(self.command_line(), "command line")

    def action_start(self) -> None:
        if self.console_app.looks_only:
            self.console_app.tell("this console was opened read-only: it starts nothing", "Start", "warning")
        elif self.draft is None:
            self.console_app.tell("choose a profile or a spec file first", "Start", "warning")
        elif not self._busy:
            self._busy = True
            self.run_worker(self._start(), group="start")

    async def _start(self) -> None:
        """What is being typed counts, else nothing starts."""
        try:
            if not await self._settle():
                self.console_app.tell("a value is being typed that does not hold: nothing was started", "Start", "warning")
                return
            draft = self.draft
            if draft is None:
                return
            if not self._checked.is_set():
                self.console_app.tell("the checks are still running: the question comes when they are done", "Start")
            while not self._checked.is_set():  # each change begins them anew
                await self._checked.wait()
                if self.draft is not draft:
                    self.console_app.tell("another spec was chosen meanwhile: nothing was started", "Start", "warning")
                    return
            failed, spec = list(self.checks.failed), draft.spec
            yes = "Start in spite of it" if failed else "Start"
            dialog = Dialog(f"Start {spec.name}?", lambda: self._facts(draft), yes, danger=bool(failed))
            if await self.app.push_screen_wait(dialog) is None:
                return
            self.about.say(f"starting the head of {spec.name} …")
            await self._launch(draft)
        finally:
            self._busy = False

    def _facts(self, draft: Draft) -> list[Fact]:
        failed = [
            ("FAILED", f"{check.name}: {check.detail}" + (f" → {check.fix}" if check.fix else "")) for check in self.checks.failed
        ]
        return [*failed, *plan_of(draft.spec).words, ("preflight", self.checks.summary()), ("command", self.command_line())]

    async def _launch(self, draft: Draft) -> None:
        """Like `paceline run`, in a thread: a head needs a second or more until it answers."""
        try:
            folder = await asyncio.to_thread(new_run, draft.spec, lambda line: self.app.call_from_thread(self.about.say, line))
        except Exception as error:  # told in the words that the command line has for it
            text, _ = describe(error)
            self.about.say(text, wrong=True)
            self.console_app.tell(text, "not started", "error")
            return
        remember(draft.which)
        self.about.say(f"started {folder.name}")
        self.console_app.open_run(folder.path)

    # --- keys ------------------------------------------------------------------------------------------------

    def action_open(self) -> None:
        if self.focused is self.form:
            self.action_edit()
            return
        chosen = self.choices.chosen
        if chosen is None or self.focused is self.checks:
            return
        if chosen.kind == "run" and chosen.run is not None and chosen.run.state != "damaged":
            self.console_app.open_run(Path(chosen.which))
        elif chosen.kind == "run" and chosen.run is not None:
            self.console_app.tell(chosen.run.problem, f"{chosen.label} cannot be opened", "warning")
        elif chosen.kind == "path":
            self.form.say([])
            self._open_box("path", "")
        elif self.draft is not None:
            self.form.focus()
            self._tell_field()

    @on(LinesPane.Chosen)
    def _open_clicked(self) -> None:
        self.action_open()

    def tables(self) -> Tables:
        fields = self.draft.fields() if self.draft is not None else []
        return {
            "fields": [
                {"field": one.dotted, "value": one.value, "in_file": one.in_file, "default": one.default, "changed": one.changed}
                for one in fields
            ],
            "checks": [
                {"check": check.name, "ok": check.ok, "detail": check.detail, "fix": check.fix}
                for check in self.checks.checks
                if check
            ],
            "runs": [
                {"run": row.name, "state": row.state, "verdict": row.verdict, "record": str(row.path)}
                for row in self._rows.values()
            ],
        }
