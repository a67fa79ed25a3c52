"""The life of one slot at its worker: which incarnation fills it, and what happens after that one has ended.

    DOWN ──begin──▶ RUNNING ──ended──▶ WAITING (back-off) ──begin──▶ RUNNING …
                       │ recycle, stop       └──▶ DOWN (final, or too many restarts)
                       ▼
                    ENDING ──ended──▶ RUNNING (recycle, start) or DOWN (stop)

This file decides; agent.py carries out. It knows no process, no socket and no clock, so every rule has a unit test.
Fence: a command counts only for the incarnation that it names, so repeats and late commands are harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harness.spec import FleetSpec
from harness.worker.launch import SlotLife

#: A life this long proves that the slot works: the next death starts again at the first delay.
HEALTHY_AFTER_S = 60.0


class SlotState(Enum):
    DOWN = "down"
    RUNNING = "running"
    ENDING = "ending"
    WAITING = "waiting"


class Act(Enum):
    """What the agent has to do now."""

    NOTHING = "nothing"
    BEGIN = "begin"
    END = "end"  # end the running incarnation
    STALE = "stale"  # the command names another incarnation


@dataclass(slots=True)
class Exit:
    """What is told to the head about an incarnation that has ended."""

    incarnation: str
    reason: str
    restart_in_s: float | None


class Slot:
    def __init__(self, name: str, node: int, gpu: int, ordinal: int) -> None:
        self.name, self.node, self.gpu, self.ordinal = name, node, gpu, ordinal
        self.state = SlotState.DOWN
        self.incarnation = ""  # the present one, or the last
        self.lives = 0
        self.restarts = 0
        self.held = False  # DOWN by command (stop, evicted), not by failure
        self._begun_s = 0.0
        self._delay_s: float | None = None
        self._intent_restart = False
        self._intent_reason = ""

    def begin(self, incarnation: str, now_s: float) -> SlotLife:
        life = SlotLife(self.name, self.node, self.gpu, self.ordinal, incarnation, self.lives)
        self.state, self.incarnation, self._begun_s, self.held = SlotState.RUNNING, incarnation, now_s, False
        self.lives += 1
        return life

    def ended(self, reason: str, now_s: float, fleet: FleetSpec, *, final: bool = False) -> Exit:
        """The present incarnation is over. A `restart_in_s` of 0 means: begin at once."""
        if self.state is SlotState.ENDING:
            self.state = SlotState.WAITING if self._intent_restart else SlotState.DOWN
            self.held = not self._intent_restart
            return Exit(self.incarnation, self._intent_reason, 0.0 if self._intent_restart else None)
        if now_s - self._begun_s >= HEALTHY_AFTER_S:
            self._delay_s, self.restarts = None, 0
        if final or self.restarts >= fleet.max_restarts:
            self.state = SlotState.DOWN
            if not final:
                reason = f"{reason}; failed {self.restarts + 1} {'times' if self.restarts else 'time'}"
            return Exit(self.incarnation, reason, None)
        delay_s = fleet.restart_backoff_s if self._delay_s is None else min(2 * self._delay_s, fleet.restart_backoff_max_s)
        self._delay_s = delay_s
        self.restarts += 1
        self.state = SlotState.WAITING
        return Exit(self.incarnation, reason, delay_s)

    def recycle(self, incarnation: str, reason: str) -> Act:
        if incarnation != self.incarnation:
            return Act.STALE
        return self._restart(f"recycled: {reason}")

    def start(self) -> Act:
        if self.state is SlotState.RUNNING:
            return Act.NOTHING
        return self._restart("started again")

    def _restart(self, reason: str) -> Act:
        if self.state is SlotState.RUNNING:
            self.state, self._intent_restart, self._intent_reason = SlotState.ENDING, True, reason
            return Act.END
        if self.state is SlotState.ENDING:
            self._intent_restart = True
            return Act.NOTHING
        self._delay_s, self.restarts = None, 0
        self.state = SlotState.WAITING
        return Act.BEGIN

    def stop(self, incarnation: str, reason: str) -> Act:
        if incarnation != self.incarnation:
            return Act.STALE
        if self.state is SlotState.RUNNING:
            self.state, self._intent_restart, self._intent_reason = SlotState.ENDING, False, f"stopped: {reason}"
            return Act.END
        if self.state is SlotState.ENDING:
            self._intent_restart = False
        else:
            self.state = SlotState.DOWN
            self.held = True
        return Act.NOTHING
