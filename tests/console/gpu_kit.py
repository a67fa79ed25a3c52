"""Sample fleets with a source of GPU metrics, for tests: stores filled from them, and views made by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from console_helpers import HandClock

from console.feeds.sample_gpus import SampleGpus
from console.feeds.scripted import ScriptedFleet
from console.store.fleet import FleetStore
from harness.wire.gpus import GpuView, RoleColumn


def with_gpus(**how: Any) -> ScriptedFleet:
    return ScriptedFleet(with_gpus=True, **how)


def gpus_of(fleet: ScriptedFleet) -> SampleGpus:
    assert fleet.gpus is not None
    return fleet.gpus


def store_of(fleet: ScriptedFleet, clock: HandClock | None = None) -> FleetStore:
    store = FleetStore(clock or HandClock())
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    return store


def column(role: str, values: list[float], unix: float, devices: int = 1) -> RoleColumn:
    assert len(values) % devices == 0
    return RoleColumn(role, np.array(values, dtype="<f4").tobytes(), "", unix, unix)


def changed(view: GpuView, **fields: Any) -> GpuView:
    return msgspec.structs.replace(view, **fields)
