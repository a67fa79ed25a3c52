"""A run that is over, as its head left it: for tests of what is fetched and shown afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harness.records.fleetfile import FleetFile, GpusOf, write_fleet
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, write_run
from harness.records.writer import RecordWriter
from harness.spec import RunSpec, node_name, slot_name

NODES, EACH = 4, 8


def over(
    path: Path,
    start_unix: float,
    end_unix: float,
    *,
    attempts: Mapping[int, tuple[float, float]] | None = None,
    fleet: FleetFile | None = None,
    nodes: int = NODES,
    each: int = EACH,
    gpu: Mapping[str, object] | None = None,
) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir(parents=True)
    spec = RunSpec.model_validate(
        {
            "name": "over",
            "fleet": {"nodes": nodes, "replicas_per_node": each, "engine": "synthetic"},
            "metrics": {"gpu": {"interval_s": 1, **(gpu or {})}},
        }
    )
    run = RunFile(
        run=path.name, spec=spec.model_dump(mode="json"), phase="DONE", synthetic=True, verdict="VALID",
        started_unix=start_unix, ended_unix=end_unix,
        attempts=[
            AttemptRecord(
                number=number, kind="performance", scenario="Server", target_qps=10.0, epoch=number, state="ENDED",
                started_unix=first, ended_unix=last, verdict="VALID",
            )
            for number, (first, last) in (attempts or {1: (start_unix, end_unix)}).items()
        ],
    )  # fmt: skip
    write_run(path, run)
    if fleet is not None:
        write_fleet(folder.fleet_json, fleet)
    return folder


def registered(host: str = "gpu-node-{node:03d}", nodes: int = NODES, each: int = EACH, since_unix: float = 0.0) -> FleetFile:
    """As workers on machines of these names would have told it, by numbers alone."""
    fleet = FleetFile(1)
    for node in range(nodes):
        for gpu in range(each):
            life = GpusOf(since_unix, [host.format(node=node), node_name(node)], gpus=[str(gpu)])
            fleet.note(slot_name(node, gpu), life)
    return fleet


def record_round(folder: RunFolder, unix: float, roles: Mapping[str, np.ndarray], attempt: int = 1) -> None:
    """A round as a head would have recorded it; one value a slot."""
    slots = [slot_name(node, gpu) for node in range(NODES) for gpu in range(EACH)]
    writer = RecordWriter(folder)
    told = {role: (np.asarray(values, np.float32), np.full(len(slots), unix)) for role, values in roles.items()}
    writer.gpus(attempt, unix, told, slots, 1)
    writer.flush(final=True)
