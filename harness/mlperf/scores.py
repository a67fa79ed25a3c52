"""What scoring and verifying leave behind in an attempt's folder, and who reads it: verdict, export, report, drill-down.

accuracy.json    an AccuracyScore, of an accuracy attempt that was scored
compliance.json  a Compliance, of a compliance attempt that was verified
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from harness.records.errors import RecordError
from harness.records.files import write_atomically

ACCURACY_JSON = "accuracy.json"
COMPLIANCE_JSON = "compliance.json"


class SubsetScore(msgspec.Struct):
    """`score` is a percentage; `how` names what decided: "exact match (choice letter)", "command: …"."""

    name: str
    n: int
    correct: float
    score: float
    how: str
    unparsed: int = 0  # answers in which no answer was found


class AccuracyScore(msgspec.Struct, kw_only=True):
    """`passed` is None where no gate is known for the model."""

    metric: str  # exact_match
    score: float
    gate: float | None
    passed: bool | None
    n: int
    expected_n: int | None
    subsets: list[SubsetScore]
    tokens_per_sample: float
    log_sha256: str  # of the untruncated mlperf_log_accuracy.json
    scored_unix: float
    remarks: list[str] = []


class Check(msgspec.Struct):
    name: str
    passed: bool
    text: str  # what was found, and what it was compared with


class Compliance(msgspec.Struct, kw_only=True):
    test: str  # TEST06, TEST07, TEST09
    passed: bool
    checks: list[Check]
    verified_unix: float
    official: str = ""  # what the official script said, where one was given
    remarks: list[str] = []


_Kind = TypeVar("_Kind", AccuracyScore, Compliance)


def read_score(attempt_folder: Path) -> AccuracyScore | None:
    """None: not scored. Raises RecordError."""
    return _read(attempt_folder / ACCURACY_JSON, AccuracyScore)


def read_compliance(attempt_folder: Path) -> Compliance | None:
    """None: not verified. Raises RecordError."""
    return _read(attempt_folder / COMPLIANCE_JSON, Compliance)


def write_score(attempt_folder: Path, score: AccuracyScore) -> None:
    write_atomically(attempt_folder / ACCURACY_JSON, msgspec.json.format(msgspec.json.encode(score)) + b"\n")


def write_compliance(attempt_folder: Path, found: Compliance) -> None:
    write_atomically(attempt_folder / COMPLIANCE_JSON, msgspec.json.format(msgspec.json.encode(found)) + b"\n")


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError.from_os(path, "read", error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(path, f"is not what scoring writes: {error}") from error
