"""FleetStore: all that the console knows about one run, and nothing about how it is drawn.

Feeds write (`apply`), screens read. The fast numbers are numpy columns in roster order, replaced as a whole by every
snapshot (30 KB at 512 replicas, views on the received bytes: no copy, no object per replica). `version` grows with
every change; `needs_state` says that the picture has a hole (head restarted, roster or journal ahead of us) and that
the feed should ask for the whole state again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from console.store.cluster import ClusterPicture, worker_of
from console.store.compare import as_told
from console.store.gpus import GpuPicture
from console.store.rings import History, Series
from harness.metrics.kernels import Odd, odd_ones, splits
from harness.spec import RunSpec, StragglersSpec
from harness.wire import control
from harness.wire.clusterview import ClusterView
from harness.wire.gpus import GpuView
from harness.wire.states import ALIVE, HOLDS_SAMPLES, NEW, REPLICA_CODE, REPLICA_STATES, RUN_ENDED

JOURNAL_ENTRIES: Final = 2000
STALE_AFTER_S: Final = 2.0
LOST_AFTER_S: Final = 10.0

#: A READY replica that the straggler statistic flags. Not a state of the replica, but what an operator looks for.
SLOW: Final = "SLOW"
#: A replica of a run that has ended, whatever the head said of it last: its process is gone.
STOPPED: Final = "STOPPED"
SHOWN_STATES: Final = (*REPLICA_STATES, SLOW, STOPPED)
SLOW_CODE: Final = SHOWN_STATES.index(SLOW)
STOPPED_CODE: Final = SHOWN_STATES.index(STOPPED)
READY_CODE: Final = REPLICA_CODE["READY"]
_WOULD_LIVE: Final = [REPLICA_CODE[name] for name in (NEW, *sorted(ALIVE))] + [SLOW_CODE]
_WORKS: Final = [*(REPLICA_CODE[name] for name in sorted(HOLDS_SAMPLES)), SLOW_CODE]
#: Who is there to be compared no more.
_GONE: Final = frozenset(REPLICA_STATES) - ALIVE - {NEW}
#: What the store remembers of every replica, second by second.
HISTORY_COLUMNS: Final = ("tokens_s", "step_ms", "waiting")
BARRIER_PHASES: Final = frozenset({"PLACING", "REGISTERING", "WARMING"})

LinkKind = Literal["connecting", "live", "stale", "lost", "ended"]
_FEW: Final[NDArray[np.float32]] = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Link:
    """How fresh the picture is. `detail` is for people: why there is no connection."""

    kind: LinkKind
    age_s: float
    detail: str = ""

    @property
    def trusted(self) -> bool:
        return self.kind in ("live", "ended")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the attempt is on its way to a result that counts. NaN: that condition does not apply, or is not known."""

    duration: float
    queries: float
    eta_s: float
    planned_s: float  # the longer of its minimum duration and the time its queries take at the target rate


_NO_PROGRESS: Final = Progress(math.nan, math.nan, math.nan, math.nan)


class FleetStore:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._heard: float | None = None
        self.version = 0
        self.needs_state = False
        self.link_note = ""
        self.run = ""
        self.spec: RunSpec | None = None
        self.role = ""
        self.controller = ""
        self.record = ""
        self.synthetic = False
        self.started_unix = 0.0
        self.head_epoch = 0
        self.roster_version = -1
        self.phase = ""
        self.slots: list[control.SlotInfo] = []
        self.index: dict[str, int] = {}
        self.attempts: dict[int, control.AttemptInfo] = {}
        self.snapshot: control.FleetSnapshot | None = None
        self.columns: dict[str, NDArray[np.generic]] = {}
        self.state: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._roles: NDArray[np.str_] = np.zeros(0, dtype=np.str_)
        self.slow_age_s: dict[int, float] = {}  # by position, of those that are called slow
        self.node_of: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self.gpu_of: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self.node_names: list[str] = []
        self.histories = {name: History(0) for name in HISTORY_COLUMNS}
        self.series = Series()
        self.cluster = ClusterPicture()
        self.gpus = GpuPicture()
        self.journal: deque[control.JournalEntry] = deque(maxlen=JOURNAL_ENTRIES)
        self._kernels: tuple[dict[str, Odd], list[str]] | None = None  # None: not looked for since the roster has changed

    # --- what feeds call -----------------------------------------------------------------------------------

    def apply(self, message: control.ToConsole) -> None:
        if isinstance(message, control.FleetSnapshot):
            self._apply_snapshot(message)
        elif isinstance(message, control.JournalNews):
            self._apply_journal(message.entries)
        elif isinstance(message, control.RosterNews):
            self._apply_roster(message)
        elif isinstance(message, control.RunState):
            self._apply_state(message)
        elif isinstance(message, ClusterView):
            self.cluster.take(message)
        elif isinstance(message, GpuView):
            self.gpus.take(message)
        else:
            return  # replies to commands belong to whoever asked
        self._heard = self._now()
        self.version += 1

    def apply_record(self, state: control.RunState) -> None:
        """The run as its record tells it. Nobody was heard: an ended run needs no head, one without a head stays `connecting`."""
        self._apply_state(state)
        if self.ended:
            self._heard = self._now()
        self.version += 1

    def disconnected(self, why: str) -> None:
        """The feed could not reach the head; the text is shown once the picture is stale."""
        self.link_note = why
        self.version += 1

    def _apply_state(self, state: control.RunState) -> None:
        self.run, self.role, self.record = state.run, state.role, state.record
        self.spec = RunSpec.model_validate_json(state.spec) if state.spec else None
        self.controller, self.synthetic, self.phase = state.controller, state.synthetic, state.phase
        self.started_unix = state.started_unix
        if self.snapshot is not None and self.snapshot.head_epoch != state.head_epoch:
            self.snapshot = None  # of a head that is no more: its next one is at most a quarter second away
        self.head_epoch, self.roster_version = state.head_epoch, state.roster_version
        self._set_roster(state.slots)
        if self.ended:
            self.state = _stopped(self.state)
        self.attempts = {attempt.number: attempt for attempt in state.attempts}
        self.series.seed(state.series)
        self.cluster.take(state.cluster)
        self.gpus.take(state.gpus)
        self.journal.clear()
        self.journal.extend(state.journal)
        self.needs_state, self.link_note = False, ""

    def _set_roster(self, slots: list[control.SlotInfo]) -> None:
        same = [info.slot for info in slots] == [info.slot for info in self.slots]
        self.slots, self._kernels = list(slots), None
        if same:
            return
        self.index = {info.slot: position for position, info in enumerate(slots)}
        names: dict[str, int] = {}
        self.node_of = np.array([names.setdefault(info.node, len(names)) for info in slots], dtype=np.int32)
        self.gpu_of = np.array([info.gpu for info in slots], dtype=np.int32)
        self.node_names = list(names)
        self.histories = {name: History(len(slots)) for name in HISTORY_COLUMNS}
        self.state = np.array([REPLICA_CODE.get(info.state, 0) for info in slots], dtype=np.uint8)
        self.columns = {}
        self._roles = np.array([info.role for info in slots])
        self.gpus.fit(len(slots), self.spec)

    def _apply_snapshot(self, snap: control.FleetSnapshot) -> None:
        if snap.head_epoch != self.head_epoch or snap.roster_version > self.roster_version:
            self.needs_state = True
        count = len(self.slots)
        if len(snap.state_code) != count:
            self.needs_state = True
            return
        self.snapshot, self.phase, self.synthetic, self.controller = snap, snap.phase, snap.synthetic, snap.controller
        for name in control.INT_COLUMNS:
            self.columns[name] = np.frombuffer(getattr(snap, name), dtype="<i4")
        for name in control.FLOAT_COLUMNS:
            self.columns[name] = np.frombuffer(getattr(snap, name), dtype="<f4")
        if self.split:  # a prefill replica gives no tokens: its 0 is no throughput, and no part of the fleet's median
            self.columns["tokens_s"] = np.where(self.role_mask("prefill"), np.float32(np.nan), self.columns["tokens_s"])
        shown = np.frombuffer(snap.state_code, dtype=np.uint8).copy()
        self.slow_age_s = {}
        for number, slot in enumerate(snap.slow):
            position = self.index.get(slot, -1)
            if position >= 0 and shown[position] == READY_CODE:
                shown[position] = SLOW_CODE
                self.slow_age_s[position] = snap.slow_age_s[number] if number < len(snap.slow_age_s) else math.nan
        self.state = _stopped(shown) if self.ended else shown
        self._remember(snap.unix)
        self.series.push(snap)

    def _remember(self, unix: float) -> None:
        if self.history.has(unix):
            return
        serving = (self.state == READY_CODE) | (self.state == SLOW_CODE)
        for name, history in self.histories.items():
            if name in control.INT_COLUMNS:  # 0 of a replica that is gone is no value
                column = np.where(np.isin(self.state, _WORKS), self.ints(name), np.float32(np.nan))
            else:
                column = self.floats(name)
            history.push(unix, column, serving)

    def _apply_journal(self, entries: list[control.JournalEntry]) -> None:
        last = self.journal[-1].seq if self.journal else None
        for entry in entries:
            if last is not None and entry.seq <= last:
                continue
            if last is not None and entry.seq > last + 1:
                self.needs_state = True
            self.journal.append(entry)
            last = entry.seq

    def _apply_roster(self, news: control.RosterNews) -> None:
        self._kernels = None
        for info in news.slots:
            position = self.index.get(info.slot)
            if position is None:
                self.needs_state = True
            else:
                self.slots[position] = info
        for attempt in news.attempts:
            self.attempts[attempt.number] = attempt
        self.roster_version = max(self.roster_version, news.roster_version)

    # --- what screens ask ----------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """Of tok/s."""
        return self.histories["tokens_s"]

    def floats(self, name: str) -> NDArray[np.float32]:
        """A float column; all NaN before the first snapshot."""
        column = self.columns.get(name)
        if column is None or len(column) != len(self.slots):
            return np.full(len(self.slots), np.nan, dtype=np.float32) if self.slots else _FEW
        return column  # type: ignore[return-value]

    def ints(self, name: str) -> NDArray[np.int32]:
        column = self.columns.get(name)
        if column is None or len(column) != len(self.slots):
            return np.zeros(len(self.slots), dtype=np.int32)
        return column  # type: ignore[return-value]

    def state_name(self, position: int) -> str:
        code = int(self.state[position])
        return SHOWN_STATES[code] if code < len(SHOWN_STATES) else f"state {code}"

    def age_s(self, position: int) -> float:
        """How long it has been what it is shown as: SLOW counts from the flag, not from READY."""
        if int(self.state[position]) == SLOW_CODE:
            return self.slow_age_s.get(position, math.nan)
        return float(self.floats("state_age_s")[position])

    def outliers(self) -> NDArray[np.bool_]:
        """Whose step times are beyond the straggler limits right now, flagged or not."""
        limits = self.spec.stragglers if self.spec is not None else StragglersSpec()
        return (self.floats("ratio") > limits.ratio) & (self.floats("z") > limits.z)

    @property
    def odd_kernels(self) -> dict[str, Odd]:
        """Replicas that run another MoE kernel or table than most of their node class, by slot; of those that are there."""
        return self._compared_kernels()[0]

    @property
    def split_kernels(self) -> list[str]:
        """Node classes in which no MoE kernel or table is the usual one, a line each."""
        return self._compared_kernels()[1]

    def _compared_kernels(self) -> tuple[dict[str, Odd], list[str]]:
        if self._kernels is None:
            there = [as_told(info) for info in self.slots if info.incarnation and info.state not in _GONE]
            self._kernels = odd_ones(there), splits(there)
        return self._kernels

    def count_states(self) -> dict[str, int]:
        counts = np.bincount(self.state, minlength=len(SHOWN_STATES))
        return {SHOWN_STATES[code]: int(number) for code, number in enumerate(counts[: len(SHOWN_STATES)]) if number}

    def median(self, name: str) -> float:
        """Over the replicas that serve (READY and SLOW); NaN when there are none."""
        serving = self.floats(name)[(self.state == READY_CODE) | (self.state == SLOW_CODE)]
        serving = serving[~np.isnan(serving)]
        return float(np.median(serving)) if len(serving) else math.nan

    def link(self) -> Link:
        if self._heard is None:
            return Link("connecting", 0.0, self.link_note)
        age_s = self._now() - self._heard
        if self.ended:
            return Link("ended", age_s, self.link_note)
        if age_s > LOST_AFTER_S:
            return Link("lost", age_s, self.link_note)
        return Link("stale" if age_s > STALE_AFTER_S else "live", age_s, self.link_note)

    @property
    def split(self) -> bool:
        """Prefill and decode are done by different replicas."""
        return self.spec is not None and self.spec.fleet.split

    def role_mask(self, role: str) -> NDArray[np.bool_]:
        """Who is of that role, in roster order."""
        if len(self._roles) != len(self.slots):
            self._roles = np.array([info.role for info in self.slots])
        return np.asarray(self._roles == role, dtype=np.bool_)

    @property
    def ended(self) -> bool:
        return self.phase in RUN_ENDED

    @property
    def at_barrier(self) -> bool:
        return self.phase in BARRIER_PHASES

    @property
    def attempt(self) -> control.AttemptInfo | None:
        """The attempt that the picture is about: the running one, else the last."""
        if self.snapshot is not None and self.snapshot.attempt in self.attempts:
            return self.attempts[self.snapshot.attempt]
        return self.attempts[max(self.attempts)] if self.attempts else None

    @property
    def ending(self) -> str:
        """`stopping` or `draining` while the attempt takes no more load, else empty."""
        snap = self.snapshot
        if snap is None or self.ended:
            return ""
        if snap.attempt_state == "stopping":
            return "stopping"
        return "draining" if snap.attempt_state == "draining" or snap.phase == "DRAINING" else ""

    def progress(self) -> Progress:
        snap = self.snapshot
        if snap is None or snap.phase != "MEASURING" or snap.duration_s <= 0 or self.ending:
            return _NO_PROGRESS
        offline, counted = snap.scenario == "Offline", snap.attempt_kind != "explore" and snap.min_queries > 0
        # Offline issues everything at once: there only completions tell how far it is.
        done, per_s = (snap.completed, snap.completed_qps) if offline else (snap.issued, snap.target_qps)
        queries_s = snap.min_queries / snap.target_qps if counted and snap.target_qps > 0 else 0.0
        planned_s = max(snap.duration_s, queries_s)
        left_s = snap.duration_s - snap.elapsed_s
        if counted and snap.min_queries > done:
            left_s = max(left_s, (snap.min_queries - done) / per_s) if per_s > 0 else math.nan
        return Progress(
            duration=min(1.0, snap.elapsed_s / planned_s),
            queries=min(1.0, done / snap.min_queries) if counted else math.nan,
            eta_s=left_s if left_s >= 1 else math.nan,
            planned_s=planned_s,
        )

    def oldest_s(self) -> float:
        """Age of the oldest sample in flight anywhere; NaN when nothing is."""
        ages = self.floats("oldest_s")
        ages = ages[~np.isnan(ages)]
        return float(ages.max()) if len(ages) else math.nan

    @property
    def unix(self) -> float:
        """The head's clock, as of its last snapshot; NaN before the first."""
        return self.snapshot.unix if self.snapshot is not None else math.nan

    def history_of(self, slot: str) -> list[control.JournalEntry]:
        """On a cluster with what befell its pod."""
        subjects, at = {slot}, self.index.get(slot)
        if at is not None and self.cluster.view is not None:
            node = self.slots[at].node
            subjects |= {node, worker_of(node)}
        return [entry for entry in self.journal if entry.subject in subjects]

    def acts(self) -> list[control.JournalEntry]:
        """Operators' and policy's acts, for the marks on the time axis."""
        return [entry for entry in self.journal if entry.what.startswith("act.")]


def _stopped(state: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The run has ended: who was lost or evicted stays so, everybody else is stopped."""
    return np.where(np.isin(state, _WOULD_LIVE), STOPPED_CODE, state).astype(np.uint8)
