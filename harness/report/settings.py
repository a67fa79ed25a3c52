"""Sections on what was asked for and with what: spec, LoadGen's settings, versions, differences between replicas; the record."""

from __future__ import annotations

from typing import Any, Final

from harness.analysis.shape import flat
from harness.metrics.kernels import InUse
from harness.report.course import utc
from harness.report.document import Block, Cell, Column, Folded, Heading, Level, Remarks, Section, Table, Text, short
from harness.report.gather import Content
from harness.spec import RunSpec

_SLOTS_NAMED: Final = 6
_ALWAYS: Final = ("name", "model.", "dataset.", "load.", "limits.")
#: Tables of the spec whose values may be secrets: a report leaves the house.
_SECRET: Final = ("metrics.gpu.headers", "cluster.kubernetes.env", "fleet.engine_args.api_key")
_SECRET_WORDS: Final = ("password", "secret", "token_value", "authorization", "api_key", "bearer")


def configuration(content: Content) -> Section:
    blocks: list[Block] = []
    spec = flat(content.run.spec)
    if spec:
        default = flat(RunSpec().model_dump(mode="json"))
        chosen = {
            name: value
            for name, value in spec.items()
            if default.get(name) != value or (name.startswith(_ALWAYS) and value not in (None, {}))
        }
        columns = [Column("field"), Column("value")]
        blocks += [
            Heading("What was asked for"),
            Table(
                columns,
                [(name, told(name, value)) for name, value in chosen.items()],
                "Model, dataset, load and limits, and what else differs from the defaults.",
            ),
            Folded(
                f"All {len(spec)} fields of the spec",
                [Table(columns, [(name, told(name, value)) for name, value in spec.items()])],
            ),
        ]
    attempt = content.attempt
    if attempt is not None and attempt.settings_diff:
        lines: list[tuple[Level, str]] = [("bad", line) for line in attempt.settings_diff]
        blocks += [Heading("LoadGen's settings that are not as asked"), Remarks(lines)]
    if attempt is not None and attempt.settings_effective:
        asked, effective = attempt.settings_asked, attempt.settings_effective
        rows = [(name, told(name, value)) for name, value in sorted(effective.items())]
        inner: list[Block] = [Table([Column("setting"), Column("value")], rows, "As LoadGen's detail log states them.")]
        if asked:
            rows = [(name, told(name, value)) for name, value in sorted(asked.items())]
            inner.append(Table([Column("setting"), Column("asked for")], rows))
        blocks += [Heading("LoadGen's settings"), Folded(f"{len(effective)} settings in effect", inner)]
    blocks += _kernels(content.kernels)
    if content.config:
        differ = [
            (one.field, variant.value, len(variant.slots), _slots(variant.slots))
            for one in content.config
            for variant in one.variants
        ]
        columns = [Column("field"), Column("value"), Column("replicas", 0), Column("which")]
        blocks += [Heading("Replicas that are not alike"), Table(columns, differ, "The variant that most have comes first.")]
    if content.run.versions:
        blocks += [Heading("Versions"), Table([Column("package"), Column("version")], sorted(content.run.versions.items()))]
    return Section("configuration", "Configuration", blocks or [Text("The record does not say how the run was configured.")])


def _kernels(kernels: list[InUse]) -> list[Block]:
    """Of a model with experts."""
    if not kernels:
        return []
    columns = [Column(name) for name in ("kernel", "table", "of its floor", "class of node", "asked for ours, and why not")]
    rows: list[tuple[Cell, ...]] = [
        (
            f"{one.kernel} {one.hash}".strip() or None,
            f"{one.config} {one.config_hash}".strip() or None,
            one.of_floor or None,
            one.node_class or None,
            one.fallback or None,
            one.replicas,
        )
        for one in kernels
    ]
    return [Heading("MoE kernels"), Table([*columns, Column("replicas", 0)], rows, "As the replicas told when they registered.")]


def _slots(slots: list[str]) -> str:
    more = f" and {len(slots) - _SLOTS_NAMED} more" if len(slots) > _SLOTS_NAMED else ""
    return ", ".join(slots[:_SLOTS_NAMED]) + more


def told(name: str, value: Any) -> Cell:
    if value not in (None, "", {}, []) and (name.startswith(_SECRET) or any(word in name.lower() for word in _SECRET_WORDS)):
        return value if name.endswith("_file") else "(not shown)"
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    return short(value, 300)


def record(content: Content) -> Section:
    """Where all this comes from."""
    run, attempt = content.run, content.attempt
    facts: list[tuple[str, str]] = [("run", run.run), ("phase", run.phase), ("host of the head", run.host or "-")]
    facts += [("run started", utc(run.started_unix)), ("run ended", utc(run.ended_unix))]
    if attempt is not None:
        facts += [("attempt started", utc(attempt.started_unix)), ("attempt ended", utc(attempt.ended_unix))]
        facts.append(("attempt", f"{attempt.number} of {len(run.attempts)}"))
    if len(run.head_epochs) > 1:
        facts.append(("lives of the head", str(len(run.head_epochs))))
    blocks: list[Block] = [Table([Column("fact"), Column("value")], facts)]
    if run.imported is not None:
        lines: list[tuple[Level, str]] = [("info", f"Read: {line}") for line in run.imported.read]
        lines += [("warn", f"Not in those files: {line}") for line in run.imported.missing]
        blocks += [Heading(f"Imported from {run.imported.kind} files, {run.imported.source}"), Remarks(lines)]
    if content.problems:
        blocks += [Heading("What could not be read"), Remarks([("warn", problem) for problem in content.problems])]
    return Section("record", "The record", blocks)
