"""What `paceline metrics` prints and writes: of all roles, of the course of one, and of what a fetch has brought."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from console.cli.asked_for import moment
from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.output import note, number, plural, say, say_json, table, typed, when
from console.cli.promql import in_words, write_out
from harness.metrics.gpu.base import SourceError
from harness.metrics.gpu.roles import ROLES
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.records.runfile import RunFile

if TYPE_CHECKING:
    from harness.metrics.gpu.postrun import Fetched
    from harness.metrics.gpu.summary import RoleSummary
    from harness.metricspec import GpuSourceSpec

_POINTS_SHOWN: Final = 400
#: Unit → what is written behind a number, what it is divided by, decimals.
_UNITS: Final[dict[str, tuple[str, float, int]]] = {
    "percent": ("%", 1.0, 1), "share": ("%", 0.01, 1), "watt": ("W", 1.0, 0), "joule": ("MJ", 1e6, 2), "celsius": ("°C", 1.0, 1),
    "byte": ("GB", 1e9, 1), "mhz": ("MHz", 1.0, 0),
}  # fmt: skip


def span(run: RunFile, attempt: int | None, start: str | None, end: str | None) -> tuple[float, float]:
    from harness.metrics.gpu.postrun import span_of

    try:
        first, last = span_of(run, attempt)
    except ValueError as error:
        raise BadInput(str(error)) from error
    began = first
    first = first if start is None else moment(start, "--start", began)
    last = last if end is None else moment(end, "--end", began)
    if not first < last:
        raise BadInput(f"metrics: the span from {when(first)} to {when(last)} is empty; --start has to be before --end")
    return first, last


# --- fetching ----------------------------------------------------------------------------------------------------------


def fetch(folder: RunFolder, gpu: GpuSourceSpec, first: float, last: float, step: float | None) -> Fetched:
    from harness.metrics.gpu.postrun import fetch as fetch_into_record
    from harness.records.lock import FolderTaken
    from harness.wire.client import operator_name

    if gpu.url is None:
        raise BadInput(
            "metrics: --fetch needs a Prometheus that has the run's time; this run's spec names none "
            "(metrics.gpu.url): give --url http://HOST:9090"
        )
    note(f"{folder.name}: fetching {when(first)} to {when(last)} from {gpu.url}")
    try:
        return fetch_into_record(folder, gpu, first, last, step_s=step, who=operator_name(), tell=lambda text: note(f"  {text}"))
    except FolderTaken as error:
        raise BadInput(f"{error}: while it lives it records by itself; --query asks without writing") from error
    except (SourceError, ValueError) as error:
        raise in_words(error) from error


def _say_fetched(done: Fetched) -> None:
    fleet = done.matched + done.gpus_unmatched
    read_by = f" by {', '.join(done.profiles)}" if done.profiles else ""
    say(
        f"fetched   {plural(done.rows, 'value')} that the record lacked, of {sum(done.found.values()):,d} found, "
        f"from {done.source}{read_by}, a step of {done.step_s:g} s"
    )
    if done.profiles:
        unknown = f", {done.series_unmatched:,d} of the source's GPUs are no replica's" if done.series_unmatched else ""
        say(f"          {done.matched:,d} of {plural(fleet, 'GPU')} have series{unknown}")
    for line in [*done.problems, *done.warnings, *(done.examples if done.gpus_unmatched else [])]:
        say(f"          {line}")


# --- overview ----------------------------------------------------------------------------------------------------------


def overview(
    folder: RunFolder, run: RunFile, attempt: int | None, done: Fetched | None, target: Path | None, *, as_json: bool
) -> int:
    from harness.metrics.gpu.summary import summarise_gpus

    record = Record(folder)
    if target is not None:
        rows = record.collect(lambda gpus: gpus, attempt, "gpus")
        write_out(target, rows, {"run": folder.name, "values": rows.to_dicts()} if target.suffix == ".json" else {})
    found = summarise_gpus(record, attempt)
    sources = sources_of(record)
    if as_json:
        fetched = None if done is None else dataclasses.asdict(done) | {"rows": done.rows}
        say_json(
            {
                "run": folder.name, "attempt": attempt, "roles": [dataclasses.asdict(one) for one in found], "sources": sources,
                "fetched": fetched, "problems": record.problems,
            }
        )  # fmt: skip
    else:
        if done is not None:
            _say_fetched(done)
        _say_overview(folder, run, found, sources)
        for problem in record.problems:
            say(f"record: {problem}")
    return OK if found else NOT_VALID


def _say_overview(folder: RunFolder, run: RunFile, found: Sequence[RoleSummary], sources: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        say(f"{folder.name}: no GPU metrics are recorded{_why_nothing(sources)}")
        fetch = typed(f"metrics {folder.name} --fetch --url http://HOST:9090")
        say(f"  `{fetch}` fetches them from a Prometheus that scraped the exporters at that time")
        return
    say(f"{folder.name}: GPU metrics{'  SYNTHETIC: simulated replicas and GPUs' if run.synthetic else ''}")
    for source in sources:
        say(f"  {_source_line(source)}")
    gauges, counts = [one for one in found if not one.count], [one for one in found if one.count]
    if gauges:
        say()
        say(_gauge_table(gauges))
    if counts:
        say()
        say(_count_table(counts))
    missing = {role: why for source in sources for role, why in source["not_collected"].items()}
    gone = [(role, why) for role, why in missing.items() if role not in {one.role for one in found}]
    if gone:
        say("\nnot collected")
        for role, why in gone:
            say(f"  {role}: {why}")


def _gauge_table(found: Sequence[RoleSummary]) -> str:
    return table(
        ["role", "unit", "p50", "min", "max", "GPUs", "every s", "worst replicas (mean)"],
        [
            [
                one.role, unit_of(one.unit), *(figure(value, one.unit) for value in (one.p50, one.min, one.max)),
                number(one.gpus), number(one.every_s, 0), _worst(one),
            ]
            for one in found
        ],
        right=range(2, 7),
    )  # fmt: skip


def _count_table(found: Sequence[RoleSummary]) -> str:
    return table(
        ["count", "unit", "grew by", "GPUs", "where most"],
        [[one.role, unit_of(one.unit), figure(one.grew, one.unit), number(one.gpus), _worst(one)] for one in found],
        right=range(2, 4),
    )


def _worst(one: RoleSummary) -> str:
    return "  ".join(f"{slot} {figure(value, one.unit)}" for slot, value in one.worst)


def unit_of(unit: str) -> str:
    return _UNITS[unit][0] if unit in _UNITS else unit if unit != "count" else ""


def figure(value: float | None, unit: str) -> str:
    """In the unit that `unit_of` names; `-` where nothing is known."""
    if value is None or not math.isfinite(value):
        return "-"
    _, divided, digits = _UNITS.get(unit, ("", 1.0, 0 if float(value).is_integer() else 2))
    return f"{value / divided:,.{digits}f}"


def sources_of(record: Record) -> list[dict[str, Any]]:
    """Each source that the head read or that was fetched from, as it was last."""
    from harness.metrics.gpu.postrun import read_fetches

    found: dict[str, dict[str, Any]] = {}
    for entry in record.journal():
        if entry.what == "metrics.source":
            data = entry.data
            found[entry.subject] = {
                "source": entry.subject, "kind": data.get("kind", ""), "state": entry.after, "problem": entry.why,
                "profiles": data.get("profiles", []), "resolution_s": data.get("resolution_s"),
                "matched": data.get("matched", 0), "gpus_unmatched": data.get("gpus_unmatched", 0),
                "not_collected": data.get("not_collected", {}),
            }  # fmt: skip
    rows = list(found.values())
    for line in read_fetches(record.folder):
        if line.rows:
            rows.append(
                {
                    "source": line.source, "kind": "fetched", "state": f"{line.rows:,d} values, {when(line.unix)}", "problem": "",
                    "profiles": line.profiles, "resolution_s": line.step_s, "matched": line.matched,
                    "gpus_unmatched": line.gpus_unmatched, "not_collected": line.not_collected,
                }
            )  # fmt: skip
    return rows


def _source_line(source: Mapping[str, Any]) -> str:
    every = f", a value every {source['resolution_s']:.3g} s" if source["resolution_s"] else ""
    profiles = f" ({', '.join(source['profiles'])})" if source["profiles"] else ""
    fleet = source["matched"] + source["gpus_unmatched"]
    gpus = f", {source['matched']:,d} of {plural(fleet, 'GPU')}" if fleet else ""
    problem = f": {source['problem']}" if source["problem"] else ""
    return f"{source['source']}{profiles}: {source['kind']}, {source['state']}{gpus}{every}{problem}"


def _why_nothing(sources: Sequence[Mapping[str, Any]]) -> str:
    said = next((source["problem"] for source in reversed(sources) if source["problem"]), "")
    return f": {said}" if said else ""


# --- the course of one role --------------------------------------------------------------------------------------------


def course(folder: RunFolder, role: str, slot: str | None, attempt: int | None, target: Path | None, *, as_json: bool) -> int:
    import polars as pl

    record = Record(folder)
    rows = record.collect(
        lambda gpus: gpus.filter(pl.col("role") == role).sort("sampled_unix", "slot", "device"), attempt, "gpus"
    )
    if not rows.height:
        there = record.collect(lambda gpus: gpus.select(pl.col("role").unique()), attempt, "gpus")["role"].to_list()
        has = f"it has {', '.join(name for name in ROLES if name in there)}" if there else "it has no GPU metrics at all"
        raise BadInput(f"{folder.name} has nothing of {role} recorded; {has}")
    if slot is not None:
        slots = sorted(rows["slot"].unique().to_list())
        if slot not in slots:
            raise BadInput(f"{folder.name} has nothing of {role} of {slot!r}; it has {', '.join(slots[:5])} …")
        rows = rows.filter(pl.col("slot") == slot)
    unit = ROLES[role].unit
    columns = rows.select("attempt", "sampled_unix", "slot", "device", "value")
    if target is not None:
        write_out(target, columns, {"run": folder.name, "role": role, "unit": unit, "values": columns.to_dicts()})
    elif as_json:
        say_json({"run": folder.name, "role": role, "unit": unit, "values": columns.to_dicts()})
    else:
        shown = columns.tail(_POINTS_SHOWN)
        cells = [
            [when(unix), of_slot, str(device), figure(value, unit)]
            for _, unix, of_slot, device, value in shown.iter_rows()
        ]  # fmt: skip
        say(table(["sampled", "slot", "GPU", f"{role} {unit_of(unit)}".rstrip()], cells, right=range(2, 4)))
        if shown.height < columns.height:
            say(f"the last {shown.height} of {columns.height:,d}; --out FILE.csv has all")
    return OK
