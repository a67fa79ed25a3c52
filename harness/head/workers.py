"""The head's side of workers and replicas: registration, beats, exits, and the commands that go back.

Peers are known by the connection they last spoke on; a restarted worker or replica simply speaks on another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from harness.head.journal import Journal
from harness.head.roster import Replica, Roster
from harness.wire import control, states


@dataclass(slots=True)
class Worker:
    name: str
    incarnation: str
    peer: bytes
    nodes: list[int]
    host: str
    pid: int
    beat_s: float


class Workers:
    def __init__(
        self,
        roster: Roster,
        journal: Journal,
        send: Callable[[bytes, msgspec.Struct], bool],
        *,
        head_epoch: int,
        spec_json: bytes,
        clock: Callable[[], float],
        on_beat: Callable[[Replica, control.ReplicaBeat], None],
    ) -> None:
        self._roster = roster
        self._journal = journal
        self._send = send
        self._epoch = head_epoch
        self._spec_json = spec_json
        self._clock = clock
        self._on_beat = on_beat
        self.workers: dict[str, Worker] = {}
        self.stopped_slots: set[str] = set()  # evicted and not to be started again
        self.ending = False  # the run is over: exits are as they should be

    def handle(self, peer: bytes, message: control.ToHead) -> None:
        if isinstance(message, control.Heartbeat):
            self._heartbeat(peer, message)
        elif isinstance(message, control.Register):
            self._register(peer, message)
        elif isinstance(message, control.RegisterWorker):
            self._register_worker(peer, message)
        elif isinstance(message, control.WorkerBeat):
            self._worker_beat(peer, message)
        elif isinstance(message, control.ReplicaStarting):
            replica = self._roster.by_slot.get(message.slot)
            if replica is not None:
                replica.starting, replica.loading, replica.given_up = message.incarnation, message.note, False
        elif isinstance(message, control.ReplicaExited):
            self._exited(message)

    # --- workers -----------------------------------------------------------------------------------------

    def _register_worker(self, peer: bytes, message: control.RegisterWorker) -> None:
        beyond = [node for node in message.nodes if not 0 <= node < self._roster.spec.fleet.nodes]
        if beyond:
            self._send(peer, control.Rejected(f"nodes {beyond} are not part of this run", head_epoch=self._epoch))
            return
        known = self.workers.get(message.worker)
        fresh = known is None or known.incarnation != message.incarnation
        self.workers[message.worker] = Worker(
            message.worker, message.incarnation, peer, message.nodes, message.host, message.pid, self._clock()
        )
        if fresh:
            self._journal.note(
                "worker.register",
                who=f"worker:{message.worker}",
                subject=message.worker,
                why=f"process {message.pid} on {message.host} for {len(message.nodes)} nodes",
            )
        nodes = set(message.nodes)
        slots = [replica.slot for replica in self._roster.replicas if replica.node in nodes]
        self._send(peer, control.WorkerPlan(self._epoch, self._spec_json, slots, sorted(self.stopped_slots)))

    def _worker_beat(self, peer: bytes, message: control.WorkerBeat) -> None:
        worker = self.workers.get(message.worker)
        if worker is None or worker.incarnation != message.incarnation:
            self._send(peer, control.Unknown(self._epoch))
            return
        worker.peer, worker.beat_s = peer, self._clock()
        self._send(peer, control.BeatAck(self._epoch))

    # --- replicas ----------------------------------------------------------------------------------------

    def _register(self, peer: bytes, message: control.Register) -> None:
        admission = self._roster.register(message, peer)
        if admission.replica is None:
            self._journal.note(
                "replica.rejected",
                who=f"worker:{message.worker}",
                subject=message.slot,
                why=admission.reason,
                level="error",
                incarnation=message.incarnation,
            )
            self._send(peer, control.Rejected(admission.reason, message.slot, message.incarnation, self._epoch))
            return
        self._send(peer, control.Ack(message.slot, message.incarnation, self._epoch))

    def _heartbeat(self, peer: bytes, message: control.Heartbeat) -> None:
        for beat in message.replicas:
            replica = self._roster.beat(beat, peer, message.interval_s)
            if replica is None:
                self._send(peer, control.Unknown(self._epoch, beat.slot, beat.incarnation))
            else:
                self._on_beat(replica, beat)
        self._send(peer, control.BeatAck(self._epoch))

    def _exited(self, message: control.ReplicaExited) -> None:
        replica = self._roster.by_slot.get(message.slot)
        if replica is None or self.ending:
            return
        again = "not started again" if message.restart_in_s is None else f"starts again in {message.restart_in_s:g} s"
        replica.restarts, replica.given_up = message.restarts, message.restart_in_s is None
        if replica.incarnation not in ("", message.incarnation) and replica.alive:
            self._roster.stale_messages += 1
            return
        if not replica.alive:
            if replica.state == states.NEW or replica.incarnation != message.incarnation:
                replica.reason = f"{message.reason}; {again}"  # it never got as far as REGISTER
                self._roster.touch(replica)
                self._note_exit(message, again)
            return
        self._note_exit(message, again)
        self._roster.move(replica, states.LOST, f"{message.reason}; {again}", f"worker:{replica.worker}")

    def _note_exit(self, message: control.ReplicaExited, again: str) -> None:
        level = "info" if message.reason.startswith("recycled") else "error"
        self._journal.note(
            "replica.exit",
            subject=message.slot,
            why=f"{message.reason}; {again}",
            level=level,
            incarnation=message.incarnation,
            log_tail=message.log_tail[-5:],
        )

    def worker_gone(self, nodes: tuple[int, ...], reason: str) -> None:
        """The cluster says that the process is gone: no need to wait for leases."""
        gone = set(nodes)
        self.workers = {name: worker for name, worker in self.workers.items() if not gone.issuperset(worker.nodes)}
        for replica in self._roster.replicas:
            if replica.node in gone and replica.alive:
                self._roster.move(replica, states.LOST, reason)

    # --- commands ----------------------------------------------------------------------------------------

    def of_node(self, node: int) -> Worker | None:
        return next((worker for worker in self.workers.values() if node in worker.nodes), None)

    def command(self, replica: Replica, message: msgspec.Struct) -> None:
        worker = self.of_node(replica.node)
        if worker is None or not self._send(worker.peer, message):
            why = f"{type(message).__name__} could not be told to the worker of {replica.slot}: it is not connected"
            self._journal.note("worker.unreachable", subject=replica.slot, why=why, level="error")

    def to_all(self, message: msgspec.Struct) -> None:
        for worker in self.workers.values():
            self._send(worker.peer, message)

    def replica_peers(self) -> set[bytes]:
        return {replica.peer for replica in self._roster.replicas if replica.alive and replica.peer}
