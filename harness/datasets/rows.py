"""Rows to a dataset: picks each row's ids (or its text, encoded together at the end) and its known output length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.datasets.dataset import Dataset, DatasetError, Ids
from harness.datasets.fields import IDS_FIELDS, LENGTH_FIELDS, TEXT_FIELDS, ids_from, length_from, nothing_usable
from harness.datasets.text import Texts

_PENDING: Ids = np.zeros(0, np.int32)


def dataset_from_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], path: Path, texts: Texts) -> Dataset:
    """`rows`: where ("line 7") and the row's fields. Raises DatasetError."""
    prompts: list[Ids] = []
    expected: list[int] = []
    to_encode: list[tuple[int, str, str, str]] = []  # position, text, field, where
    for where, row in rows:
        field = _first(row, IDS_FIELDS)
        if field:
            prompts.append(ids_from(row[field], field, path, where))
        else:
            field = _first(row, TEXT_FIELDS)
            if not field:
                raise nothing_usable(path, where, row)
            if not isinstance(row[field], str):
                raise DatasetError(f"{field} is a {type(row[field]).__name__}, not text", path, where)
            texts.require(field, path, where)
            to_encode.append((len(prompts), row[field], field, where))
            prompts.append(_PENDING)
        length = _first(row, LENGTH_FIELDS)
        expected.append(length_from(row[length], length, path, where) if length else 0)
    if not prompts:
        raise DatasetError("is empty: it has no samples", path)
    for (position, _, field, where), ids in zip(to_encode, texts.encode([text for _, text, _, _ in to_encode]), strict=True):
        if not len(ids):
            raise DatasetError(f"{field} encodes to no token at all; a prompt needs at least one", path, where)
        prompts[position] = ids
    return Dataset.of(path.name, prompts, expected)


def _first(row: Mapping[str, Any], fields: tuple[str, ...]) -> str | None:
    return next((field for field in fields if row.get(field) is not None), None)
