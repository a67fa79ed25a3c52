"""The physics of simulated GPUs: what sensors would show of a synthetic fleet under its present load, planted faults included.

Smooth and plausible, not a model of any device: busy share from steps, power from busy share and batch, clock from power,
temperature with inertia, energy as an integral. Noise is a function of GPU and time, so equal runs look alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.engines.synthetic.args import parse_args
from harness.engines.synthetic.faults import Fault
from harness.engines.synthetic.gpus import gpus_per_replica
from harness.spec import RunSpec

Column = NDArray[np.float64]

VRAM_MB: Final = 294_896.0  # 288 GiB of HBM less what the device keeps
USED_MB, UNUSED_MB = 0.92 * VRAM_MB, 284.0
MAX_CLOCK_MHZ, IDLE_CLOCK_MHZ, MEMORY_CLOCK_MHZ = 2400.0, 132.0, 1900.0
IDLE_W, BUSY_W, BATCH_W = 165.0, 520.0, 620.0  # at rest, added by being busy, added by large batches
LOW_CAP_W: Final = 650.0  # of a GPU that is planted to be slow because of power
HOT_C: Final = 104.0
#: The firmware looks whether it has to throttle a thousand times a second; accumulated residencies count these looks.
LOOKS_PER_S: Final = 1000.0
ECC_EVERY_S: Final = 60.0  # after the first uncorrectable error
_BUSY_TAU_S, _HEAT_TAU_S, _HBM_TAU_S = 2.0, 12.0, 18.0
_CAPPED, _USUALLY_CAPPED = 0.85, 0.004  # share of the looks that find a busy GPU at its power cap


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """What is going on in a slot, as its heartbeats tell it."""

    incarnation: str = ""  # "": nobody is in it
    since_s: float = 0.0  # of its present state; the earliest one of an incarnation is taken for its start
    batch: float = 0.0  # mean decoding sequences a step
    step_ms: float = 0.0
    tokens_s: float = nan
    running: int = 0
    planted: tuple[str, ...] = ()  # faults of this incarnation, as its facts tell them: only the engine knows its life


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """All slots in roster order; `now_s` and SlotLoad.since_s are of one monotonic clock."""

    now_s: float
    slots: Sequence[SlotLoad]


class _Beat(Protocol):
    @property
    def batch(self) -> float: ...
    @property
    def step_ms(self) -> float: ...
    @property
    def running(self) -> int: ...


class _Registered(Protocol):
    @property
    def facts(self) -> dict[str, Any]: ...


class _Replica(Protocol):
    """Of harness.head.roster.Replica what a load is read from."""

    @property
    def alive(self) -> bool: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def since_s(self) -> float: ...
    @property
    def tokens_s(self) -> float: ...
    @property
    def beat(self) -> _Beat | None: ...
    @property
    def registered(self) -> _Registered | None: ...


def fleet_load(replicas: Iterable[_Replica], now_s: float) -> FleetLoad:
    return FleetLoad(now_s, [_slot_load(replica) for replica in replicas])


def _slot_load(replica: _Replica) -> SlotLoad:
    if not replica.alive:
        return SlotLoad()
    beat, about = replica.beat, replica.registered
    planted = tuple(map(str, about.facts.get("planted_faults", ()))) if about is not None else ()
    if beat is None:
        return SlotLoad(replica.incarnation, replica.since_s, planted=planted)
    return SlotLoad(
        replica.incarnation, replica.since_s, beat.batch, beat.step_ms, replica.tokens_s, beat.running, planted
    )  # fmt: skip


class SimulatedGpus:
    """Columns are one entry a GPU, in order of slots, those of a replica side by side. `advance` brings them up to a load."""

    def __init__(self, spec: RunSpec) -> None:
        self.each = gpus_per_replica(spec)
        self._slots = spec.expected_replicas
        self.count = self._slots * self.each
        faults = parse_args(spec.fleet.engine_args, spec.slots()).faults
        self._faults: dict[str, Fault] = {fault.describe(): fault for fault in faults}
        self._lives: list[tuple[str, float]] = [("", 0.0)] * self._slots  # incarnation and when it was first there
        self._then_s: float | None = None
        self._phases = np.random.default_rng(20).uniform(0, 2 * np.pi, (4, self.count))
        self._node_c = np.repeat(np.random.default_rng(21).normal(0, 1.2, spec.fleet.nodes), spec.fleet.replicas_per_node)
        self._ecc_before: dict[int, int] = {}  # GPU → errors of ended lives; a counter of hardware never falls
        self._ecc_now: dict[int, int] = {}

        self.busy_percent, self.membw_percent, self.pcie_mbit_s = np.zeros((3, self.count))
        self.power_w = np.full(self.count, IDLE_W)
        self.energy_j = np.random.default_rng(22).uniform(1e6, 9e7, self.count)  # they have worked before
        self.junction_c, self.hbm_c = self._cool() + 0.042 * IDLE_W, self._cool() + 2 + 0.036 * IDLE_W
        self.clock_mhz, self.used_mb = np.full(self.count, IDLE_CLOCK_MHZ), np.full(self.count, UNUSED_MB)
        self.looks, self.capped_looks, self.hot_looks = np.zeros((3, self.count))
        self.capped_percent, self.hot_percent = np.zeros((2, self.count))
        self.uncorrectable, self.health = np.zeros(self.count), np.ones(self.count)

    @property
    def free_mb(self) -> Column:
        return VRAM_MB - self.used_mb

    @property
    def energy_uj(self) -> Column:
        return self.energy_j * 1e6

    def advance(self, load: FleetLoad) -> None:
        now_s = load.now_s
        dt_s = 0.0 if self._then_s is None else max(0.0, now_s - self._then_s)
        self._then_s = now_s
        there, busy, occupied = self._per_gpu(load)
        struck = self._struck(load)

        self.busy_percent += (100 * busy - self.busy_percent) * (1 - np.exp(-dt_s / _BUSY_TAU_S))
        shown = np.clip(self.busy_percent + np.where(busy > 0, 0.8 * self._noise(now_s, 0), 0), 0, 100)
        self.busy_percent = shown
        self.membw_percent = np.clip(shown * (0.35 + 0.3 * occupied), 0, 100)
        self.pcie_mbit_s = 40 + shown * (6 + 8 * occupied)
        self.used_mb = np.where(there, USED_MB, UNUSED_MB)

        wanted_w = IDLE_W + shown / 100 * (BUSY_W + BATCH_W * occupied) * (1 + 0.012 * self._noise(now_s, 1))
        running = shown > 5
        self.power_w, slower, capped, hot = self._throttled(struck, wanted_w, running, now_s)
        full_mhz = MAX_CLOCK_MHZ * (0.97 - 0.05 * occupied + 0.004 * self._noise(now_s, 2))
        self.clock_mhz = np.where(running, full_mhz / slower, IDLE_CLOCK_MHZ)
        self._warm_up(dt_s, hot, now_s)

        self.energy_j += self.power_w * dt_s
        self.looks += LOOKS_PER_S * dt_s
        self.capped_looks += capped * LOOKS_PER_S * dt_s
        self.hot_looks += hot * LOOKS_PER_S * dt_s
        self.capped_percent, self.hot_percent = 100 * capped, 100 * hot
        self._count_errors(struck)

    # --- inside -----------------------------------------------------------------------------------------------

    def _per_gpu(self, load: FleetLoad) -> tuple[NDArray[np.bool_], Column, Column]:
        """Whether a replica holds it, the share of time that it computes, and how full its batches are (0 to 1)."""
        rows = [(bool(one.incarnation), _busy_share(one), one.batch / (one.batch + 12)) for one in load.slots]
        table = np.repeat(np.array(rows, np.float64).reshape(-1, 3), self.each, axis=0)
        return table[:, 0] > 0, table[:, 1], table[:, 2]

    def _struck(self, load: FleetLoad) -> dict[int, list[tuple[Fault, float]]]:
        """GPU → the faults whose time has come there, with the seconds since. Of a replica its first GPU is the bad one."""
        found: dict[int, list[tuple[Fault, float]]] = {}
        for slot, one in enumerate(load.slots):
            incarnation, began_s = self._lives[slot]
            if one.incarnation != incarnation:
                self._lives[slot] = (one.incarnation, one.since_s)
                gpu = slot * self.each
                self._ecc_before[gpu] = self._ecc_before.get(gpu, 0) + self._ecc_now.pop(gpu, 0)
            elif one.incarnation and one.since_s < began_s:
                self._lives[slot] = (incarnation, one.since_s)
            for line in one.planted:
                fault = self._faults.get(line)
                if fault is not None and fault.at_s <= (age_s := load.now_s - self._lives[slot][1]) < fault.at_s + fault.for_s:
                    found.setdefault(slot * self.each, []).append((fault, age_s - fault.at_s))
        return found

    def _throttled(
        self, struck: dict[int, list[tuple[Fault, float]]], wanted_w: Column, running: NDArray[np.bool_], now_s: float
    ) -> tuple[Column, Column, Column, Column]:
        """Power, by how much clocks are divided, and the shares of time at the power cap and throttled by heat."""
        power_w, slower, hot = wanted_w.copy(), np.ones(self.count), np.zeros(self.count)
        capped = np.where(running, _USUALLY_CAPPED * (1 + 0.3 * self._noise(now_s, 3)), 0.0)
        for gpu, faults in struck.items():
            for fault, _ in faults:
                if not fault.because or not running[gpu]:
                    continue
                slower[gpu] *= 1 + fault.percent / 100
                if fault.because == "power":
                    power_w[gpu] = min(LOW_CAP_W, 0.75 * wanted_w[gpu])
                    capped[gpu] = min(1.0, _CAPPED * (1 + 0.05 * self._noise(now_s, 3)[gpu]))
                else:
                    power_w[gpu] = IDLE_W + (power_w[gpu] - IDLE_W) / (1 + fault.percent / 100)
                    hot[gpu] = max(hot[gpu], 0.6 * (fault.because == "heat"))
        return power_w, slower, capped, hot

    def _warm_up(self, dt_s: float, hot: Column, now_s: float) -> None:
        cool = self._cool()
        junction = np.where(hot > 0, HOT_C, cool + 0.042 * self.power_w)
        hbm = np.where(hot > 0, HOT_C - 12, cool + 2 + 0.036 * self.power_w)
        self.junction_c += (junction - self.junction_c) * (1 - np.exp(-dt_s / _HEAT_TAU_S))
        self.hbm_c += (hbm - self.hbm_c) * (1 - np.exp(-dt_s / _HBM_TAU_S))

    def _cool(self) -> Column:
        """Of the air around it: rows of a data hall differ, and places on a board."""
        cool: Column = np.repeat(self._node_c, self.each) + 31 + 1.5 * np.sin(self._phases[0])
        return cool

    def _count_errors(self, struck: dict[int, list[tuple[Fault, float]]]) -> None:
        self.health[:] = 1
        for gpu, faults in struck.items():
            counted = [1 + int(since_s / ECC_EVERY_S) for fault, since_s in faults if fault.kind == "ecc"]
            if counted:
                self._ecc_now[gpu] = sum(counted)
                self.health[gpu] = 0
        for gpu in self._ecc_before.keys() | self._ecc_now.keys():
            self.uncorrectable[gpu] = self._ecc_before.get(gpu, 0) + self._ecc_now.get(gpu, 0)

    def _noise(self, now_s: float, which: int) -> Column:
        """Between -1 and 1, slow, and different for each GPU."""
        phase = self._phases[which]
        noise: Column = 0.6 * np.sin(now_s / 3.1 + phase) + 0.4 * np.sin(now_s / 11.7 + 3 * phase)
        return noise


def _busy_share(one: SlotLoad) -> float:
    """Of the time how much its steps take. One that computes prompts only gives no tokens to tell it by."""
    if one.batch > 0 and 0 < one.tokens_s < inf:
        return min(1.0, one.tokens_s * one.step_ms / (1000 * one.batch))
    return 0.9 if one.running > 0 else 0.0
