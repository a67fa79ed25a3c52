"""Tables of a screen as files: one JSON with all of them, one CSV each. Numbers keep their digits; unknown is null or empty."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_TRIES: Final = 1000


def free_stem(folder: Path, stem: str, suffix: str) -> str:
    """`stem`, or `stem-2`, … : a name of which no file is there yet. Reserves it by making that file. Raises OSError."""
    for number in range(1, _TRIES):
        name = stem if number == 1 else f"{stem}-{number}"
        try:
            (folder / f"{name}{suffix}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return name
    raise FileExistsError(f"{folder} has {_TRIES} files named {stem} already")


def write_tables(tables: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path, stem: str) -> list[Path]:
    """The files written, JSON first; nothing is written over. Raises OSError, after removing what was begun."""
    stem = free_stem(folder, stem, ".json")
    plain = {name: [{key: _known(value) for key, value in row.items()} for row in rows] for name, rows in tables.items()}
    files = [folder / f"{stem}.json"]
    try:
        files[0].write_text(json.dumps(plain, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        for name, rows in plain.items():
            if rows:
                files.append(folder / f"{stem}-{name}.csv")
                _write_csv(files[-1], rows)
    except OSError:
        for file in files:
            file.unlink(missing_ok=True)
        raise
    return files


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """Lists and tables inside a cell as JSON: a spreadsheet shows them, a program reads them back."""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _known(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_known(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
