"""`paceline runs`: the runs of a folder, filtered and sorted as the console does it, with labels and disk use."""

from __future__ import annotations

import csv
import math
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from console import locations
from console.cli.errors import OK, BadInput
from console.cli.found import phase_of
from console.cli.output import note, number, plural, say, say_json, table, typed, when
from console.cli.remote import dead_links
from console.cli.waiting import told_if_slow
from console.store.runs import SORTS, BadRunFilter, RunRow, asks_size, filter_of, ordered, scan
from console.widgets import fmt
from harness.records.disk import size_of
from harness.records.labels import BadLabel, checked_tag
from harness.records.removing import DELETED, rests


def runs(
    *words: Annotated[str, Parameter(help="Words of name, verdict, load, model or tag; ttft>2.5s, acts>0, note:WORD, pinned")],
    tag: Annotated[list[str] | None, Parameter(negative="", help="With this tag; given more than once: with all of them")] = None,
    sort: Annotated[str | None, Parameter(help=", ".join(one.name for one in SORTS))] = None,
    reverse: Annotated[bool, Parameter(negative="", help="The other way round")] = False,
    size: Annotated[bool, Parameter(negative="", help="How much of the disk each takes, and all together")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print JSON")] = False,
    csv: Annotated[bool, Parameter(name="--csv", negative="", help="Print CSV")] = False,
) -> int:
    """Runs in the folder of runs, newest first; with WORDS those that the console's filter on its Runs screen keeps.

    Words must all hold; `a|b` is either, `!a` is not: `paceline runs valid server '!tag:old' 'qps>=1k'`.
    """
    if json and csv:
        raise BadInput("runs: --json or --csv, not both")
    root, text = locations.runs(), " ".join(words)
    rows = _chosen(root, text, tag or [], sort, reverse, with_sizes=size)
    if json or csv:
        data = [row_data(row, with_size=size) for row in rows]
        say_json(data) if json else _say_csv(data)
        return OK
    _say_rows(root, rows, filtered=bool(text or tag), with_sizes=size)
    return OK


def _chosen(root: Path, text: str, tags: list[str], sort: str | None, reverse: bool, *, with_sizes: bool) -> list[RunRow]:
    try:
        keeps = filter_of(" ".join([text, *(f"tag:{checked_tag(tag)}" for tag in tags)]))
    except (BadRunFilter, BadLabel) as problem:
        raise BadInput(f"runs: {problem}") from problem
    order = next((one for one in SORTS if one.name == sort), None)
    if sort is not None and order is None:
        raise BadInput(f"runs: no order {sort!r}; there are {', '.join(one.name for one in SORTS)}")
    rows = list(scan(root, {}))
    for row in rows:
        if row.label_problem:
            note(f"{row.name}: {row.label_problem}")
    if with_sizes or sort == "size" or asks_size(text):
        with told_if_slow(f"adding up the files of {plural(len(rows), 'run')}"):
            for row in rows:
                row.size_bytes = size_of(row.path)
    rows = [row for row in rows if keeps(row)]
    if order is not None:
        return ordered(rows, order, reverse)
    return rows[::-1] if reverse else rows


def row_data(row: RunRow, *, with_size: bool = False) -> dict[str, Any]:
    common: dict[str, Any] = {"run": row.name, "phase": phase_of(row), "verdict": row.verdict}
    labels = {"tags": row.tags, "note": row.note, "pinned": row.pinned, "record": str(row.path)}
    labels = ({"size_bytes": int(row.size_bytes)} if with_size else {}) | labels
    if row.state == "damaged":
        return common | {"problem": row.problem} | labels
    figures = {
        "synthetic": row.synthetic,
        "imported": row.imported,
        "started_unix": row.started_unix,
        "ended_unix": row.ended_unix,
        "scenario": row.scenario,
        "kind": row.kind,
        "model": row.model,
        "replicas": row.replicas,
        "attempts": row.attempts,
        "target_qps": row.target_qps,
        "completed": None if math.isnan(row.completed) else int(row.completed),
        "completed_qps": row.completed_qps,
        "tokens_per_s": row.tokens_per_s,
        "ttft_p99_ms": row.ttft_p99_ms,
        "tpot_p99_ms": row.tpot_p99_ms,
        "acts": row.acts,
    }
    return common | {name: _known(value) for name, value in figures.items()} | labels


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _say_csv(data: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in data for name in row))
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: " ".join(value) if isinstance(value, list) else value for name, value in row.items()} for row in data)


def _say_rows(root: Path, rows: list[RunRow], *, filtered: bool, with_sizes: bool) -> None:
    if rows:
        say(run_table(rows, with_sizes=with_sizes))
    elif filtered:
        say(f"no run in {root} is meant by that")
    else:
        say(f"no runs in {root} ({typed('demo')} starts one)")
    if with_sizes and rows:
        all_of, free = fmt.size(sum(row.size_bytes for row in rows)), fmt.size(float(shutil.disk_usage(root).free))
        say(f"\n{plural(len(rows), 'run')}, {all_of}; {free} are free on that disk")
    for folder in dead_links():
        say(f"{folder.name}: its link to the cluster is dead; `{typed(f'attach {folder.name}')}` starts it again")
    if left := rests(root):
        taken = sum(size_of(path) for path in left)
        say(
            f"the deletion of {plural(len(left), 'run')} was cut short, {fmt.size(taken)} are left in {root / DELETED}: "
            f"`{typed('delete')}` removes the rest"
        )


def run_table(rows: list[RunRow], *, with_sizes: bool = False) -> str:
    """Sizes are shown where they are known and asked for."""
    titles = ["run", "started", "phase", "verdict", "target QPS", "completed", "TTFT p99 ms", "TPOT p99 ms"]
    titles += ["size"] if with_sizes else []
    cells = [
        [
            row.name,
            when(_known(row.started_unix)),
            phase_of(row),
            row.verdict or "-",
            number(row.target_qps),
            number(None if math.isnan(row.completed) else int(row.completed)),
            number(row.ttft_p99_ms),
            number(row.tpot_p99_ms),
            *([fmt.size(row.size_bytes)] if with_sizes else []),
            _beside(row),
        ]
        for row in rows
    ]
    return table([*titles, ""], cells, right=range(4, len(titles)))


def _beside(row: RunRow, longest: int = 60) -> str:
    said = ["pinned"] if row.pinned else []
    said += [row.kind] if row.kind not in ("", "performance") else []  # their VALID is another
    said += ["synthetic"] if row.synthetic else []
    said += [f"imported from {row.imported}"] if row.imported else []
    said += [f"ACTS {row.acts}"] if row.acts else []
    said += [f"#{tag}" for tag in row.tags]
    text = " ".join(said)
    if row.note:
        text += f"{'  ' if text else ''}{row.note if len(row.note) <= longest else row.note[: longest - 1] + '…'}"
    return text
