"""The tree of a submission: written aside next to where it belongs, and renamed when all of it is there.

Logs are copied as LoadGen wrote them, except the accuracy logs: a submission holds their head and tail and the sha256 of the
whole. The whole ones lie in `untruncated/` beside the division's folder, for the day the review asks for them; where the
file system allows it they take no room (hard links to the record's files).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.mlperf.detail_log import DETAIL_LOG
from harness.mlperf.submission import texts
from harness.mlperf.submission.candidates import ACCURACY_LOG, SUMMARY_LOG, USER_CONF, Candidate, size_of
from harness.mlperf.submission.checks import sha256_of
from harness.mlperf.submission.demands import ACCURACY, MOST_ACCURACY_LOG, PERFORMANCE, VERIFY_FILE
from harness.mlperf.submission.plan import Plan, Unit
from harness.mlperf.submission.system import system_json
from harness.records.aside import folder_aside

UNTRUNCATED = "untruncated"
NOT_SUBMITTABLE = "NOT_SUBMITTABLE.md"
_VIEWABLE = 4096  # bytes kept of either end, as the official tool keeps them
_CUT = b"\n\n...\n\n"
_ROOM_FOR_TEXTS = 1 << 20


class CannotWrite(Exception):
    """The tree cannot be written there; the text says why, and nothing was left behind."""


@dataclass
class Written:
    out: Path
    to_fill_in: list[str] = field(default_factory=list)  # relative to `out`


def bytes_needed(plan: Plan) -> int:
    """The most that the tree can take."""
    logs = (DETAIL_LOG, SUMMARY_LOG, ACCURACY_LOG, USER_CONF)
    attempts = [candidate for unit in plan.units for candidate in unit.parts.values()]
    return _ROOM_FOR_TEXTS + sum(size_of(candidate.folder / name) for candidate in attempts for name in logs)


def check_room(plan: Plan, out: Path) -> None:
    """`out` may be absent or an empty folder, on a disk with room. Raises CannotWrite."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise CannotWrite(f"{out} is not an empty folder; give another with --out")
        parent = out.parent
        if not parent.is_dir():
            raise CannotWrite(f"{parent} is not there; make it first, or give another place with --out")
        free, needed = shutil.disk_usage(parent).free, bytes_needed(plan)
    except OSError as error:
        raise CannotWrite(f"{out}: {error.strerror}; give another place with --out") from None
    if free < needed:
        raise CannotWrite(
            f"{parent} has {free / 1e6:,.0f} MB free, the submission may take {needed / 1e6:,.0f} MB; "
            "free some space or give a place on another disk with --out"
        )


def write_tree(plan: Plan, out: Path) -> Written:
    """Raises CannotWrite; then `out` is as it was."""
    check_room(plan, out)
    with contextlib.ExitStack() as stack:
        try:
            aside = stack.enter_context(folder_aside(out.parent, f".{out.name}."))
        except OSError as error:
            raise CannotWrite(f"{out.parent}: {error.strerror}; give another place with --out") from None
        try:
            aside.chmod(0o755)
            written = Written(out, _write(plan, aside))
            os.rename(aside, out)  # over an empty folder too
        except OSError as error:
            raise CannotWrite(f"{error.filename or out}: {error.strerror}; nothing was left in {out}") from None
    return written


def _write(plan: Plan, top: Path) -> list[str]:
    """Returns the files that the submitter must fill in."""
    home = top / plan.division / plan.submitter
    system = plan.system.id or "system"
    _text(home / "systems" / f"{system}.json", system_json(plan.system, plan.submitter, plan.division).decode())
    for unit in plan.units:
        _scenario(plan, unit, home / "results" / system / unit.benchmark / unit.folder, top / UNTRUNCATED)
    to_fill_in = {home / "docs" / "calibration.md": texts.calibration_md(plan.units)}
    for benchmark in dict.fromkeys(unit.benchmark for unit in plan.units):
        attempts = [candidate for unit in plan.units if unit.benchmark == benchmark for candidate in unit.parts.values()]
        to_fill_in[home / "src" / benchmark / "README.md"] = texts.source_readme(benchmark, attempts)
    for path, text in to_fill_in.items():
        _text(path, text)
    if not plan.submittable:
        _text(top / NOT_SUBMITTABLE, texts.not_submittable(plan))
    return [str(path.relative_to(top)) for path in to_fill_in]


def _scenario(plan: Plan, unit: Unit, folder: Path, untruncated: Path) -> None:
    said = texts.measurements(plan.system.measurements_of(unit.benchmark))
    _text(folder / "measurements.json", json.dumps(said, indent=2, ensure_ascii=False) + "\n")
    _text(folder / "README.md", texts.readme(plan, unit))
    kept = untruncated / unit.benchmark / unit.folder
    for part, candidate in unit.parts.items():
        if part == PERFORMANCE:
            _copy(candidate, folder, USER_CONF)
            _copy(candidate, folder / "performance" / "run_1", DETAIL_LOG, SUMMARY_LOG)
        elif part == ACCURACY:
            _copy(candidate, folder / "accuracy", DETAIL_LOG, SUMMARY_LOG)
            _accuracy(candidate, folder / "accuracy", kept)
        else:
            _compliance(candidate, part, folder / part, kept / part)


def _accuracy(candidate: Candidate, folder: Path, kept: Path) -> None:
    sha256 = _truncated(candidate.folder / ACCURACY_LOG, folder, kept)
    if candidate.score is not None:
        _text(folder / "accuracy.txt", texts.accuracy_txt(candidate.score, sha256))


def _compliance(candidate: Candidate, test: str, folder: Path, kept: Path) -> None:
    if candidate.compliance is not None:
        _text(folder / VERIFY_FILE[test], texts.verify_txt(candidate.compliance, candidate.attempt.scenario))
    _copy(candidate, folder / "performance" / "run_1", DETAIL_LOG, SUMMARY_LOG)
    sha256 = _truncated(candidate.folder / ACCURACY_LOG, folder / "accuracy", kept)
    if sha256:
        _text(folder / "accuracy" / "accuracy.txt", f"hash={sha256}\n")


def _truncated(log: Path, folder: Path, kept: Path) -> str:
    """Puts its ends into `folder` and the whole into `kept`; its sha256, "" where there is no log."""
    size = size_of(log)
    if not size:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    whole = kept / ACCURACY_LOG
    try:
        os.link(log, whole)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(log, whole)
    (folder / ACCURACY_LOG).write_bytes(b"".join(_ends(whole, size)))
    return sha256_of(whole)


def _ends(log: Path, size: int) -> Iterator[bytes]:
    with log.open("rb") as file:
        if size <= MOST_ACCURACY_LOG:
            yield file.read()
            return
        yield file.read(_VIEWABLE)
        yield _CUT
        file.seek(size - _VIEWABLE)
        yield file.read(_VIEWABLE)


def _copy(candidate: Candidate, folder: Path, *names: str) -> None:
    """What is missing is among the plan's reasons, and missing here too."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if size_of(candidate.folder / name):
            shutil.copyfile(candidate.folder / name, folder / name)


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
