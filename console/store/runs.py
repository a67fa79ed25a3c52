"""All runs of a folder as rows: what each was, how it ended, what it measured, how it is labelled. Read from run.json and
labels.json alone, save for its size.

Blocking: screens call it in a thread and take rows as they come. A row that was read before is taken again as long as its
files and its head are as they were, so looking at 300 runs every few seconds costs 600 calls of stat. A folder that
cannot be read is a row as well, with the reason: a run that vanishes from its list is looked for in vain.
"""

from __future__ import annotations

import math
import operator
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from console.store.words import COMPARISON, BadFilter, Part, Unit, checked, value_of, words_of
from harness.cluster.local import head_alive
from harness.records.disk import size_of as size_of
from harness.records.errors import RecordError
from harness.records.labels import read_labels
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run
from harness.wire.states import RUN_ENDED

State = Literal["running", "ended", "head gone", "damaged"]
#: When a row was read: run.json's time, whether a head lived, and which labels.json there was (its time and its inode).
Changed = tuple[int, int, int]  # nanoseconds, bytes, inode: two writes can be of one tick of the clock
Stamp = tuple[Changed, bool, tuple[int, int]]
#: Files that make a folder a run's, even when its run.json is not there.
_SIGNS: Final = ("run.json", "spec.json", "journal.jsonl", "head.json")


@dataclass(slots=True)
class RunRow:
    """NaN and "" where the record does not say."""

    path: Path
    name: str
    state: State
    phase: str = ""
    problem: str = ""
    synthetic: bool = False
    started_unix: float = math.nan
    ended_unix: float = math.nan
    model: str = ""
    scenario: str = ""
    kind: str = ""
    nodes: int = 0
    per_node: int = 0
    attempts: int = 0
    target_qps: float = math.nan
    completed_qps: float = math.nan
    tokens_per_s: float = math.nan
    ttft_p99_ms: float = math.nan
    tpot_p99_ms: float = math.nan
    ttft_limit_ms: float | None = None
    tpot_limit_ms: float | None = None
    verdict: str = ""
    reasons: list[str] = field(default_factory=list)
    acts: int = 0
    completed: float = math.nan
    size_bytes: float = math.nan
    imported: str = ""  # of what kind of files it was made; "": recorded by a head
    tags: list[str] = field(default_factory=list)
    note: str = ""
    pinned: bool = False
    label_problem: str = ""
    stamp: Stamp = ((0, 0, 0), False, (0, 0))

    @property
    def replicas(self) -> int:
        return self.nodes * self.per_node

    @property
    def when_unix(self) -> float:
        return self.started_unix if not math.isnan(self.started_unix) else self.stamp[0][0] / 1e9

    @property
    def outcome(self) -> str:
        """In a word or two."""
        if self.state == "running":
            return self.phase or "running"
        return {"damaged": "damaged", "head gone": "head gone"}.get(self.state) or self.verdict or self.phase


def scan(root: Path, known: dict[Path, RunRow]) -> Iterator[RunRow]:
    """Newest run.json first. Rows of `known` that still hold are given again."""
    found = []
    try:
        entries = list(os.scandir(root))
    except OSError:
        return
    for entry in entries:
        changed = _changed(Path(entry.path)) if os.path.isdir(entry.path) else None  # entry.is_dir raises for a link to itself
        if changed is not None:
            found.append((changed, Path(entry.path)))
    for changed, path in sorted(found, key=lambda one: (one[0][0], one[1]), reverse=True):
        folder = RunFolder(path)
        stamp = (changed, head_alive(folder), _labels_stamp(folder))
        before = known.get(path)
        if before is not None and before.stamp == stamp:
            yield before
        else:
            yield read_row(folder, stamp)


def _changed(path: Path) -> Changed | None:
    """Of its run.json, else of another file of a run; None: not a run's folder."""
    for name in _SIGNS:
        try:
            about = (path / name).stat()
        except OSError:
            continue
        return about.st_mtime_ns, about.st_size, about.st_ino
    return None


def _labels_stamp(folder: RunFolder) -> tuple[int, int]:
    """(0, 0): none."""
    try:
        about = os.stat(folder.labels_json)
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_ino


def row_of(path: Path) -> RunRow | None:
    """The row of one folder; None: it is not a run's."""
    changed, folder = _changed(path), RunFolder(path)
    return None if changed is None else read_row(folder, (changed, head_alive(folder), _labels_stamp(folder)))


def read_row(folder: RunFolder, stamp: Stamp) -> RunRow:
    row = _recorded(folder, stamp)
    try:
        labels = read_labels(folder)
    except RecordError as error:
        row.label_problem = f"{error.path.name} {error.reason}"
    else:
        row.tags, row.note, row.pinned = labels.tags, labels.note, labels.pinned
    return row


def _recorded(folder: RunFolder, stamp: Stamp) -> RunRow:
    row = RunRow(folder.path, folder.name, "damaged", stamp=stamp)
    try:
        run = read_run(folder.path)
    except RecordError as error:
        row.problem = error.reason
        if stamp[1]:
            row.state, row.problem = "running", ""
        elif not folder.run_json.exists():
            row.problem = "it has no run.json: its head never came up, or the file was removed"
        return row
    row.state = "ended" if run.phase in RUN_ENDED else "running" if stamp[1] else "head gone"
    try:
        _fill(row, run)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        row = RunRow(folder.path, folder.name, "damaged", problem=f"its run.json holds what cannot be: {error}", stamp=stamp)
    return row


def _fill(row: RunRow, run: RunFile) -> None:
    spec = run.spec
    row.phase, row.synthetic, row.verdict, row.reasons = run.phase, run.synthetic, run.verdict, list(run.reasons)
    row.imported = run.imported.kind if run.imported is not None else ""
    row.started_unix, row.ended_unix = _moment(run.started_unix), _moment(run.ended_unix)
    fleet, limits, load = (_table(spec, name) for name in ("fleet", "limits", "load"))
    row.nodes, row.per_node = int(fleet.get("nodes") or 0), int(fleet.get("replicas_per_node") or 0)
    row.model = str(_table(spec, "model").get("name") or "")
    row.scenario, row.kind = str(load.get("scenario") or ""), str(load.get("kind") or "")
    row.ttft_limit_ms, row.tpot_limit_ms = (_limit(limits.get(name)) for name in ("ttft_p99_ms", "tpot_p99_ms"))
    row.target_qps = float(load.get("target_qps") or math.nan)
    row.attempts = len(run.attempts)
    row.acts = max(run.acts, sum(attempt.acts for attempt in run.attempts))
    if run.attempts:
        last = run.attempts[-1]
        row.scenario, row.kind, row.target_qps = last.scenario, last.kind, last.target_qps
        figures = figures_of(last)
        row.completed_qps, row.tokens_per_s = figures["completed_qps"], figures["tokens_per_s"]
        row.completed = figures["completed"]
        row.ttft_p99_ms, row.tpot_p99_ms = figures["ttft_p99_ms"], figures["tpot_p99_ms"]
        row.verdict = row.verdict or last.verdict
        row.reasons = row.reasons or list(last.reasons)
    if row.state == "head gone":
        row.verdict = row.verdict or "CRASHED"
        row.reasons = row.reasons or [f"its head ended in phase {run.phase} without ending the run"]


def _moment(unix: float) -> float:
    """NaN for 0 (not yet). Raises OverflowError or ValueError for what no calendar has."""
    time.localtime(unix)
    return unix or math.nan


def _limit(value: Any) -> float | None:
    return None if value is None else float(value)


def _table(spec: dict[str, Any], name: str) -> dict[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


def figures_of(attempt: AttemptRecord) -> dict[str, float]:
    """Its measured figures by name, whole attempt; NaN for those that the record does not have."""

    def number(value: Any) -> float:
        return float(value) if isinstance(value, int | float) else math.nan

    latencies = {"ttft": attempt.ttft_ms, "tpot": attempt.tpot_ms, "latency": attempt.latency_ms}
    parts = ("avg", "p50", "p90", "p99", "p99_9")
    named = {f"{name}_{part}_ms": number(values.get(part)) for name, values in latencies.items() for part in parts}
    rates = {name: number(attempt.rates.get(name)) for name in ("completed_qps", "issued_qps", "tokens_per_s", "duration_s")}
    figures = {**rates, **named}
    for name, value in attempt.results.items():  # the only ones that older records have
        if math.isnan(figures.get(name, math.nan)):
            figures[name] = number(value)
    counts = ("issued", "completed", "failed", "lost", "redispatched")
    return figures | {name: number(attempt.totals.get(name)) for name in counts}


# --- order and filter ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunSort:
    name: str
    label: str
    key: Callable[[RunRow], Any]
    descending: bool = True


SORTS: Final = (
    RunSort("when", "newest first", lambda row: row.when_unix),
    RunSort("name", "name", lambda row: row.name, descending=False),
    RunSort("verdict", "verdict", lambda row: (row.outcome, -row.when_unix), descending=False),
    RunSort("target", "target QPS", lambda row: row.target_qps),
    RunSort("achieved", "achieved QPS", lambda row: row.completed_qps),
    RunSort("tok/s", "tok/s", lambda row: row.tokens_per_s),
    RunSort("ttft", "TTFT p99", lambda row: row.ttft_p99_ms),
    RunSort("tpot", "TPOT p99", lambda row: row.tpot_p99_ms),
    RunSort("acts", "acts", lambda row: row.acts),
    RunSort("replicas", "replicas", lambda row: row.replicas),
    RunSort("size", "size on disk", lambda row: row.size_bytes),
)


def ordered(rows: Iterable[RunRow], sort: RunSort, reverse: bool = False) -> list[RunRow]:
    """Runs that go on stay on top of the newest-first order; what is not known comes last in any order."""
    newest = sorted(rows, key=lambda row: row.when_unix, reverse=True)
    unknown = [row for row in newest if isinstance(sort.key(row), float) and math.isnan(sort.key(row))]
    known = [row for row in newest if row not in unknown] if unknown else newest
    return [*sorted(known, key=sort.key, reverse=sort.descending != reverse), *unknown]


@dataclass(frozen=True, slots=True)
class _Number:
    name: str
    unit: Unit
    value: Callable[[RunRow], float]


_NUMBERS: Final = {
    number.name: number
    for number in (
        _Number("qps", "count", lambda row: row.target_qps),
        _Number("target", "count", lambda row: row.target_qps),
        _Number("achieved", "count", lambda row: row.completed_qps),
        _Number("tok/s", "count", lambda row: row.tokens_per_s),
        _Number("ttft", "ms", lambda row: row.ttft_p99_ms),
        _Number("tpot", "ms", lambda row: row.tpot_p99_ms),
        _Number("acts", "count", lambda row: row.acts),
        _Number("nodes", "count", lambda row: row.nodes),
        _Number("replicas", "count", lambda row: row.replicas),
        _Number("attempts", "count", lambda row: row.attempts),
        _Number("size", "byte", lambda row: row.size_bytes),
    )
}
_SIGNS_OF_NUMBERS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip


class BadRunFilter(Exception):
    """The text says what would be right."""


Test = Callable[[RunRow], bool]


def filter_of(text: str) -> Test:
    """`valid server`, `a|b`, `!invalid`, `ttft>2.5s`, `acts>0`, `tag:x`, `note:word`, `pinned`. Raises BadRunFilter."""
    try:
        tests = [_either(checked(parts)) for parts in words_of(text.lower())]
    except BadFilter as problem:
        raise BadRunFilter(str(problem)) from problem
    return lambda row: all(test(row) for test in tests)


def _either(parts: list[Part]) -> Test:
    tests = [_maybe_not(part) for part in parts]
    return lambda row: any(test(row) for test in tests)


def _maybe_not(part: Part) -> Test:
    test = _one(part.text)
    return test if part.wanted else lambda row: not test(row)


def asks_size(text: str) -> bool:
    """Whether a filter needs sizes, for which every file must be asked."""
    return bool(re.search(r"\bsize\s*[<>=!]", text.lower()))


def _one(word: str) -> Test:
    kind, colon, label = word.partition(":")
    if colon and kind in ("tag", "note"):
        if not label:
            raise BadFilter(word, f"a word is missing behind {kind}:, as in {kind}:baseline")
        return _tagged(label) if kind == "tag" else lambda row: label in row.note.lower()
    found = COMPARISON.fullmatch(word)
    if found is None:
        return lambda row: word in row.name.lower() or any(one.startswith(word) for one in _words_of(row))
    number, holds = _NUMBERS.get(found[1]), _SIGNS_OF_NUMBERS.get(found[2])
    if number is None or holds is None:
        raise BadFilter(word, f"compare one of {', '.join(_NUMBERS)} with a number, as in ttft>2500 or acts>0")
    value_of_row, limit = number.value, value_of(word, number.name, number.unit, found[3])

    def test(row: RunRow) -> bool:
        """What is not known fulfils no comparison."""
        value = value_of_row(row)
        return not math.isnan(value) and holds(value, limit)

    return test


def _tagged(tag: str) -> Test:
    return lambda row: any(one.lower() == tag for one in row.tags)


def _words_of(row: RunRow) -> list[str]:
    """By their beginnings, so that `valid` is not `invalid`. Not the note: what it says of other runs is not this one's."""
    more = [word for word, is_so in (("synthetic", row.synthetic), ("pinned", row.pinned), ("imported", row.imported)) if is_so]
    words = f"{row.state} {row.outcome} {row.phase} {row.scenario} {row.kind} {row.model} {row.imported}".split()
    return [word.lower() for word in (*words, *row.tags, *more)]
