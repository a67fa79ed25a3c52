"""mlperf_log_trace.json: when LoadGen scheduled and issued each sample, and when its first and last token came.

One event a line; only two kinds are read. `Sample` has all but the first token; `Token_Latency` has that, under the sample's
scheduled time (µs since the trace began, to the nanosecond) and its issue delay alone: samples of one query share both, and are
then paired in order. The file is not JSON as a whole (LoadGen quotes keys twice).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from harness.imports.pieces import Pieces
from harness.imports.samples import NEVER, Columns
from harness.imports.told import Progress

_SAMPLE: Final = b'{"name":"Sample"'
_FIRST: Final = b'{"name":"Token_Latency"'
_CLOCK: Final = b'"ts":'
_A_YEAR_NS: Final = 366 * 86400 * 10**9

Ns = Annotated[int, msgspec.Meta(ge=0, le=_A_YEAR_NS)]
Us = Annotated[float, msgspec.Meta(ge=0, le=_A_YEAR_NS / 1e3)]


class _SampleArgs(msgspec.Struct):
    sample_seq: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    sample_idx: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
    issue_start_ns: Ns
    complete_ns: Ns


class _Sample(msgspec.Struct):
    ts: Us
    args: _SampleArgs


class _FirstArgs(msgspec.Struct):
    issue_delay: Ns
    issue_to_done: Ns


class _First(msgspec.Struct):
    ts: Us
    args: _FirstArgs


@dataclass(slots=True)
class Trace:
    """`zero_ns`: the first scheduled time, on the trace's clock. `began_unix`: when that clock began; 0 = not in the file."""

    columns: Columns
    zero_ns: int
    began_unix: float
    damaged: int
    first_tokens: int
    shared: int  # first tokens of samples that share their query with others


_sample = msgspec.json.Decoder(_Sample)
_first = msgspec.json.Decoder(_First)


def read_trace(path: Path, progress: Progress) -> Trace:
    """Raises ImportProblem for a file that cannot be read; damaged lines are counted."""
    columns = Columns()
    first = (array("q"), array("q"), array("q"))  # scheduled, issue delay, first token
    damaged, began_unix = 0, 0.0
    lines = Pieces(path, progress)
    for line in lines:
        try:
            if line.startswith(_SAMPLE):
                if b'"ph":"b"' in line:
                    _take(columns, _sample.decode(line.rstrip(b",\r")))
            elif line.startswith(_FIRST):
                event = _first.decode(line.rstrip(b",\r"))
                scheduled_ns = round(event.ts * 1000)
                first[0].append(scheduled_ns)
                first[1].append(event.args.issue_delay)
                first[2].append(scheduled_ns + event.args.issue_delay + event.args.issue_to_done)
            elif line.startswith(_CLOCK):  # of "otherData", at the end
                began_unix = _unix(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            damaged += 1
    unfinished = lines.rest.startswith((_SAMPLE, _FIRST))
    shared = _pair(columns, *(np.asarray(values, dtype=np.int64) for values in first))
    return Trace(
        columns, min(columns.scheduled_ns, default=0), began_unix, damaged + lines.too_long + unfinished, len(first[0]), shared
    )


def _take(columns: Columns, event: _Sample) -> None:
    scheduled_ns = round(event.ts * 1000)
    columns.seq.append(event.args.sample_seq)
    columns.index.append(event.args.sample_idx)
    columns.tries.append(1)
    columns.n_prompt.append(0)
    columns.n_tokens.append(0)
    columns.scheduled_ns.append(scheduled_ns)
    columns.issued_ns.append(scheduled_ns + event.args.issue_start_ns)
    columns.first_ns.append(NEVER)
    columns.done_ns.append(scheduled_ns + event.args.complete_ns)


def _unix(line: bytes) -> float:
    try:
        unix = float(line[len(_CLOCK) :].strip(b" ,\r")) / 1e6
    except ValueError:
        return 0.0
    return unix if 0 < unix < 1e11 else 0.0


def _pair(columns: Columns, scheduled: Any, delay: Any, first: Any) -> int:
    """Gives each sample its first token; how many of those stood under the times of several samples."""
    if not len(first) or not len(columns):
        return 0
    sample_scheduled = np.asarray(columns.scheduled_ns, dtype=np.int64)
    sample_delay = np.asarray(columns.issued_ns, dtype=np.int64) - sample_scheduled
    samples = np.lexsort((np.asarray(columns.seq, dtype=np.int64), sample_delay, sample_scheduled))
    tokens = np.lexsort((first, delay, scheduled))
    sample_scheduled, sample_delay = sample_scheduled[samples], sample_delay[samples]
    scheduled, delay, first = scheduled[tokens], delay[tokens], first[tokens]
    same = (sample_scheduled[1:] == sample_scheduled[:-1]) & (sample_delay[1:] == sample_delay[:-1])
    shared = int((np.append(same, False) | np.insert(same, 0, False)).sum())
    found = np.full(len(samples), NEVER, dtype=np.int64)
    if np.array_equal(sample_scheduled, scheduled) and np.array_equal(sample_delay, delay):
        found[samples] = first  # each has one, as in a run that went to its end
    else:
        key = np.dtype([("scheduled", "<i8"), ("delay", "<i8"), ("nth", "<i8")])
        keys = _numbered(sample_scheduled, sample_delay, key), _numbered(scheduled, delay, key)
        _, at_sample, at_token = np.intersect1d(*keys, assume_unique=True, return_indices=True)
        found[samples[at_sample]] = first[at_token]
    columns.first_ns = array("q")
    columns.first_ns.frombytes(found.tobytes())
    return shared


def _numbered(scheduled: Any, delay: Any, key: np.dtype[Any]) -> Any:
    """Sorted pairs made unique by their number among equals."""
    keys = np.empty(len(scheduled), key)
    same = np.zeros(len(scheduled), bool)
    same[1:] = (scheduled[1:] == scheduled[:-1]) & (delay[1:] == delay[:-1])
    place = np.arange(len(scheduled))
    start = np.maximum.accumulate(np.where(same, 0, place))
    keys["scheduled"], keys["delay"], keys["nth"] = scheduled, delay, place - start
    return keys
