"""`fleet.engine_args` of the synthetic engine, validated in one place before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.engines.base import EngineError
from harness.engines.synthetic.faults import Fault, nearest, number, parse_faults, whole
from harness.engines.synthetic.model import DEFAULT_PRESET, PRESETS, StepModel

_REALS = ("c0_ms", "cd_us", "ck_ns", "cp_us")
_WHOLES = ("max_seqs", "token_budget", "kv_tokens")
ARGUMENTS = ("preset", *_REALS, *_WHOLES, "jitter", "load_s", "speed", "faults")
_WHERE = "fleet.engine_args"


@dataclass(frozen=True, slots=True)
class SyntheticArgs:
    preset: str
    model: StepModel  # preset with overrides, before `speed`
    jitter: float  # deviation of the lognormal factor on a step time
    load_s: float  # what start() takes
    speed: float  # time scale: 2 halves every step time
    faults: tuple[Fault, ...]

    def identity(self) -> dict[str, Any]:
        """What makes two replicas different generators of results; faults and load time do not."""
        return {"preset": self.preset, "model": asdict(self.model), "jitter": self.jitter, "speed": self.speed}

    def in_force(self) -> dict[str, Any]:
        """Every argument with the value that holds, given or default. Planted faults strike from outside: not among them."""
        model = {name: getattr(self.model, name) for name in (*_REALS, *_WHOLES)}
        return {"preset": self.preset, **model, "jitter": self.jitter, "load_s": self.load_s, "speed": self.speed}


def parse_args(args: Mapping[str, Any], slots: Sequence[str]) -> SyntheticArgs:
    for name, value in args.items():
        if name not in ARGUMENTS:
            raise EngineError(f"{_WHERE}.{name} = {value!r}: not an argument of the synthetic engine{nearest(name, ARGUMENTS)}")
    preset = args.get("preset", DEFAULT_PRESET)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise EngineError(f"{_WHERE}.preset = {preset!r}: unknown preset{nearest(str(preset), list(PRESETS))}")
    overrides: dict[str, Any] = {}
    for name in _REALS:
        if name in args:
            overrides[name] = number(f"{_WHERE}.{name}", args[name], low=0, above=name == "c0_ms")
    for name in _WHOLES:
        if name in args:
            overrides[name] = whole(f"{_WHERE}.{name}", args[name], low=1)
    try:
        model = replace(PRESETS[preset], **overrides)
    except ValueError as error:
        raise EngineError(f"{_WHERE}: {error}") from None
    return SyntheticArgs(
        preset=preset,
        model=model,
        jitter=number(f"{_WHERE}.jitter", args.get("jitter", 0.01), low=0, high=0.5),
        load_s=number(f"{_WHERE}.load_s", args.get("load_s", 0.2), low=0),
        speed=number(f"{_WHERE}.speed", args.get("speed", 1.0), low=0, above=True),
        faults=parse_faults(args.get("faults", []), slots),
    )
