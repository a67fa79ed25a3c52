"""What a compiled kernel takes of the machine, read from what the compiler wrote: AMD's assembly, NVIDIA's PTX and cubin."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernels.accelerators import TARGETS, accelerator

#: Of one compute unit. AMD: four SIMDs, whose waves LLVM counts itself; NVIDIA (sm_90): registers and warps of one SM.
_AMD_SIMDS = 4
_SM_REGISTERS, _SM_WARPS, _SM_SHARED, _SHARED_RESERVED, _SM_BLOCKS = 65536, 64, 228 * 1024, 1024, 32


@dataclass(frozen=True, slots=True)
class Resources:
    target: str
    warps: int
    shared_bytes: int  # LDS on AMD
    registers: int  # vector registers of a thread; on AMD with the accumulation registers
    accumulation_registers: int  # AMD
    scalar_registers: int  # AMD
    spills: int  # AMD: vector registers spilled (scalar ones go to lanes of a vector register); NVIDIA reports only the stack
    scratch_bytes: int  # AMD's private segment, NVIDIA's stack
    code_bytes: int
    waves: int  # AMD: waves of a SIMD that the registers allow (LLVM's "Occupancy"); NVIDIA: warps of a scheduler, likewise
    groups: int  # programs that fit on one compute unit at once, by registers and shared memory
    matrix_ops: int  # v_mfma; wgmma and mma.sync
    wgmma: int  # NVIDIA
    fp4_conversions: int  # gfx950's conversion instruction
    async_copies: int  # NVIDIA's cp.async; gfx950's loads straight into LDS

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Resources:
        """TypeError where it is not what `json` made."""
        found = cls(**table)
        if found.target not in TARGETS or not all(type(value) is int for name, value in table.items() if name != "target"):
            raise TypeError(f"not the resources of a kernel: {str(table)[:200]}")
        return found


def amd(target: str, assembly: str, shared_bytes: int, warps: int) -> Resources:
    def number(pattern: str) -> int:
        found = re.search(pattern, assembly)
        if found is None:
            raise ValueError(f"the compiler's assembly for {target} has no {pattern!r}: another LLVM than this reader knows")
        return int(found.group(1))

    waves = number(r"Occupancy: (\d+)")
    groups = min(_AMD_SIMDS * waves // warps, accelerator(target).shared_kib * 1024 // max(shared_bytes, 1))
    return Resources(
        target,
        warps,
        shared_bytes,
        registers=number(r"\.vgpr_count:\s+(\d+)"),
        accumulation_registers=number(r"\.agpr_count:\s+(\d+)"),
        scalar_registers=number(r"\.sgpr_count:\s+(\d+)"),
        spills=number(r"\.vgpr_spill_count:\s+(\d+)"),
        scratch_bytes=number(r"\.private_segment_fixed_size:\s+(\d+)"),
        code_bytes=number(r"codeLenInByte = (\d+)"),
        waves=waves,
        groups=groups,
        matrix_ops=len(re.findall(r"\bv_mfma", assembly)),
        wgmma=0,
        fp4_conversions=len(re.findall(r"\bv_cvt_scalef32_pk_b?f16_fp4", assembly)),
        async_copies=len(re.findall(r"\b(?:global|buffer)_load_(?:lds_\w+|\w+ .*\blds\b)", assembly)),
    )


def nvidia(target: str, ptx: str, usage: str, cubin: bytes, shared_bytes: int, warps: int) -> Resources:
    """`usage`: what `cuobjdump -res-usage` printed of the cubin."""
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise ValueError(f"cuobjdump -res-usage said nothing of registers: {usage.strip()[:200]!r}")
    registers, stack = map(int, found.groups())
    wgmma = len(re.findall(r"\bwgmma\.mma_async", ptx))
    granted = 32 * -(-registers // 8) * 8  # of one warp
    groups = min(
        _SM_REGISTERS // (granted * warps), _SM_SHARED // (shared_bytes + _SHARED_RESERVED), _SM_WARPS // warps, _SM_BLOCKS
    )
    return Resources(
        target,
        warps,
        shared_bytes,
        registers,
        accumulation_registers=0,
        scalar_registers=0,
        spills=0,
        scratch_bytes=stack,
        code_bytes=_text_bytes(cubin),
        waves=_SM_REGISTERS // granted // 4,
        groups=groups,
        matrix_ops=wgmma + len(re.findall(r"\bmma\.sync", ptx)),
        wgmma=wgmma,
        fp4_conversions=0,
        async_copies=len(re.findall(r"\bcp\.async\.c[ag]", ptx)),
    )


def _text_bytes(cubin: bytes) -> int:
    """Of the executable sections of an ELF64 file: the file itself is mostly debug information."""
    headers_at = struct.unpack_from("<Q", cubin, 0x28)[0]
    size, count = struct.unpack_from("<HH", cubin, 0x3A)
    executable = 0
    for index in range(count):
        flags, _, _, length = struct.unpack_from("<QQQQ", cubin, headers_at + index * size + 8)
        if flags & 4:
            executable += length
    return executable
