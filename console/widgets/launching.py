"""The panes of Launch: what can be chosen, the spec as a form, the preflight, and what a start would start."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from rich.style import Style
from textual.binding import Binding
from textual.strip import Strip
from textual.widgets import Input

from console.store.launching import FormField, Plan
from console.store.runs import RunRow
from console.widgets import fmt
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
    """Where a value is typed, over the line of its field. ↑ ↓ go through the values that a field can have."""

    BINDINGS: ClassVar = [
        Binding("up", "step(-1)", "Value before", show=False),
        Binding("down", "step(1)", "Next value", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, compact=True)
        self.choices: tuple[str, ...] = ()

    def action_step(self, by: int) -> None:
        if self.choices:
            at = self.choices.index(self.value) + by if self.value in self.choices else 0
            self.value = self.choices[at % len(self.choices)]
            self.cursor_position = len(self.value)


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
            told = textwrap.wrap(f"{self.names[at].ljust(column)}{check.detail}", width - 9, break_on_hyphens=False)
            self._lines.append([*start[:2], (told[0], ink.plain)])
            self._lines += [[(f"         {text}", ink.plain)] for text in told[1:]]
            fix = textwrap.wrap(f"→ {check.fix}", width - 9, break_on_hyphens=False) if check.fix else []
            self._lines += [[(f"         {text}", ink.muted)] for text in fix]
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
        return strip_of([("▌" if here else " ", ink.primary), *self._lines[at]], width, ink.cursor if here else None)


class PlanPane(Painted):
    """What a start would start, and the same as a command line."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(8, id=id)
        self.plan: Plan | None = None
        self.command = ""
        self.border_title = "What G starts"

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        if self.plan is None:
            return []
        lines: list[Strip] = []
        for label, text in [*self.plan.words, ("y copies", self.command)]:
            for number, part in enumerate(textwrap.wrap(text, max(10, width - 12), break_on_hyphens=False) or [""]):
                lines.append(strip_of([(f" {label if not number else '':<10} ", ink.muted), (part, ink.plain)], width))
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
