"""What a launch compiles is what the gate judges: the very same instructions, for each target.

There is no GPU here, so a stand-in takes the place of triton's driver and says which target it is for; triton's own launch path
specialises the arguments and compiles, and stops before it would load the code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.accelerators import TARGETS
from kernels.compiling.job import gemm_job
from kernels.moe.launch import Gemm, gemm_arguments
from kernels.shapes import model
from kernels.tile import Tile

pytest.importorskip("torch", reason="a launch takes tensors; `make test-kernels` runs this in an environment that has torch")
pytest.importorskip("triton", reason="`make test-kernels` runs this in an environment that has triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("this process interprets; `make test-kernels` runs this in one that compiles", allow_module_level=True)


class NoDevice:
    """The little of a driver that compiling asks for."""

    def __init__(self, target: object, number: int) -> None:
        self._target, self._number = target, number  # a number of its own, as compiled code is kept by device

    def get_current_target(self) -> object:
        return self._target

    def get_current_device(self) -> int:
        return self._number

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from triton.runtime import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    before = driver._active
    yield driver
    driver._active = before


#: Weights within 2 GiB and above, with biases and without.
LAUNCHES = [
    ("gfx942", "gpt-oss-120b", "gate_up"),
    ("gfx950", "DeepSeek-R1-MXFP4", "gate_up"),
    ("sm_90", "gpt-oss-120b", "down"),
]


@pytest.mark.parametrize(("target", "name", "which"), LAUNCHES)
def test_launch_compiles_what_the_gate_compiles(target: str, name: str, which: Gemm, driver: Any) -> None:
    import torch

    from kernels.compiling.recipe import _GPU_TARGETS, cross_compile
    from kernels.moe.kernel import moe_gemm

    shape, tile = model(name), Tile(16, 64, 128)
    launch = gemm_arguments(shape, tile, "bf16", which)
    types = {"*bf16": torch.bfloat16, "*u8": torch.uint8, "*i32": torch.int32, "*fp32": torch.float32}
    weight_bytes = shape.experts * int(str(launch.constants["N"])) * int(str(launch.constants["K"])) // 2
    arguments = {
        argument: torch.empty(weight_bytes if argument == "w" else 64, dtype=types[kind]) if kind in types else 48
        for argument, kind in launch.signature.items()
    }
    driver.set_active(NoDevice(_GPU_TARGETS[target], 100 + TARGETS.index(target)))
    options = launch.options(amd=target != "sm_90")
    launched = moe_gemm.warmup(**arguments, **launch.constants, **options, grid=(1,))
    gated = cross_compile(moe_gemm, gemm_job(target, shape, tile, "bf16", which))
    text = "ptx" if target == "sm_90" else "amdgcn"
    assert launched.asm[text] == gated.asm[text]
    # With the hash, by which triton's cache has them: what was compiled ahead of a launch is not compiled again.
    assert dict(launched.metadata._asdict()) == dict(gated.metadata._asdict())
