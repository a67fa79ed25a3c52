"""The node agent: applies the head's plan and commands to replica processes, restarts what dies, reports every exit.

A *carrier* is a fixed group of slots that share one process (one slot for engines that own an accelerator, many for
synthetic ones). What a slot does next is decided in slots.py; here that becomes launches, stdin commands and signals.
A slot that shares its process is ended by command; if the process does not confirm in time (it is frozen, or its loop
is stuck) the whole process is killed: the other slots then restart too, which is better than a slot that cannot be ended.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harness.engines.base import EngineError
from harness.records.layout import RunFolder
from harness.spec import FleetSpec, RunSpec, node_name, slot_name
from harness.wire import control
from harness.worker.exposition import ProcessLine, SlotLine
from harness.worker.launch import LaunchConfig, SlotLife
from harness.worker.processes import KILL_AFTER_S, ReplicaProcess
from harness.worker.slots import Act, Slot, SlotState
from harness.worker.surroundings import CannotLaunch, Surroundings

#: A shared process confirms a stop within this time (its engine has KILL_AFTER_S to end) or is killed.
STOP_CONFIRM_S = KILL_AFTER_S + 2.0
LOG_CHECK_S = 1.0

log = logging.getLogger("paceline.worker")


@dataclass(slots=True)
class Carrier:
    """A group of slots and the process that carries them now."""

    slots: list[Slot]
    log_path: Path
    process: ReplicaProcess | None = None
    carried: dict[str, str] = field(default_factory=dict)  # slot → incarnation given to the present process
    due: list[Slot] = field(default_factory=list)  # to begin on the next flush
    flushing: bool = False
    kill_reason: str = ""

    @property
    def shared(self) -> bool:
        return len(self.slots) > 1


class Agent:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        head: str,
        keys: Path,
        worker: str,
        worker_pid: int,
        logs: Path,
        surroundings: Callable[[RunSpec, Sequence[Slot]], Surroundings],
        slots_per_process: Callable[[RunSpec], int],
        report: Callable[[msgspec.Struct], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._head, self._keys, self._worker, self._worker_pid = loop, head, keys, worker, worker_pid
        self._logs, self._surroundings, self._slots_per_process = logs, surroundings, slots_per_process
        self._report, self._clock = report, clock
        self._spec = RunSpec()
        self._spec_json = ""
        self._epoch = 0
        self._carriers: list[Carrier] = []
        self._slots: dict[str, tuple[Slot, Carrier]] = {}
        self._exits: dict[str, control.ReplicaExited] = {}
        self._restarts: dict[str, asyncio.TimerHandle] = {}
        self._confirms: dict[str, asyncio.TimerHandle] = {}
        self._stopping = False
        self._all_gone = asyncio.Event()

    # --- what the head asks -----------------------------------------------------------------------------------

    def apply(self, plan: control.WorkerPlan) -> None:
        """Make the slots what the plan says, as a difference: what runs and shall run is not touched."""
        if self._stopping:
            return
        self._spec_json = plan.spec.decode()
        self._spec = RunSpec.model_validate_json(plan.spec)
        new_epoch, self._epoch = plan.head_epoch != self._epoch, plan.head_epoch
        if new_epoch:
            self._tell_what_is_down()
        evicted = set(plan.evicted)
        added = self._add([name for name in plan.slots if name not in self._slots])
        for name in plan.slots:
            slot, carrier = self._slots.get(name, (None, None))
            if slot is None or carrier is None:
                continue
            if name in evicted:
                self._do(slot.stop(slot.incarnation, "evicted in the head's plan"), slot, carrier)
            elif name in added or (new_epoch and slot.held):
                self._do(slot.start(), slot, carrier)
        for name in set(self._slots) - set(plan.slots):
            slot, carrier = self._slots[name]
            self._do(slot.stop(slot.incarnation, "no longer in the head's plan"), slot, carrier)

    def recycle(self, message: control.RecycleSlot) -> None:
        found = self._find(message.slot)
        if found:
            self._do(found[0].recycle(message.incarnation, message.reason), *found)

    def stop_slot(self, message: control.StopSlot) -> None:
        found = self._find(message.slot)
        if found:
            self._do(found[0].stop(message.incarnation, message.reason), *found)

    def start_slot(self, message: control.StartSlot) -> None:
        found = self._find(message.slot)
        if found:
            self._do(found[0].start(), *found)

    async def shut_down(self, reason: str) -> None:
        """End every process (SIGTERM, then SIGKILL); returns when all are gone."""
        self._stopping = True
        for timer in (*self._restarts.values(), *self._confirms.values()):
            timer.cancel()
        for carrier in self._carriers:
            carrier.kill_reason = reason
            if carrier.process is not None:
                carrier.process.end()
        self.check()
        if any(carrier.process is not None for carrier in self._carriers):
            await self._all_gone.wait()

    # --- what the processes do --------------------------------------------------------------------------------

    def check(self) -> None:
        """Called on SIGCHLD: find the processes that have ended."""
        for carrier in self._carriers:
            process = carrier.process
            ended = process.check() if process is not None else None
            if process is None or ended is None:
                continue
            carrier.process = None
            lost, carrier.carried = carrier.carried, {}
            reason = f"process {ended}" + (f": {carrier.kill_reason}" if carrier.kill_reason else "")
            carrier.kill_reason = ""
            python = self._spec.fleet.python if process.never_began else None
            if python is not None:
                reason = f"fleet.python = {python}: it {ended} without running our code; is it a Python 3.11 or newer?"
            log.log(
                logging.INFO if process.ending else logging.WARNING,
                "process %d of %s %s",
                process.pid,
                carrier.log_path.stem,
                ended,
            )
            tail = process.log.tail()
            process.log.close()
            for name, incarnation in lost.items():
                self._ended(carrier, self._slots[name][0], incarnation, reason, tail, final=python is not None)
            self._flush_soon(carrier)
        if self._stopping and all(carrier.process is None for carrier in self._carriers):
            self._all_gone.set()

    @property
    def log_paths(self) -> list[Path]:
        """Of all that it carries or has carried."""
        return [carrier.log_path for carrier in self._carriers]

    def slot_lines(self) -> list[SlotLine]:
        return [SlotLine(name, slot.state.value, slot.lives) for name, (slot, _) in self._slots.items()]

    def process_lines(self) -> list[ProcessLine]:
        carriers = [(carrier.log_path.stem, carrier.process) for carrier in self._carriers]
        return [ProcessLine(name, process.pid) for name, process in carriers if process is not None]

    def keep_logs_bounded(self) -> None:
        for carrier in self._carriers:
            if carrier.process is not None:
                carrier.process.log.keep_bounded()

    def _on_status(self, carrier: Carrier, message: dict[str, Any]) -> None:
        name = message.get("died") or message.get("stopped") or message.get("loading")
        if not name or carrier.process is None:
            return
        incarnation = str(message.get("incarnation", ""))
        if carrier.carried.get(name) != incarnation:
            return
        if "loading" in message:
            note = str(message.get("note", ""))
            self._report(control.ReplicaStarting(name, incarnation, carrier.process.pid, note))
            return
        del carrier.carried[name]
        slot = self._slots[name][0]
        if not carrier.shared:
            carrier.process.end()  # the next incarnation gets a fresh process
        tail = carrier.process.log.tail()
        reason = str(message.get("reason", ""))
        log.info("%s incarnation %s: %s", name, incarnation, reason or "stopped")
        self._ended(carrier, slot, incarnation, reason, tail, final=bool(message.get("final")))

    def _ended(
        self, carrier: Carrier, slot: Slot, incarnation: str, reason: str, tail: list[str], *, final: bool = False
    ) -> None:
        if slot.incarnation != incarnation or slot.state not in (SlotState.RUNNING, SlotState.ENDING):
            return
        confirm = self._confirms.pop(slot.name, None)
        if confirm is not None:
            confirm.cancel()
        exit_ = slot.ended(reason, self._clock(), self._spec.fleet, final=final or self._stopping)
        message = control.ReplicaExited(slot.name, exit_.incarnation, exit_.reason, tail, exit_.restart_in_s, slot.restarts)
        self._exits[slot.name] = message
        self._report(message)
        if self._stopping or exit_.restart_in_s is None:
            return
        if exit_.restart_in_s == 0:
            self._begin_soon(slot, carrier)
        else:
            self._restarts[slot.name] = self._loop.call_later(exit_.restart_in_s, self._begin_soon, slot, carrier)

    # --- carrying out -----------------------------------------------------------------------------------------

    def _do(self, act: Act, slot: Slot, carrier: Carrier) -> None:
        if self._stopping:
            return
        if slot.state is SlotState.DOWN:
            self._cancel_restart(slot)
        if act is Act.STALE:
            log.info("%s: command for another incarnation than %s ignored", slot.name, slot.incarnation or "none")
        elif act is Act.BEGIN:
            self._begin_soon(slot, carrier)
        elif act is Act.END:
            process = carrier.process
            assert process is not None, "a running slot has a process"
            if carrier.shared:
                process.stop(slot.name, slot.incarnation)
                self._confirms[slot.name] = self._loop.call_later(STOP_CONFIRM_S, self._not_confirmed, slot, carrier)
            else:
                process.end()

    def _not_confirmed(self, slot: Slot, carrier: Carrier) -> None:
        self._confirms.pop(slot.name, None)
        if carrier.process is not None and carrier.carried.get(slot.name) == slot.incarnation:
            carrier.kill_reason = f"it did not end {slot.name} within {STOP_CONFIRM_S:g} s"
            carrier.process.kill()

    def _begin_soon(self, slot: Slot, carrier: Carrier) -> None:
        self._cancel_restart(slot)
        if slot not in carrier.due:
            carrier.due.append(slot)
        self._flush_soon(carrier)

    def _cancel_restart(self, slot: Slot) -> None:
        timer = self._restarts.pop(slot.name, None)
        if timer is not None:
            timer.cancel()

    def _flush_soon(self, carrier: Carrier) -> None:
        """Slots that become due in the same turn of the loop share one launch."""
        if carrier.due and not carrier.flushing and not self._stopping:
            carrier.flushing = True
            self._loop.call_soon(self._flush, carrier)

    def _flush(self, carrier: Carrier) -> None:
        carrier.flushing = False
        process = carrier.process
        if self._stopping or (process is not None and process.ending):
            return  # flushed again when that process is gone
        due, carrier.due = [slot for slot in carrier.due if slot.state is SlotState.WAITING], []
        if not due:
            return
        now_s = self._clock()
        lives = [slot.begin(uuid.uuid4().hex[:12], now_s) for slot in due]
        if process is not None:
            for life in lives:
                process.start(life)
        else:
            try:
                process = self._launch(carrier, due, tuple(lives))
            except (OSError, CannotLaunch, EngineError) as error:
                python = self._spec.fleet.python
                final = True  # another try would find the same node, spec and interpreter
                if not isinstance(error, OSError):
                    reason = str(error)
                elif python is not None and error.errno in (errno.ENOEXEC, errno.EACCES, errno.ENOENT):
                    reason = f"fleet.python = {python}: cannot be run: {error.strerror}; give the path of a Python 3.11 or newer"
                else:
                    final = False  # no memory, no process numbers: that passes
                    reason = f"the process could not be started: {error}"
                log.error("%s: %s", carrier.log_path.stem, reason)
                for slot in due:
                    self._ended(carrier, slot, slot.incarnation, reason, [], final=final)
                return
            carrier.process = process
        for life in lives:
            carrier.carried[life.slot] = life.incarnation
            self._report(control.ReplicaStarting(life.slot, life.incarnation, process.pid))

    def _launch(self, carrier: Carrier, slots: list[Slot], lives: tuple[SlotLife, ...]) -> ReplicaProcess:
        command, environ, guarded = self._surroundings(self._spec, slots)

        def config(status_fd: int) -> LaunchConfig:
            return LaunchConfig(
                self._spec_json, lives, self._head, str(self._keys), self._worker, self._worker_pid, status_fd, guarded
            )

        return ReplicaProcess(
            self._loop, command, environ, config, carrier.log_path, lambda message: self._on_status(carrier, message)
        )

    # --- the plan ---------------------------------------------------------------------------------------------

    def _add(self, names: list[str]) -> set[str]:
        fleet = self._spec.fleet
        places = _places(fleet)
        known = [name for name in names if name in places]
        for name in set(names) - set(known):
            log.error("the plan names %s, which this run's fleet does not have", name)
        size = fleet.slots_per_process or self._slots_per_process(self._spec)
        for first in range(0, len(known), size):
            slots = [Slot(name, *places[name]) for name in known[first : first + size]]
            carrier = Carrier(slots, self._log_path(slots))
            self._carriers.append(carrier)
            self._slots.update({slot.name: (slot, carrier) for slot in slots})
        return set(known)

    def _log_path(self, slots: list[Slot]) -> Path:
        """`node000` for a process that carries a node from its first slot on, else the name of its first slot."""
        first = slots[0]
        name = node_name(first.node) if len(slots) > 1 and first.gpu == 0 else first.name
        return self._logs / RunFolder(self._logs).log(name).name

    def _tell_what_is_down(self) -> None:
        """A head that has just started knows nothing of exits that an earlier one was told."""
        for slot, _ in self._slots.values():
            if slot.state in (SlotState.DOWN, SlotState.WAITING) and slot.name in self._exits:
                self._report(self._exits[slot.name])

    def _find(self, name: str) -> tuple[Slot, Carrier] | None:
        found = self._slots.get(name)
        if found is None:
            log.warning("command for %s, which is not a slot of this worker", name)
        return found


def _places(fleet: FleetSpec) -> dict[str, tuple[int, int, int]]:
    """Slot name → node, gpu, ordinal."""
    per_node = fleet.replicas_per_node
    return {slot_name(n, g): (n, g, n * per_node + g) for n in range(fleet.nodes) for g in range(per_node)}
