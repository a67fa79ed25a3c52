"""A fleet's file as a head writes it: replicas that have registered with given facts."""

from __future__ import annotations

from pathlib import Path

from made_run import T0

from harness.analysis.drill import Drill
from harness.head.fleetbook import FleetBook
from harness.head.roster import Replica
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.spec import RunSpec
from harness.wire.control import Register


def registered(
    slot: str, role: str = "", facts: dict[str, object] | None = None, *, args_hash: str = "h1", vllm: str = "0.24"
) -> Replica:
    node, gpu = int(slot[4:7]), int(slot.partition("/gpu")[2])
    told = {"device_name": "MI355X", "layout": {"tp": 8}, "arg.max_num_seqs": 512, **(facts or {})}
    about = Register(
        slot=slot, incarnation="a", role=role, model="m", args_hash=args_hash, engine="vllm", synthetic=False, worker="w", pid=1,
        host=f"host-{node}", accelerator={"gpus": str(gpu)}, versions={"vllm": vllm}, facts=told,
    )  # fmt: skip
    return Replica(0, slot, node, gpu, role, registered=about)


def with_fleet(path: Path, *replicas: Replica, at_unix: float = T0) -> Drill:
    spec = RunSpec.model_validate({"name": "x", "fleet": {"nodes": 1, "replicas_per_node": 1}})
    book = FleetBook(RunFolder(path), spec)
    for replica in replicas:
        book.note(replica, at_unix)
    book.save()
    return Drill(Record(path))
