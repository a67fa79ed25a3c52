"""The panes of Launch: what can be chosen, the spec as a form, the preflight, and what a start would start."""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

from rich.style import Style
from textual.binding import Binding
from textual.message import Message
from textual.strip import Strip
from textual.suggester import SuggestFromList
from textual.widgets import Input
from textual.widgets.input import Selection

from console.actions import Action
from console.store.launching import FormField, Plan
from console.store.runs import RunRow
from console.widgets import fmt
from console.widgets.footer import KeyFooter
from console.widgets.listing import LinesPane
from console.widgets.paint import Paint, Painted, Run, strip_of
from console.widgets.verdict import GLYPH, verdict_style
from harness.doctor import Check

ChoiceKind = Literal["title", "profile", "file", "path", "run", "nothing"]


@dataclass(frozen=True, slots=True)
class Choice:
    """`which` is what `paceline run` takes, or the path of a run."""

    kind: ChoiceKind
    label: str
    which: str = ""
    about: str = ""
    run: RunRow | None = None


def choices_of(
    profiles: dict[str, str], files: Sequence[Path], rows: Sequence[RunRow], recent: int, looked: bool
) -> list[Choice]:
    """`looked`: the runs' folder has been read; before that nothing is said of it."""
    gap = Choice("nothing", "")
    found = [Choice("title", "Profiles"), *(Choice("profile", name, name, about) for name, about in profiles.items())]
    found += [gap, Choice("title", "Spec files"), *(Choice("file", path.name, str(path), str(path)) for path in files)]
    found.append(Choice("path", "type a path …", about="any TOML file with a spec"))
    running = [row for row in rows if row.state == "running"]
    ended = [row for row in rows if row.state != "running"][:recent]
    for title, some in (("Running", running), ("Recent runs", ended)):
        found += [gap, Choice("title", title)]
        found += [Choice("run", row.name, str(row.path), run=row) for row in some]
        if not some:
            found.append(Choice("nothing", "none" if looked else "reading …"))
    return found


class ChoicePane(LinesPane):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.choices: list[Choice] = []

    @property
    def chosen(self) -> Choice | None:
        return self.choices[self.at] if self.at < len(self.choices) and self.can_choose(self.at) else None

    def put(self, choices: list[Choice]) -> None:
        """The cursor stays on what it was on, wherever that is now."""
        before = self.chosen
        self.choices = choices
        same = [at for at, one in enumerate(choices) if before and (one.kind, one.which) == (before.kind, before.which)]
        able = [at for at in range(len(choices)) if self.can_choose(at)]
        self.at = next(iter(same or able), 0)
        self.show_cursor()

    def count(self) -> int:
        return len(self.choices)

    def can_choose(self, at: int) -> bool:
        return self.choices[at].kind not in ("title", "nothing")

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        ink, one = self.inks, self.choices[at]
        if one.kind == "title":
            return strip_of([(f" {one.label}", ink.muted + Style(bold=True))], width)
        if one.kind == "nothing":
            return strip_of([(f"   {one.label}" if one.label else "", ink.faint)], width)
        runs: list[Run] = [(self.mark(chosen), ink.primary)]
        style = ink.bold if chosen else ink.plain
        if one.run is not None:
            glyph, colour = outcome_mark(one.run, ink)
            runs += [(f" {glyph} ", colour), (fmt.middle(one.label, max(8, width - 4)), style)]
        else:
            runs.append(
                (f"  {fmt.middle(one.label, max(8, width - 4))}", ink.muted if one.kind == "path" and not chosen else style)
            )
        return strip_of(runs, width, ink.cursor if chosen and self.has_focus else None)


def outcome_mark(row: RunRow, ink: Paint) -> tuple[str, Style]:
    if row.state == "running":
        return "▶", ink.primary
    if row.state in ("damaged", "head gone"):
        return "!", ink.bad
    return GLYPH.get(row.verdict, "×"), verdict_style(row.verdict, ink)


_NAME_MAX: Final = 27
_VALUE_MIN, _VALUE_MAX = 14, 34


class FormPane(LinesPane):
    """The fields of the chosen spec, table by table; or why there are none, as `notes`."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.fields: list[FormField] = []
        self.notes: list[list[Run]] = []
        self._lines: list[FormField | str] = []

    def put(self, fields: list[FormField]) -> None:
        before = self.field
        self.fields, self.notes, self._lines = fields, [], []
        for one in fields:
            if not self._lines or (self._table_of_last() != one.table):
                self._lines.append(f"[{one.table}]" if one.table else "run")
            self._lines.append(one)
        places = {one.dotted: at for at, one in enumerate(self._lines) if isinstance(one, FormField)}
        self.at = places.get(before.dotted, 1) if before is not None else min(1, len(self._lines) - 1)
        self.show_cursor()

    def _table_of_last(self) -> str:
        last = self._lines[-1]
        return last.table if isinstance(last, FormField) else ""

    def say(self, notes: list[list[Run]]) -> None:
        """In place of fields."""
        self.fields, self._lines, self.notes, self.at = [], [], notes, 0
        self.show_cursor()

    def sentences(self, text: str) -> list[list[Run]]:
        """What is wrong, as notes."""
        width = max(20, self.scrollable_content_region.width - 2)
        wrapped = [part for line in text.splitlines() for part in textwrap.wrap(line, width, subsequent_indent="  ")]
        return [[(f" {line}", self.inks.bad)] for line in wrapped]

    @property
    def field(self) -> FormField | None:
        one = self._lines[self.at] if self.at < len(self._lines) else None
        return one if isinstance(one, FormField) else None

    def find(self, dotted: str) -> int | None:
        return next((at for at, one in enumerate(self._lines) if isinstance(one, FormField) and one.dotted == dotted), None)

    def seek(self, text: str, by: int = 0) -> int | None:
        """The line of the first field from the cursor on, around the end, whose name has every word in it; with `by`, of
        the next one or the one before."""
        words, count = text.lower().split(), len(self._lines)
        step = -1 if by < 0 else 1
        order = ((self.at + by + step * far) % count for far in range(count))
        for at in order:
            one = self._lines[at]
            if isinstance(one, FormField) and all(word in one.dotted.lower() for word in words):
                return at
        return None

    def count(self) -> int:
        return len(self._lines) or len(self.notes)

    def can_choose(self, at: int) -> bool:
        return at < len(self._lines) and isinstance(self._lines[at], FormField)

    def widths(self, width: int) -> tuple[int, int]:
        """Of names and values."""
        name = min(_NAME_MAX, max(16, width * 2 // 5))
        return name, min(_VALUE_MAX, max(_VALUE_MIN, (width - name - 3) // 2))

    def value_place(self) -> tuple[int, int, int]:
        """Column, line and width of the value under the cursor, for the box in which it is edited."""
        width = self.scrollable_content_region.width
        name, _ = self.widths(width)
        return name + 3, self.at - int(self.scroll_offset.y), max(8, width - name - 3)

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        ink = self.inks
        if not self._lines:
            return strip_of(self.notes[at], width)
        one = self._lines[at]
        if isinstance(one, str):
            return strip_of([(f" {one}", ink.primary)], width)
        name_width, value_width = self.widths(width)
        mark = self.mark(chosen) + ("*" if one.changed else " ")
        value = ink.warn + Style(bold=True) if one.changed else ink.muted if one.is_default else ink.plain
        if one.changed:
            side = f"was {one.in_file}"
            style = ink.warn
        else:
            side = one.allowed + (" · default" if one.is_default and width >= 70 else "")
            style = ink.faint
        runs: list[Run] = [
            (mark, ink.warn if one.changed and not chosen else ink.primary),
            (f" {fmt.middle(one.name, name_width - 1)}".ljust(name_width + 1), ink.bold if chosen else ink.plain),
            (fmt.clip(one.value, value_width - 1).ljust(value_width), value),
            (fmt.clip(side, max(0, width - name_width - value_width - 3)), style),
        ]
        return strip_of(runs, width, ink.cursor if chosen and self.has_focus else None)


class FieldBox(Input):
    """Where a value is typed, over the line of its field. Tab completes, ↑ ↓ go through the values that a field can have.
    Nothing that was typed is dropped but by esc: whoever takes the focus elsewhere is told of by `Left`."""

    BINDINGS: ClassVar = [
        Binding("up", "step(-1)", "Value before", show=False),
        Binding("down", "step(1)", "Next value", show=False),
        Binding("tab", "complete", "Complete", show=False),
        Binding("shift+tab", "submit", "Take it", show=False),
    ]

    class Left(Message):
        """The focus went to another widget of this console."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, compact=True, select_on_focus=False)  # who comes back must not type over what is there
        self.choices: tuple[str, ...] = ()

    def begin(self, value: str, choices: tuple[str, ...]) -> None:
        """All of it is selected: typing replaces it."""
        self.choices = choices
        self.suggester = SuggestFromList(choices, case_sensitive=False) if choices else None
        self.value = value
        self.focus()
        self.selection = Selection(0, len(value))

    def action_step(self, by: int) -> None:
        if self.choices:
            at = self.choices.index(self.value) + by if self.value in self.choices else 0
            self._put(self.choices[at % len(self.choices)])

    async def action_complete(self) -> None:
        """To the value that begins so; while several do, as far as they agree. What is complete is taken, like by enter."""
        typed = self.value.lower()
        fits = [one for one in self.choices if one.lower().startswith(typed)] if typed else []
        further = _agreed(fits)
        if len(fits) == 1 and fits[0] != self.value:
            self._put(fits[0])
        elif len(further) > len(typed):
            self._put(further)
        elif len(fits) > 1 and self.value not in self.choices:
            self._put(fits[0])
        else:
            await self.action_submit()

    def _put(self, value: str) -> None:
        self.value = value
        self.cursor_position = len(value)

    def on_focus(self) -> None:
        cast(Any, self.app).expect_nothing()  # what was to open is open: keys after it are meant for whoever has the focus

    def on_blur(self) -> None:
        if self.app.app_focus and self.display:  # else it is the whole terminal that lost the focus, and gives it back
            self.post_message(self.Left())


def _agreed(values: list[str]) -> str:
    """The longest beginning that they share."""
    first, last = min(values, default=""), max(values, default="")
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(mark for mark, _ in same)


class LaunchFooter(KeyFooter):
    """While something is typed: the keys that work then, and no others."""

    def __init__(
        self, actions: Sequence[Action], why_not: Callable[[Action], str], typing: Callable[[], str], *, id: str | None = None
    ) -> None:
        """`typing`: keys and what they do, separated by two blanks; empty while nothing is typed."""
        super().__init__(actions, why_not, id=id)
        self._typing = typing

    def draw(self, width: int, height: int) -> list[Strip]:
        told, ink = self._typing(), self.inks
        if not told:
            return super().draw(width, height)
        runs: list[Run] = []
        for part in told.split("  "):
            key, _, does = part.partition(" ")
            runs += [(f" {key} ", ink.primary + Style(bold=True)), (f"{does}  ", ink.muted)]
        return [strip_of(runs, width)]


class AboutLine(Painted):
    """Under the form: what the field is; in red, why a value was not taken."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(2, id=id)
        self.text, self.wrong = "", False

    def say(self, text: str, *, wrong: bool = False) -> None:
        self.text, self.wrong = text, wrong
        self.repaint()

    def draw(self, width: int, height: int) -> list[Strip]:
        style = self.inks.bad if self.wrong else self.inks.muted
        lines = textwrap.wrap(self.text, max(10, width - 1), max_lines=height, placeholder=" …", break_on_hyphens=False)
        return [strip_of([(line, style)], width) for line in lines]


_RANK: Final = {False: 0, None: 1, True: 3}


class ChecksPane(LinesPane):
    """Failures first, then notes, then what is still being looked at, then what is well."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.names: list[str] = []
        self.checks: list[Check | None] = []  # as they come; None: not yet
        self._lines: list[list[Run]] = []

    def begin(self, names: list[str]) -> None:
        self.names, self.checks = names, [None] * len(names)
        self.show()

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check is not None and check.ok is False]

    @property
    def noted(self) -> list[Check]:
        return [check for check in self.checks if check is not None and check.ok is None]

    def summary(self) -> str:
        done = sum(check is not None for check in self.checks)
        if not self.names:
            return "nothing chosen"
        parts = [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"{len(self.noted)} note{'s' * (len(self.noted) != 1)}"] if self.noted else []
        if done < len(self.names):
            return " · ".join([f"{done} of {len(self.names)} looked at", *parts])
        return " · ".join([f"{done - len(self.failed) - len(self.noted)} ok", *parts])

    def show(self) -> None:
        ink, width = self.inks, max(24, self.scrollable_content_region.width - 1)
        self.entitle(f"Preflight · {self.summary()}")
        column = max([len(name) for name in self.names], default=0) + 1
        self._lines = []
        order = sorted(range(len(self.names)), key=lambda at: 2 if (c := self.checks[at]) is None else _RANK[c.ok])
        for at in order:
            check, name = self.checks[at], self.names[at].ljust(column)
            if check is None:
                self._lines.append([("… ", ink.faint), (name, ink.faint), ("looking", ink.faint)])
                continue
            glyph, word, style = {True: ("●", "ok", ink.good), None: ("▲", "note", ink.warn), False: ("×", "FAIL", ink.bad)}[
                check.ok
            ]
            start: list[Run] = [(f"{glyph} ", style), (f"{word:<5}", style), (name, ink.plain)]
            if check.ok:
                self._lines.append([*start, (fmt.clip(check.detail, width - column - 7), ink.muted)])
                continue
            fix = f" → {check.fix}" if check.fix else ""
            ink_now = ink.plain
            for number, text in enumerate(
                textwrap.wrap(f"{self.names[at]}: {check.detail}{fix}", width - 3, break_on_hyphens=False, initial_indent=" " * 5)
            ):
                before, arrow, after = text.partition("→ ")
                lead: list[Run] = start[:2] if not number else [("  ", ink.plain)]
                before = before if number else before.removeprefix(" " * 5)
                self._lines.append([*lead, (before, ink_now), (arrow + after, ink.muted)])
                ink_now = ink.muted if arrow else ink_now
        self.at = min(self.at, max(0, len(self._lines) - 1))
        self.repaint()

    def on_resize(self) -> None:  # the handler of the base is called as well, by Textual
        self.show()

    def wipe(self) -> None:
        self.show()
        super().wipe()

    def count(self) -> int:
        return len(self._lines)

    def nothing(self) -> str:
        return "choose a profile or a spec file"

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        ink, here = self.inks, chosen and self.has_focus
        last = int(self.scroll_offset.y) + self.scrollable_content_region.height - 1
        if at == last and at + 1 < self.count() and not self.has_focus:
            return strip_of([(f" ↓ {self.count() - at} more lines (tab, then ↓)", ink.primary)], width)
        return strip_of([("▌" if here else " ", ink.primary), *self._lines[at]], width, ink.cursor if here else None)


class PlanPane(Painted):
    """What a start would start, and the same as a command line."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(8, id=id)
        self.plan: Plan | None = None
        self.command = ""
        self.border_title = "What G starts"

    def draw(self, width: int, height: int) -> list[Strip]:
        """With too few lines for all: first without what can be guessed, then cut, but never silently."""
        ink = self.inks
        if self.plan is None:
            return []
        if height == 1:
            return [strip_of([(" G starts ", ink.primary), (fmt.clip(self.plan.short, width - 11), ink.plain)], width)]
        room = max(10, width - 12)
        said = dict(self.plan.words)
        parts = {label: textwrap.wrap(text, room, break_on_hyphens=False) or [""] for label, text in said.items()}
        command = textwrap.wrap(self.command, room, break_on_hyphens=False) or [""]
        for label in ("record", "processes", "time"):
            if sum(map(len, parts.values())) + len(command) > height:
                parts[label] = [fmt.middle(said[label], room) if label == "record" else fmt.clip(said[label], room)]
        left = max(1, height - sum(map(len, parts.values())))
        if len(command) > left:
            command = [*command[: left - 1], fmt.clip(command[left - 1], max(1, room - 13)) + " … y has all"]
        lines: list[Strip] = []
        for label, texts in [*parts.items(), ("y copies", command)]:
            for number, text in enumerate(texts):
                lines.append(strip_of([(f" {label if not number else '':<10} ", ink.muted), (text, ink.plain)], width))
        return lines


def run_notes(row: RunRow, ink: Paint) -> list[list[Run]]:
    """A run under the cursor, in a few lines."""
    glyph, style = outcome_mark(row, ink)
    lines: list[list[Run]] = [[], [(f" {glyph} {row.outcome}", style), (f"  {row.name}", ink.bold)]]
    if row.problem:
        lines.append([(f"   {row.problem}", ink.bad)])
    facts = [
        ("started", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.when_unix))),
        ("fleet", f"{row.nodes} x {row.per_node} replicas" + (", synthetic" if row.synthetic else "")),
        ("load", f"{row.kind} {row.scenario} at {fmt.rate(row.target_qps)} QPS"),
        ("achieved", f"{fmt.rate(row.completed_qps)} QPS, {fmt.count(row.tokens_per_s)} tok/s"),
        ("p99", f"TTFT {fmt.millis(row.ttft_p99_ms)}, TPOT {fmt.millis(row.tpot_p99_ms)}, whole attempt"),
    ]
    lines += [[(f"   {name:<10}", ink.muted), (text, ink.plain)] for name, text in facts if row.nodes or name == "started"]
    lines += [
        [(f"   {'because':<10}" if not at else " " * 13, ink.muted), (reason, ink.plain)]
        for at, reason in enumerate(row.reasons[:3])
    ]
    opens = {"running": "attaches to it", "damaged": "cannot open it"}.get(row.state, "opens its record")
    return [*lines, [], [("   enter ", ink.primary), (opens, ink.muted)]]
