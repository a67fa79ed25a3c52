"""Tables of vLLM's own fused_moe (bf16, fp8, int4), which it reads from the folder that VLLM_TUNED_CONFIG_FOLDER names.

They may lie beside ours in the folder of a class. vLLM checks nothing in them, so all is checked here. It takes the key of the
least |M - key|, not of the least distance in log M, and of two as near the first in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernels.errors import KernelInputError
from kernels.shapes import MoeShape
from kernels.store.about import About, about_json, about_of
from kernels.store.files import TRITON, about_path, keys_of, tile_at
from kernels.store.jsonfiles import JsonFile, hash_of, read_object, text_of, write_together
from kernels.store.lookup import table_files
from kernels.store.names import MXFP4, VLLM_DTYPES, TableName, name_of, parse_name
from kernels.store.nodeclass import NodeClass

FOLDER: Final = "VLLM_TUNED_CONFIG_FOLDER"
_BLOCKS = (8, 16, 32, 64, 128, 256, 512)
_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Field → whether vLLM needs it, and its values.
_FIELDS: dict[str, tuple[bool, Sequence[int]]] = {
    "BLOCK_SIZE_M": (True, _BLOCKS),
    "BLOCK_SIZE_N": (True, _BLOCKS),
    "BLOCK_SIZE_K": (True, _BLOCKS),
    "GROUP_SIZE_M": (True, _GROUPS),
    "num_warps": (True, (1, 2, 4, 8, 16, 32)),
    "num_stages": (True, range(10)),
    "waves_per_eu": (False, range(9)),
    "matrix_instr_nonkdim": (False, (0, 4, 16, 32)),
    "kpack": (False, (1, 2)),
    "num_ctas": (False, (1, 2, 4, 8)),
    "SPLIT_K": (False, _GROUPS),
}


@dataclass(frozen=True, slots=True)
class VllmTable:
    path: Path
    name: TableName
    configs: dict[int, dict[str, int]]  # by M, ascending
    triton: str
    about: About | None  # only of those that were written here
    hash: str

    def config(self, m: int) -> tuple[int, dict[str, int]]:
        """The key that vLLM takes, and its configuration."""
        key = min(self.configs, key=lambda each: abs(each - m))
        return key, self.configs[key]


def read_vllm_table(path: Path) -> VllmTable:
    """KernelInputError with file, line, field, value and what would be right."""
    name = parse_name(path.name)
    if name is None or name.dtype == MXFP4:
        raise KernelInputError(f"{path}: not the name of a table of vLLM's, as in E=8,N=7168,device_name=NVIDIA_H200.json")
    file = read_object(path)
    configs = {m: _config(file, key) for m, key in keys_of(file)}
    beside = about_path(path)
    about = about_of(read_object(beside)) if beside.is_file() else None
    if about is not None:
        _fits(about, name, file, beside)
    return VllmTable(path, name, configs, str(file.table.get(TRITON, "")), about, file.hash)


def write_vllm_table(
    folder: Path,
    shape: MoeShape,
    device_name: str,
    dtype: str,
    configs: Mapping[int, Mapping[str, int]],
    *,
    block_shape: tuple[int, int] | None = None,
    triton: str = "",
    about: About | None = None,
) -> Path:
    """Into `folder` under vLLM's name; the path. `device_name` is vLLM's for this node, or what its driver says."""
    if dtype not in VLLM_DTYPES:
        raise KernelInputError(f"dtype = {dtype!r} must be one of {', '.join(VLLM_DTYPES)}")
    name = name_of(shape, device_name, dtype, block_shape)
    path = folder / str(name)
    table: dict[str, Any] = {str(m): dict(configs[m]) for m in sorted(configs)}
    if triton:
        table[TRITON] = triton
    data = text_of(table)
    file = JsonFile(path, data, table)
    for _, key in keys_of(file):
        _config(file, key)
    files = {path: data}
    if about is not None:
        whole = about.with_hash(hash_of(data))
        beside = JsonFile(about_path(path), text_of(about_json(whole)), about_json(whole))
        _fits(about_of(beside), name, file, beside.path)
        files = {beside.path: beside.data, path: data}
    write_together(files)
    return path


def vllm_tables(folder: Path) -> list[Path]:
    """Of a class's folder; where there are any it can be VLLM_TUNED_CONFIG_FOLDER."""
    return [path for path, name in table_files(folder) if name.dtype != MXFP4]


def find_vllm_tables(shape: MoeShape, node_class: NodeClass, roots: Sequence[Path]) -> list[VllmTable]:
    """Of this layer on this class, as vLLM would find them; the first root's first."""
    folders = [folder for root in roots for folder in (root / node_class.slug, root)]
    named = [(path, name) for folder in folders for path, name in table_files(folder) if name.dtype != MXFP4]
    tables = [read_vllm_table(path) for path, name in named if name.fits(shape, name.dtype)]
    return [table for table in tables if table.about is None or table.about.node_class == node_class]


def _config(file: JsonFile, key: str) -> dict[str, int]:
    table = tile_at(file, key)
    for field, (needed, allowed) in _FIELDS.items():
        if field not in table:
            if needed:
                raise KernelInputError(f"{file.at(key)}: {field} is missing")
            continue
        value = table[field]
        if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
            raise KernelInputError(f"{file.at(key, field)} = {str(value)[:40]!r} must be one of {', '.join(map(str, allowed))}")
    if strange := [field for field in table if field not in _FIELDS]:
        raise KernelInputError(f"{file.at(key, strange[0])} is no field of vLLM's; known: {', '.join(_FIELDS)}")
    return dict(table)


def _fits(about: About, name: TableName, file: JsonFile, where: Path) -> None:
    if (about.shape.experts, about.shape.intermediate) != (name.experts, name.intermediate):
        raise KernelInputError(
            f"{where}: shape must have E={name.experts} and N={name.intermediate}, as the name of the file has it"
        )
    if about.table_hash not in ("", file.hash):
        raise KernelInputError(
            f"{file.path}: its hash {file.hash} is not the {about.table_hash} that its sidecar was written for; "
            "restore both files, or tune again"
        )
