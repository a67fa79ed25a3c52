"""Sections on what came out: verdict, margins, findings, figures with their formulas, accuracy and compliance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from harness.analysis.definitions import used_ids
from harness.analysis.views import Figures
from harness.report import charts
from harness.report.charts import NAMES, Scope
from harness.report.document import Block, Column, Heading, Level, Remarks, Section, Table, Text, Tile, number, span
from harness.report.gather import Content

PLACES: Final = ("min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max")
_FIRST_RATES: Final = ("target_qps", "scheduled_qps", "issued_qps", "completed_qps", "tokens_per_s", "duration_s")
_TOTALS: Final = ("issued", "completed", "failed", "lost", "redispatched", "tokens")


def tiles(content: Content) -> list[Tile]:
    overview = content.overview
    rates, totals = overview.rates, overview.totals
    found = [
        Tile("completed", number(rates.get("completed_qps")), "samples/s",
             f"target {number(overview.target_qps)}" if overview.target_qps else ""),
        Tile("output", number(rates.get("tokens_per_s"), 0), "tokens/s", "output tokens, input not counted"),
    ]  # fmt: skip
    for margin in overview.margins:
        below, level = f"limit {number(margin.limit_ms, 0)} ms", None
        if margin.head_room is not None:
            level = "bad" if margin.head_room < 0 else "good"
            below += f", {number(100 * abs(margin.head_room))} % {'over' if margin.head_room < 0 else 'below'}"
        found.append(Tile(f"{NAMES[margin.metric]} p99", number(margin.p99_ms), "ms", below, level))  # type: ignore[arg-type]
    if not overview.margins:
        found += [
            Tile(f"{name} p99", number(figures.get("p99")), "ms")
            for name, figures in _times(content)
            if figures.get("p99") is not None
        ]
    gone = [f"{number(totals[name])} {name}" for name in ("failed", "lost") if totals.get(name)]
    found.append(Tile("samples completed", number(totals.get("completed")), "", ", ".join(gone) or "none failed, none lost"))
    return found


def verdict(content: Content, scope: Scope) -> Section:
    overview = content.overview
    bad: Level = "good" if overview.verdict == "VALID" else "info" if overview.verdict in ("EXPLORATION", "") else "bad"
    lines: list[tuple[Level, str]] = [(bad, f"The attempt is {overview.verdict}.")] if overview.verdict else []
    lines += [("bad" if bad == "bad" else "info", reason) for reason in overview.reasons]
    lines += [("info", note) for note in overview.notes]
    if overview.acts:
        lines.append(("info", f"ACTS {overview.acts}: acts of operators or policies touched this attempt."))
    blocks: list[Block] = [Remarks(lines)] if lines else [Text("The record has no verdict of this attempt.")]
    chart = charts.margins(scope, overview.margins)
    if chart is not None:
        blocks.append(chart)
    if overview.margins:
        columns = [
            Column("figure"),
            Column("limit ms", 0),
            Column("p99 ms", 2),
            Column("95 % interval ms"),
            Column("head-room %", 1),
            Column("samples over", 0),
            Column("allowed over", 0),
        ]
        rows = [
            (NAMES[one.metric], one.limit_ms, one.p99_ms, span(one.p99_interval_ms, 2),
             None if one.head_room is None else 100 * one.head_room, one.over, one.allowed_over)
            for one in overview.margins
        ]  # fmt: skip
        blocks.append(Table(columns, rows, _told(("head_room", "allowed_over", "percentile_interval"))))
    return Section("verdict", "Verdict", blocks)


def findings(content: Content) -> Section | None:
    found = content.overview.findings
    return Section("findings", "Findings", [Remarks([(one.level, one.text) for one in found])]) if found else None


def figures(content: Content) -> Section:
    rates, totals = content.overview.rates, content.overview.totals
    values: dict[str, float | int | None] = {"target_qps": content.overview.target_qps, **rates}
    names = [*_FIRST_RATES, *(name for name in rates if name not in _FIRST_RATES)]
    known = [name for name in names if values.get(name) is not None]
    values |= totals
    known += [name for name in (*_TOTALS, *(name for name in totals if name not in _TOTALS)) if totals.get(name) is not None]
    blocks: list[Block] = []
    if content.overview.imported:
        blocks.append(Text("As the imported files have them: formulas and windows tell what Paceline means by each name."))
    if known:
        columns = [Column("figure"), Column("value", 2), Column("unit"), Column("formula"), Column("window")]
        blocks.append(Table(columns, [_figure(name, values[name]) for name in known]))
    times = _times(content)
    if times:
        blocks += [Heading("Times in ms"), _time_table(content), Text(_told(f"{name.lower()}_ms" for name, _ in times))]
    if content.beside and not content.overview.imported:  # whose figures are LoadGen's own
        columns = [Column("figure"), Column("unit"), Column("ours", 2), Column("LoadGen's", 2), Column("difference %", 2),
                   Column("why they may differ")]  # fmt: skip
        beside = [
            (one.title, one.unit, one.ours, one.loadgens,
             100 * (one.ours / one.loadgens - 1) if one.ours is not None and one.loadgens else None, one.why)
            for one in content.beside
        ]  # fmt: skip
        blocks += [Heading("LoadGen's own figures beside ours"), Table(columns, beside)]
    if any(one.value is not None for one in content.users):
        columns = [Column("definition"), Column("tokens/s/user", 2), Column("how"), Column("remark")]
        rows = [(one.title, one.value, one.how, one.remark) for one in content.users]
        blocks += [Heading("Tokens/s per user"), Table(columns, rows, "Definitions in use; they are not to be mixed.")]
    return Section("figures", "Figures", blocks or [Text("The record has no figures of this attempt.")])


def _figure(name: str, value: float | int | None) -> tuple[str, float | int | None, str, str, str]:
    found = used_ids([name])
    if not found:
        return name.replace("_", " "), value, "", "", ""
    one = found[0]
    return one.title, value, one.unit, one.formula, one.window


def _times(content: Content) -> list[tuple[str, Figures]]:
    """From the samples; of a record without any, as run.json has them."""
    if content.distributions:
        return [(NAMES[one.metric], one.figures) for one in content.distributions]
    attempt = content.attempt
    if attempt is None:
        return []
    found = (("TTFT", attempt.ttft_ms), ("TPOT", attempt.tpot_ms), ("Latency", attempt.latency_ms))
    return [(name, told) for name, told in found if any(value is not None for value in told.values())]


def _time_table(content: Content) -> Table:
    intervals = {NAMES[one.metric]: one.p99_interval_ms for one in content.distributions}
    counts = {NAMES[one.metric]: one.n for one in content.distributions}
    columns = [
        Column(""),
        Column("n", 0),
        *(Column(place.replace("_", "."), 2) for place in PLACES),
        Column("p99, 95 % interval"),
    ]
    rows = [
        (name, counts.get(name), *(told.get(place) for place in PLACES), span(intervals.get(name), 2))
        for name, told in _times(content)
    ]  # fmt: skip
    return Table(columns, rows, "Percentiles are LoadGen's: the sorted value at position int(n x p), never interpolated.")


def _told(names: Iterable[str]) -> str:
    return " ".join(f"{one.title}: {one.formula}." for one in used_ids(names))


def accuracy(content: Content) -> Section | None:
    blocks: list[Block] = []
    score, audit = content.accuracy, content.compliance
    if score is not None:
        gate = (
            f"gate {number(score.gate, 4)}: {'passed' if score.passed else 'not passed'}"
            if score.gate is not None
            else "no gate known"
        )
        level: Level = "info" if score.passed is None else "good" if score.passed else "bad"
        n = (
            f"{number(score.n)} of {number(score.expected_n)} samples"
            if score.expected_n is not None
            else f"{number(score.n)} samples"
        )
        lines: list[tuple[Level, str]] = [(level, f"{score.metric} {number(score.score, 4)} over {n}; {gate}.")]
        lines.append(("info", f"{number(score.tokens_per_sample, 2)} output tokens a sample."))
        lines += [("info", remark) for remark in score.remarks]
        columns = [
            Column("subset"),
            Column("samples", 0),
            Column("correct", 2),
            Column("score %", 4),
            Column("no answer found", 0),
            Column("decided by"),
        ]
        rows = [(one.name, one.n, one.correct, one.score, one.unparsed, one.how) for one in score.subsets]
        blocks += [
            Heading("Accuracy"),
            Remarks(lines),
            Table(columns, rows, f"SHA-256 of the whole accuracy log: {score.log_sha256}"),
        ]
    if audit is not None:
        lines = [("good" if audit.passed else "bad", f"{audit.test} {'passed' if audit.passed else 'did not pass'}.")]
        lines += [("info", remark) for remark in audit.remarks]
        if audit.official:
            lines.append(("info", f"The official script: {audit.official}"))
        checks = [(one.name, "passed" if one.passed else "failed", one.text) for one in audit.checks]
        blocks += [Heading("Compliance"), Remarks(lines), Table([Column("check"), Column("result"), Column("found")], checks)]
    return Section("accuracy", "Accuracy and compliance", blocks) if blocks else None
