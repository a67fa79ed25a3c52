"""Tables of a report as CSV and Parquet: machine names, every digit, empty where nothing is known."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from harness.report.document import Data


def as_csv(data: Data) -> str:
    out = io.StringIO()
    columns = _columns(data)
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(row.get(name)) for name in columns} for row in data.rows)
    return out.getvalue()


def as_parquet(data: Data) -> bytes:
    import polars as pl

    out = io.BytesIO()
    series = {name: [_plain(row.get(name)) for row in data.rows] for name in _columns(data)}
    pl.DataFrame({name: _one_kind(values) for name, values in series.items()}, strict=False).write_parquet(out)
    return out.getvalue()


def _columns(data: Data) -> list[str]:
    return list(dict.fromkeys(name for row in data.rows for name in row))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | tuple | dict) else value


def _one_kind(values: list[Any]) -> list[Any]:
    """Text where a column mixes text and numbers (values of settings do)."""
    kinds = {type(value) for value in values if value is not None}
    return values if len(kinds) <= 1 or kinds <= {int, float} else [None if value is None else str(value) for value in values]


def _cell(value: Any) -> Any:
    """A name that a spreadsheet would take for a formula is quoted as it wants it; numbers stay numbers."""
    plain = _plain(value)
    return f"'{plain}" if isinstance(plain, str) and plain[:1] in ("=", "+", "-", "@", "\t", "\r") else plain
