"""The roster: which incarnation stands in which slot, in which state, and why.

One owner of the replica state machine. Everything that happens to a replica (a REGISTER, a beat, a missed lease, an
exit, an act) becomes a `move`, and every move is reported with its reason through `on_move`, so the journal cannot
miss one. A message of an incarnation that is not the slot's present one changes nothing and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.spec import RunSpec, node_name, slot_name
from harness.wire import states
from harness.wire.control import Register, ReplicaBeat, SlotInfo


@dataclass(slots=True)
class Replica:
    """One slot and the incarnation that fills it. `*_s` are the head's monotonic seconds."""

    index: int
    slot: str
    node: int
    gpu: int
    role: str
    state: str = states.NEW
    reason: str = ""
    since_s: float = 0.0
    since_unix: float = 0.0
    incarnation: str = ""
    nth: int = 0  # incarnations that have registered
    peer: bytes = b""  # control connection
    worker: str = ""
    beat_s: float = 0.0
    strikes: int = 0
    beat: ReplicaBeat | None = None
    tokens_s: float = float("nan")
    counted_tokens: int = 0
    counted_s: float = 0.0
    registered: Register | None = None
    waived: bool = False
    restarts: int = 0
    starting: str = ""  # incarnation that the worker is starting
    loading: str = ""  # what its engine is waiting for
    given_up: bool = False  # its worker does not start another
    note: str = ""

    def count_tokens(self, tokens: int, over_s: float) -> None:
        """A rate over at least half a second: a beat that was hastened by news covers only milliseconds."""
        self.counted_tokens += tokens
        self.counted_s += over_s
        if self.counted_s >= 0.5:
            self.tokens_s = self.counted_tokens / self.counted_s
            self.counted_tokens, self.counted_s = 0, 0.0

    @property
    def alive(self) -> bool:
        return self.state in states.ALIVE

    def info(self, log: str) -> SlotInfo:
        about = self.registered
        return SlotInfo(
            slot=self.slot,
            node=node_name(self.node),
            gpu=self.gpu,
            role=self.role,
            incarnation=self.incarnation,
            incarnations=self.nth,
            state=self.state,
            reason=self.reason,
            worker=self.worker,
            host=about.host if about else "",
            pid=about.pid if about else 0,
            pod=about.pod if about else "",
            node_name=about.node_name if about else "",
            engine=about.engine if about else "",
            synthetic=about.synthetic if about else False,
            args_hash=about.args_hash if about else "",
            versions=about.versions if about else {},
            accelerator=about.accelerator if about else {},
            facts=about.facts if about else {},
            waived=self.waived,
            since_unix=self.since_unix,
            log=log,
        )


Move = Callable[[Replica, str, str, str], None]  # replica, before, why, who


@dataclass(slots=True)
class Admission:
    """Answer to a REGISTER: accepted or not, and whether anything changed."""

    replica: Replica | None
    reason: str = ""
    fresh: bool = False
    replaced: str = ""  # incarnation that was in the slot and had not ended


@dataclass(slots=True)
class Roster:
    spec: RunSpec
    args_hash: str
    on_move: Move
    clock: Callable[[], float]
    unix: Callable[[], float]
    replicas: list[Replica] = field(default_factory=list)
    by_slot: dict[str, Replica] = field(default_factory=dict)
    version: int = 1
    stale_messages: int = 0
    _changed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        fleet = self.spec.fleet
        for node in range(fleet.nodes):
            for gpu in range(fleet.replicas_per_node):
                slot = slot_name(node, gpu)
                replica = Replica(len(self.replicas), slot, node, gpu, fleet.role_at(node, gpu), since_s=self.clock())
                self.replicas.append(replica)
                self.by_slot[slot] = replica

    # --- moves -------------------------------------------------------------------------------------------

    def move(self, replica: Replica, state: str, why: str, who: str = "head") -> bool:
        """To `state` if the machine allows it from here; False (and nothing happens) otherwise."""
        before = replica.state
        if state == before or state not in states.REPLICA_MOVES[before]:
            return False
        replica.state, replica.reason = state, why
        replica.since_s, replica.since_unix = self.clock(), self.unix()
        if state not in states.ALIVE:
            replica.beat, replica.tokens_s = None, float("nan")
            replica.counted_tokens, replica.counted_s = 0, 0.0
        self.touch(replica)
        self.on_move(replica, before, why, who)
        return True

    def touch(self, replica: Replica) -> None:
        """Its slow-moving facts have changed: consoles are told."""
        self.version += 1
        self._changed.add(replica.index)

    def take_changed(self) -> list[Replica]:
        changed = [self.replicas[index] for index in sorted(self._changed)]
        self._changed.clear()
        return changed

    def remember(self, slot: str, incarnation: str, nth: int) -> None:
        """What a previous head of this run knew of a slot: its counts go on."""
        replica = self.by_slot.get(slot)
        if replica is not None and replica.state == states.NEW:
            replica.incarnation, replica.nth = incarnation, nth

    def register(self, message: Register, peer: bytes) -> Admission:
        replica = self.by_slot.get(message.slot)
        if replica is None:
            return Admission(None, f"slot {message.slot} is not part of this run ({len(self.replicas)} slots)")
        mismatch = self._mismatch(message)
        if mismatch:
            if states.REJECTED in states.REPLICA_MOVES[replica.state] and not replica.alive:
                replica.incarnation, replica.registered = message.incarnation, message
                self.move(replica, states.REJECTED, mismatch)
            return Admission(None, mismatch)
        if replica.incarnation == message.incarnation and replica.state in states.ALIVE:
            replica.peer, replica.beat_s = peer, self.clock()
            return Admission(replica)
        if replica.incarnation == message.incarnation and replica.state in (states.EVICTED, states.REJECTED):
            return Admission(None, f"this incarnation was {replica.state.lower()}: {replica.reason}")
        if replica.starting and replica.starting != message.incarnation and replica.alive:
            return Admission(None, f"{message.slot} is held by incarnation {replica.incarnation}, started by its worker")
        replaced = replica.incarnation if replica.alive else ""
        if replaced:
            self.move(replica, states.LOST, f"incarnation {message.incarnation} registered for the same slot")
        known = replica.state == states.NEW and replica.incarnation == message.incarnation  # from before a head restart
        replica.incarnation, replica.peer, replica.registered = message.incarnation, peer, message
        replica.worker, replica.nth = message.worker, replica.nth + (not known)
        replica.strikes, replica.beat_s, replica.note = 0, self.clock(), ""
        self.move(replica, states.REGISTERED, f"incarnation {message.incarnation} of worker {message.worker}")
        return Admission(replica, fresh=True, replaced=replaced)

    def _mismatch(self, message: Register) -> str:
        if message.model != self.spec.model.name:
            return f"model {message.model!r} registered, this run serves {self.spec.model.name!r}"
        if message.args_hash != self.args_hash:
            return f"engine arguments hash {message.args_hash} differs from the run's {self.args_hash}"
        return ""

    # --- signs of life -----------------------------------------------------------------------------------

    def current(self, slot: str, incarnation: str) -> Replica | None:
        replica = self.by_slot.get(slot)
        if replica is None or replica.incarnation != incarnation:
            self.stale_messages += 1
            return None
        return replica

    def beat(self, beat: ReplicaBeat, peer: bytes, interval_s: float) -> Replica | None:
        """None: the sender has to register (again)."""
        replica = self.current(beat.slot, beat.incarnation)
        if replica is None or not replica.alive:
            return None
        now = self.clock()
        replica.beat, replica.beat_s, replica.strikes, replica.peer = beat, now, 0, peer
        replica.count_tokens(beat.tokens_out, interval_s)
        replica.note = beat.note
        if replica.state == states.REGISTERED:
            self.move(replica, beat.state, beat.note or "first beat")
        elif replica.state == states.WARMING and beat.state == states.READY:
            self.move(replica, states.READY, beat.note or "warm-up settled")
        elif replica.state == states.SUSPECT:
            self.move(replica, beat.state, "its beats are back")
        return replica

    def sweep(self, late: bool) -> list[Replica]:
        """Two strikes: one lease without a beat makes SUSPECT, a second LOST, by a later sweep. Returns the newly LOST.

        A sweep that was itself late forgives the round: then the head was slow, not the replica.
        """
        now, lease = self.clock(), self.spec.fleet.lease_s
        lost: list[Replica] = []
        for replica in self.replicas:
            if not replica.alive:
                continue
            if late:
                replica.beat_s = max(replica.beat_s, now - lease / 2)
                continue
            silent = now - replica.beat_s
            if silent > 2 * lease and replica.strikes:
                if self.move(replica, states.LOST, f"no beat for {silent:.1f} s (lease {lease:g} s, two strikes)"):
                    lost.append(replica)
            elif silent > lease and replica.strikes == 0:
                replica.strikes = 1
                self.move(replica, states.SUSPECT, f"no beat for {silent:.1f} s: no new samples")
        return lost

    def count(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for replica in self.replicas:
            counts[replica.state] = counts.get(replica.state, 0) + 1
        return counts

    @property
    def ready(self) -> int:
        return sum(replica.state == states.READY for replica in self.replicas)
