"""Compiling for an accelerator that is not in the machine. Needs triton, which brings all assemblers; no torch, no driver."""

from __future__ import annotations

import importlib
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.compiling.job import Job
from kernels.compiling.resources import Resources, amd, nvidia
from kernels.moe.launch import Constant

_GPU_TARGETS = {
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
    "sm_90": GPUTarget("cuda", 90, 32),
}
#: Attributes of arguments as a launch finds them. Without divisibility loads stay narrow; ranges let AMD use buffer loads.
_DIVISIBLE, _WITHIN_2GB = ["tt.divisibility", 16], ["tt.pointer_range", 32]
#: Triton 3.6 lists of constants only texts.
_LISTS_CONSTANTS = tuple(map(int, triton.__version__.split(".")[:2])) > (3, 6)


def compile_job(job: Job) -> Resources:
    return resources_of(cross_compile(getattr(importlib.import_module("kernels.moe.kernel"), job.function), job), job)


def cross_compile(function: Any, job: Job) -> Any:
    """triton's CompiledKernel: its `asm` has every stage."""
    names: list[str] = list(function.arg_names)
    runtime, constants = dict(job.signature), dict(job.constants)
    if strange := (runtime.keys() | constants.keys()) ^ set(names):
        raise ValueError(f"arguments of the job and of {job.function} differ in {', '.join(sorted(strange))}")
    source = ASTSource(
        fn=function,
        signature={name: "constexpr" if name in constants else runtime[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (index,): found for index, name in enumerate(names) if (found := _attributes(job, name)) or _told_of(name, constants)
        },
    )
    return triton.compile(source, target=_GPU_TARGETS[job.target], options=dict(job.options))


def _attributes(job: Job, name: str) -> list[list[Any]]:
    return [_DIVISIBLE] * (name in job.divisible) + [_WITHIN_2GB] * (name in job.within_2gb)


def _told_of(name: str, constants: Mapping[str, Constant]) -> bool:
    """A launch lists this argument among those with attributes, though it has none. Its code is the same without; but only
    what is listed alike is one entry of triton's cache, in which launches find what was compiled here."""
    return name in constants and (_LISTS_CONSTANTS or isinstance(constants[name], str))


def resources_of(kernel: Any, job: Job) -> Resources:
    warps, shared_bytes = int(kernel.metadata.num_warps), int(kernel.metadata.shared)
    if job.target != "sm_90":
        return amd(job.target, kernel.asm["amdgcn"], shared_bytes, warps)
    return nvidia(job.target, kernel.asm["ptx"], _usage(kernel.asm["cubin"]), kernel.asm["cubin"], shared_bytes, warps)


def _usage(cubin: bytes) -> str:
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, timeout=60, check=True).stdout
