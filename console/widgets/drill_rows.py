"""Lists of the record screen: replicas or nodes, samples, acts with their effect, and settings in which replicas differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.style import Style
from textual.strip import Strip

from console.widgets import fmt
from console.widgets.drill import Column, ItemsPane, millis, number, span, wrapped
from console.widgets.drill_timeline import at_text, clock_text
from console.widgets.paint import Paint, Run, fitting, size_of, strip_of
from harness.analysis.views import Change, Difference, Effect, FleetRow, Metric, SampleRow, Variant

OUTLIER_Z: Final = 3.5
_NAME: Final = Column("REPLICA", 15, False)


class FleetPane(ItemsPane[FleetRow]):
    COLUMNS = (
        (110, (_NAME, Column("SAMPLES", 9), Column("TOK/S", 8), Column("TTFTp50", 9), Column("TTFTp99", 9), Column("z", 6),
               Column("TPOTp50", 9), Column("TPOTp99", 9), Column("z", 6), Column("STEP", 9), Column("z", 6), Column("OVER", 7),
               Column("RE-DISP", 8), Column("FAIL", 6))),
        (0, (_NAME, Column("SAMPLES", 9), Column("TTFTp99", 9), Column("z", 6), Column("TPOTp99", 9), Column("z", 6),
             Column("STEP", 9), Column("z", 6), Column("OVER", 7))),
    )  # fmt: skip

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.kind = "replica"

    def headings(self, width: int) -> list[Strip]:
        titles = "".join(column.fit(column.title) for column in self.columns(width)[1:])
        return [strip_of([(f"  {self.kind.upper():<14}{titles}", self.inks.muted)], width)]

    def told(self, item: FleetRow, width: int, ink: Paint) -> list[list[Run]]:
        columns = self.columns(width + 1)
        wide = columns is self.COLUMNS[0][1]
        out = any(z is not None and z > OUTLIER_Z for z in (item.z_ttft, item.z_tpot, item.z_step))
        plain, muted = ink.plain, ink.muted
        name: list[Run] = [
            (f"{'▲' if out else ' '}{fmt.middle(item.name, 13)}", ink.warn if out else plain),
            (number(item.samples), muted),
        ]
        over: Run = (number(item.over_ttft + item.over_tpot), plain)
        ttft: list[Run] = [(millis(item.ttft_p50_ms), muted)] if wide else []
        tpot: list[Run] = [(millis(item.tpot_p50_ms), muted)] if wide else []
        runs: list[Run] = [
            *name, *([(number(item.tokens_per_s), muted)] if wide else []),
            *ttft, (millis(item.ttft_p99_ms), plain), _z(item.z_ttft, ink), *tpot, (millis(item.tpot_p99_ms), plain),
            _z(item.z_tpot, ink), (millis(item.step_ms), plain), _z(item.z_step, ink), over,
        ]  # fmt: skip
        if wide:
            runs += [(number(item.redispatched), muted), (number(item.failed), ink.bad if item.failed else muted)]
        return [[(column.fit(text), style) for column, (text, style) in zip(columns, runs, strict=True)]]

    def none(self) -> str:
        return "the record has no samples by replica"


def _z(z: float | None, ink: Paint) -> Run:
    if z is None:
        return fmt.UNKNOWN, ink.faint
    return fmt.signed(max(-999.0, min(999.0, z))), ink.warn if z > OUTLIER_Z else ink.muted


class SlowestPane(ItemsPane[SampleRow]):
    """The column that orders them is bold."""

    COLUMNS = (
        (100, (Column("SAMPLE", 11), Column("SCHEDULED", 11), Column("", 2, False), Column("REPLICA", 16, False),
               Column("TTFT", 10), Column("TPOT", 10), Column("LATENCY", 10), Column("PROMPT", 9), Column("TOKENS", 9),
               Column("TRIES", 7), Column("INDEX", 9))),
        (0, (Column("SAMPLE", 9), Column("AT", 8), Column("", 2, False), Column("REPLICA", 14, False), Column("TTFT", 9),
             Column("TPOT", 9), Column("LATENCY", 9), Column("PROMPT", 7), Column("TOKENS", 7), Column("TRY", 4))),
    )  # fmt: skip

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.by: Metric = "ttft"

    def told(self, item: SampleRow, width: int, ink: Paint) -> list[list[Run]]:
        columns = self.columns(width + 1)
        where = "–" if item.slot is None else item.slot

        def latency(metric: Metric, value_ms: float | None) -> Run:
            style: Style = ink.bold if metric == self.by else ink.muted
            return ("failed", ink.bad) if item.failed and value_ms is None else (millis(value_ms), style)

        runs: list[Run] = [
            (f"{item.seq:,d}", ink.muted), (at_text(item.scheduled_s), ink.plain), ("", ink.plain),
            (fmt.middle(where, 15), ink.plain),
            latency("ttft", item.ttft_ms), latency("tpot", item.tpot_ms), latency("latency", item.latency_ms),
            (number(item.n_prompt), ink.muted), (number(item.n_tokens), ink.muted),
            (str(item.tries), ink.warn if item.tries > 1 else ink.muted), (f"{item.index:,d}", ink.faint),
        ]  # fmt: skip
        return [[(column.fit(text), style) for column, (text, style) in zip(columns, runs, strict=False)]]

    def none(self) -> str:
        return "no sample of this kind was completed"


class ActsPane(ItemsPane[Effect]):
    """An act, and a line for each figure: before and after it with their intervals, and what may be said of the difference."""

    HEADINGS = 0

    def told(self, item: Effect, width: int, ink: Paint) -> list[list[Run]]:
        who = item.who.removeprefix("operator:") or "?"
        why = f": {item.why}" if item.why else ""
        first: list[Run] = [(f" {at_text(item.at_s):<8}", ink.plain), (clock_text(item.unix), ink.muted)]
        first += [("» ", ink.style("chart-mark"))]
        lines = wrapped(first, f"{item.act} {item.subject}".rstrip() + f"  ({who}){why}", width, ink.bold)
        if item.remark:
            lines += wrapped([(" " * 10, ink.muted)], item.remark, width, ink.muted)
        if item.changes:
            settle = f", {item.settle_s:.2g} s between" if item.settle_s else ""
            before, after = fmt.count(item.before_n), fmt.count(item.after_n)
            windows = f"{item.window_s:.3g} s before ({before} samples), {item.window_s:.3g} s after ({after}){settle}"
            lines.append([(f"{'':10}{fmt.clip(windows, width - 10)}", ink.faint)])
        lines += [_change(change, width, ink) for change in item.changes]
        return lines

    def none(self) -> str:
        return "nobody acted during this attempt"


def _change(change: Change, width: int, ink: Paint) -> list[Run]:
    def value(figure: float | None) -> str:
        if figure is None:
            return fmt.UNKNOWN
        return fmt.millis(figure) if change.unit == "ms" else fmt.rate(figure)

    glyph, style = {"better": ("●", ink.good), "worse": ("×", ink.bad)}.get(change.told, ("·", ink.muted))
    wide = width >= 100
    before, after = (span(interval, value) if wide else "" for interval in (change.before_interval, change.after_interval))
    name = figure_words(change.figure)
    groups: list[list[Run]] = [
        [(f"{'':10}{fmt.clip(name, 21):<22}", ink.plain)],
        [(f"{value(change.before):>9}", ink.plain), (f" {before:<19}" if wide else "", ink.muted)],
        [(" → ", ink.faint), (f"{value(change.after):>9}", ink.bold), (f" {after:<19}" if wide else "", ink.muted)],
        [(f"  {glyph} {change.told}", style)],
    ]
    return fitting(groups, width)


def figure_words(figure: str) -> str:
    """`ttft_p99_ms` → `TTFT p99`, `completed_qps` → `completed QPS`, `tokens_per_s` → `tok/s`."""
    known = {"tokens_per_s": "tok/s", "ttft": "TTFT", "tpot": "TPOT", "qps": "QPS"}
    return known.get(figure) or " ".join(known.get(word, word) for word in figure.removesuffix("_ms").split("_"))


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a setting, and which replicas have it; the first of its field names it."""

    field: str
    variant: Variant
    first: bool
    others: int  # replicas that have another value

    @property
    def slots(self) -> frozenset[str]:
        return frozenset(self.variant.slots)


def settings_of(found: list[Difference]) -> list[Setting]:
    rows = []
    for one in found:
        total = sum(len(variant.slots) for variant in one.variants)
        for at, variant in enumerate(one.variants):
            rows.append(Setting(one.field, variant, not at, total - len(variant.slots)))
    return rows


class ConfigPane(ItemsPane[Setting]):
    HEADINGS = 0

    def told(self, item: Setting, width: int, ink: Paint) -> list[list[Run]]:
        lines: list[list[Run]] = [[(f" {item.field}", ink.bold)]] if item.first else []
        n = len(item.variant.slots)
        style = ink.warn if n < item.others else ink.plain
        runs: list[Run] = [(f"   {'▲' if n < item.others else ' '} {fmt.plural(n, 'replica'):<15}", style)]
        room = max(12, (width - size_of(runs)) * 3 // 5)
        value = fmt.clip(item.variant.value or "(none)", room)
        runs.append((f"{value}  ", ink.plain))
        names = ", ".join(item.variant.slots)
        runs.append((fmt.clip(names, max(0, width - size_of(runs))), ink.muted))
        return [*lines, runs]

    def none(self) -> str:
        return "no setting is known in which replicas differ"
