"""From what was gathered to a document, and to the tables of its data files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from harness.analysis.comparing import Comparison
from harness.analysis.scaling import Scaling
from harness.records.runfile import plain
from harness.report import comparison, course, machines, outcome, settings
from harness.report.charts import Scope
from harness.report.document import Data, Document, Part, number, slug
from harness.report.gather import Content

_FOOTER: Final = (
    "Written by Paceline from the record of the run. Times are UTC; percentiles are LoadGen's, never interpolated; time zero is "
    "the start of an attempt's load."
)


def document(contents: Sequence[Content], compared: Comparison | None = None, scaled: Scaling | None = None) -> Document:
    several = len(contents) > 1
    parts = [comparison.part(compared, scaled)] if compared is not None else []
    ids = part_ids(contents)
    parts += [_part(content, name, several) for content, name in zip(contents, ids, strict=True)]
    title = f"Paceline report: {', '.join(_title(content, several) for content in contents)}"
    return Document(title, parts, _FOOTER)


def part_ids(contents: Sequence[Content]) -> list[str]:
    """For anchors, charts and folders: one each, whatever the runs are called."""
    found: list[str] = []
    for content in contents:
        name = f"{slug(content.run.run)}-{content.overview.attempt}"
        taken = sum(1 for other in found if other == name or other.startswith(f"{name}-again"))
        found.append(name if not taken else f"{name}-again{taken}")
    return found


def _title(content: Content, several: bool) -> str:
    return f"{content.run.run}:{content.overview.attempt}" if several else content.run.run


def scope_of(content: Content, prefix: str) -> Scope:
    duration_s = content.overview.rates.get("duration_s")
    window = f"time zero to the last completion, {number(duration_s)} s" if duration_s else "the whole attempt"
    return Scope(prefix, content.run.run, content.overview.attempt, window, content.stamps)


def _part(content: Content, name: str, several: bool) -> Part:
    overview, scope = content.overview, scope_of(content, name if several else "")
    sections = [
        outcome.verdict(content, scope),
        outcome.findings(content),
        outcome.figures(content),
        course.over_time(content, scope),
        course.distributions(content, scope),
        course.tails(content, scope),
        machines.fleet(content, scope),
        machines.slowest(content, scope),
        course.acts(content),
        machines.gpus(content),
        outcome.accuracy(content),
        settings.configuration(content),
        settings.record(content),
    ]
    return Part(
        id=name,
        title=_title(content, several),
        subtitle=_subtitle(content),
        sections=[section for section in sections if section is not None],
        verdict=overview.verdict,
        stamps=_stamps(content),
        tiles=outcome.tiles(content),
    )


def _subtitle(content: Content) -> str:
    overview = content.overview
    model = content.run.spec.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    said = [
        str(name) if name else "",
        f"attempt {overview.attempt}" if overview.attempt else "no attempt",
        " ".join(filter(None, (overview.kind, overview.scenario))),
        f"target {number(overview.target_qps)} QPS" if overview.target_qps else "",
        course.utc(overview.started_unix) if overview.started_unix else "",
    ]
    return " · ".join(filter(None, said))


def _stamps(content: Content) -> list[str]:
    overview = content.overview
    stamps = []
    if overview.synthetic:
        stamps.append("SYNTHETIC: simulated replicas, no hardware was measured.")
    if overview.imported:
        stamps.append(f"IMPORTED: made from {overview.imported}; it has what those files say, and Paceline recorded none of it.")
    return stamps


# --- data --------------------------------------------------------------------------------------------------------------


def data(content: Content) -> list[Data]:
    """figures, ticks, distributions, cdf, fleet, tail, parts, slowest, acts."""
    overview = content.overview
    values: dict[str, Any] = {"target_qps": overview.target_qps, **overview.rates, **overview.totals}
    attempt = content.attempt
    for name, told in (("ttft", attempt.ttft_ms), ("tpot", attempt.tpot_ms), ("latency", attempt.latency_ms)) if attempt else ():
        values |= {f"{name}_{place}_ms": value for place, value in told.items()}
    for one in content.distributions:
        values |= {f"{one.metric}_{place}_ms": value for place, value in one.figures.items()}
    tables = {
        "figures": [{"figure": name, "value": value} for name, value in values.items()],
        "ticks": [_row(tick) for tick in content.timeline.ticks],
        "distributions": [
            {"metric": one.metric, "from_ms": low, "to_ms": high, "samples": count}
            for one in content.distributions
            for low, high, count in zip(one.edges_ms, one.edges_ms[1:], one.counts, strict=False)
        ],
        "cdf": [{"metric": one.metric, "ms": ms, "share": share} for one in content.distributions for ms, share in one.cdf],
        "fleet": [_row(row) for row in content.replicas],
        "nodes": [_row(row) for row in content.nodes],
        "tail": [
            {"metric": tail.metric, "rule": tail.rule, **_without(_row(row), "where")}
            for tail in content.tails
            for rows in tail.groups.values()
            for row in rows
        ],
        "parts": [{"metric": tail.metric, **_row(part)} for tail in content.tails for part in tail.parts],
        "slowest": [_row(row) for row in content.slowest],
        "acts": [
            {**_without(_row(effect), "changes"), **change}
            for effect in content.effects
            for change in [_row(one) for one in effect.changes] or [{}]
        ],
    }  # fmt: skip
    return [Data(name, rows) for name, rows in tables.items() if rows]


def _row(view: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(view, enc_hook=plain)
    return found


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}
