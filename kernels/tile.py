"""Configurations of the kernel: a tile for each of a layer's two GEMMs, in the words of vLLM's tuned JSON.

    {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 256, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}

The two GEMMs have other shapes and so may have other tiles; BLOCK_SIZE_M is common to both, since tokens are aligned to it once.
In JSON the gate/up GEMM's fields stand where vLLM has them and the down GEMM's in a table "down" beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernels.errors import KernelInputError

#: Field of Tile → its name in JSON, and the values that it may have.
_POWERS = (16, 32, 64, 128, 256)
_NAMES: dict[str, tuple[str, tuple[int, ...]]] = {
    "block_m": ("BLOCK_SIZE_M", _POWERS),
    "block_n": ("BLOCK_SIZE_N", (32, 64, 128, 256)),
    "block_k": ("BLOCK_SIZE_K", (32, 64, 128, 256, 512)),
    "group_m": ("GROUP_SIZE_M", (1, 2, 4, 8, 16, 32, 64)),
    "warps": ("num_warps", (1, 2, 4, 8, 16)),
    "stages": ("num_stages", (1, 2, 3, 4, 5)),
    "waves_per_eu": ("waves_per_eu", (0, 1, 2, 3, 4)),
    "nonkdim": ("matrix_instr_nonkdim", (0, 16, 32)),
    "kpack": ("kpack", (1, 2)),
}
_OPTIONAL = ("waves_per_eu", "nonkdim", "kpack")  # AMD's; in JSON only where they are not the default
DOWN = "down"


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    block_m: int = 16
    block_n: int = 64  # rows of weights; for the gate/up GEMM gate and up rows together
    block_k: int = 128
    group_m: int = 1
    warps: int = 4
    stages: int = 2
    waves_per_eu: int = 0
    nonkdim: int = 16
    kpack: int = 1

    def __str__(self) -> str:
        extra = "".join(
            f" {name}={getattr(self, name)}" for name in ("group_m", *_OPTIONAL) if getattr(self, name) != getattr(_DEFAULT, name)
        )
        return f"{self.block_m}x{self.block_n}x{self.block_k} warps={self.warps} stages={self.stages}{extra}"

    def json(self) -> dict[str, int]:
        return {
            name: getattr(self, field)
            for field, (name, _) in _NAMES.items()
            if field not in _OPTIONAL or getattr(self, field) != getattr(_DEFAULT, field)
        }

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "tile") -> Tile:
        """KernelInputError with the field, the value and what would be right."""
        values: dict[str, int] = {}
        for field, (name, allowed) in _NAMES.items():
            if name not in table:
                if field in _OPTIONAL or field == "group_m":
                    continue
                raise KernelInputError(f"{where}: {name} is missing")
            value = table[name]
            if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
                raise KernelInputError(f"{where}: {name} = {value!r:.60} must be one of {', '.join(map(str, allowed))}")
            values[field] = value
        known = {name for name, _ in _NAMES.values()}
        if strange := [name for name in table if name not in known and name != DOWN]:
            raise KernelInputError(f"{where}: {strange[0]!r:.60} is no field of a tile; known: {', '.join(sorted(known))}")
        return cls(**values)


_DEFAULT = Tile()
assert tuple(_NAMES) == tuple(field.name for field in fields(Tile))


def short(config: Mapping[str, Any]) -> str:
    """`16x64x128/4/2` for M, N, K, warps and stages, of a configuration in JSON's words (vLLM's too); that of the down GEMM
    follows where it has another."""
    sizes = "x".join(str(config[f"BLOCK_SIZE_{name}"]) for name in "MNK")
    own = f"{sizes}/{config['num_warps']}/{config['num_stages']}"
    return own if DOWN not in config else f"{own} {short(config[DOWN])}"


@dataclass(frozen=True, slots=True, order=True)
class LayerConfig:
    """Of one layer at one M."""

    gate_up: Tile = _DEFAULT
    down: Tile = _DEFAULT

    def __post_init__(self) -> None:
        if self.gate_up.block_m != self.down.block_m:
            raise KernelInputError(
                f"BLOCK_SIZE_M = {self.down.block_m} of the down GEMM must be the gate/up GEMM's {self.gate_up.block_m}"
            )

    def json(self) -> dict[str, Any]:
        if self.gate_up == self.down:
            return dict(self.gate_up.json())
        return {**self.gate_up.json(), DOWN: self.down.json()}

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "config") -> LayerConfig:
        gate_up = Tile.of(table, where)
        down = table.get(DOWN)
        if down is None:
            return cls(gate_up, gate_up)
        if not isinstance(down, Mapping):
            raise KernelInputError(f"{where}: {DOWN} = {down!r:.60} must be a table of a tile")
        return cls(gate_up, Tile.of({"BLOCK_SIZE_M": gate_up.block_m, **down}, f"{where}: {DOWN}"))
