"""Tables of a screen as files: one JSON with all of them, one CSV each. Numbers keep their digits; unknown is null or empty."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_tables(tables: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path, stem: str) -> list[Path]:
    """The files written, JSON first. Raises OSError."""
    plain = {name: [{key: _known(value) for key, value in row.items()} for row in rows] for name, rows in tables.items()}
    files = [folder / f"{stem}.json"]
    files[0].write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    for name, rows in plain.items():
        if not rows:
            continue
        path = folder / f"{stem}-{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            columns = list(dict.fromkeys(key for row in rows for key in row))
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        files.append(path)
    return files


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
