"""A table of configurations of our kernel: a file in vLLM's words by M, and a sidecar that says where it is from.

    E=128,N=2880,device_name=…,dtype=mxfp4_w4a16,H=2880.json         {"16": {tile, "down": {tile}}, …, "triton_version": "3.9.0"}
    E=128,N=2880,device_name=…,dtype=mxfp4_w4a16,H=2880.about.json   About

Both are written or neither; the sidecar has the table's hash, so that a table that was edited or half replaced is found out: what
was measured would not be what is used. `origin` is "measured" or "untimed": chosen offline by what the compiler says and the
roofline, and then without any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kernels.errors import KernelInputError
from kernels.shapes import MoeShape
from kernels.store.about import MAX_M, About, about_json, about_of, is_m
from kernels.store.jsonfiles import JsonFile, hash_of, read_object, text_of, write_together
from kernels.store.names import ABOUT, MXFP4, TableName, name_of, parse_name
from kernels.store.nodeclass import NodeClass
from kernels.tile import LayerConfig

TRITON: Final = "triton_version"
MOST_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class Table:
    path: Path
    configs: dict[int, LayerConfig]  # by M, ascending
    about: About
    hash: str  # 12 hex of the file's bytes
    name: TableName | None = field(default=None, compare=False)

    @property
    def shape(self) -> MoeShape:
        return self.about.shape


def class_folder(root: Path, node_class: NodeClass) -> Path:
    return root / node_class.slug


def about_path(table: Path) -> Path:
    return table.with_name(table.name.removesuffix(".json") + ABOUT)


def read_table(path: Path) -> Table:
    """KernelInputError with file, line, field, value and what would be right."""
    name = parse_name(path.name)
    if name is None or name.dtype != MXFP4:
        raise KernelInputError(
            f"{path}: not the name of a table of this kernel, as in E=128,N=2880,device_name=…,dtype={MXFP4}.json"
        )
    file = read_object(path)
    configs = {m: LayerConfig.of(tile_at(file, key), file.at(key)) for m, key in keys_of(file)}
    beside = about_path(path)
    if not beside.is_file():
        raise KernelInputError(f"{path}: {beside.name}, which says where it is from, is not beside it; copy both, or tune again")
    about = about_of(read_object(beside))
    _fits(about, name, configs, beside)
    if about.table_hash not in ("", file.hash):
        raise KernelInputError(
            f"{path}: its hash {file.hash} is not the {about.table_hash} its sidecar was written for, so what was measured "
            "is not what is here; restore both files, or tune again"
        )
    return Table(path, configs, about, file.hash, name)


def keys_of(file: JsonFile) -> list[tuple[int, str]]:
    """M and its key, ascending."""
    found: list[tuple[int, str]] = []
    for key in file.table:
        if key == TRITON:
            if not isinstance(file.table[key], str):
                raise KernelInputError(f"{file.at(key)} = {file.table[key]!r} must be a text, as in 3.9.0")
            continue
        if not is_m(key):
            raise KernelInputError(f"{file.at(key)} must be a number of tokens, 1 to {MAX_M}, or {TRITON}")
        found.append((int(key), key))
    if not found:
        raise KernelInputError(f"{file.path}:1: has no configuration; at least one number of tokens is needed")
    if len(found) > MOST_KEYS:
        raise KernelInputError(f"{file.path}: has {len(found):,d} configurations; a table has at most {MOST_KEYS:,d}")
    return sorted(found)


def tile_at(file: JsonFile, key: str) -> dict[str, Any]:
    value = file.table[key]
    if not isinstance(value, dict):
        raise KernelInputError(f"{file.at(key)} = {str(value)[:40]!r} must be a table of a tile ({{…}})")
    return value


def _fits(about: About, name: TableName, configs: Mapping[int, LayerConfig], where: Path) -> None:
    shape = about.shape
    for field_name, told, named in (
        ("shape.experts", shape.experts, name.experts),
        ("shape.intermediate", shape.intermediate, name.intermediate),
        ("shape.hidden", shape.hidden, name.hidden or shape.hidden),
        ("device_name", about.device_name, name.device_name),
    ):
        if told != named:
            raise KernelInputError(f"{where}: {field_name} = {told} must be {named}, as the name of the file has it")
    if strange := sorted(set(about.keys) - set(configs)):
        raise KernelInputError(f"{where}: keys: {strange[0]} is no key of the table, which has {', '.join(map(str, configs))}")
    if about.origin == "measured" and (missing := [m for m in configs if m not in about.keys or about.keys[m].us is None]):
        raise KernelInputError(
            f'{where}: keys: {missing[0]}: us is missing; in a table of origin "measured" each key has its time'
        )
    if about.origin == "untimed" and (timed := [m for m, facts in about.keys.items() if facts.us is not None]):
        raise KernelInputError(
            f'{where}: keys: {timed[0]}: us = {about.keys[timed[0]].us} must not be there; origin "untimed" has no times'
        )


def write_table(folder: Path, configs: Mapping[int, LayerConfig], about: About) -> Path:
    """Into `folder`, that of a class (class_folder), under its name; the path. Replaces an earlier table of that name."""
    name = name_of(about.shape, about.device_name)
    path = folder / str(name)
    table: dict[str, Any] = {str(m): configs[m].json() for m in sorted(configs)}
    if about.triton:
        table[TRITON] = about.triton
    data = text_of(table)
    whole = about.with_hash(hash_of(data))
    beside = text_of(about_json(whole))
    keys_of(JsonFile(path, data, table))
    about_of(JsonFile(about_path(path), beside, about_json(whole)))
    _fits(whole, name, configs, about_path(path))
    write_together({about_path(path): beside, path: data})  # the table last: without it a sidecar is nothing
    return path
