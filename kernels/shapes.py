"""The shape of a mixture-of-experts layer as one accelerator sees it, and the known models (models.toml).

Names as in the literature: E experts, top_k of them a token, H hidden size, I intermediate size. `w13` has the gate and up
projections [E, 2I, H], `w2` the down projection [E, H, I].
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from kernels.errors import KernelInputError

GateUp = Literal["interleaved", "concatenated"]
Weights = Literal["mxfp4", "fp8", "bf16", "int4"]

#: A parameter, scales included: MXFP4 has one byte of scale for 32 values, int4 two bytes for 128.
BYTES_PER_WEIGHT: dict[Weights, float] = {"mxfp4": 0.5 + 1 / 32, "fp8": 1.0, "bf16": 2.0, "int4": 0.5 + 2 / 128}
MXFP4_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Activation:
    """out = g * sigmoid(alpha * g) * (u + plus_one), after g = min(g, limit), u = clamp(u, -limit, limit); limit 0: none."""

    alpha: float = 1.0
    limit: float = 0.0
    plus_one: bool = False


SILU = Activation()
GPT_OSS_SWIGLU = Activation(alpha=1.702, limit=7.0, plus_one=True)


@dataclass(frozen=True, slots=True)
class MoeShape:
    """One layer. `experts` are those on this accelerator, `global_experts` those that the router chooses from: with expert
    parallelism M tokens of all ranks are spread over all experts and only a part of the pairs is computed here."""

    model: str
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    weights: Weights = "mxfp4"
    gate_up: GateUp = "concatenated"
    bias: bool = False
    activation: Activation = SILU
    global_experts: int = 0  # 0: all of them are here
    layers: int = 0  # 0: unknown

    @property
    def routed_over(self) -> int:
        return self.global_experts or self.experts

    @property
    def parameters(self) -> int:
        """Of one expert: gate, up and down."""
        return 3 * self.hidden * self.intermediate

    def split(self, *, tp: int = 1, ep: int = 1) -> MoeShape:
        """As each of `ep` ranks with whole experts, or `tp` ranks with a part of the intermediate size, sees it."""
        for name, value, of, what in (("tp", tp, self.intermediate, "intermediate size"), ("ep", ep, self.experts, "experts")):
            if value < 1 or of % value:
                raise KernelInputError(f"{name} = {value}: must divide {of}, the {what} of {self.model}")
        if (self.intermediate // tp) % MXFP4_BLOCK and self.weights == "mxfp4":
            raise KernelInputError(
                f"tp = {tp}: {self.intermediate // tp}, this rank's part of {self.model}'s intermediate size, "
                f"is no multiple of {MXFP4_BLOCK}, the block of a scale"
            )
        return replace(self, experts=self.experts // ep, intermediate=self.intermediate // tp, global_experts=self.routed_over)


@lru_cache(maxsize=1)
def models() -> dict[str, MoeShape]:
    """By name, as in models.toml."""
    tables = tomllib.loads((Path(__file__).parent / "models.toml").read_text(encoding="utf-8"))
    return {name: _shape(name, table) for name, table in tables.items()}


def model(name: str) -> MoeShape:
    """Letter case does not count, nor does an organisation before a slash. KernelInputError names the nearest."""
    known = {each.lower(): shape for each, shape in models().items()}
    wanted = name.rpartition("/")[2].lower()
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, 1, 0.5)
    hint = f"did you mean {known[near[0]].model}? " if near else ""
    raise KernelInputError(f"model {name!r} is not known to the kernels; {hint}known: {', '.join(models())}")


def _shape(name: str, table: dict[str, Any]) -> MoeShape:
    activation = Activation(float(table.get("alpha", 1.0)), float(table.get("limit", 0.0)), bool(table.get("plus_one", False)))
    assert table["weights"] in get_args(Weights), name
    assert table["gate_up"] in get_args(GateUp), name
    return MoeShape(
        name, table["experts"], table["top_k"], table["hidden"], table["intermediate"], table["weights"], table["gate_up"],
        bool(table.get("bias", False)), activation, layers=table.get("layers", 0),
    )  # fmt: skip
