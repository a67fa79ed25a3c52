"""The vLLM engine: one AsyncLLM a replica, token ids in and out.

Nothing here imports vLLM: head, console and worker ask for arguments, devices and variables without having it; only
`VllmEngine.start` pays for the import, in the replica's own process. The parts are args (the spec as vLLM's arguments),
compat (what differs between its versions), launch (import and start beside the loop), engine (requests and events),
sampling (how tokens are chosen), stats (its counters as ours) and logtail (its last words).
"""

from __future__ import annotations

from harness.engines.vllm.args import check_args, devices, environment, identity
from harness.engines.vllm.compat import cannot_start
from harness.engines.vllm.engine import VllmEngine
from harness.spec import RunSpec

__all__ = ["cannot_start", "check_args", "default_slots_per_process", "devices", "environment", "factory", "identity"]

factory = VllmEngine


def default_slots_per_process(spec: RunSpec) -> int:
    """A dead engine core cannot be revived in its process, so that a replica has one to itself."""
    return 1
