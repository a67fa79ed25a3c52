"""The right answers of a dataset, by place: of which subset a sample is, and what its answer should be.

From the same files that the prompts come from (parquet, MLPerf's pickle, JSON lines), their fields `dataset` and
`ground_truth`; polars is imported only for a parquet file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.datasets import DatasetError
from harness.datasets.jsonl import json_rows
from harness.datasets.pickles import read_columns
from harness.mlperf.accuracy.errors import ScoringError

#: In this order: the reference's own files have the first, older ones the second.
_TRUTHS: Final = ("ground_truth", "gt_output")
_SUBSETS: Final = ("dataset",)
KINDS: Final = {".parquet": "parquet", ".pkl": "mlperf-pickle", ".pickle": "mlperf-pickle", ".jsonl": "jsonl"}


@dataclass(frozen=True, slots=True)
class Truths:
    """One entry a sample, in the dataset's order. Subsets are lower case."""

    path: Path
    subsets: list[str]
    answers: list[str]

    def __len__(self) -> int:
        return len(self.answers)


def read_truths(path: Path, kind: str = "", samples: int | None = None) -> Truths:
    """`kind` as in dataset.kind; by the file's ending when empty. `samples`: only the first. Raises ScoringError."""
    kind = kind or KINDS.get(path.suffix.lower(), "")
    if kind not in KINDS.values():
        raise ScoringError(f"does not end in {', '.join(KINDS)}, which says how it is read", path)
    if not path.is_file():
        raise ScoringError("does not exist; --dataset names the file with the ground truths", path)
    read: dict[str, Callable[[Path], Mapping[Any, Sequence[Any]]]]
    read = {"parquet": _parquet, "mlperf-pickle": read_columns, "jsonl": _jsonl}
    try:
        columns = read[kind](path)
    except DatasetError as error:
        raise ScoringError(str(error)) from error
    except OSError as error:
        raise ScoringError(f"cannot be read: {error.strerror or error}", path) from error
    subsets, answers = _column(columns, _SUBSETS, path), _column(columns, _TRUTHS, path)
    count = len(answers) if samples is None else min(samples, len(answers))
    return Truths(
        path,
        [_told(value, "dataset", row, path).lower() for row, value in enumerate(subsets[:count])],
        [_told(value, "ground_truth", row, path) for row, value in enumerate(answers[:count])],
    )


def _column(columns: Mapping[Any, Sequence[Any]], names: tuple[str, ...], path: Path) -> Sequence[Any]:
    name = next((name for name in names if name in columns), None)
    if name is None:
        there = ", ".join(map(str, list(columns)[:12])) or "nothing"
        raise ScoringError(
            f"has no field {names[0]}, so nothing can be scored by it; it has {there}. --dataset names another file", path
        )
    return columns[name]


def _told(value: Any, field: str, row: int, path: Path) -> str:
    """Text as it stands, numbers in digits: a whole one without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None or value != value else str(value).strip()
    if not text:
        raise ScoringError(f"row {row}: {field} is empty; every sample needs its {field} to be scored", path)
    return text


def _parquet(path: Path) -> dict[Any, Sequence[Any]]:
    import polars as pl

    try:
        present = list(pl.read_parquet_schema(path))
        frame = pl.read_parquet(path, columns=[name for name in present if name in (*_SUBSETS, *_TRUTHS)])
    except pl.exceptions.PolarsError as error:
        raise ScoringError(f"is not a whole parquet file: {(str(error).splitlines() or ['?'])[0]}", path) from error
    found: dict[Any, Sequence[Any]] = {name: frame[name].to_list() for name in frame.columns}
    return found if found else dict.fromkeys(present, ())


def _jsonl(path: Path) -> dict[Any, Sequence[Any]]:
    """A field that some rows lack is None there."""
    columns: dict[Any, list[Any]] = {}
    wanted = (*_SUBSETS, *_TRUTHS)
    for _, row in json_rows(path, None):
        for name in columns or wanted:
            columns.setdefault(name, []).append(row.get(name))
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}
