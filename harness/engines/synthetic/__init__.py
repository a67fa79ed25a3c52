"""The synthetic engine: a replica that behaves like hardware nobody here has, and says so.

What the registry asks of an engine's package is at the end of this file; the parts are model (constants), core
(virtual time), engine (real time), scheduler, faults, args, lengths, tokens and fleet (virtual-time runs).
"""

from __future__ import annotations

from typing import Any

from harness.engines.synthetic.args import parse_args
from harness.engines.synthetic.engine import SyntheticEngine
from harness.spec import RunSpec

factory = SyntheticEngine


def check_args(spec: RunSpec) -> None:
    parse_args(spec.fleet.engine_args, spec.slots())


def identity(spec: RunSpec) -> dict[str, Any]:
    return parse_args(spec.fleet.engine_args, spec.slots()).identity()


def cannot_start() -> str:
    return ""


def devices(spec: RunSpec) -> int:
    return 0


def environment(spec: RunSpec, gpu: int) -> dict[str, str]:
    return {}


def default_slots_per_process(spec: RunSpec) -> int:
    """All replicas of the nodes that one worker stands for."""
    return spec.fleet.replicas_per_node * min(spec.cluster.nodes_per_worker, spec.fleet.nodes)
