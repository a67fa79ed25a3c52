"""The openai engine: a replica whose tokens come from an OpenAI-compatible server (vllm serve, SGLang, TRT-LLM, others).

The parts are args (validation), body (what is asked), stream (what comes back), tokens (ids from it), call (one exchange),
engine (the seam), server and guard (a server of our own), health, scrape and counts (statistics).
"""

from __future__ import annotations

from typing import Any

from harness.engines.openai.args import check_here, parse_args
from harness.engines.openai.engine import OpenAIEngine
from harness.spec import RunSpec

factory = OpenAIEngine


def check_args(spec: RunSpec) -> None:
    check_here(spec)


def identity(spec: RunSpec) -> dict[str, Any]:
    return parse_args(spec.fleet.engine_args, spec).identity(spec)


def cannot_start() -> str:
    return ""  # its libraries are ours anyway


def devices(spec: RunSpec) -> int:
    """Only a server that we start takes accelerators of this node."""
    return spec.fleet.layout.devices if spec.fleet.engine_args.get("command") else 0


def environment(spec: RunSpec, gpu: int) -> dict[str, str]:
    return {}  # the server's own variables are the argument `env`


def default_slots_per_process(spec: RunSpec) -> int:
    return 1
