"""The fields of a dataset's rows, and what may stand in them: token ids, text, known output lengths.

MLPerf's files disagree about names, so each has several, tried in this order. A field that is null counts as absent.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from harness.datasets.dataset import DatasetError, Ids

IDS_FIELDS = ("input_tokens", "tok_input")
TEXT_FIELDS = ("text_input", "prompt", "text")
#: Output lengths as numbers, or output ids whose count is meant.
LENGTH_FIELDS = ("tok_ref_output_len", "tok_model_output_len", "output_tokens", "tok_ref_output")
FIELDS = (*IDS_FIELDS, *TEXT_FIELDS, *LENGTH_FIELDS)

MAX_ID = 2**31 - 1


def nothing_usable(path: Path, where: str, present: Iterable[str]) -> DatasetError:
    found = ", ".join(list(present)[:12]) or "nothing"
    return DatasetError(
        f"has neither token ids ({' or '.join(IDS_FIELDS)}) nor text ({', '.join(TEXT_FIELDS)}); it has {found}", path, where
    )


def ids_from(value: Any, field: str, path: Path, where: str) -> Ids:
    """A list (or array) of token ids as int32. Raises DatasetError naming the first that is none."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise DatasetError(f"{field} is {_shown(value)}, not a list of token ids", path, where)
    if not value:
        raise DatasetError(f"{field} is empty; a prompt needs at least one token id", path, where)
    if set(map(type, value)) != {int} or min(value) < 0 or max(value) > MAX_ID:
        at, bad = next((i, v) for i, v in enumerate(value) if type(v) is not int or not 0 <= v <= MAX_ID)
        raise DatasetError(f"{field}[{at}] is {_shown(bad)}; token ids are whole numbers from 0 to 2^31 - 1", path, where)
    return np.array(value, np.int32)


def length_from(value: Any, field: str, path: Path, where: str) -> int:
    """A number of output tokens, or the count of a list of them; 0 when the field says nothing (null or NaN)."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return 0
    if isinstance(value, (list, tuple, np.ndarray)):
        return len(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or value != value // 1 or not 0 <= value <= MAX_ID:
        raise DatasetError(f"{field} is {_shown(value)}; an output length is a whole number of tokens, or null", path, where)
    return int(value)


def _shown(value: Any) -> str:
    text = reprlib.repr(value)  # bounded in depth and width: a hostile pickle may nest a list beyond any memory
    return text if len(text) <= 60 else text[:57] + "…"
