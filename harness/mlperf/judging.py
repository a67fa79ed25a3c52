"""What the answers of an attempt do to its verdict: the score of an accuracy attempt, the test of a compliance attempt.

Both may be known only long after the attempt: then the reasons that speak of them (each begins with `accuracy:` or
`compliance:`) are replaced, all others stay, and VALID or INVALID follows. A head does it for attempts of its own, `paceline
score` and `paceline verify` for those of a run that has ended.
"""

from __future__ import annotations

import getpass
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness.mlperf.rules import MODELS
from harness.mlperf.scores import read_compliance, read_score
from harness.records.errors import RecordError
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.lock import folder_lock
from harness.records.runfile import AttemptRecord, RunFile, read_run, write_run
from harness.wire.control import JournalEntry

_ACCURACY, _COMPLIANCE = "accuracy: ", "compliance: "
_OURS: Final = (_ACCURACY, _COMPLIANCE)
NOT_SCORED: Final = f"{_ACCURACY}not scored yet (paceline score)"
#: A reason of an imported attempt that names what its source does not tell: it does not rule VALID out.
NOT_JUDGED: Final = "not judged: "
NOT_VERIFIED: Final = f"{_COMPLIANCE}not verified yet (paceline verify)"


@dataclass(frozen=True, slots=True)
class Judged:
    """`reasons` rule VALID out, `notes` do not."""

    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judged_by_answers(kind: str, test: str | None, mlperf_name: str | None, folder: Path, trouble: str = "") -> Judged:
    """By what lies in the attempt's folder. `trouble`: why nothing could be found out."""
    try:
        if kind == "accuracy":
            return _accuracy(mlperf_name, folder)
        if kind == "compliance":
            return _compliance(test, folder, trouble)
    except RecordError as error:
        return Judged(reasons=[f"{_ACCURACY if kind == 'accuracy' else _COMPLIANCE}{error}"])
    return Judged()


def _accuracy(mlperf_name: str | None, folder: Path) -> Judged:
    score = read_score(folder)
    if score is None:
        return Judged(reasons=[NOT_SCORED]) if mlperf_name in MODELS else Judged(notes=[NOT_SCORED])
    gate = "" if score.gate is None else f", the gate is {score.gate:g}"
    said = f"{_ACCURACY}{score.metric} {score.score:.4f} over {score.n:,d} samples{gate}"
    if score.passed is False:
        return Judged(reasons=[f"{said}; {'; '.join(score.remarks)}" if score.remarks else said])
    return Judged(notes=[said])


def _compliance(test: str | None, folder: Path, trouble: str) -> Judged:
    found = read_compliance(folder)
    if trouble:
        return Judged(reasons=[f"{_COMPLIANCE}{test} could not be verified: {trouble}"])
    if found is None:
        return Judged(reasons=[NOT_VERIFIED])
    if found.test != test:
        return Judged(reasons=[f"{_COMPLIANCE}verified as {found.test}, but it is {test}"])
    if found.passed:
        return Judged(notes=[f"{_COMPLIANCE}{found.test} passed"])
    failed = "; ".join(f"{check.name}: {check.text}" for check in found.checks if not check.passed)
    return Judged(reasons=[f"{_COMPLIANCE}{found.test} not passed: {failed or 'no check was made'}"])


def judge_again(attempt: AttemptRecord, mlperf_name: str | None, folder: Path) -> bool:
    """Whether the verdict, its reasons or notes have changed. What ended otherwise (CRASHED, ABORTED) stays as it is."""
    if attempt.verdict not in ("VALID", "INVALID"):
        return False
    judged = judged_by_answers(attempt.kind, attempt.test or None, mlperf_name, folder)
    before = (attempt.verdict, attempt.reasons, attempt.notes)
    attempt.notes = [note for note in attempt.notes if not note.startswith(_OURS)] + judged.notes
    attempt.reasons = [reason for reason in attempt.reasons if not reason.startswith(_OURS)] + judged.reasons
    against = [reason for reason in attempt.reasons if not reason.startswith(NOT_JUDGED)]
    attempt.verdict = "INVALID" if against else "VALID"
    return before != (attempt.verdict, attempt.reasons, attempt.notes)


def take_answers(run: RunFile, folder: RunFolder) -> list[AttemptRecord]:
    """Every ended attempt judged by what lies in its folder now; those that changed. The run's verdict is its last one's."""
    model = run.spec.get("model")
    name = model.get("mlperf_name") if isinstance(model, dict) else None
    changed = [
        attempt
        for attempt in run.attempts
        if attempt.kind in ("accuracy", "compliance") and attempt.state == "ENDED"
        and judge_again(attempt, name, folder.attempt(attempt.number))
    ]  # fmt: skip
    if changed and changed[-1] is run.attempts[-1] and run.verdict in ("VALID", "INVALID"):
        run.verdict, run.reasons = changed[-1].verdict, list(changed[-1].reasons)
    return changed


def judge_ended(folder: RunFolder, number: int, what: str, why: str, **data: Any) -> AttemptRecord:
    """After a score or a test of attempt `number` has been written: its verdict in run.json, and an entry in the journal.

    Raises RecordError, and FolderTaken while a head has the run: it takes up by itself what it finds at the run's end.
    """
    with folder_lock(folder):
        run = read_run(folder.path)
        take_answers(run, folder)
        attempt = next((one for one in run.attempts if one.number == number), None)
        if attempt is None:
            raise RecordError(folder.run_json, f"has no attempt {number}")
        write_run(folder.path, run)
        journal = JournalWriter(folder.journal)
        try:
            level = "warn" if attempt.verdict != "VALID" else "info"
            journal.append(
                JournalEntry(
                    0, time.time(), f"operator:{_user()}", what, str(number), why=why, after=attempt.verdict, level=level,
                    data=data, attempt=number,
                )
            )  # fmt: skip
        finally:
            journal.close()
    return attempt


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for the user
        return "unknown"
