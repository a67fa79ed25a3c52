"""A run that no head answers for, read from its record: as the state that a head would have told, and its summary by replica.

`over` decides whether that is so: the record says that the run ended, or a head has been there and its process is gone. A run
whose head has not yet written where it listens is neither. Polars is imported only by `summary_of`, which screens call in a
thread: the import alone takes 0.3 s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pydantic import ValidationError

from harness.cluster.local import head_alive
from harness.records.clusterlog import last_view
from harness.records.errors import RecordError
from harness.records.journal import read_journal
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run
from harness.spec import RunSpec, place_of
from harness.wire.control import FleetSeries, JournalEntry, RunState, SlotInfo
from harness.wire.states import RUN_ENDED

if TYPE_CHECKING:
    from harness.records.summary import ReplicaSummary

JOURNAL_TAIL: Final = 500


@dataclass(frozen=True, slots=True)
class ByReplica:
    """What the samples of one attempt add up to; `problems`: parts of the record that cannot be read, in words."""

    attempt: int
    replicas: list[ReplicaSummary] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def over(path: Path) -> RunState | None:
    """The run as its record has it, when there is no head to ask; None while there is one, or before the first.

    Raises RecordError, which says why, for a run that has no head and whose record or spec cannot be read."""
    folder = RunFolder(path)
    if head_alive(folder):
        return None
    try:
        run = read_run(path)
    except RecordError:
        if folder.run_json.exists() or folder.head_json.exists():
            raise
        return None  # its head has yet to begin
    if run.phase not in RUN_ENDED and not folder.head_json.exists():
        return None
    try:
        return _state(folder, run)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, ("spec", *first["loc"])))
        raise RecordError(
            folder.run_json, f"its spec cannot be read, there is no fleet to show: {field}: {first['msg']}"
        ) from error


def remedy(run: str) -> str:
    return f"head gone: paceline restart-head {run}"


def _state(folder: RunFolder, run: RunFile) -> RunState:
    spec = RunSpec.model_validate(run.spec)
    attempts = [_with_results(attempt) for attempt in run.attempts]
    if run.phase not in RUN_ENDED and attempts and not attempts[-1].verdict:
        why = f"the head ended in phase {run.phase} without ending the run; its log is {folder.log('head')}"
        attempts[-1] = msgspec.structs.replace(attempts[-1], state="ENDED", verdict="CRASHED", reasons=[why])
    places = ((slot, *_place(slot)) for slot in spec.slots())
    slots = [SlotInfo(slot, node, gpu, role=spec.fleet.role_at(*place_of(slot))) for slot, node, gpu in places]
    return RunState(
        request_id="", run=folder.name, spec=json.dumps(run.spec).encode(), head_epoch=0, phase=run.phase, roster_version=-1,
        slots=slots, attempts=list(attempts), journal=_journal(folder), series=FleetSeries(), role="", controller="",
        record=str(folder.path), started_unix=run.started_unix, telemetry="", synthetic=run.synthetic,
        cluster=last_view(folder.cluster),
    )  # fmt: skip


def _place(slot: str) -> tuple[str, int]:
    node, _, gpu = slot.partition("/gpu")
    return node, int(gpu)


def _with_results(attempt: AttemptRecord) -> AttemptRecord:
    """Records of heads that did not yet write `results` have the same figures elsewhere."""
    if attempt.results:
        return attempt
    found = {
        "completed_qps": attempt.rates.get("completed_qps"),
        "tokens_per_s": attempt.rates.get("tokens_per_s"),
        "ttft_p99_ms": attempt.ttft_ms.get("p99"),
        "tpot_p99_ms": attempt.tpot_ms.get("p99"),
    }
    return msgspec.structs.replace(attempt, results={name: value for name, value in found.items() if value is not None})


def _journal(folder: RunFolder) -> list[JournalEntry]:
    try:
        return list(read_journal(folder.journal))[-JOURNAL_TAIL:]
    except RecordError:
        return []  # the summary's problems name it


def summary_of(path: Path, attempt: int) -> ByReplica:
    """Blocking: reads every sample of the attempt (half a second for 2.4 million). Slowest TPOT p99 first."""
    from harness.records.reader import UNREADABLE, Record, summarise

    record = Record(path)
    try:
        summary = summarise(record, attempt)
    except (RecordError, *UNREADABLE) as error:
        return ByReplica(attempt, problems=[*record.problems, str(error).splitlines()[0]])
    return ByReplica(attempt, sorted(summary.replicas, key=lambda row: -(row.tpot_p99_ms or 0.0)), list(record.problems))
