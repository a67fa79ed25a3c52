"""What a console asks the head for while somebody looks at it: too much for every snapshot, wanted by one screen at a time.

Questions change nothing, so viewers may ask them. Every answer is bounded (samples, lines, bytes) and says when it left
something out. Ages and durations are the head's; wall-clock seconds are named `*_unix`.
"""

from __future__ import annotations

import msgspec

_NAN = float("nan")


class _Message(msgspec.Struct, tag=True, omit_defaults=True):
    pass


# --- the SLA -----------------------------------------------------------------------------------------------


class GetSla(_Message):
    """Histograms, percentiles, parts of TTFT and tail shares of the running (else the last) attempt."""

    request_id: str
    without: list[str] = []  # slots: also answer what p99 of the window is without their samples


class LatencyDetail(msgspec.Struct, omit_defaults=True):
    """One metric of the fleet. Histograms share `edges_ms` (len(counts) + 1 edges), trimmed to the cells in use."""

    limit_ms: float | None = None
    edges_ms: list[float] = []
    window: list[int] = []
    whole: list[int] = []
    window_ms: dict[str, float] = {}  # p50, p90, p95, p99, p99.9; a quantile with too few samples is missing
    whole_ms: dict[str, float] = {}
    window_n: int = 0
    whole_n: int = 0
    over_window: bytes = b""  # int32 per roster position: samples over the limit (without a limit: over the window's p99)
    over_whole: bytes = b""
    samples_whole: bytes = b""  # int32 per roster position: samples of the whole attempt
    without_p99_ms: float = _NAN  # the window's p99 without the slots asked about


class PartTimes(msgspec.Struct, omit_defaults=True):
    """One part of TTFT over the samples of the window; `tail_ms` is its mean over the slowest 1 % of them by TTFT."""

    name: str  # schedule lag, head queue, replica queue, prefill, other; with split roles also decode wait, KV transfer
    mean_ms: float = _NAN
    p50_ms: float = _NAN
    p99_ms: float = _NAN
    tail_ms: float = _NAN


class SlaDetail(_Message):
    request_id: str
    attempt: int
    window_s: float
    ttft: LatencyDetail
    tpot: LatencyDetail
    parts: list[PartTimes] = []
    parts_n: int = 0  # samples behind `parts`
    parts_tail_n: int = 0
    problem: str = ""  # slots of `without` that this run does not have, in words


# --- one replica -------------------------------------------------------------------------------------------


class GetReplica(_Message):
    request_id: str
    slot: str
    log_lines: int = 200
    in_flight: int = 64  # at most so many samples, oldest first


class InFlight(msgspec.Struct, omit_defaults=True):
    """A sample that the replica holds; its age counts from its last dispatch. `first`: its first token has come."""

    seq: int
    age_s: float
    n_prompt: int = 0
    tries: int = 1
    first: bool = False


class ReplicaDetail(_Message):
    request_id: str
    slot: str
    incarnation: str
    in_flight: list[InFlight] = []
    in_flight_total: int = 0
    in_flight_age_s: float = _NAN  # how old this list is; NaN: nobody could be asked
    log: str = ""  # path as the head sees it
    log_lines: list[str] = []
    log_size: int = 0
    log_left_out: int = 0  # bytes before the first line
    log_written_s: float = _NAN  # how long ago it was last written
    problem: str = ""  # why a part is missing, in words


# --- logs --------------------------------------------------------------------------------------------------


class GetLogs(_Message):
    """The newest lines of the run's logs (head, drivers, workers, replicas), merged by time.

    Lines at `since_unix` or later. Whoever follows asks with the time of the newest line it has, and drops what it has.
    """

    request_id: str
    since_unix: float = 0.0
    limit: int = 500


class LogLine(msgspec.Struct, omit_defaults=True):
    unix: float
    source: str  # head, driver 2, node003, node003/gpu1
    text: str
    level: str = "info"  # info, warn, error


class LogLines(_Message):
    request_id: str
    lines: list[LogLine]
    left_out: int = 0  # older lines since `since_unix` that did not fit
    problem: str = ""


# --- the cluster's word --------------------------------------------------------------------------------------


class GetDescription(_Message):
    """All that is known of the pod behind a slot: its containers, conditions, events, and its node."""

    request_id: str
    slot: str


class Description(_Message):
    request_id: str
    slot: str
    lines: list[str] = []
    problem: str = ""


# --- the record, for whoever keeps a copy of it elsewhere ----------------------------------------------------


class GetFiles(_Message):
    """What the run's folder holds: all but keys, lock and what belongs to the head's own machine."""

    request_id: str


class FileInfo(msgspec.Struct):
    path: str  # within the run's folder, with /
    size: int
    written_ns: int


class Files(_Message):
    """`ended`: the record is complete, nothing is written to it any more."""

    request_id: str
    files: list[FileInfo]
    ended: bool = False
    problem: str = ""


class GetPart(_Message):
    request_id: str
    path: str
    offset: int
    length: int  # at most PART_BYTES


class Part(_Message):
    """`size` and `written_ns` as they were when these bytes were read: another pair means that the file was replaced."""

    request_id: str
    path: str
    offset: int
    data: bytes = b""
    size: int = 0
    written_ns: int = 0
    problem: str = ""


class RecordTaken(_Message):
    """An ended head need not wait any longer: a whole copy is kept elsewhere. Answered with Files."""

    request_id: str


PART_BYTES = 1 << 20


# --- metrics -------------------------------------------------------------------------------------------------


class QueryMetrics(_Message):
    """PromQL, asked of the run's source by the head. `start_unix` 0: at one moment, `end_unix` (0: now)."""

    request_id: str
    query: str
    start_unix: float = 0.0
    end_unix: float = 0.0
    step_s: float = 0.0  # 0: as fits
    most: int = 200  # series told


class MetricCurve(msgspec.Struct, omit_defaults=True):
    labels: dict[str, str]
    unix: bytes  # float64
    values: bytes  # float64


class MetricCurves(_Message):
    request_id: str
    curves: list[MetricCurve] = []
    kind: str = ""  # vector, matrix, scalar, string
    text: str = ""
    step_s: float = 0.0
    took_ms: float = 0.0
    left_out: int = 0
    source: str = ""
    warnings: list[str] = []
    problem: str = ""  # why there is no answer, in words


class GetMetricNames(_Message):
    request_id: str


class MetricName(msgspec.Struct, omit_defaults=True):
    name: str
    type: str = ""
    help: str = ""
    roles: list[str] = []


class MetricNames(_Message):
    request_id: str
    names: list[MetricName] = []
    source: str = ""
    problem: str = ""


Question = GetSla | GetReplica | GetLogs | GetDescription | GetFiles | GetPart | RecordTaken | QueryMetrics | GetMetricNames
Answer = SlaDetail | ReplicaDetail | LogLines | Description | Files | Part | MetricCurves | MetricNames
