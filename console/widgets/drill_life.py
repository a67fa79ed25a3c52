"""One sample's life as lines: its parts to scale, what was usual, and what its replica and the run were doing then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from console.widgets import fmt
from console.widgets.drill import ItemsPane, Title, level_mark, millis, wrapped
from console.widgets.drill_timeline import at_text, clock_text
from console.widgets.gpu_figures import titled
from console.widgets.paint import Paint, Run, size_of
from harness.analysis.views import Life, SampleRow, Segment

_INKS: Final = {"head": "chart-offered", "replica": "chart-completed", "network": "chart-mark"}
_FILLS: Final = {"head": "▒", "replica": "█", "network": "░"}
_RARE: Final = 0.99  # of all samples had less of this part
_NAME: Final = 20


@dataclass(frozen=True, slots=True)
class Words:
    """A line of facts or a remark."""

    text: str
    level: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    """The bar of all parts."""

    life: Life


@dataclass(frozen=True, slots=True)
class Part:
    segment: Segment
    total_ms: float


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the journal."""

    unix: float
    at_s: float
    text: str
    level: str


@dataclass(frozen=True, slots=True)
class Second:
    """What the replica reported of a moment."""

    at_s: float | None
    row: tuple[tuple[str, Any], ...]


class LifePane(ItemsPane[object]):
    HEADINGS = 0

    def show(self, life: Life) -> None:
        sample = life.sample
        items: list[object] = [*(Words(text) for text in facts(sample)), *(Words(text, "warn") for text in life.remarks)]
        total_ms = max([segment.end_ms for segment in life.segments] or [0.0])
        if life.segments:
            items.append(Title(_HEAD))
            items += [Whole(life), *(Part(segment, total_ms) for segment in life.segments)]
        if life.gpus:
            told = " · ".join(" ".join(titled(role, value)) for role, value in life.gpus.items())
            items += [Title(""), Words(f"GPUs of its replica then, the worst of each: {told}")]
        if life.replica:
            items += [Title(""), Title(f" {'ITS REPLICA THEN':<18}" + _second_heads(life))]
            items += [Second(_number(row.get("at_s")), tuple(row.items())) for row in life.replica]
        items += [Title(""), Title(" JOURNAL" if life.journal else " nothing in the journal around it")]
        items += [_entry(row) for row in life.journal]
        self.put(items, sample.seq)
        self.entitle(f"Sample {sample.seq:,d}")

    def told(self, item: object, width: int, ink: Paint) -> list[list[Run]]:
        match item:
            case Words():
                glyph, style = level_mark(item.level, ink) if item.level else (" ", ink.plain)
                return wrapped([(f" {glyph} ", style)], item.text, width, style if item.level else ink.plain)
            case Whole():
                return [self._whole(item.life, width, ink)]
            case Part():
                return [self._part(item, width, ink)]
            case Entry():
                glyph, style = level_mark({"info": ""}.get(item.level, item.level), ink)
                before: list[Run] = [
                    (f" {at_text(item.at_s):<8}", ink.muted),
                    (clock_text(item.unix), ink.faint),
                    (f"{glyph} ", style),
                ]
                return wrapped(before, item.text, width, ink.plain)
            case Second():
                return [self._second(item, width, ink)]
        return [[]]

    @staticmethod
    def _whole(life: Life, width: int, ink: Paint) -> list[Run]:
        """Parts one after another over the whole width; each that took time has at least one cell."""
        room = max(8, width - 2)
        total_ms = max(segment.end_ms for segment in life.segments) or 1.0
        runs: list[Run] = [(" ", ink.plain)]
        used = 0
        for segment in life.segments:
            end = min(room, max(round(segment.end_ms / total_ms * room), used + (segment.end_ms > segment.start_ms)))
            runs.append((_FILLS[segment.at] * (end - used), ink.style(_INKS[segment.at])))
            used = max(used, end)
        return runs

    @staticmethod
    def _part(part: Part, width: int, ink: Paint) -> list[Run]:
        one = part.segment
        rare = one.rank is not None and one.rank >= _RARE and (one.usual_ms is None or one.end_ms - one.start_ms > one.usual_ms)
        style = ink.warn if rare else ink.plain
        rank = fmt.UNKNOWN if one.rank is None else f"{min(one.rank * 100, 99.99):.{2 if one.rank >= 0.99 else 0}f}%"
        runs: list[Run] = [
            (f" {'▲' if rare else ' '}{fmt.clip(one.name, _NAME - 3):<{_NAME - 2}}", style),
            (f"{one.at:<8}", ink.style(_INKS[one.at])),
            (f"{_exact(one.start_ms):>10}", ink.muted),
            (f"{_exact(one.end_ms - one.start_ms):>10}", ink.bold),
            (f"{_exact(one.usual_ms):>10}", ink.muted),
            (f"{rank:>8}  ", style),
        ]
        room = width - size_of(runs) - 1
        if room < 6 or not part.total_ms:
            return runs
        start = min(room - 1, int(one.start_ms / part.total_ms * room))
        length = max(1, round((one.end_ms - one.start_ms) / part.total_ms * room))
        return [*runs, (" " * start, ink.plain), (_FILLS[one.at] * min(length, room - start), ink.style(_INKS[one.at]))]

    @staticmethod
    def _second(second: Second, width: int, ink: Paint) -> list[Run]:
        row = dict(second.row)
        runs: list[Run] = [(f" {at_text(second.at_s) if second.at_s is not None else '':<8}", ink.muted)]
        runs.append((f"{row.get('state', '')!s:<10}", ink.states.get(str(row.get("state", "")), ink.plain)))
        return [*runs, *((f"{_cell(row.get(name)):>{size}}", ink.plain) for name, size in _shown(row).items())]

    def none(self) -> str:
        return "nothing is known of it"


_HEAD: Final = f" {'PART':<{_NAME}}{'AT':<8}{'FROM':>9}{'TOOK':>10}{'USUAL':>10}{'LONGER':>9}  "
#: What a replica reports and how wide it is written, as far as its timeline has it; together they fit 80 columns.
_REPORTED: Final = {"outstanding": 12, "running": 9, "waiting": 9, "step_ms": 9, "tokens_s": 10, "kv_use": 8}


def _shown(names: Iterable[str]) -> dict[str, int]:
    there = set(names)
    return {name: width for name, width in _REPORTED.items() if name in there}


def _second_heads(life: Life) -> str:
    return "".join(f"{name.upper():>{width}}" for name, width in _shown(life.replica[0]).items())


def _cell(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else fmt.UNKNOWN


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _exact(value_ms: float | None) -> str:
    """Parts of a sample may be microseconds."""
    if value_ms is None:
        return fmt.UNKNOWN
    return f"{value_ms * 1000:.0f} µs" if abs(value_ms) < 0.95 else fmt.millis(value_ms)


def facts(sample: SampleRow) -> list[str]:
    where = sample.slot or "no replica"
    if sample.prefill_slot and sample.prefill_slot != sample.slot:
        where = f"{sample.prefill_slot} (prefill), {where} (decode)"
    return [
        f"{where}, incarnation {sample.incarnation} · scheduled at {at_text(sample.scheduled_s)} ({sample.scheduled_s:,.3f} s)",
        f"dataset index {sample.index:,d} · prompt {fmt.plural(sample.n_prompt, 'token')} · output "
        f"{fmt.plural(sample.n_tokens, 'token')}" + (" · failed" if sample.failed else ""),
        f"TTFT {millis(sample.ttft_ms)} · TPOT {millis(sample.tpot_ms)} · latency {millis(sample.latency_ms)}",
    ]


def _entry(row: dict[str, Any]) -> Entry:
    who = str(row.get("who") or "")
    told = f"{row.get('what', '')} {row.get('subject') or ''}".strip()
    why = f": {row['why']}" if row.get("why") else ""
    by = f"  ({who.removeprefix('operator:')})" if who not in ("", "head") else ""
    return Entry(float(row.get("unix") or 0.0), float(row.get("at_s") or 0.0), told + why + by, str(row.get("level") or ""))
