"""`fleet.engine_args` of the synthetic engine, validated in one place before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.engines.base import EngineError, nearest
from harness.engines.synthetic.faults import Fault, number, parse_faults, whole
from harness.engines.synthetic.model import DEFAULT_PRESET, KV_BYTES, KV_LINK_BYTES_PER_S, PRESETS, StepModel
from harness.engines.synthetic.planted import parse_kernels

_REALS = ("c0_ms", "cd_us", "ck_ns", "cp_us")
_WHOLES = ("max_seqs", "token_budget", "kv_tokens")
_PLANTED = ("faults", "kernels")
ARGUMENTS = ("preset", *_REALS, *_WHOLES, "kv_transfer_ms", "kv_transfer_us_per_token", "jitter", "load_s", "speed", *_PLANTED)
_WHERE = "fleet.engine_args"


@dataclass(frozen=True, slots=True)
class SyntheticArgs:
    preset: str
    model: StepModel  # preset with overrides, before `speed`
    kv_transfer_ms: float  # latency of a KV transfer into a decode replica
    kv_transfer_us_per_token: float  # what each token of the prompt adds, one transfer after the other
    jitter: float  # deviation of the lognormal factor on a step time
    load_s: float  # what start() takes
    speed: float  # time scale: 2 halves every step time and every transfer
    faults: tuple[Fault, ...]
    kernels: dict[str, dict[str, str]]  # slot pattern → kernel facts that such a replica tells, as a real engine would

    def identity(self) -> dict[str, Any]:
        """What makes two replicas different generators of results; faults, planted facts and load time do not."""
        model = asdict(self.model)
        return {"preset": self.preset, "model": model, **self.kv_transfer(), "jitter": self.jitter, "speed": self.speed}

    def kv_transfer(self) -> dict[str, float]:
        return {"kv_transfer_ms": self.kv_transfer_ms, "kv_transfer_us_per_token": self.kv_transfer_us_per_token}

    def in_force(self) -> dict[str, Any]:
        """Every argument with the value that holds, given or default. Planted faults strike from outside: not among them."""
        model = {name: getattr(self.model, name) for name in (*_REALS, *_WHOLES)}
        rest = {"jitter": self.jitter, "load_s": self.load_s, "speed": self.speed}
        return {"preset": self.preset, **model, **self.kv_transfer(), **rest}


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
        kv_transfer_ms=number(f"{_WHERE}.kv_transfer_ms", args.get("kv_transfer_ms", 2.0), low=0),
        kv_transfer_us_per_token=number(
            f"{_WHERE}.kv_transfer_us_per_token",
            args.get("kv_transfer_us_per_token", KV_BYTES[preset] / KV_LINK_BYTES_PER_S * 1e6),
            low=0,
        ),
        jitter=number(f"{_WHERE}.jitter", args.get("jitter", 0.01), low=0, high=0.5),
        load_s=number(f"{_WHERE}.load_s", args.get("load_s", 0.2), low=0),
        speed=number(f"{_WHERE}.speed", args.get("speed", 1.0), low=0, above=True),
        faults=parse_faults(args.get("faults", []), slots),
        kernels=parse_kernels(args.get("kernels", {}), slots),
    )
