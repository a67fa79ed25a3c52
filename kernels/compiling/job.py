"""One compilation as data: what a launch would compile, for one target, so that a process without triton can ask for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.accelerators import TARGETS
from kernels.errors import KernelInputError
from kernels.moe.launch import Constant, Dtype, Gemm, Launch, combine_arguments, gemm_arguments
from kernels.shapes import MoeShape
from kernels.tile import Tile


@dataclass(frozen=True, slots=True)
class Job:
    target: str
    function: str  # of kernels.moe.kernel
    signature: tuple[tuple[str, str], ...]  # run-time argument → "*bf16", "*u8", "i32"
    constants: tuple[tuple[str, Constant], ...]
    divisible: tuple[str, ...]  # run-time arguments that a launch would find to be multiples of 16
    within_2gb: tuple[str, ...]  # pointers to at most 2 GiB; of AMD's targets, which have instructions for them
    options: tuple[tuple[str, bool | int], ...]
    label: str = ""  # for people; not part of what is compiled

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise KernelInputError(f"target {self.target!r} is not known; known: {', '.join(TARGETS)}")

    def json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "function": self.function,
            "signature": dict(self.signature),
            "constants": dict(self.constants),
            "divisible": list(self.divisible),
            "within_2gb": list(self.within_2gb),
            "options": dict(self.options),
            "label": self.label,
        }

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Job:
        return cls(
            table["target"],
            table["function"],
            tuple(table["signature"].items()),
            tuple(table["constants"].items()),
            tuple(table["divisible"]),
            tuple(table["within_2gb"]),
            tuple(table["options"].items()),
            table.get("label", ""),
        )

    def key(self, kernel_hash: str, triton_version: str) -> str:
        """The same for jobs that compile to the same code, whatever shape or accelerator they were made for."""
        what = {name: value for name, value in self.json().items() if name != "label"} | {
            "kernel_hash": kernel_hash,
            "triton": triton_version,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def gemm_job(target: str, shape: MoeShape, tile: Tile, dtype: Dtype, which: Gemm) -> Job:
    """One of a layer's two GEMMs, just as it is launched."""
    return _job(target, gemm_arguments(shape, tile, dtype, which), f"{which} {tile} {dtype} of {shape.model}")


def combine_job(target: str, shape: MoeShape, dtype: Dtype) -> Job:
    return _job(target, combine_arguments(shape, dtype), f"combine {dtype} of {shape.model}")


def _job(target: str, launch: Launch, label: str) -> Job:
    is_amd = target.startswith("gfx")
    return Job(
        target,
        launch.function,
        tuple(launch.signature.items()),
        tuple(launch.constants.items()),
        launch.divisible,
        launch.within_2gb if is_amd else (),
        tuple(launch.options(amd=is_amd).items()),
        label,
    )
