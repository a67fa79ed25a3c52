"""All that is wrong with tables in folders and files, in words: what `lookup` refuses one by one, and what it cannot know."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import KernelInputError
from kernels.store.files import Table, about_path, read_table
from kernels.store.lookup import check_kernel, check_place, table_files
from kernels.store.names import ABOUT, MXFP4, parse_name
from kernels.store.nodeclass import parse_slug
from kernels.store.vllm_tables import VllmTable, read_vllm_table

#: A table's fraction of its floor beyond which what was measured, or the bandwidth it is compared with, must be wrong.
_MOST_OF_FLOOR = 1.05
_AS_IN = "gfx942-304cu-192gb-AMD_Instinct_MI300X"


@dataclass(frozen=True, slots=True)
class Problem:
    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Checked:
    tables: list[Table]
    vllm: list[VllmTable]
    problems: list[Problem]


def check(paths: Iterable[Path]) -> Checked:
    """Tables are read from files, from folders of a class and from folders of classes. A folder without any is a problem too."""
    done = Checked([], [], [])
    for path in paths:
        try:
            path.stat()
            files, strays = list(_files(path, done)), list(_strays(path))
        except OSError as error:
            done.problems.append(Problem(path, f"{path}: cannot be read: {error.strerror}"))
            continue
        for stray in strays:
            text = f"{stray}: holds tables and is not named as a class of node is, so none is found; as in {_AS_IN}"
            done.problems.append(Problem(stray, text))
        if not files and not strays and not any(problem.path.parent == path for problem in done.problems):
            done.problems.append(Problem(path, f"{path}: has no table"))
        for file in files:
            done.problems.extend(Problem(file, text) for text in _check_file(file, done))
    return done


def _files(path: Path, done: Checked) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for each in sorted(path.iterdir()):
        if parse_slug(each.name) and each.is_dir():
            try:
                yield from sorted(inner for inner in each.iterdir() if inner.name.endswith(".json"))
            except OSError as error:
                done.problems.append(Problem(each, f"{each}: cannot be read: {error.strerror}"))
        elif each.name.endswith(".json"):
            yield each


def _strays(path: Path) -> Iterator[Path]:
    """Folders of a store that hold tables and are not named as a class is, so that nobody finds what is in them."""
    for each in sorted(path.iterdir()) if path.is_dir() else ():
        if not each.name.startswith(".") and each.is_dir() and not parse_slug(each.name):
            with contextlib.suppress(KernelInputError):  # one that cannot be read is no part of the store
                if any(table_files(each)):
                    yield each


def _check_file(path: Path, done: Checked) -> list[str]:
    if path.name.endswith(ABOUT):
        beside = path.with_name(path.name.removesuffix(ABOUT) + ".json")
        return (
            [] if beside.is_file() else [f"{path}: its table, {beside.name}, is not beside it; delete it, or restore the table"]
        )
    name = parse_name(path.name)
    if name is None:
        return [f"{path}: not named as a table is: E=…,N=…,device_name=…[,dtype=…][,H=…][,block_shape=[n,k]].json"]
    try:
        if name.dtype != MXFP4:
            done.vllm.append(read_vllm_table(path))
            return []
        table = read_table(path)
    except KernelInputError as error:
        return [str(error)]
    done.tables.append(table)
    return list(_judged(table))


def _judged(table: Table) -> Iterator[str]:
    try:
        check_place(table, parse_slug(table.path.parent.name))
    except KernelInputError as error:
        yield str(error)
    try:
        check_kernel(table)
    except KernelInputError as error:
        yield str(error)
    if not table.about.table_hash:
        yield f"{about_path(table.path)}: table_hash is missing, so nobody sees when the table is edited; tune again"
    for m, facts in table.about.keys.items():
        if facts.of_floor is not None and facts.of_floor > _MOST_OF_FLOOR:
            yield (
                f"{about_path(table.path)}: keys: {m}: of_floor = {facts.of_floor:g}: faster than the memory allows; "
                "the weights lay in a cache, or the bandwidth is another"
            )
