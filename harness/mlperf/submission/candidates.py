"""One attempt as a part of a submission: its record, LoadGen's files, its score, and the place it would take."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.mlperf import detail_log
from harness.mlperf.scores import AccuracyScore, Compliance, read_compliance, read_score
from harness.mlperf.submission.demands import ACCURACY, PERFORMANCE, VERIFY_FILE, benchmark_of, folder_of
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run
from harness.wire.control import JournalEntry

SUMMARY_LOG = "mlperf_log_summary.txt"
ACCURACY_LOG = "mlperf_log_accuracy.json"
USER_CONF = "user.conf"
_WITHOUT_RESULT = frozenset({"SUPERSEDED", "ABORTED"})


class NoSuchAttempt(Exception):
    """The run has no attempt of that number; the text says which it has."""


@dataclass(frozen=True)
class Place:
    """Where in a submission: benchmark, scenario folder, and performance, accuracy or a TEST."""

    benchmark: str
    folder: str
    part: str

    def __str__(self) -> str:
        return f"{self.benchmark} {self.folder} {self.part}"


@dataclass
class Candidate:
    """`problems`: what could not be read of it."""

    run_folder: RunFolder
    run: RunFile
    attempt: AttemptRecord
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = self.run_folder.attempt(self.attempt.number)
        self.score = self._score()
        self.compliance = self._compliance()

    @property
    def name(self) -> str:
        return f"{self.run_folder.name}:{self.attempt.number}"

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The attempt's own, which may differ from the run's; the run's where it was not kept."""
        try:
            spec = json.loads(json.loads((self.folder / "driver.json").read_text())["spec"])
        except (OSError, ValueError, KeyError, TypeError):
            return self.run.spec
        return spec if isinstance(spec, dict) else self.run.spec

    def table(self, *names: str) -> dict[str, Any]:
        """A table of the spec, or one within it; empty where the record has none."""
        found: Any = self.spec
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def mlperf_name(self) -> str:
        return str(self.table("model").get("mlperf_name") or "")

    @property
    def test(self) -> str:
        """TEST06, TEST07 or TEST09 of a compliance attempt; "" where nothing says which."""
        named = self.attempt.test or (self.compliance.test if self.compliance else "")
        return named if named in VERIFY_FILE else ""

    @property
    def place(self) -> Place | None:
        """None for what has none: an exploration, a model without rules, a compliance attempt of no known test."""
        part = {"performance": PERFORMANCE, "accuracy": ACCURACY, "compliance": self.test}.get(self.attempt.kind, "")
        if not part or not self.mlperf_name:
            return None
        return Place(benchmark_of(self.mlperf_name), folder_of(self.mlperf_name, self.attempt.scenario), part)

    @cached_property
    def log(self) -> detail_log.DetailLog:
        try:
            return detail_log.read(self.folder / detail_log.DETAIL_LOG)
        except OSError as error:
            self.problems.append(f"{detail_log.DETAIL_LOG} cannot be read: {error.strerror}")
            return detail_log.parse("")

    def acts(self) -> list[JournalEntry]:
        """Of operators and policies, on this attempt."""
        from harness.records.reader import Record

        journal = Record(self.run_folder).journal()
        return [entry for entry in journal if entry.what.startswith("act.") and entry.attempt == self.attempt.number]

    def _score(self) -> AccuracyScore | None:
        try:
            return read_score(self.folder)
        except RecordError as error:
            self.problems.append(str(error))
            return None

    def _compliance(self) -> Compliance | None:
        try:
            return read_compliance(self.folder)
        except RecordError as error:
            self.problems.append(str(error))
            return None


def attempts_of(folder: RunFolder, number: int | None = None) -> list[Candidate]:
    """The attempt of that number, or all of the run. Raises RecordError, NoSuchAttempt."""
    run = read_run(folder.path)
    chosen = [attempt for attempt in run.attempts if number in (None, attempt.number)]
    if number is not None and not chosen:
        there = ", ".join(str(attempt.number) for attempt in run.attempts) or "none"
        raise NoSuchAttempt(f"{folder.name} has no attempt {number}; it has {there}")
    return [Candidate(folder, run, attempt) for attempt in chosen]


def came_to_an_end(candidate: Candidate) -> bool:
    """Others were ended on purpose, for the next one or for good."""
    return candidate.attempt.verdict not in _WITHOUT_RESULT


def size_of(path: Path) -> int:
    """0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
