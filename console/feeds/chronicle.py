"""What a run's journal says of any moment: phase, attempt, rate, who was slow, which life a slot was in. No samples, no disk.

The journal is the only part of a record that knows of acts and of changes between two seconds of the timeline. Everything
here is a search in times that were sorted once; `unix` is the wall clock of the head that wrote them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from harness.records.journal import AFTER_THE_RUN
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord
from harness.spec import RunSpec, place_of
from harness.wire.control import AttemptInfo, JournalEntry, SlotInfo
from harness.wire.states import REPLICA_CODE

TEN_MINUTES_S: Final = 600.0
#: Acts that touch no attempt: taking turns at the controls.
_UNCOUNTED: Final = frozenset({"act.take_control", "act.release_control"})
#: A fleet that is slow as a whole is noted once, when it begins; how long it stayed so is not in the journal.
_FLEET_SLOW_S: Final = 10.0


class Chronicle:
    def __init__(self, entries: Sequence[JournalEntry], attempts: Sequence[AttemptRecord], spec: RunSpec, folder: RunFolder,
                 *, synthetic: bool) -> None:  # fmt: skip
        told = [entry for entry in entries if entry.what not in AFTER_THE_RUN]
        self.entries = sorted(told, key=lambda entry: (entry.unix, entry.seq))
        self.attempts = list(attempts)
        self.slots = spec.slots()
        self._spec, self._folder, self._synthetic = spec, folder, synthetic
        self._unix = [entry.unix for entry in self.entries]
        self._index = {slot: position for position, slot in enumerate(self.slots)}
        self._by_what: dict[str, list[JournalEntry]] = {}
        for entry in self.entries:
            self._by_what.setdefault(entry.what, []).append(entry)
        self._acts = [entry for entry in self.entries if entry.what.startswith("act.") and entry.what not in _UNCOUNTED]
        moves = [entry for entry in self._by_what.get("replica.state", []) if entry.subject in self._index]
        self._moves = moves
        self._moved_unix = np.array([entry.unix for entry in moves], dtype=np.float64)
        self._moved = np.array([self._index[entry.subject] for entry in moves], dtype=np.intp)
        self._nth = np.array([_whole(entry.data.get("nth")) for entry in moves], dtype=np.int32)
        self._after = np.array([REPLICA_CODE.get(entry.after, 0) for entry in moves], dtype=np.uint8)
        starts = {entry.subject: entry.unix for entry in self._by_what.get("attempt.start", [])}
        ends = {entry.subject: entry.unix for entry in self._by_what.get("attempt.end", [])}
        self._spans = [
            (starts.get(str(one.number), one.started_unix), ends.get(str(one.number), one.ended_unix or math.inf))
            for one in self.attempts
        ]  # fmt: skip

    @property
    def span(self) -> tuple[float, float] | None:
        return (self._unix[0], self._unix[-1]) if self._unix else None

    def until(self, unix: float, tail: int) -> list[JournalEntry]:
        last = bisect.bisect_right(self._unix, unix)
        return self.entries[max(0, last - tail) : last]

    def between(self, after: float, unix: float) -> list[JournalEntry]:
        return self.entries[bisect.bisect_right(self._unix, after) : bisect.bisect_right(self._unix, unix)]

    def _last(self, what: str, unix: float, attempt: int | None = None) -> JournalEntry | None:
        for entry in reversed(self._by_what.get(what, [])):
            if entry.unix <= unix and (attempt is None or entry.attempt == attempt):
                return entry
        return None

    # --- the run ---------------------------------------------------------------------------------------------

    def phase(self, unix: float) -> tuple[str, float]:
        """Its name and since when."""
        entry = self._last("run.phase", unix)
        return (entry.after, entry.unix) if entry is not None else ("PLACING", self._unix[0] if self._unix else unix)

    def policy(self, unix: float) -> str:
        entry = self._last("act.set_policy", unix)
        return entry.after if entry is not None and entry.after else self._spec.stragglers.policy

    def controller(self, unix: float) -> str:
        taken, given = self._last("act.take_control", unix), self._last("act.release_control", unix)
        return taken.after if taken is not None and (given is None or given.unix < taken.unix) else ""

    def evictions(self, unix: float) -> int:
        return sum(unix - TEN_MINUTES_S < entry.unix <= unix for entry in self._by_what.get("act.evict", []))

    # --- attempts --------------------------------------------------------------------------------------------

    def attempt(self, unix: float) -> AttemptRecord | None:
        """The one that was running."""
        for one, (begin, end) in zip(reversed(self.attempts), reversed(self._spans), strict=True):
            if begin <= unix < end:
                return one
        return None

    def attempt_phase(self, number: int, unix: float) -> str:
        entry = self._last("attempt.phase", unix, number)
        return entry.after if entry is not None else "STARTING"

    def acts(self, number: int, unix: float) -> int:
        return sum(entry.attempt == number and entry.unix <= unix for entry in self._acts)

    def attempt_infos(self, unix: float) -> list[AttemptInfo]:
        """As the head would have told them then: no verdict before the end."""
        infos = []
        for one, (begin, end) in zip(self.attempts, self._spans, strict=True):
            if begin > unix:
                continue
            ended = end <= unix
            infos.append(
                AttemptInfo(
                    one.number, one.kind, one.scenario, one.target_qps, one.epoch, one.started_unix,
                    ended_unix=one.ended_unix if ended else 0.0,
                    state="ENDED" if ended else self.attempt_phase(one.number, unix),
                    verdict=one.verdict if ended else "", reasons=one.reasons if ended else [],
                    notes=one.notes if ended else [], acts=one.acts if ended else self.acts(one.number, unix),
                    supersedes=one.supersedes, totals=one.totals if ended else {},
                    settings_diff=one.settings_diff, results=one.results if ended else {}, test=one.test,
                )
            )  # fmt: skip
        return infos

    def target_qps(self, attempt: AttemptRecord, unix: float) -> float:
        """What was asked for, as far as a ramp had come."""
        qps = attempt.target_qps
        for entry in self._by_what.get("act.set_rate", []):
            wanted = entry.data.get("qps")
            if entry.attempt != attempt.number or entry.unix > unix or not isinstance(wanted, int | float):
                continue
            if attempt.kind != "explore":
                break  # there a new rate is a new attempt
            ramp_s = float(entry.data.get("ramp_s") or 0.0)
            share = min(1.0, (unix - entry.unix) / ramp_s) if ramp_s > 0 else 1.0
            qps += (float(wanted) - qps) * share
        return qps

    def paused(self, number: int, unix: float) -> bool:
        paused, resumed = self._last("act.pause", unix, number), self._last("act.resume", unix, number)
        return paused is not None and (resumed is None or resumed.unix < paused.unix)

    # --- stragglers ------------------------------------------------------------------------------------------

    def slow(self, number: int, unix: float) -> dict[str, float]:
        """Slots that were flagged, and since when (unix)."""
        flagged: dict[str, float] = {}
        marks = [*self._by_what.get("straggler.slow", []), *self._by_what.get("straggler.recovered", [])]
        for entry in sorted(marks, key=lambda entry: entry.unix):
            if entry.attempt != number or entry.unix > unix:
                continue
            if entry.what == "straggler.slow":
                flagged.setdefault(entry.subject, entry.unix)
            else:
                flagged.pop(entry.subject, None)
        return flagged

    def slow_nodes(self, slow: dict[str, float]) -> list[str]:
        """Nodes all of whose replicas are flagged."""
        per_node = self._spec.fleet.replicas_per_node
        count: dict[str, int] = {}
        for slot in slow:
            node = slot.partition("/")[0]
            count[node] = count.get(node, 0) + 1
        return [node for node, flagged in count.items() if flagged == per_node > 1]

    def fleet_slow(self, number: int, unix: float) -> bool:
        entry = self._last("straggler.fleet", unix, number)
        return entry is not None and unix - entry.unix < _FLEET_SLOW_S

    def straggler_note(self, attempt: AttemptRecord | None, unix: float) -> str:
        """Why nobody could be judged then, as far as it follows from the times alone."""
        if attempt is None or not attempt.started_unix or unix < attempt.started_unix:
            return "not judged: no load"
        left_s = attempt.started_unix + self._spec.stragglers.grace_s - unix
        return f"not judged yet: grace for {left_s:.0f} s more" if left_s > 0 else ""

    # --- slots -----------------------------------------------------------------------------------------------

    def lives(self, unix: float) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.int32]]:
        """(state code, since when, restarts) of each slot; NaN where the journal says nothing."""
        moved = int(np.searchsorted(self._moved_unix, unix, side="right"))
        code = np.zeros(len(self.slots), dtype=np.uint8)
        since = np.full(len(self.slots), np.nan)
        restarts = np.zeros(len(self.slots), dtype=np.int32)
        places = self._moved[:moved]  # of several moves of one slot the last one stays
        code[places], since[places] = self._after[:moved], self._moved_unix[:moved]
        restarts[places] = np.maximum(0, self._nth[:moved] - 1)
        return code, since, restarts

    def slot_infos(self, unix: float) -> list[SlotInfo]:
        moved = int(np.searchsorted(self._moved_unix, unix, side="right"))
        last = {entry.subject: entry for entry in self._moves[:moved]}
        return [self._slot_info(slot, last.get(slot)) for slot in self.slots]

    def moved_between(self, after: float, unix: float) -> list[SlotInfo]:
        """Slots that changed their state meanwhile, as they are then."""
        first, last = np.searchsorted(self._moved_unix, [after, unix], side="right")
        return [self._slot_info(slot, e) for slot, e in {e.subject: e for e in self._moves[int(first) : int(last)]}.items()]

    def _slot_info(self, slot: str, entry: JournalEntry | None) -> SlotInfo:
        node, _, gpu = slot.partition("/gpu")
        info = SlotInfo(
            slot, node, int(gpu), self._spec.fleet.role_at(*place_of(slot)), engine=self._spec.fleet.engine,
            synthetic=self._synthetic, log=str(self._folder.log_of_slot(slot)),
        )  # fmt: skip
        if entry is not None:
            info.incarnation, info.incarnations = str(entry.data.get("incarnation", "")), _whole(entry.data.get("nth"))
            info.state, info.reason, info.since_unix = entry.after, entry.why, entry.unix
        return info


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
