"""The rules that come with paceline, computed here: for sources that answer no PromQL.

A twin sees columns of roles over time (RoleHistory) and says where its rule holds, and with which value; a test holds both
equal on one fleet. A rule of a user's own file has no twin: its expression is PromQL, and only a server can evaluate that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.rules import Rule, load_rules

Floats = NDArray[np.floating]
XID_CRITICAL: Final = (48, 63, 64, 74, 79, 94, 95)
_MINUTE_S, _ERRORS_S = 60.0, 600.0
_BUSY_PERCENT: Final = 50.0
NO_SERVER: Final = "needs a Prometheus (metrics.gpu.url or metrics.gpu.with_prometheus)"


class History(Protocol):
    """Of RoleHistory what twins use: arrays of a value a GPU, NaN where nothing is known; None for a role that never came."""

    def last(self, role: str) -> Floats | None: ...
    def delta(self, role: str, window_s: float) -> Floats | None: ...
    def mean(self, role: str, window_s: float) -> Floats | None: ...
    def max(self, role: str, window_s: float) -> Floats | None: ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What a twin judges. `node[i]`: number of the node that GPU i is in."""

    history: History
    node: NDArray[np.int64]
    expected: int
    matched: int

    def last(self, role: str) -> Floats:
        return self._or_nothing(self.history.last(role))

    def delta(self, role: str, window_s: float) -> Floats:
        return self._or_nothing(self.history.delta(role, window_s))

    def mean(self, role: str, window_s: float) -> Floats:
        return self._or_nothing(self.history.mean(role, window_s))

    def max(self, role: str, window_s: float) -> Floats:
        return self._or_nothing(self.history.max(role, window_s))

    def _or_nothing(self, column: Floats | None) -> Floats:
        return np.full(len(self.node), np.nan) if column is None else column


@dataclass(frozen=True, slots=True)
class Held:
    """Where a rule holds: values by GPU, NaN elsewhere; or one value of the fleet.

    `known` is False where nothing is known of what it judges, of no GPU (yet): it then says neither yes nor no.
    """

    gpus: Floats | None = None
    fleet: float = float("nan")
    known: bool = True


Twin = Callable[[Seen], Held]


def median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def twin_of(rule: Rule) -> Twin | None:
    """None where scraping alone cannot tell: a rule of one's own, or one about what no page of a GPU or engine says."""
    own = {(known.group, known.id): known.expr for known in load_rules()}
    if own.get((rule.group, rule.id), "").split() != rule.expr.split():
        return None
    return TWINS.get(f"{rule.group}/{rule.id}") or TWINS.get(rule.id)


def not_evaluated(rules: Iterable[Rule]) -> dict[str, str]:
    """Of the rules that need a Prometheus: id → why."""
    return {rule.id: NO_SERVER for rule in rules if twin_of(rule) is None}


def _where(held: NDArray[np.bool_], values: Floats) -> Held:
    return Held(np.where(held, values, np.nan), known=bool(np.isfinite(values).any()))


def _below_fleet(seen: Seen) -> Held:
    busy = seen.mean("gpu_util", _MINUTE_S)
    fleet = median(busy)
    return _where((busy < fleet - 15) & (fleet > _BUSY_PERCENT), busy)


def _below_node(seen: Seen) -> Held:
    busy = seen.mean("gpu_util", _MINUTE_S)
    held = np.zeros(len(busy), bool)
    for node in np.unique(seen.node[np.isfinite(busy)]):
        here = seen.node == node
        peers = median(busy[here])
        held |= here & (busy < 0.85 * peers) & (peers > _BUSY_PERCENT)
    return _where(held, busy)


def _power_cap(seen: Seen) -> Held:
    share, power = seen.last("throttle_power"), seen.last("power")
    less_power = (share > 0.5) & (power < 0.85 * median(power))
    return _where((share > median(share) + 0.3) | less_power, share)


def _thermal(seen: Seen) -> Held:
    share = seen.last("throttle_thermal")
    return _where(share > 0.05, share)


def _hot(seen: Seen) -> Held:
    junction = seen.last("junction_temp")
    return _where((junction > median(junction) + 12) & (junction > 70), junction)


def _clock_drop(seen: Seen) -> Held:
    busy = seen.mean("gpu_util", _MINUTE_S) > _BUSY_PERCENT
    ratio = seen.last("clock_ratio")
    return _where((ratio < 0.8) & (ratio < 0.9 * median(ratio)) & busy, ratio)


def _clock_below_fleet(seen: Seen) -> Held:
    busy = seen.mean("gpu_util", _MINUTE_S) > _BUSY_PERCENT
    clock = seen.last("clock")
    return _where((clock < 0.8 * median(clock)) & busy, clock)


def _grown(role: str, more_than: float) -> Twin:
    def twin(seen: Seen) -> Held:
        grown = seen.delta(role, _ERRORS_S)
        return _where(grown > more_than, grown)

    return twin


def _unhealthy(seen: Seen) -> Held:
    health = seen.last("health")
    return _where(health == 0, health)


def _new_code(wanted: Callable[[Floats], NDArray[np.bool_]]) -> Twin:
    def twin(seen: Seen) -> Held:
        code, changed = seen.last("error_code"), seen.delta("error_code", _ERRORS_S)
        return _where((code > 0) & (changed != 0) & wanted(code), np.where(np.isfinite(changed), code, np.nan))

    return twin


def _memory_full(seen: Seen) -> Held:
    total = seen.last("hbm_total")
    share = seen.last("hbm_used") / np.where(total > 0, total, np.nan)
    return _where(share > 0.98, share)


def _kv_full(seen: Seen) -> Held:
    used = seen.max("kv_use", 30.0)
    return _where((used > 0.97) & (seen.last("waiting") > 0), used)


def _queue_growth(seen: Seen) -> Held:
    waiting, running = seen.last("waiting"), seen.last("running")
    if not np.isfinite(waiting).any():
        return Held(known=False)
    total = float(np.nansum(waiting))
    growing = total > float(np.nansum(seen.mean("waiting", _MINUTE_S)))
    return Held(fleet=total if growing and total > 2 * float(np.nansum(running)) else float("nan"))


def _preemptions(seen: Seen) -> Held:
    a_second = seen.delta("preemptions", _MINUTE_S) / _MINUTE_S
    return _where(a_second > 0.1, a_second)


def _missing(seen: Seen) -> Held:
    missing = seen.expected - seen.matched
    return Held(fleet=float(missing) if missing > 0 else float("nan"))


#: By id, or by group/id where exporters differ.
TWINS: Final[dict[str, Twin]] = {
    "straggler_util": _below_fleet,
    "straggler_node_peers": _below_node,
    "power_cap": _power_cap,
    "thermal_throttle": _thermal,
    "hot_gpu": _hot,
    "clock_drop": _clock_drop,
    "nvidia/clock_drop": _clock_below_fleet,
    "ecc_uncorrectable": _grown("ecc_uncorrectable", 0),
    "ecc_corr_burst": _grown("ecc_correctable", 100),
    "pcie_replays": _grown("pcie_replay", 0),
    "nic_flap": _grown("link_down", 0),
    "gpu_unhealthy": _unhealthy,
    "afid": _new_code(lambda code: code > 0),
    "xid_critical": _new_code(lambda code: np.isin(code, XID_CRITICAL)),
    "xid": _new_code(lambda code: ~np.isin(code, XID_CRITICAL)),
    "hbm_pressure": _memory_full,
    "kv_saturation": _kv_full,
    "queue_growth": _queue_growth,
    "preemptions": _preemptions,
    "gpus_missing": _missing,
}
