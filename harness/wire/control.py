"""Control messages: workers, replicas, consoles and CLI (DEALER) with the supervisor (ROUTER).

Every message is one frame (`frames.encode`). Low rate, so fields travel by name and new ones can be added with a
default. Times are durations or wall-clock seconds (`*_unix`); monotonic clocks never cross a process.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from harness.wire.clusterview import ClusterView
from harness.wire.frames import Codec
from harness.wire.gpus import GpuView
from harness.wire.inquiry import Answer, Question

#: A wall clock that calendars have: what is read from a damaged file is refused there, not when it is to be shown.
Unix = Annotated[float, msgspec.Meta(ge=0.0, lt=253_402_300_800.0)]


class _Message(msgspec.Struct, tag=True, omit_defaults=True):
    pass


# --- worker → head -----------------------------------------------------------------------------------------


class RegisterWorker(_Message):
    """Idempotent; repeated with jittered back-off until WorkerPlan or Rejected."""

    worker: str
    incarnation: str
    nodes: list[int]
    host: str
    pid: int
    versions: dict[str, str] = {}
    head_epoch: int = 0  # last seen; 0 = none
    pod: str = ""
    node_name: str = ""


class WorkerBeat(_Message):
    worker: str
    incarnation: str
    head_epoch: int


class ReplicaExited(_Message):
    """A replica's process ended, or an engine gave up. Sent at once, so that nobody waits for a lease."""

    slot: str
    incarnation: str
    reason: str
    log_tail: list[str] = []
    restart_in_s: float | None = None  # None: no further restart
    restarts: int = 0


class ReplicaStarting(_Message):
    """The worker started a process for this slot; REGISTER follows when the engine has loaded. Repeated with what that is
    waiting for."""

    slot: str
    incarnation: str
    pid: int
    note: str = ""


# --- replica → head ----------------------------------------------------------------------------------------


class Register(_Message):
    """One incarnation asks for its slot. Idempotent; repeated with back-off until Ack or Rejected."""

    slot: str
    incarnation: str
    role: str
    model: str
    args_hash: str
    engine: str
    synthetic: bool
    worker: str
    pid: int
    host: str
    versions: dict[str, str] = {}
    accelerator: dict[str, str] = {}  # visible-device variables, ordinal, and gpus, uuids, pcis: one each, by commas
    facts: dict[str, Any] = {}  # engine facts to show and compare: kernel, config, layout
    head_epoch: int = 0
    pod: str = ""
    node_name: str = ""


class ReplicaBeat(msgspec.Struct, omit_defaults=True):
    """State of one incarnation since its previous beat."""

    slot: str
    incarnation: str
    state: str  # WARMING or READY
    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0  # 0..1
    tokens_out: int = 0  # since the previous beat
    steps: int = 0
    step_ms: float = 0.0  # mean over `steps`
    batch: float = 0.0  # mean decoding sequences a step
    prefill_tokens: float = 0.0  # mean prompt tokens a step
    preemptions: int = 0
    failed: int = 0  # requests that the engine refused or broke off
    note: str = ""  # warm-up progress, in words


class Heartbeat(_Message):
    """One process may speak for many replicas (synthetic engine)."""

    head_epoch: int
    interval_s: float
    replicas: list[ReplicaBeat]


# --- head → worker and replica -----------------------------------------------------------------------------


class WorkerPlan(_Message):
    """ACK of RegisterWorker: what to run on its nodes."""

    head_epoch: int
    spec: bytes  # RunSpec as JSON
    slots: list[str]
    evicted: list[str] = []  # slots not to start


class Ack(_Message):
    slot: str
    incarnation: str
    head_epoch: int


class Rejected(_Message):
    """Final for this incarnation. With an empty slot: the message itself could not be used."""

    reason: str
    slot: str = ""
    incarnation: str = ""
    head_epoch: int = 0


class Unknown(_Message):
    """This head does not know the sender: register (again)."""

    head_epoch: int
    slot: str = ""
    incarnation: str = ""


class BeatAck(_Message):
    """Answer to WorkerBeat and Heartbeat: proves to the sender that the head lives."""

    head_epoch: int


class DataEndpoint(_Message):
    """An attempt's fresh data socket: connect, HELLO, answer PING."""

    epoch: int
    endpoint: str
    server_key: str


class DataClosed(_Message):
    epoch: int


class RecycleSlot(_Message):
    """To the worker: end this incarnation and start a new one in its place."""

    slot: str
    incarnation: str
    reason: str


class StopSlot(_Message):
    """To the worker: end this incarnation and do not start another until RecycleSlot (or StartSlot)."""

    slot: str
    incarnation: str
    reason: str


class StartSlot(_Message):
    slot: str


class StopWorker(_Message):
    reason: str


# --- console and CLI ↔ head --------------------------------------------------------------------------------


class GetState(_Message):
    request_id: str
    journal_tail: int = 500
    operator: str = ""


class Command(_Message):
    """An operator's act. Repeats with the same request id are answered, not run again.

    Names and arguments: set_rate{qps,ramp_s?} · drain{slot,incarnation} · recycle{slot,incarnation}
    · evict{slot,incarnation,deadline_s?,force?,cordon?} · readmit{slot} · waive{slot} · start_attempt{kind?,qps?,test?}
    · abort · stop · pause · resume · set_policy{policy} · scale{nodes} · take_control · release_control. `incarnation` may be a
    prefix; empty means "the current one". On a cluster `evict` takes the slot's whole pod, with every replica in it.
    """

    request_id: str
    operator: str
    name: str
    args: dict[str, Any] = {}
    reason: str = ""


class CommandReply(_Message):
    request_id: str
    ok: bool
    message: str
    data: dict[str, Any] = {}


class JournalEntry(_Message):
    """Something that happened: a transition, an operator's act, a flag. Also a line of journal.jsonl."""

    seq: int
    unix: Unix
    who: str  # "head", "worker:NAME", "operator:NAME", "policy"
    what: str  # short verb phrase: "replica.state", "run.phase", "act.evict", "attempt.start", "straggler.slow"
    subject: str = ""  # slot, attempt or run
    why: str = ""
    before: str = ""
    after: str = ""
    level: str = "info"  # info, warn, error
    data: dict[str, Any] = {}
    attempt: int = 0


class SlotInfo(msgspec.Struct, omit_defaults=True):
    """The slow-moving facts of a slot; the fast ones are columns of FleetSnapshot."""

    slot: str
    node: str
    gpu: int
    role: str
    incarnation: str = ""
    incarnations: int = 0
    state: str = "NEW"
    reason: str = ""
    worker: str = ""
    host: str = ""
    pid: int = 0
    pod: str = ""
    node_name: str = ""  # the Kubernetes node
    engine: str = ""
    synthetic: bool = False
    args_hash: str = ""
    versions: dict[str, str] = {}
    accelerator: dict[str, str] = {}
    facts: dict[str, Any] = {}
    waived: bool = False
    since_unix: float = 0.0
    log: str = ""


class AttemptInfo(msgspec.Struct, omit_defaults=True):
    number: int
    kind: str
    scenario: str
    target_qps: float
    epoch: int
    started_unix: Unix = 0.0
    ended_unix: Unix = 0.0
    state: str = ""  # STARTING, then the driver's phase (loading, issuing, draining, …), ENDED
    verdict: str = ""
    reasons: list[str] = []
    notes: list[str] = []  # hold whatever the verdict: drains, re-dispatches, synthetic engine
    acts: int = 0
    supersedes: int = 0  # attempt that this one replaced, at a new rate
    totals: dict[str, int] = {}  # while it runs: issued, completed, … as of a few seconds ago
    settings_diff: list[str] = []
    results: dict[str, float] = {}  # at its end, whole attempt: completed_qps, tokens_per_s, ttft_p99_ms, tpot_p99_ms
    test: str = ""  # of a compliance attempt: TEST06, TEST07, TEST09


class RunState(_Message):
    """Answer to GetState: all that a console needs before it follows telemetry."""

    request_id: str
    run: str
    spec: bytes  # RunSpec as JSON
    head_epoch: int
    phase: str
    roster_version: int
    slots: list[SlotInfo]
    attempts: list[AttemptInfo]
    journal: list[JournalEntry]
    series: FleetSeries
    role: str  # of the asker: operator or viewer
    controller: str  # who holds the lease; "" = nobody
    record: str  # folder, as the head sees it
    started_unix: float
    telemetry: str  # PUB endpoint
    synthetic: bool
    head_versions: dict[str, str] = {}
    cluster: ClusterView | None = None  # None: workers are processes of the head's machine
    gpus: GpuView | None = None


class FleetSeries(msgspec.Struct):
    """Fleet series at 1 Hz, newest last; each a list of equal length."""

    unix: list[float] = []
    target_qps: list[float] = []
    offered_qps: list[float] = []
    completed_qps: list[float] = []
    in_flight: list[int] = []
    backlog: list[int] = []
    tokens_per_s: list[float] = []
    ttft_p50_ms: list[float] = []
    ttft_p99_ms: list[float] = []
    tpot_p50_ms: list[float] = []
    tpot_p99_ms: list[float] = []
    ready: list[int] = []


# --- telemetry (PUB) ---------------------------------------------------------------------------------------


class Percentiles(msgspec.Struct, omit_defaults=True, frozen=True):
    """Milliseconds; NaN where there are too few samples for that quantile (n < 10 / (1 - q))."""

    n: int = 0
    p50: float = float("nan")
    p90: float = float("nan")
    p99: float = float("nan")
    p99_9: float = float("nan")


class SlaView(msgspec.Struct, omit_defaults=True, frozen=True):
    """One limit, watched: last window and whole attempt, and what LoadGen's early stopping still allows."""

    limit_ms: float | None = None
    window: Percentiles = Percentiles()
    whole: Percentiles = Percentiles()
    over: int = 0  # samples over the limit, whole attempt
    over_allowed: int = 0  # most that early stopping accepts at the present n
    needed: int = 0  # more samples needed before a verdict is possible at all
    projected_ms: float = float("nan")  # end-of-attempt p99
    projected_low_ms: float = float("nan")
    projected_high_ms: float = float("nan")


class RoleView(msgspec.Struct, omit_defaults=True, frozen=True):
    """One role of a fleet that splits prefill from decode. Rates are of the last 10 s, over all replicas of the role."""

    role: str
    replicas: int = 0
    ready: int = 0
    outstanding: int = 0  # at its replicas
    waiting: int = 0  # in the head, for a replica of this role
    samples_per_s: float = 0.0  # prefills done, samples completed
    tokens_per_s: float = 0.0  # input tokens of prefills done, output tokens of samples completed
    transfer_p50_ms: float = float("nan")  # decode only: KV transfer as its replicas report it
    transfer_p99_ms: float = float("nan")


class FleetSnapshot(_Message):
    """The whole fleet, 4 times a second. Columns are little-endian arrays, one entry a slot in roster order.

    Column types: *_code uint8; running, waiting, outstanding, restarts int32; all others float32 (NaN = unknown).
    """

    unix: float
    seq: int
    head_epoch: int
    roster_version: int
    phase: str
    phase_since_unix: float
    attempt: int
    attempt_kind: str
    attempt_state: str
    scenario: str
    mechanism: str  # what a rate change does now: "at once", "new attempt", or "" when none is possible
    target_qps: float
    paused: bool
    elapsed_s: float  # of the attempt's load
    duration_s: float  # its minimum; 0 = no end
    min_queries: int  # queries the attempt will issue at least: asked for, or what LoadGen's configuration makes of it
    issued: int
    completed: int
    redispatched: int
    failed: int
    in_flight: int
    backlog: int  # held in the head, no replica below its cap
    backlog_slope: float  # samples/s over the window
    offered_qps: float  # last window
    scheduled_qps: float
    completed_qps: float
    tokens_per_s: float  # output tokens, last window
    tokens_per_s_whole: float
    issue_lag_p50_ms: float
    issue_lag_p99_ms: float
    ttft: SlaView
    tpot: SlaView
    counts: dict[str, int]  # replicas by state
    missing: list[str]  # barrier: "node003/gpu1: no REGISTER", at most 20
    missing_total: int
    slow: list[str]  # slots flagged, worst first
    slow_nodes: list[str]
    fleet_slow: bool
    acts: int
    policy: str
    controller: str
    synthetic: bool
    head_cpu_percent: float
    driver_cpu_percent: float
    state_code: bytes
    outstanding: bytes
    running: bytes
    waiting: bytes
    restarts: bytes
    kv_use: bytes
    tokens_s: bytes
    step_ms: bytes
    batch: bytes
    ratio: bytes
    z: bytes
    ttft_p99_ms: bytes  # last window
    tpot_p99_ms: bytes
    oldest_s: bytes  # age of the oldest sample in flight
    beat_age_s: bytes
    state_age_s: bytes
    slow_age_s: list[float] = []  # since when each of `slow` is called slow
    straggler_note: str = ""  # why nobody is judged (yet): grace, too few windows, too few replicas; "" = judging
    evictions: int = 0  # in the last ten minutes; what counts against stragglers.max_acts_per_10min
    ramp_to_qps: float = 0.0  # the target rate is on its way there; 0 = it stands
    ramp_left_s: float = 0.0
    roles: list[RoleView] = []  # empty where every replica does both


class JournalNews(_Message):
    entries: list[JournalEntry]


class RosterNews(_Message):
    """Slots whose facts changed, with the version that the next snapshots carry."""

    roster_version: int
    slots: list[SlotInfo]
    attempts: list[AttemptInfo]


FLOAT_COLUMNS = (
    "kv_use", "tokens_s", "step_ms", "batch", "ratio", "z", "ttft_p99_ms", "tpot_p99_ms", "oldest_s", "beat_age_s", "state_age_s",
)  # fmt: skip
INT_COLUMNS = ("outstanding", "running", "waiting", "restarts")

ToHead = RegisterWorker | WorkerBeat | ReplicaExited | ReplicaStarting | Register | Heartbeat | GetState | Command | Question
ToWorker = WorkerPlan | Rejected | Unknown | BeatAck | RecycleSlot | StopSlot | StartSlot | StopWorker
ToReplica = Ack | Rejected | Unknown | BeatAck | DataEndpoint | DataClosed
ToConsole = RunState | CommandReply | Rejected | FleetSnapshot | JournalNews | RosterNews | ClusterView | GpuView | Answer

TO_HEAD: Codec[ToHead] = Codec(ToHead)
TO_WORKER: Codec[ToWorker] = Codec(ToWorker)
TO_REPLICA: Codec[ToReplica] = Codec(ToReplica)
TO_CONSOLE: Codec[ToConsole] = Codec(ToConsole)
