"""Which configuration to use: the tables of a store for a layer on a class of node, and of a table the nearest number of tokens.

A store is a folder of classes (ROOT/<class>/files) or the folder of one class. Stores are asked in order, the person's before the
shipped one. A table that was measured on this class comes first, then one chosen offline for it, then one chosen offline for
another class of the same compiler target; a table measured on another class is not used, since its times say nothing here.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kernels.errors import KernelInputError
from kernels.identity import kernel_hash
from kernels.shapes import MoeShape
from kernels.store.files import Table, read_table
from kernels.store.names import ABOUT, MXFP4, TableName, parse_name
from kernels.store.nodeclass import NodeClass, parse_slug
from kernels.tile import LayerConfig, Tile

STORE: Final = "PACELINE_KERNEL_STORE"
SHIPPED: Final = Path(__file__).parents[1] / "tables"
How = Literal["tuned", "untimed", "default"]

#: Without a table. Both compile for every target without spills, with 128 along K also for gfx942 by triton 3.6 (which fails
#: there with less); the second reads the weights less often where experts have many tokens, as in prefill.
DECODE_DEFAULT: Final = LayerConfig(Tile(16, 64, 128), Tile(16, 64, 128))
PREFILL_DEFAULT: Final = LayerConfig(Tile(64, 128, 128, group_m=4, warps=8), Tile(64, 128, 128, group_m=4, warps=8))
_MANY_TOKENS = 32


class KernelMismatch(KernelInputError):
    """A table that was made for another version of the kernel."""


@dataclass(frozen=True, slots=True)
class Choice:
    config: LayerConfig
    key: int | None  # the number of tokens that it is of; None: no table
    how: Literal["tuned", "nearest", "untimed", "default"]


@dataclass(frozen=True, slots=True)
class Found:
    how: How
    table: Table | None
    note: str
    shape: MoeShape

    @property
    def configs(self) -> tuple[LayerConfig, ...]:
        """All that `config` may choose, each once; that of a single token first."""
        known = self.table.configs.values() if self.table is not None else (DECODE_DEFAULT, PREFILL_DEFAULT)
        return tuple(dict.fromkeys((self.config(1).config, *known)))

    def config(self, m: int) -> Choice:
        if self.table is None:
            return Choice(default_config(self.shape, m), None, "default")
        key = nearest(tuple(self.table.configs), m)
        exact: Literal["tuned", "nearest"] = "tuned" if key == m else "nearest"
        return Choice(self.table.configs[key], key, "untimed" if self.how == "untimed" else exact)


def nearest(keys: Sequence[int], m: int) -> int:
    """In log M, of ascending keys. Of two as near it is the larger: too large a tile pads, too small a one reads the weights
    again."""
    if m < 1:
        raise KernelInputError(f"M = {m} must be 1 or more")
    place = bisect_left(keys, m)
    if place == len(keys):
        return keys[-1]
    if place == 0:
        return keys[0]
    below, above = keys[place - 1], keys[place]
    return below if m * m < below * above else above


def default_config(shape: MoeShape, m: int) -> LayerConfig:
    if m < 1:
        raise KernelInputError(f"M = {m} must be 1 or more")
    tokens_an_expert = m * shape.top_k / shape.routed_over
    return PREFILL_DEFAULT if tokens_an_expert >= _MANY_TOKENS else DECODE_DEFAULT


def store_roots(environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """The person's store, if $PACELINE_KERNEL_STORE names one, then the shipped one."""
    given = (os.environ if environment is None else environment).get(STORE, "").strip()
    if not given:
        return (SHIPPED,)
    return (checked_root(Path(given).expanduser(), STORE), SHIPPED)


def checked_root(root: Path, field: str) -> Path:
    try:
        if root.is_dir():
            return root
        what = "is a file" if root.exists() else "is not there"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    raise KernelInputError(f"{field} = {root}: {what}; give a folder that `paceline kernels tune` wrote")


def lookup(
    shape: MoeShape,
    node_class: NodeClass,
    roots: Sequence[Path] | None = None,
    *,
    triton: str = "",
) -> Found:
    """Raises KernelMismatch, and KernelInputError for a table that is damaged, misplaced or of another target."""
    notes: list[str] = []
    tables = [
        table for root in (store_roots() if roots is None else roots) for table in _candidates(root, shape, node_class, notes)
    ]
    for table in sorted(tables, key=lambda table: _rank(table, node_class)):  # stable: of one rank the earlier root
        if _rank(table, node_class) == _UNUSABLE:
            notes.append(f"{table.path} was measured on {table.about.node_class}, another class")
            continue
        check_kernel(table)
        notes += _remarks(table, shape, node_class, triton)
        return Found("tuned" if table.about.origin == "measured" else "untimed", table, "; ".join(notes), shape)
    notes.append(f"no table for E={shape.experts}, N={shape.intermediate}, H={shape.hidden} on {node_class}: the default is used")
    return Found("default", None, "; ".join(notes), shape)


def check_kernel(table: Table) -> None:
    if table.about.kernel_hash != kernel_hash():
        raise KernelMismatch(
            f"{table.path}: is for kernel {table.about.kernel_hash or '(none)'} and this kernel is {kernel_hash()}: "
            "what was measured does not hold for it; tune again (`paceline kernels tune`) or use the version that wrote it; "
            "`paceline kernels check FOLDER` lists such tables"
        )


def table_files(folder: Path) -> Iterator[tuple[Path, TableName]]:
    for path in sorted(_listed(folder)):
        if not path.name.endswith(ABOUT) and (name := parse_name(path.name)) is not None:
            yield path, name


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise KernelInputError(f"{path}: cannot be read: {error.strerror}") from None


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KernelInputError(f"{folder}: cannot be read: {error.strerror}") from None


_UNUSABLE: Final = (3, 0)


def _rank(table: Table, node_class: NodeClass) -> tuple[int, int]:
    if table.about.origin == "measured":
        return (0, 0) if table.about.node_class == node_class else _UNUSABLE
    if table.about.node_class == node_class:
        return (1, 0)
    return (2, abs(table.about.compute_units - node_class.compute_units))


def _candidates(root: Path, shape: MoeShape, node_class: NodeClass, notes: list[str]) -> Iterator[Table]:
    """Those of this shape and target. A damaged table of another class is that class's trouble, and is passed over here."""
    folders = (root, *sorted(each for each in _listed(root) if parse_slug(each.name) and _is_folder(each)))
    for path in (path for folder in folders for path, name in table_files(folder) if name.fits(shape, MXFP4)):
        of = parse_slug(path.parent.name) if path.parent != root else None
        if of is not None and of.target != node_class.target:
            continue
        try:
            table = read_table(path)
        except KernelInputError as error:
            if of is not None and of != node_class:
                notes.append(f"passed over: {error}")
                continue
            raise
        check_place(table, of)
        if table.shape.hidden != shape.hidden:  # of a table whose name does not say it
            continue
        if table.about.target != node_class.target:
            raise KernelInputError(
                f"{path}: is for {table.about.target} ({table.about.node_class}), and this node is {node_class}; "
                "give the folder of its own class, or the one that holds all classes"
            )
        yield table


def check_place(table: Table, of: NodeClass | None) -> None:
    """`of`: the class whose folder it lies in, if in any's."""
    if of is not None and table.about.node_class != of:
        raise KernelInputError(
            f"{table.path}: is for {table.about.node_class} and lies in the folder of {of}; move both files to their own"
        )


def _remarks(table: Table, shape: MoeShape, node_class: NodeClass, triton: str) -> Iterator[str]:
    about = table.about
    if about.node_class != node_class:
        yield f"{table.path} was chosen offline for {about.node_class}, of the same target"
    if triton and about.triton and triton != about.triton:
        yield f"{table.path} is of triton {about.triton} and this is {triton}: registers and shared memory may differ; tune again"
    for field in ("top_k", "routed_over"):
        theirs, ours = getattr(about.shape, field), getattr(shape, field)
        if theirs != ours:
            what = {"top_k": "experts a token", "routed_over": "experts in all"}[field]
            yield f"{table.path} is for {theirs} {what}, not {ours}: an expert has other numbers of tokens at the same M"
