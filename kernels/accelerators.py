"""Accelerators that the kernels know (accelerators.toml): bandwidth and peak for floors, limits for compiled kernels."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernels.errors import KernelInputError

#: Compiler targets, as they are named everywhere here.
TARGETS = ("gfx942", "gfx950", "sm_90")


@dataclass(frozen=True, slots=True)
class Accelerator:
    name: str
    target: str  # one of TARGETS
    bandwidth_tb_s: float
    bf16_tflops: float
    compute_units: int
    shared_kib: int  # a workgroup
    cache_mib: int
    memory_gb: int
    device_names: tuple[str, ...]  # vLLM's

    @property
    def is_amd(self) -> bool:
        return self.target.startswith("gfx")


@lru_cache(maxsize=1)
def accelerators() -> dict[str, Accelerator]:
    tables = tomllib.loads((Path(__file__).parent / "accelerators.toml").read_text(encoding="utf-8"))
    return {name: Accelerator(name, **{**table, "device_names": tuple(table["device_names"])}) for name, table in tables.items()}


def accelerator(name: str, among: Mapping[str, Accelerator] | None = None) -> Accelerator:
    """By name (mi300x), vLLM's device name, or compiler target (the first accelerator of that target); `among`: others known."""
    known = accelerators() if among is None else among
    wanted = name.lower()
    for each in known.values():
        if wanted in (each.name.lower(), *(device.lower() for device in each.device_names)):
            return each
    for each in known.values():
        if wanted in (each.target, each.target.replace("_", "")):
            return each
    names = [*known, *TARGETS]
    near = difflib.get_close_matches(wanted, [each.lower() for each in names], 1, 0.5)
    hint = f"did you mean {next(each for each in names if each.lower() == near[0])}? " if near else ""
    raise KernelInputError(f"target {name!r} is not known; {hint}known: {', '.join(names)}")
