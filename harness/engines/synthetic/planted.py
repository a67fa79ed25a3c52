"""Facts of MoE kernels that a synthetic replica can be told to tell, for seeing what a console makes of them.

    kernels."*" = {kernel = "paceline-mxfp4-a16w4", config = "tuned", config_hash = "0a1b2c3d4e5f", node_class = "gfx950-…"}
    kernels."node001/gpu1" = {config = "default", config_hash = ""}

Of several patterns that match a slot the later one goes over the earlier, fact by fact. They change nothing of its speed: a
fault does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from harness.engines.base import EngineError, nearest

_CHARACTERS = 120
#: Name in the table → fact.
FACTS = {"kernel": "kernel"} | {
    name: f"kernel.{name}" for name in ("hash", "config", "config_hash", "node_class", "of_floor", "fallback")
}


def parse_kernels(value: Any, slots: Sequence[str], where: str = "fleet.engine_args.kernels") -> dict[str, dict[str, str]]:
    """EngineError names the field, its value and what would have been right."""
    if not isinstance(value, Mapping):
        raise EngineError(f"{where} = {value!r}: must be a table of slots, each with a table of facts")
    return {str(pattern): _facts(pattern, facts, slots, f"{where}.{pattern}") for pattern, facts in value.items()}


def _facts(pattern: str, facts: Any, slots: Sequence[str], where: str) -> dict[str, str]:
    if not any(fnmatchcase(slot, pattern) for slot in slots):
        raise EngineError(f"{where} = {facts!r}: no such slot in this fleet{nearest(pattern, slots)}")
    if not isinstance(facts, Mapping):
        raise EngineError(f'{where} = {facts!r}: must be a table of facts, as {{config = "tuned"}}')
    for name, text in facts.items():
        if name not in FACTS:
            raise EngineError(f"{where}.{name} = {text!r}: not a fact of a kernel{nearest(str(name), list(FACTS))}")
        if not isinstance(text, str) or len(text) > _CHARACTERS:
            raise EngineError(f"{where}.{name} = {text!r}: must be a text of at most {_CHARACTERS} characters")
    return dict(facts)


def kernels_of(kernels: Mapping[str, Mapping[str, str]], slot: str) -> dict[str, str]:
    """As facts for REGISTER; an empty text takes a fact away."""
    told: dict[str, str] = {}
    for pattern, facts in kernels.items():
        if fnmatchcase(slot, pattern):
            told |= {FACTS[name]: text for name, text in facts.items()}
    return {name: text for name, text in told.items() if text}
