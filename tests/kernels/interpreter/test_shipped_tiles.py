"""Every tile of the tables that are shipped, and those that are taken without a table, in both GEMMs, on a layer that fills
neither its last rows nor its last columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from layer_kit import run

import kernels
from kernels.reference.cases import make_case
from kernels.shapes import GPT_OSS_SWIGLU, MoeShape
from kernels.store.lookup import DECODE_DEFAULT, PREFILL_DEFAULT
from kernels.tile import DOWN, LayerConfig, Tile

TABLES = Path(kernels.__file__).parent / "tables"
LIMIT = 6e-3


def shipped() -> list[Tile]:
    """Those that differ in what the interpreter computes; warps, stages and hints of the compiler do not."""
    found: set[Tile] = {tile for each in (DECODE_DEFAULT, PREFILL_DEFAULT) for tile in (each.gate_up, each.down)}
    for path in TABLES.rglob("*dtype=mxfp4_w4a16*.json"):
        if path.name.endswith(".about.json"):
            continue
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for key, entry in table.items():
            if key.isdigit():
                config = LayerConfig.of(entry, f"{path.name}: {key}")
                found |= {config.gate_up, config.down} if DOWN in entry else {config.gate_up}
    return sorted({Tile(each.block_m, each.block_n, each.block_k, each.group_m) for each in found})


@pytest.mark.parametrize("tile", shipped(), ids=str)
def test_shipped_tile_agrees_with_the_reference(tile: Tile) -> None:
    shape = MoeShape(
        "tile", experts=2, top_k=1, hidden=tile.block_k + 32, intermediate=96,
        gate_up="interleaved", bias=True, activation=GPT_OSS_SWIGLU,
    )  # fmt: skip
    assert run(make_case(shape, 3, seed=11), LayerConfig(tile, tile)).error <= LIMIT
