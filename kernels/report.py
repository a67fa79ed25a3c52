"""The roofline report: for layers, numbers of tokens and accelerators the floor, what was measured, and the configuration in use.

A time stands here only where it was measured: on the class of node that the accelerator is, with this kernel, at exactly that
number of tokens. Nothing is interpolated or predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.accelerators import Accelerator
from kernels.errors import KernelInputError
from kernels.roofline import Floor, floor
from kernels.shapes import MoeShape
from kernels.store.lookup import lookup
from kernels.store.nodeclass import of_accelerator
from kernels.store.vllm_tables import find_vllm_tables
from kernels.tile import short

#: Default numbers of tokens.
MS = tuple(2**power for power in range(10))


@dataclass(frozen=True, slots=True)
class BenchTime:
    """A time from elsewhere than the store: a benchmark's file."""

    shape: tuple[int, int, int, int]  # experts, top_k, hidden, intermediate
    target: str
    m: int
    us: float
    source: str

    def is_of(self, shape: MoeShape, on: Accelerator, m: int) -> bool:
        return (self.shape, self.target, self.m) == (key_of(shape), on.target, m)


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    on: str
    m: int
    active_experts: float
    weight_mb: float  # read of one layer's weights, both GEMMs
    floor_us: float
    bound: str  # bytes, operations
    measured_us: float | None
    of_floor: float | None  # floor / measured
    source: str  # of the time: a file
    config: str  # tuned, nearest, untimed, default, vllm; empty: no kernel of ours for these weights and no table
    key: int | None  # number of tokens that the configuration is of
    tile: str

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Block:
    """One layer on one accelerator."""

    shape: MoeShape
    on: Accelerator
    rows: tuple[Row, ...]
    note: str


@dataclass(frozen=True, slots=True)
class _Chosen:
    config: str = ""
    key: int | None = None
    tile: str = ""
    us: float | None = None
    source: str = ""


def key_of(shape: MoeShape) -> tuple[int, int, int, int]:
    return shape.experts, shape.top_k, shape.hidden, shape.intermediate


def report(
    shapes: Iterable[MoeShape],
    ms: Sequence[int],
    on: Sequence[Accelerator],
    roots: Sequence[Path],
    measured: Sequence[BenchTime] = (),
) -> list[Block]:
    return [_block(shape, ms, accelerator, roots, measured) for shape in shapes for accelerator in on]


def _block(shape: MoeShape, ms: Sequence[int], on: Accelerator, roots: Sequence[Path], measured: Sequence[BenchTime]) -> Block:
    try:
        chosen, note = (_ours if shape.weights == "mxfp4" else _vllms)(shape, ms, on, roots)
    except KernelInputError as error:  # a table that cannot be used takes nothing from the floors
        chosen, note = {}, str(error)
    rows = []
    for m in ms:
        one = chosen.get(m, _Chosen())
        us, source = one.us, one.source
        for each in measured:
            if each.is_of(shape, on, m) and (us is None or each.us < us):
                us, source = each.us, each.source
        rows.append(_row(shape, on, floor(shape, m, on), one, us, source))
    return Block(shape, on, tuple(rows), note)


def _row(shape: MoeShape, on: Accelerator, least: Floor, chosen: _Chosen, us: float | None, source: str) -> Row:
    return Row(
        shape.model, on.name, least.m, least.active_experts, least.weight_bytes / 1e6, least.us, least.bound,
        us, least.us / us if us else None, source if us else "", chosen.config, chosen.key, chosen.tile,
    )  # fmt: skip


def _ours(shape: MoeShape, ms: Sequence[int], on: Accelerator, roots: Sequence[Path]) -> tuple[Mapping[int, _Chosen], str]:
    found = lookup(shape, of_accelerator(on), roots)
    chosen = {}
    for m in ms:
        choice = found.config(m)
        facts = found.table.about.keys.get(m) if found.table is not None and found.how == "tuned" else None
        us, source = (facts.us, str(found.table.path)) if facts is not None and found.table is not None else (None, "")
        chosen[m] = _Chosen(choice.how, choice.key, short(choice.config.json()), us, source)
    return chosen, found.note if found.how != "default" else ""


def _vllms(shape: MoeShape, ms: Sequence[int], on: Accelerator, roots: Sequence[Path]) -> tuple[Mapping[int, _Chosen], str]:
    tables = find_vllm_tables(shape, of_accelerator(on), roots)
    if not tables:
        return {}, ""
    table, chosen = tables[0], {}
    for m in ms:
        key, config = table.config(m)
        facts = table.about.keys.get(m) if table.about is not None else None
        chosen[m] = _Chosen("vllm", key, short(config), facts.us if facts is not None else None, str(table.path))
    return chosen, ""
