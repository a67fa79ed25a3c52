"""Which replica is slow: step time over the fleet's own curve of step time against batch and prefill tokens.

Why this statistic: a replica 10 % slower loses under 4 % of its tokens/s while it has slack, completions drown in the
noise of output lengths, and TPOT or raw step time also accuse a healthy replica that was only given more work. Step time
over the curve returns the true factor whatever the balance policy does (ratio 1.10 = 10 % slower).

Verdict: in a window (10 s) a replica is *suspect* when its robust z = (r - 1) / max(1.4826 MAD, 0.01) is above spec.z
and its ratio above spec.ratio, on at least spec.min_steps steps. It is SLOW when suspect in windows_slow of the last
`windows`, and recovered when clean in as many, which keeps it from flapping. A window without data counts for neither.

Replicas are compared within their role only: a prefill replica's steps and a decode replica's lie on different curves.

Who is never accused: anyone when more than max_fraction of the fleet is slow (a fleet of 8 or more may always have one):
then it is the fleet. A node whose replicas are all slow counts as one. The curve cannot see that everybody became slower by
the same factor, so the fleet is also compared with its own past at the same batch (`_FleetPast`); that shows as
`fleet_slow`, and does not hide a single replica that is slow beside the others.

Cost at 512 replicas: 0.9 µs a heartbeat, 0.8 ms when a window closes, 5 µs in between.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.metrics.curve import Floats, fleet_curve
from harness.spec import StragglersSpec

MIN_FLEET = 4  # fewer replicas with data have no curve
ALWAYS_ONE_FROM = 8  # a fleet of this size may always have one suspect
MIN_SPREAD = 0.01  # replicas that agree better than 1 % are not told apart
#: Median step time over the fleet's own past at the same batch; above it the fleet has become slow. Wide, because the
#: context that a batch carries also moves step time a little.
FLEET_DRIFT = 1.2

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SlowReplica:
    slot_index: int
    ratio: float
    z: float
    since_s: float
    reason: str
    node: str = ""  # set when all of this node's replicas are slow: act on the node, not on eight replicas


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of the last closed window. Arrays are in slot order, NaN = not judged."""

    ratio: npt.NDArray[np.float32]
    z: npt.NDArray[np.float32]
    slow: list[SlowReplica] = field(default_factory=list)  # worst first
    recovered: list[int] = field(default_factory=list)  # slots that were slow until this window; reported once
    slow_nodes: list[str] = field(default_factory=list)
    fleet_slow: bool = False
    fleet_reason: str = ""
    windows: int = 0  # closed so far


class StragglerWatch:
    """Fed from heartbeats, asked about once a second. `now_s` is any clock that does not go back."""

    def __init__(self, spec: StragglersSpec, slots: Sequence[str], roles: Sequence[str] = ()) -> None:
        """`roles` by slot; without them all replicas are alike."""
        self._spec = spec
        self._slots = list(slots)
        n = len(self._slots)
        self._node_names = sorted({slot.partition("/")[0] for slot in self._slots})
        position = {name: i for i, name in enumerate(self._node_names)}
        self._node_of = np.array([position[slot.partition("/")[0]] for slot in self._slots], dtype=np.intp)
        self._node_size = np.bincount(self._node_of, minlength=len(self._node_names))
        # Sums of the open window: steps, and step_ms, batch and prefill tokens weighted by steps.
        self._sums = np.zeros((4, n))
        self._window: int | None = None
        self._graced = False  # the open window saw the grace period
        self._suspect: deque[Flags] = deque(maxlen=spec.windows)
        self._clean: deque[Flags] = deque(maxlen=spec.windows)
        self._drifted: deque[bool] = deque(maxlen=spec.windows)
        groups = sorted(set(roles)) or [""]
        self._roles = [(role, np.array([each == role for each in roles or [""] * n])) for role in groups]
        self._pasts = {role: _FleetPast() for role in groups}
        self._slow_since = np.full(n, np.nan)
        self._closed = 0
        self._last = Judgement(np.full(n, np.nan, np.float32), np.full(n, np.nan, np.float32))

    def observe(self, slot_index: int, now_s: float, steps: int, step_ms: float, batch: float, prefill_tokens: float) -> None:
        """One heartbeat's means over the steps since the previous one."""
        if steps <= 0 or not step_ms > 0.0:
            return
        if self._window is None:
            self._window = self._window_at(now_s)
        sums = self._sums
        sums[0, slot_index] += steps
        sums[1, slot_index] += steps * step_ms
        sums[2, slot_index] += steps * batch
        sums[3, slot_index] += steps * prefill_tokens

    def judge(self, now_s: float, eligible: Flags, in_grace: bool) -> Judgement:
        """Close the window if its time is over. `eligible`: READY replicas; others lose their history."""
        if self._window is None:
            self._window = self._window_at(now_s)
        self._graced = self._graced or in_grace
        gone = ~eligible
        if gone.any():
            self._sums[:, gone] = 0.0
            self._slow_since[gone] = np.nan
            for flags in (*self._suspect, *self._clean):
                flags[gone] = False
        if self._window_at(now_s) > self._window:
            self._last = self._close(now_s, eligible)
            self._window = self._window_at(now_s)
            self._sums.fill(0.0)
            self._graced = in_grace
        elif self._last.recovered or any(not eligible[slow.slot_index] for slow in self._last.slow):
            self._last = self._still(eligible)
        return self._last

    def reset(self) -> None:
        """Forget verdicts and windows, as at the start of an attempt. The fleet's past is kept: same engines, same curve."""
        self._sums.fill(0.0)
        self._window = None
        self._graced = False
        self._forget_votes()
        n = len(self._slots)
        self._last = Judgement(np.full(n, np.nan, np.float32), np.full(n, np.nan, np.float32), windows=self._closed)

    def _window_at(self, now_s: float) -> int:
        return math.floor(now_s / self._spec.window_s)

    def _forget_votes(self) -> None:
        self._suspect.clear()
        self._clean.clear()
        self._drifted.clear()
        self._slow_since.fill(np.nan)

    def _still(self, eligible: Flags) -> Judgement:
        """The last judgement without what was reported once, or is no longer in service."""
        last = self._last
        slow = [replica for replica in last.slow if eligible[replica.slot_index]]
        nodes = [name for name in last.slow_nodes if any(replica.node == name for replica in slow)]
        return Judgement(last.ratio, last.z, slow, [], nodes, last.fleet_slow, last.fleet_reason, last.windows)

    def _close(self, now_s: float, eligible: Flags) -> Judgement:
        n = len(self._slots)
        self._closed += 1
        ratio, z = np.full(n, np.nan), np.full(n, np.nan)
        steps = self._sums[0]
        judged = eligible & (steps >= self._spec.min_steps)
        drift = math.nan
        for role, of_role in self._roles:
            mine = judged & of_role
            if np.count_nonzero(mine) < MIN_FLEET:
                continue
            step_ms, batch, prefill = self._sums[1:, mine] / steps[mine]
            # The term that explains a role's steps comes first: the second is only fitted with many replicas.
            terms = (prefill, batch) if role == "prefill" else (batch, prefill)
            ratio[mine] = step_ms / fleet_curve(step_ms, *terms)
            middle = float(np.median(ratio[mine]))
            spread = 1.4826 * float(np.median(np.abs(ratio[mine] - middle)))
            z[mine] = (ratio[mine] - 1.0) / max(spread, MIN_SPREAD)
            if not self._graced:
                drift = float(np.fmax(drift, self._pasts[role].compare(step_ms, batch, prefill)))
        if self._graced:
            self._forget_votes()
            return Judgement(ratio.astype(np.float32), z.astype(np.float32), windows=self._closed)
        with np.errstate(invalid="ignore"):
            suspect = judged & (z > self._spec.z) & (ratio > self._spec.ratio)
        self._suspect.append(suspect)
        self._clean.append(judged & ~suspect)
        self._drifted.append(drift > FLEET_DRIFT)
        return self._verdict(now_s, ratio, z, judged, eligible, drift)

    def _verdict(self, now_s: float, ratio: Floats, z: Floats, judged: Flags, eligible: Flags, drift: float) -> Judgement:
        spec = self._spec
        was_slow = ~np.isnan(self._slow_since)
        voted = np.sum(self._suspect, axis=0) >= spec.windows_slow
        recovered = was_slow & ~voted & (np.sum(self._clean, axis=0) >= spec.windows_slow)
        slow = eligible & (voted | (was_slow & ~recovered))

        in_service = np.bincount(self._node_of[eligible], minlength=len(self._node_size))
        slow_there = np.bincount(self._node_of[slow], minlength=len(self._node_size))
        node_slow = (slow_there >= 2) & (slow_there == in_service) & (2 * slow_there >= self._node_size)
        if len(self._node_size) == 1:
            node_slow[:] = False  # the only node is the fleet

        fleet_reason = ""
        suspects = int(np.count_nonzero(node_slow)) + int(np.count_nonzero(slow & ~node_slow[self._node_of]))
        in_fleet = int(np.count_nonzero(eligible))
        allowed = max(1 if in_fleet >= ALWAYS_ONE_FROM else 0, int(spec.max_fraction * in_fleet))
        if suspects > allowed:
            fleet_reason = (
                f"{suspects} of {in_fleet} replicas (or whole nodes) look slow, more than the {allowed} that can be told apart: "
                "look at the fleet, the network or the head"
            )
            slow, node_slow = np.zeros_like(slow), np.zeros_like(node_slow)
        elif sum(self._drifted) >= spec.windows_slow:
            fleet_reason = (
                f"the whole fleet steps {drift - 1:.0%} slower than it did at the same batch"
                if drift > 1
                else ("the whole fleet has been stepping slower than it did at the same batch")
            )
        self._slow_since[slow & ~was_slow] = now_s
        self._slow_since[~slow] = np.nan
        return Judgement(
            ratio=ratio.astype(np.float32),
            z=z.astype(np.float32),
            slow=self._describe(slow, node_slow, ratio, z, judged),
            recovered=[int(i) for i in np.flatnonzero(recovered & eligible)],
            slow_nodes=[self._node_names[i] for i in np.flatnonzero(node_slow)],
            fleet_slow=bool(fleet_reason),
            fleet_reason=fleet_reason,
            windows=self._closed,
        )

    def _describe(self, slow: Flags, node_slow: Flags, ratio: Floats, z: Floats, judged: Flags) -> list[SlowReplica]:
        described = []
        for i in np.flatnonzero(slow):
            at = int(i)
            votes = sum(bool(flags[at]) for flags in self._suspect)
            node = self._node_names[self._node_of[at]] if node_slow[self._node_of[at]] else ""
            if judged[at]:
                reason = f"steps take {ratio[at]:.2f} x the fleet's curve (z {z[at]:.1f}), slow in {votes} of the last "
            else:
                reason = "no data in this window, slow in " + f"{votes} of the last "
            reason += f"{len(self._suspect)} windows of {self._spec.window_s:g} s"
            if node:
                reason = (
                    f"all {int(np.count_nonzero(self._node_of[slow] == self._node_of[at]))} replicas of {node} are slow; {reason}"
                )
            described.append(SlowReplica(at, float(ratio[at]), float(z[at]), float(self._slow_since[at]), reason, node))
        return sorted(described, key=lambda replica: -replica.ratio if replica.ratio == replica.ratio else 0.0)


class _FleetPast:
    """Median step time by batch and prefill, as first seen. Bins, not a fitted curve: nothing is extrapolated."""

    def __init__(self) -> None:
        self._first_ms: dict[tuple[int, int], float] = {}

    def compare(self, step_ms: Floats, batch: Floats, prefill_tokens: Floats) -> float:
        """This window's median step time over the first one in the same bin; 1.0 the first time."""
        now_ms = float(np.median(step_ms))
        # Bins 10 % wide in batch, 25 % in prefill tokens.
        bin_at = (
            round(math.log1p(float(np.median(batch))) / 0.1),
            round(math.log1p(float(np.median(prefill_tokens))) / 0.25),
        )
        return now_ms / self._first_ms.setdefault(bin_at, now_ms)
