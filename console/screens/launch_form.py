"""The form of Launch: a field is edited in place, found by a part of its name, and taken only if the spec holds with it.

One thing is typed at a time (`_editing` names it); whatever ends that (enter, tab, the mouse, `G`) goes through `_settle`,
so that what stands in the box counts or stays there with the reason under it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from textual import on
from textual.widgets import Input

from console.screens.base import PaintedScreen
from console.screens.lines import LinesKeys
from console.store.launching import Draft
from console.widgets.launching import AboutLine, ChoicePane, FieldBox, FormPane, LaunchFooter
from console.widgets.listing import LinesPane


class LaunchForm(LinesKeys, PaintedScreen):
    def __init__(self) -> None:
        super().__init__()
        self.draft: Draft | None = None
        self._editing = ""  # a field's dotted name, or `path`
        self._edited: Draft | None = None  # whose field that is
        self._settling = asyncio.Lock()

    def _check(self) -> None:
        """The draft is another, or has changed: what must hold is looked at again."""
        raise NotImplementedError

    def _take_path(self, text: str) -> None:
        """A spec file was named."""
        raise NotImplementedError

    @property
    def choices(self) -> ChoicePane:
        return self.query_one("#choices", ChoicePane)

    @property
    def form(self) -> FormPane:
        return self.query_one("#form", FormPane)

    @property
    def about(self) -> AboutLine:
        return self.query_one("#about", AboutLine)

    def _typing(self) -> str:
        if self.has_class("-filtering"):
            return "enter stay on the field  ↑↓ next match  esc leave"
        if not self._editing:
            return ""
        if self._editing == "path":
            return "enter use this file  esc leave it"
        values = "  ↑↓ other values" if self.query_one("#field", FieldBox).choices else ""
        return f"enter take it  tab complete{values}  esc leave it as it was"

    def moving(self) -> LinesPane:
        return self.focused if isinstance(self.focused, LinesPane) else self.choices

    def _show_draft(self, about: str = "") -> None:
        draft = self.draft
        if draft is None:
            return
        changed = f" · {len(draft.changes)} changed (*)" if draft.changes else " · as it is in the file"
        self.form.entitle(f"{Path(draft.which).name}{changed}")
        self.form.put(draft.fields())
        if about:
            self.about.say(about)
        else:
            self._tell_field()
        self._check()

    def _tell_field(self) -> None:
        one = self.form.field
        if one is not None:
            said = f" · {one.about}" if one.about else ""
            self.about.say(f"{one.dotted} = {one.value}{said} · allowed: {one.allowed} · default: {one.default}")

    # --- changing a field ------------------------------------------------------------------------------------

    def action_edit(self) -> None:
        if self.draft is None:
            self.console_app.tell("choose a profile or a spec file first", severity="warning")
            return
        if self._editing:
            self.run_worker(self._edit_after_typing(), group="settle")
            return
        if self.form.field is None:
            self.form.move(1)
        one = self.form.field
        if one is not None:
            self.form.show_cursor()
            self.console_app.expect_typing()
            self._open_box(one.dotted, one.value, one.choices)
            ways = ", tab completes, ↑ ↓ go through them" if one.choices else ""
            self.about.say(f"{one.allowed}{ways} · enter takes it, esc leaves it, empty: {one.in_file} as in the file")

    async def _edit_after_typing(self) -> None:
        if await self._settle():
            self.action_edit()

    def field_names(self) -> list[str]:
        """What `:set` takes here."""
        return [f"{one.dotted}=" for one in self.form.fields]

    def command_edit(self, text: str) -> None:
        """`fleet.nodes=2`, like after `-s`."""
        dotted, equals, value = text.partition("=")
        self.run_worker(self._set(dotted.strip(), value.strip() if equals else None), group="settle")

    async def _set(self, dotted: str, value: str | None) -> None:
        if self.draft is None or not await self._settle():
            self.console_app.tell("choose a profile or a spec file first", "Edit", "warning")
            return
        at = self.form.find(dotted)
        if at is None:
            self.console_app.tell(f"no field {dotted!r}; / finds one by a part of its name", "Edit", "error")
            return
        self.form.move_to(at)
        if value is None:
            self.action_edit()
        elif problem := await asyncio.to_thread(self.draft.set, dotted, value):
            self.console_app.tell(problem, "not taken", "error")
        else:
            self._show_draft()

    def _open_box(self, what: str, value: str, choices: tuple[str, ...] = ()) -> None:
        self._editing, self._edited = what, self.draft
        box = self.query_one("#field", FieldBox)
        column, line, width = self.form.value_place() if what != "path" else (1, 0, self.form.size.width - 2)
        top = 1 if self.form.styles.border_top[0] else 0
        box.styles.offset = (column + self.form.styles.padding.left, line + top)
        box.styles.width = width
        self.add_class("-editing")
        box.begin(value, choices)
        self._repaint_footer()

    def _repaint_footer(self) -> None:
        self.query_one("#footer", LaunchFooter).repaint()

    @on(Input.Submitted, "#field")
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        if self._editing == "path":
            self._take_path(event.value.strip())
        else:
            self.run_worker(self._settle(), group="settle")

    @on(FieldBox.Left)
    def _left(self, event: FieldBox.Left) -> None:
        """By mouse, or by an action that was called by its name: what stands there counts."""
        event.stop()
        if self._editing == "path":
            if self.query_one("#field", FieldBox).value.strip():
                self.query_one("#field", FieldBox).focus()
            else:
                self._close_box()
        elif self._editing and self.app.screen is self:
            self.run_worker(self._settle(), group="settle")

    async def _settle(self) -> bool:
        """Take what is being typed, if anything is. False: it does not hold; the box stays, with the reason under it."""
        async with self._settling:
            draft, dotted = self._edited, self._editing
            if not dotted or draft is None:
                return not dotted
            box = self.query_one("#field", FieldBox)
            while True:  # typed on meanwhile: the last text counts
                text = box.value
                problem = await asyncio.to_thread(draft.set, dotted, text)
                if not self.is_attached:
                    return False
                if text == box.value or not self._editing:
                    break
            if self._editing != dotted:  # left by esc meanwhile
                return not self._editing
            if problem:
                self.about.say(problem, wrong=True)
                self.form.move_to(self.form.find(dotted) or self.form.at)
                box.focus()
                return False
            self._close_box()
            if self.draft is draft:
                self._show_draft()
            return True

    def _close_box(self) -> None:
        where = self.choices if self._editing == "path" else self.form
        box = self.query_one("#field", FieldBox)
        here = box.has_focus or self.focused is None
        self._editing = ""
        self.remove_class("-editing")
        if here:
            where.focus()
        self._repaint_footer()

    def action_back(self) -> None:
        if self.has_class("-filtering"):
            self._stop_seeking()
        elif self._editing:
            self._close_box()
            self._tell_field()
        else:
            self.choices.focus()

    # --- finding a field -------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        if self.form.field is None:
            self.console_app.tell("choose a profile or a spec file first: its fields are searched", severity="warning")
            return
        self.console_app.expect_typing()
        self.add_class("-filtering")
        box = self.query_one("#filter", Input)
        box.value = ""
        box.focus()
        self.about.say("a part of a field's name, such as nodes or load.kind: the cursor goes to it as you type")
        self._repaint_footer()

    def command_filter(self, text: str) -> None:
        if self._seek(text):
            self.form.focus()

    @on(Input.Changed, "#filter")
    def _seek_as_typed(self, event: Input.Changed) -> None:
        if self.has_class("-filtering") and event.value.strip():
            self._seek(event.value)

    def _seek(self, text: str, by: int = 0) -> bool:
        at = self.form.seek(text, by)
        if at is None:
            self.about.say(f"no field has {text.strip()!r} in its name", wrong=True)
            return False
        self.form.move_to(at)
        self._tell_field()
        return True

    @on(Input.Submitted, "#filter")
    def _seek_done(self, event: Input.Submitted) -> None:
        event.stop()
        self._stop_seeking()

    def _stop_seeking(self) -> None:
        self.remove_class("-filtering")
        self.form.focus()
        self._tell_field()
        self._repaint_footer()

    def action_up(self) -> None:
        self._step(-1)

    def action_down(self) -> None:
        self._step(1)

    def _step(self, by: int) -> None:
        """While a name is typed: to the other fields that have it."""
        if self.has_class("-filtering"):
            self._seek(self.query_one("#filter", Input).value, by)
        else:
            self.moving().move(by)
