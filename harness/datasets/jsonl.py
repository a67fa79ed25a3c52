"""JSON lines: one sample a line, an object with ids or text. Blank lines are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.datasets.dataset import Dataset, DatasetError
from harness.datasets.rows import dataset_from_rows
from harness.datasets.text import Texts

_decode = msgspec.json.Decoder().decode
_BOM = b"\xef\xbb\xbf"


def read_jsonl(path: Path, texts: Texts, samples: int | None) -> Dataset:
    return dataset_from_rows(json_rows(path, samples), path, texts)


def json_rows(path: Path, samples: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where ("line 7") and the object, of the first `samples` lines or all. Raises DatasetError."""
    found = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(_BOM) if number == 1 else line
            if not line.strip():
                continue
            where = f"line {number}"
            try:
                row = _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise DatasetError(f"is not JSON: {error}", path, where) from error
            if not isinstance(row, dict):
                raise DatasetError(f"is a {type(row).__name__}, not an object with fields", path, where)
            yield where, row
            found += 1
            if found == samples:
                return
