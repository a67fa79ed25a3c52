"""Parquet: one sample a row. Ids are checked and flattened column-wise, without a Python object a token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from harness.datasets.dataset import Dataset, DatasetError, Ids, edges
from harness.datasets.fields import FIELDS, IDS_FIELDS, LENGTH_FIELDS, TEXT_FIELDS, length_from, nothing_usable
from harness.datasets.rows import dataset_from_rows
from harness.datasets.text import Texts


def read_parquet(path: Path, texts: Texts, samples: int | None) -> Dataset:
    if not path.stat().st_size:
        raise DatasetError("is empty", path)
    try:
        present = list(pl.read_parquet_schema(path))
        frame = pl.read_parquet(path, columns=[name for name in present if name in FIELDS], n_rows=samples)
    except pl.exceptions.PolarsError as error:
        raise DatasetError(f"is not a whole parquet file: {(str(error).splitlines() or ['?'])[0]}", path) from error
    if not any(field in frame.columns for field in (*IDS_FIELDS, *TEXT_FIELDS)):
        raise nothing_usable(path, "", present)
    if not frame.height:
        raise DatasetError("is empty: it has no samples", path)
    field = next((name for name in IDS_FIELDS if name in frame.columns and not frame[name].null_count()), None)
    if field is None:  # text, or a mixture: row by row
        return dataset_from_rows(((f"row {n}", row) for n, row in enumerate(frame.iter_rows(named=True))), path, texts)
    expected = _expected(frame, path)
    ids = frame[field]
    if isinstance(ids.dtype, pl.Array):
        ids = ids.arr.to_list()
    if not (isinstance(ids.dtype, pl.List) and ids.explode().dtype.is_integer()):
        raise DatasetError(f"{field} has type {ids.dtype}, not lists of whole numbers (token ids)", path)
    lengths = ids.list.len()
    empty = lengths == 0
    if empty.any():
        raise DatasetError(f"{field} is empty; a prompt needs at least one token id", path, f"row {empty.arg_max()}")
    flat = ids.explode()
    offsets = edges(lengths.to_numpy())
    whole = flat.cast(pl.Int32, strict=False)  # null beyond 2^31 - 1
    wrong = (whole < 0).fill_null(True)
    if wrong.any():
        at = wrong.arg_max() or 0
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        raise DatasetError(
            f"{field}[{at - int(offsets[row])}] is {flat[at]}; token ids are whole numbers from 0 to 2^31 - 1", path, f"row {row}"
        )
    return Dataset(path.name, whole.to_numpy(), offsets, expected)


def _expected(frame: pl.DataFrame, path: Path) -> Ids:
    expected = np.zeros(frame.height, np.int32)
    for field in reversed(LENGTH_FIELDS):  # the first name wins where several speak
        if field not in frame.columns:
            continue
        column = frame[field]
        counts = column.list.len() if isinstance(column.dtype, pl.List) else column
        for row, value in enumerate(counts):
            length = length_from(value, field, path, f"row {row}")
            if value is not None and length:
                expected[row] = length
    return expected
