"""Which engines there are, by the name that `fleet.engine` uses.

An engine is a package of harness/engines that offers what EngineModule lists. It is imported when first asked for,
and imports its own heavy library only when a replica starts: the head and the console never pay for it. To add one:
write the package, add its line to _MODULES, and tests/unit/test_engine_contract.py covers it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from harness.engines.base import EngineError, EngineFactory, nearest
from harness.spec import RunSpec

_MODULES = {
    "openai": "harness.engines.openai",
    "synthetic": "harness.engines.synthetic",
    "vllm": "harness.engines.vllm",
}


class EngineModule(Protocol):
    factory: EngineFactory
    check_args: Callable[[RunSpec], None]  # raises EngineError with field, value and nearest valid name
    identity: Callable[[RunSpec], dict[str, Any]]  # the arguments that make replicas different generators
    default_slots_per_process: Callable[[RunSpec], int]
    cannot_start: Callable[[], str]  # why replicas of it cannot start in this environment, and what helps; "" if they can
    devices: Callable[[RunSpec], int]  # accelerators that one replica owns; 0: none
    environment: Callable[[RunSpec, int], dict[str, str]]  # variables for the process of a replica, by its place on the node


def names() -> list[str]:
    return sorted(_MODULES)


def _module(name: str) -> EngineModule:
    if name not in _MODULES:
        raise EngineError(f"fleet.engine = {name!r}: no such engine{nearest(name, names())}")
    return cast(EngineModule, import_module(_MODULES[name]))


def factory(name: str) -> EngineFactory:
    return _module(name).factory


def check_args(spec: RunSpec) -> None:
    """Refuse a wrong engine or wrong arguments before anything starts."""
    _module(spec.fleet.engine).check_args(spec)


def args_hash(spec: RunSpec) -> str:
    """Twelve hex digits, equal for replicas whose results may be pooled: same engine, arguments and model."""
    identity = {
        "engine": spec.fleet.engine,
        "args": _module(spec.fleet.engine).identity(spec),
        "model": spec.model.model_dump(mode="json"),
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def default_slots_per_process(spec: RunSpec) -> int:
    """How many replicas one process carries when `fleet.slots_per_process` leaves it open."""
    return _module(spec.fleet.engine).default_slots_per_process(spec)


def cannot_start(name: str) -> str:
    """Why replicas of this engine cannot start in this Python environment; "" when they can. Imports nothing heavy."""
    return _module(name).cannot_start()


def devices(spec: RunSpec) -> int:
    return _module(spec.fleet.engine).devices(spec)


def environment(spec: RunSpec, gpu: int) -> dict[str, str]:
    return _module(spec.fleet.engine).environment(spec, gpu)


def is_synthetic(spec: RunSpec) -> bool:
    return factory(spec.fleet.engine).synthetic
