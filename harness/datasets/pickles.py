"""MLPerf's DeepSeek-R1 dataset: a pandas DataFrame in a pickle, read without pandas and without running anything.

A pickle is a program: it may name any function of the machine and call it. Here the only names that resolve are those
that a DataFrame of text, lists and numbers needs, and each resolves to a stand-in of this file that only keeps what
it is given (not even numpy's own functions, whose C code trusts its input). Any other name ends the loading, by name.
Read: pickles of pandas 1 to 3 (object, string and numeric columns), protocols 2 to 5.

Names are ours, not pandas' (`_Frame` for DataFrame); `table` below turns the stand-ins into columns.
"""

from __future__ import annotations

import codecs
import contextlib
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.datasets.dataset import Dataset, DatasetError
from harness.datasets.fields import FIELDS, IDS_FIELDS, TEXT_FIELDS, nothing_usable
from harness.datasets.rows import dataset_from_rows
from harness.datasets.text import Texts

_MAX_COLUMNS = 100_000


def read_pickle(path: Path, texts: Texts, samples: int | None) -> Dataset:
    columns = read_columns(path)
    if not any(field in columns for field in (*IDS_FIELDS, *TEXT_FIELDS)):
        raise nothing_usable(path, "", map(str, columns))
    used = {name: values for name, values in columns.items() if name in FIELDS}
    count = min(len(values) for values in used.values())
    rows = range(count if samples is None else min(count, samples))
    return dataset_from_rows(((f"row {n}", {name: values[n] for name, values in used.items()}) for n in rows), path, texts)


def read_columns(path: Path) -> dict[Any, list[Any]]:
    """The DataFrame's columns as lists. Raises DatasetError; nothing that the file says is ever run."""
    if not path.stat().st_size:
        raise DatasetError("is empty", path)
    try:
        with path.open("rb") as file, _bounded_memory(path.stat().st_size):
            frame = _Guarded(file).load()
        if not isinstance(frame, _Frame):
            raise DatasetError(f"holds a {type(frame).__name__.lstrip('_')}, not a pandas DataFrame", path)
        return frame.table()
    except _NotAllowed as refusal:
        raise DatasetError(
            f"asks for {refusal}, which a table of text, lists and numbers does not need; refused, nothing of it was run. If you "
            "trust the file, convert it where pandas is installed: pandas.read_pickle(...).to_parquet(...)",
            path,
        ) from None
    except (DatasetError, OSError):
        raise
    except MemoryError:
        raise DatasetError(
            "asks for more memory than a table of its size can need; it is damaged, or made to do harm", path
        ) from None
    except Exception as error:  # a damaged pickle fails with whatever its next instruction meets; no code of its own ran
        raise DatasetError(f"is not a whole pickle of a DataFrame ({type(error).__name__}: {error})", path) from error


class _NotAllowed(Exception):
    pass


@contextlib.contextmanager
def _bounded_memory(file_bytes: int) -> Iterator[None]:
    """While loading, the process may grow by 1 GiB and 64 bytes a byte of the file (a list in one byte makes 64): five
    bytes of a pickle can otherwise ask for 64 GB. Where the kernel does not tell the present size, nothing is bounded."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        present = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        yield
        return
    limit = present + (1 << 30) + 64 * file_bytes
    given = [bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([limit, *given]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class _Keeps:
    """Stands for a class or function of pandas or numpy: remembers its arguments and state, does nothing."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dtype(_Keeps):
    @property
    def code(self) -> str:
        """As numpy writes it, byte order first: `<i8`, `|O`."""
        order = self.state[1] if self.state else "|"
        return f"{order}{self.args[0]}"

    def number(self) -> np.dtype[Any]:
        if self.code[1] not in "biuf" or self.code[2:] not in ("1", "2", "4", "8"):
            raise ValueError(f"a column has the dtype {self.code}")
        return np.dtype(self.code)


class _Array(_Keeps):
    """numpy.ndarray through its `_reconstruct` (state: version, shape, dtype, Fortran order, content) or through
    `_frombuffer` (arguments: content, dtype, shape, order)."""

    def values(self) -> np.ndarray[Any, Any]:
        if self.state is not None:
            _, shape, dtype, fortran, content = self.state
            order = "F" if fortran else "C"
        else:
            content, dtype, shape, order = self.args
        if dtype.code.lstrip("|").startswith("O"):
            cells = np.empty(len(content), object)
            for position, cell in enumerate(content):
                cells[position] = cell.values() if isinstance(cell, _Array) else cell
            return cells.reshape(shape)  # numpy lists objects in C order, whatever their order in memory
        numbers = np.frombuffer(bytes(content), dtype.number())
        return numbers.reshape(shape, order="F" if order == "F" else "C")


class _Scalar(_Keeps):
    """`numpy.….multiarray.scalar(dtype, bytes)`, a number in an object column."""

    def __new__(cls, dtype: _Dtype, content: bytes) -> Any:
        return np.frombuffer(bytes(content), dtype.number()).item()


class _Strings(_Keeps):
    """pandas' string columns: the object array inside is what counts."""

    def values(self) -> np.ndarray[Any, Any]:
        parts = self.state if isinstance(self.state, (tuple, list)) else (self.state or {}).values()
        return next(part for part in parts if isinstance(part, _Array)).values()


class _Range(_Keeps):
    """pandas.RangeIndex as an index of columns: 0, 1, 2 …"""


class _Index(_Keeps):
    """`_new_Index(class, fields)`."""

    def values(self) -> list[Any]:
        kind, fields = self.args
        if kind is _Range:
            names = range(fields["start"], fields["stop"], fields["step"])
            if len(names) > _MAX_COLUMNS:
                raise ValueError(f"it claims to have {len(names)} columns")
            return list(names)
        return list(fields["data"].values())


class _Block(_Keeps):
    """`_unpickle_block(values, placement, ndim)`: columns of one dtype, and which columns of the frame they are."""

    def columns(self, count: int) -> dict[int, Any]:
        values, placement = self.args[0].values(), self.args[1]
        places = list(range(count))[placement] if isinstance(placement, slice) else placement.values().tolist()
        if values.ndim == 1:
            values = values.reshape(1, -1)
        return dict(zip(places, values, strict=True))


class _Manager(_Keeps):
    """BlockManager(blocks, axes); before pandas 1.3 the same as a state under the key 0.14.1."""

    def parts(self) -> tuple[list[dict[int, Any]], list[Any]]:
        if self.args:
            blocks, axes = self.args[:2]
        else:
            old = self.state[3]["0.14.1"]
            axes = old["axes"]
            blocks = [_Block(block["values"], block["mgr_locs"]) for block in old["blocks"]]
        names = axes[0].values()
        return [block.columns(len(names)) for block in blocks], names


class _Frame(_Keeps):
    """DataFrame, whose state holds the BlockManager."""

    def table(self) -> dict[Any, list[Any]]:
        manager = self.state["_mgr"] if "_mgr" in self.state else self.state["_data"]
        blocks, names = manager.parts()
        by_place = {place: values for block in blocks for place, values in block.items()}
        return {name: by_place[place].tolist() for place, name in enumerate(names)}


class _Bytes(_Keeps):
    """Protocol 2 writes bytes as latin-1 text, `_codecs.encode(text, "latin1")`."""

    def __new__(cls, text: str, encoding: str) -> Any:
        if encoding != "latin1":
            raise ValueError(f"bytes encoded as {encoding}")
        return codecs.encode(text, "latin1")


class _EmptyStrings(_Keeps):
    """`__pyx_unpickle_NDArrayBacked(class, checksum, state or None)`."""

    def __new__(cls, _class: Any, _checksum: Any, state: Any) -> Any:
        strings = _Strings()
        strings.state = state
        return strings


class _EmptyArray(_Keeps):
    """`_reconstruct(class, shape, code)`; the content follows as state."""

    def __new__(cls, *_args: Any) -> Any:
        return _Array()


#: Classes only: a pickle can set attributes of a function that it names, but not of these.
_ALLOWED: dict[str, type] = {
    "builtins.slice": slice,
    "_codecs.encode": _Bytes,
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _Array,
    "pandas.Index": _Index,
    "pandas.DataFrame": _Frame,
    "pandas.RangeIndex": _Range,
    "pandas.StringDtype": _Keeps,
    "pandas.arrays.StringArray": _Strings,
    "pandas._libs.arrays.__pyx_unpickle_NDArrayBacked": _EmptyStrings,
    "pandas._libs.internals._unpickle_block": _Block,
    "pandas.core.arrays.string_.StringArray": _Strings,
    "pandas.core.arrays.string_.StringDtype": _Keeps,
    "pandas.core.frame.DataFrame": _Frame,
    "pandas.core.indexes.base.Index": _Index,
    "pandas.core.indexes.base._new_Index": _Index,
    "pandas.core.indexes.numeric.Int64Index": _Index,
    "pandas.core.indexes.range.RangeIndex": _Range,
    "pandas.core.internals.managers.BlockManager": _Manager,
    **{f"numpy.{core}.multiarray.scalar": _Scalar for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": _EmptyArray for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _Array for core in ("core", "_core")},
}


class _Guarded(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Called for every name in the pickle; the unpickler has no other way to reach anything."""
        module = "builtins" if module == "__builtin__" else module
        found = _ALLOWED.get(f"{module}.{name}")
        if found is None:
            raise _NotAllowed(f"{module}.{name}")
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise _NotAllowed(f"the external object {pid!r}")
