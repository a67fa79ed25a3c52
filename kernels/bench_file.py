"""Times from the JSON that tests/bench/gpu_moe.py writes on a node, for the report.

    {"bench": "gpu_moe", "device": {"target": "sm_90", …}, "rows": [
        {"kernel": "paceline-mxfp4-a16w4", "m": 16, "us": 1.5, "experts": 128, "top_k": 4, "hidden": 2880, "intermediate": 2880},
        …]}

Rows of other kernels (the peers that it is compared with) and of skewed routing are passed over, and so is all else there.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from kernels.accelerators import TARGETS
from kernels.errors import KernelInputError
from kernels.identity import KERNEL_NAME, kernel_hash
from kernels.report import BenchTime
from kernels.store.jsonfiles import JsonFile, read_object
from kernels.store.lookup import KernelMismatch

BENCH: Final = "gpu_moe"
_SHAPE = ("experts", "top_k", "hidden", "intermediate")


def read_bench(path: Path) -> list[BenchTime]:
    """KernelInputError with file, field, value and what would be right."""
    file = read_object(path)
    device, rows = file.table.get("device"), file.table.get("rows")
    if file.table.get("bench") != BENCH or not isinstance(device, dict) or not isinstance(rows, list):
        raise KernelInputError(
            f"{path}: was not written by tests/bench/gpu_moe.py: bench, device and rows are not as it has them"
        )
    if file.table.get("rehearsal"):
        raise KernelInputError(f"{path}: is of a rehearsal, whose times mean nothing; give what a run on a GPU wrote")
    if (made_for := file.table.get("kernel_hash", kernel_hash())) != kernel_hash():
        raise KernelMismatch(f"{path}: is of kernel {made_for!s:.60} and this kernel is {kernel_hash()}; run the benchmark again")
    target = device.get("target")
    if target not in TARGETS:
        raise KernelInputError(f"{file.at('device', 'target')} = {target!r:.60} must be one of {', '.join(TARGETS)}")
    return [
        _measured(file, f"row {number}", row, str(target))
        for number, row in enumerate(rows, 1)
        if isinstance(row, dict) and row.get("kernel") == KERNEL_NAME and row.get("routing", "uniform") == "uniform"
    ]


def _measured(file: JsonFile, where: str, row: dict[str, Any], target: str) -> BenchTime:
    for name in (*_SHAPE, "m"):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**7:
            raise KernelInputError(f"{file.path}: rows: {where}: {name} = {value!r:.60} must be a whole number over 0")
    us = row.get("us")
    if isinstance(us, bool) or not isinstance(us, int | float) or not 0 < us < 1e12 or not math.isfinite(us):
        raise KernelInputError(f"{file.path}: rows: {where}: us = {us!r:.60} must be a number over 0")
    shape = tuple(row[name] for name in _SHAPE)
    return BenchTime((shape[0], shape[1], shape[2], shape[3]), target, row["m"], float(us), str(file.path))
