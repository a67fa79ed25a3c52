"""What a compiled kernel must keep within to be worth a launch. Limits, no equalities: numbers move with triton's version."""

from __future__ import annotations

from kernels.accelerators import accelerator
from kernels.compiling.resources import Resources

_SHARED = {"gfx942": "LDS", "gfx950": "LDS", "sm_90": "shared memory"}
_MATRIX = {"gfx942": "v_mfma", "gfx950": "v_mfma", "sm_90": "wgmma or mma.sync"}


def problems(resources: Resources, *, multiplies: bool = True) -> list[str]:
    """In words, the kind before the colon; empty when the kernel keeps within all limits. `multiplies`: it is a GEMM."""
    target = resources.target
    found = []
    if resources.spills:
        found.append(f"spills: {resources.spills} registers ({resources.scratch_bytes} bytes of scratch), none may be")
    elif resources.scratch_bytes:
        found.append(f"spills: {resources.scratch_bytes} bytes of {'stack' if target == 'sm_90' else 'scratch'}, none may be")
    limit = accelerator(target).shared_kib * 1024
    if resources.shared_bytes > limit:
        found.append(f"{_SHARED[target]}: {resources.shared_bytes:,} bytes, {target} has {limit:,} for a workgroup")
    elif resources.groups < 1:
        found.append(
            f"occupancy: no workgroup of {resources.warps} warps with {resources.registers} registers fits on a compute unit"
        )
    if multiplies and not resources.matrix_ops:
        found.append(f"no matrix instruction: the code has no {_MATRIX[target]}")
    if multiplies and target == "gfx950" and not resources.fp4_conversions:
        found.append("no fp4 conversion: the code has no v_cvt_scalef32_pk_*_fp4, which gfx950 has")
    return found
