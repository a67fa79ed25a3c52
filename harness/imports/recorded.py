"""A Paceline run from elsewhere, copied as it stands: without keys, links, and what belongs to a living head."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from harness.imports.copying import copy_tree
from harness.imports.errors import ImportProblem
from harness.imports.staging import Staging, made_name
from harness.imports.told import Progress, Told
from harness.records.errors import RecordError
from harness.records.runfile import AttemptRecord, RunFile, end_open_attempts, read_run
from harness.wire.states import ABORTED, RUN_ENDED

#: Of the machine that the run was on, or secret.
_NOT_TAKEN: Final = frozenset({"keys", "lock", "head.json", "workers.json", "reserve", "prometheus"})
_MOST_DEEP: Final = 4


def find_run_folder(source: Path) -> Path | None:
    """Where run.json lies: in `source` or a little below. Raises ImportProblem for several."""
    if (source / "run.json").is_file():
        return source
    found = []
    for folder, folders, names in os.walk(source):
        if len(Path(folder).relative_to(source).parts) >= _MOST_DEEP:
            folders.clear()
        if "run.json" in names:
            found.append(Path(folder))
            folders.clear()
    if len(found) > 1:
        listed = ", ".join(sorted(str(path.relative_to(source)) for path in found)[:8])
        raise ImportProblem(f"{source}: holds {len(found)} runs ({listed}); import one of them")
    return found[0] if found else None


def import_recorded(source: Path, staging: Staging, told: Told, progress: Progress) -> tuple[RunFile, str]:
    """The run's file as it will be, and the name it had. Raises ImportProblem."""
    try:
        read_run(source)
    except RecordError as error:
        raise ImportProblem(f"{error}; a run is not imported without it") from error
    copied = copy_tree(source, staging, told, progress, _wanted)
    try:
        run = read_run(staging.run.path)
    except RecordError as error:
        raise ImportProblem(f"{source / 'run.json'}: {error.reason}; a run is not imported without it") from error
    told.read.append(f"{copied:,d} files")
    left = sorted(name for name in _NOT_TAKEN if os.path.lexists(source / name))
    if left:
        told.left_out.append(f"{', '.join(left)}: of the machine that it ran on")
    if run.phase not in RUN_ENDED:
        _close(run, staging)
        told.lacks("its end: it was still going on, and stands as it was")
    return run, made_name(run.run or source.name)


def _wanted(at: Path) -> bool:
    return at.parts[0] not in _NOT_TAKEN and not (at.name.startswith(".") and at.name.endswith(".tmp"))


def _close(run: RunFile, staging: Staging) -> None:
    """Nobody will end it here: its record says how far it was."""
    reason = f"was going on (phase {run.phase}) when it was imported; its record holds what was measured until then"
    still_open = [attempt for attempt in run.attempts if attempt.state != "ENDED"]
    last_unix = max((attempt.ended_unix for attempt in run.attempts), default=0.0)
    end_open_attempts(run, "ABORTED", reason)
    for attempt in still_open:
        last_unix = max(last_unix, _measure(attempt, staging))
    run.phase, run.verdict, run.reasons, run.ended_unix = ABORTED, "ABORTED", [reason], last_unix or run.started_unix


def _measure(attempt: AttemptRecord, staging: Staging) -> float:
    """What its samples say; when the last of them ended."""
    from harness.records.reader import Record, summarise

    summary = summarise(Record(staging.run), attempt.number)
    attempt.totals = {name: max(count, attempt.totals.get(name, 0)) for name, count in summary.totals.items()}
    attempt.totals["lost"] = max(0, attempt.totals["issued"] - attempt.totals["completed"] - attempt.totals["failed"])
    attempt.rates = summary.rates
    attempt.ttft_ms, attempt.tpot_ms, attempt.latency_ms = summary.ttft_ms, summary.tpot_ms, summary.latency_ms
    attempt.ended_unix = attempt.started_unix + (summary.rates["duration_s"] or 0.0)
    return attempt.ended_unix
