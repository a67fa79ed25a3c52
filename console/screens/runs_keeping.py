"""What the Runs screen changes: tags, notes and pins of runs, runs that are no longer wanted, and runs from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from textual.css.query import NoMatches

from console import locations
from console.actions import BY_ID
from console.screens.acts import Grave
from console.screens.base import PaintedScreen
from console.screens.dialogs.base import Fact
from console.screens.dialogs.text import AskText
from console.screens.dialogs.typed import TypeToConfirm
from console.store.deleting import Deleted, against, delete
from console.store.runs import RunRow, size_of
from console.widgets import fmt
from console.widgets.runs import RunsPane
from harness.records.errors import RecordError
from harness.records.labels import BadLabel, Labels, change_labels, with_note, with_pin, with_tags
from harness.records.layout import RunFolder, at_home

#: What takes longer says how far it is, this often.
TOLD_AFTER_S: Final = 2.0
Change = Callable[[Labels], Labels]


class Keeping(PaintedScreen):
    """Actions of a screen with a pane of runs: of the marked ones, else of the one under the cursor."""

    @property
    def pane(self) -> RunsPane:
        raise NotImplementedError

    async def look_again(self) -> None:
        """After a change."""
        raise NotImplementedError

    def chosen(self) -> list[RunRow]:
        by_name = {row.name: row for row in self.pane.all}
        marked = [by_name[name] for name in self.pane.marked if name in by_name]
        return marked or ([self.pane.row] if self.pane.row is not None else [])

    # --- labels ----------------------------------------------------------------------------------------------

    def action_tag(self) -> None:
        self._begin("tag", self._ask_tags, typing=True)

    def command_tag(self, text: str) -> None:
        self._begin("tag", lambda rows: self._change(rows, "tag", _tagging(text)))

    def action_note(self) -> None:
        self._begin("note", self._ask_note, typing=True)

    def command_note(self, text: str) -> None:
        self._begin("note", lambda rows: self._change(rows, "note", lambda labels: with_note(labels, text)))

    def action_pin(self) -> None:
        """In for all, unless all have one."""

        async def change(rows: list[RunRow]) -> None:
            pinned = not all(row.pinned for row in rows)
            await self._change(rows, "pin", lambda labels: with_pin(labels, pinned))

        self._begin("pin", change)

    async def _ask_tags(self, rows: list[RunRow]) -> None:
        one = rows[0] if len(rows) == 1 else None
        before = one.tags if one is not None else []

        def change_of(text: str) -> Change:
            """Of one run all its tags stand in the field: what was taken out there is taken off."""
            gone = [tag for tag in before if tag.casefold() not in text.casefold().split()]
            return _tagging(text, gone)

        dialog = AskText(
            f"Tags of {_names(rows)}", lambda: _facts_of_labels(rows), "Tag", "tags", "".join(f"{tag} " for tag in before),
            lambda text: _problem(change_of(text), rows), example="baseline fp8 · -old takes it off",
        )  # fmt: skip
        answer = await self.app.push_screen_wait(dialog)
        if answer is not None:
            await self._change(rows, "tag", change_of(answer.value))

    async def _ask_note(self, rows: list[RunRow]) -> None:
        notes = {row.note for row in rows}
        dialog = AskText(
            f"Note of {_names(rows)}", lambda: _facts_of_labels(rows), "Note", "note", notes.pop() if len(notes) == 1 else "",
            lambda text: _problem(lambda labels: with_note(labels, text), rows), example="one line; empty removes it",
        )  # fmt: skip
        answer = await self.app.push_screen_wait(dialog)
        if answer is not None:
            await self._change(rows, "note", lambda labels: with_note(labels, answer.value))

    async def _change(self, rows: Sequence[RunRow], action: str, change: Change) -> None:
        problems = await asyncio.to_thread(_changed, [row.path for row in rows], change)
        if problems:
            self.console_app.tell("\n".join(problems), BY_ID[action].title, "warning")
        await self.look_again()

    # --- deleting --------------------------------------------------------------------------------------------

    def action_delete(self) -> None:
        self._begin("delete", self._ask_delete)

    async def _ask_delete(self, rows: list[RunRow]) -> None:
        title, root = BY_ID["delete"].title, locations.runs()
        stays = await asyncio.to_thread(self._why_not, rows, root)
        if stays:
            self.console_app.tell("\n".join(stays[:4]), title, "warning")
            return
        for row in rows:
            row.size_bytes = await asyncio.to_thread(size_of, row.path)
        word, what = (rows[0].name, "the run's name") if len(rows) == 1 else (f"delete {len(rows)}", "what is to be done")
        question = f"Delete {_names(rows)}?"
        self.console_app.expect_typing()
        dialog = TypeToConfirm(question, lambda: _facts_of_deletion(rows), "Delete", word, what, reasoned=False)
        if await self.app.push_screen_wait(dialog) is not None:
            self.run_worker(self._delete(rows, root), group="deleting")  # which the next change must not end

    async def _delete(self, rows: list[RunRow], root: Path) -> None:
        title = BY_ID["delete"].title
        done: Deleted = await asyncio.to_thread(delete, [row.path for row in rows], root)
        with contextlib.suppress(NoMatches):
            for path in done.paths:
                self.pane.marked.pop(path.name, None)
        said = [f"{path.name}: {why}" for path, why in done.refused.items()] + done.problems
        if done.paths:
            size = fmt.size(sum(row.size_bytes for row in rows if row.path in done.paths))
            said.insert(0, f"{fmt.plural(len(done.paths), 'run')} deleted, {size}")
        self.console_app.tell("\n".join(said[:4]), title, "warning" if done.refused or done.problems else "information")
        await self.look_again()

    def _why_not(self, rows: Sequence[RunRow], root: Path) -> list[str]:
        """What must stay. What only force overrules is for the command line, where force has to be typed."""
        shown = self.console_app.session.path
        found = [f"{row.name} is open in this console: open another run first" for row in rows if row.path == shown]
        return found + [f"{row.name}: {why.text}" for row in rows if (why := against(row.path, root)) is not None]

    # --- importing -------------------------------------------------------------------------------------------

    def action_import(self) -> None:
        if self._may("import"):
            self.console_app.expect_typing()
            self.run_worker(self._ask_import(), group="importing", exclusive=True)

    def command_import(self, text: str) -> None:
        if self._may("import"):
            self.run_worker(self._import(text), group="importing", exclusive=True)

    async def _ask_import(self) -> None:
        dialog = AskText(
            "Import a run", lambda: [("into", str(locations.runs()))], "Import", "path", "",
            lambda text: "" if text else "the path of a run's folder or archive, of LoadGen's logs, or of an endpoints run",
            example="~/elsewhere/run-20260101-120000.tar.gz",
        )  # fmt: skip
        answer = await self.app.push_screen_wait(dialog)
        if answer is not None:
            await self._import(answer.value)

    async def _import(self, source: str) -> None:
        from harness.imports.errors import ImportProblem
        from harness.imports.importing import import_run

        title, next_s = BY_ID["import"].title, time.monotonic() + TOLD_AFTER_S

        def progress(what: str, done: int, total: int) -> None:
            nonlocal next_s
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + TOLD_AFTER_S
                share = f", {done / total:.0%}" if total else ""
                self.app.call_from_thread(self.console_app.tell, f"reading {what}{share}", title)

        try:
            made = await asyncio.to_thread(import_run, at_home(source), locations.runs(), progress=progress)
        except (ImportProblem, RecordError, OSError) as problem:
            self.console_app.tell(str(problem), title, "warning")
            return
        said = [
            f"{made.folder.name}: {made.run.verdict or 'no verdict'}",
            *(f"not known: {one}" for one in made.told.missing[:3]),
        ]
        self.console_app.tell("\n".join([*said, *made.problems[:2]]), title)
        with contextlib.suppress(NoMatches):  # the app has been closed meanwhile
            self.pane.choose(made.folder.name)
        await self.look_again()

    # --- all of them -----------------------------------------------------------------------------------------

    def _begin(self, action: str, change: Callable[[list[RunRow]], Coroutine[Any, Any, None]], *, typing: bool = False) -> None:
        """Of what is chosen now: rows may come and go while a dialog is open."""
        rows = self.chosen()
        if not self._may(action):
            return
        if not rows:
            self.console_app.tell("no run under the cursor", BY_ID[action].title, "warning")
        else:
            if typing:
                self.console_app.expect_typing()
            self.run_worker(change(rows), group="keeping", exclusive=True)

    def _may(self, action: str) -> bool:
        if self.console_app.read_only:
            self.console_app.tell("this console was opened read-only", BY_ID[action].title, "warning")
        return not self.console_app.read_only


def _tagging(text: str, gone: Sequence[str] = ()) -> Change:
    """`baseline -old`."""
    words = text.split()
    add, remove = [word for word in words if not word.startswith("-")], [word[1:] for word in words if word.startswith("-")]
    return lambda labels: with_tags(labels, add, [*remove, *gone])


def _changed(paths: Sequence[Path], change: Change) -> list[str]:
    """What could not be changed, in words."""
    problems = []
    for path in paths:
        try:
            change_labels(RunFolder(path), change)
        except (BadLabel, RecordError) as problem:
            problems.append(f"{path.name}: {problem}")
    return problems


def _problem(change: Change, rows: Sequence[RunRow]) -> str:
    """Why a change cannot be, before it is tried."""
    try:
        for row in rows:
            change(Labels(row.tags, row.note, row.pinned))
    except BadLabel as problem:
        return str(problem)
    return ""


def _names(rows: Sequence[RunRow]) -> str:
    return fmt.middle(rows[0].name, 40) if len(rows) == 1 else f"{len(rows)} runs"


def _named(rows: Sequence[RunRow], shown: int = 4) -> str:
    more = f" and {len(rows) - shown} more" if len(rows) > shown else ""
    return ", ".join(row.name for row in rows[:shown]) + more


def _facts_of_labels(rows: Sequence[RunRow]) -> list[Fact]:
    facts: list[Fact] = [("which" if len(rows) > 1 else "run", _named(rows))]
    tags = sorted({tag for row in rows for tag in row.tags})
    facts += [("tags now", " ".join(tags))] if tags and len(rows) > 1 else []
    return facts


def _facts_of_deletion(rows: Sequence[RunRow]) -> list[Fact]:
    outcomes = ", ".join(dict.fromkeys(row.outcome for row in rows))
    facts: list[Fact] = [("which" if len(rows) > 1 else "run", _named(rows)), ("verdict", outcomes or fmt.UNKNOWN)]
    facts.append(("size", fmt.size(sum(row.size_bytes for row in rows))))
    labelled = [row for row in rows if row.tags or row.note]
    said = "; ".join(f"{row.name}: {' '.join([*(f'#{tag}' for tag in row.tags), row.note]).strip()}" for row in labelled[:3])
    facts += [("labels", Grave(said))] if labelled else []
    return [*facts, ("", Grave("all that was recorded is deleted for good"))]
