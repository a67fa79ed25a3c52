"""JSON files that people copy, mount and edit: faults are told with file and line, and what is written is whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kernels.errors import KernelInputError

MAX_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class JsonFile:
    path: Path
    data: bytes
    table: dict[str, Any]

    @property
    def hash(self) -> str:
        return hash_of(self.data)

    def at(self, *keys: str) -> str:
        """`file:line: key …` of a value, for what is wrong with it; the line is that of the innermost key that is found."""
        text, place = self.data.decode(), 0
        for key in keys:
            found = re.compile(re.escape(json.dumps(key)) + r"\s*:").search(text, place)
            if found is None:
                break
            place = found.start()
        line = text.count("\n", 0, place) + 1
        return f"{self.path}:{line}" + "".join(f": {shown(key)}" for key in keys)


def shown(key: str) -> str:
    """On one line, and no longer than a line."""
    text = key if key.isprintable() else json.dumps(key)
    return text if len(text) <= 80 else text[:79] + "…"


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def read_object(path: Path) -> JsonFile:
    """One JSON object without repeated keys, NaN or infinities. Raises KernelInputError."""
    data = _bytes(path)
    try:
        table = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise KernelInputError(f"{path}:{error.lineno}: no JSON: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise KernelInputError(f"{path}:{line}: no JSON: byte {data[error.start]:#04x} is no UTF-8") from None
    except _Refused as error:
        place = data.find(str(error.key).encode())
        line = data.count(b"\n", 0, max(0, place)) + 1
        raise KernelInputError(f"{path}:{line}: {error}") from None
    except (ValueError, RecursionError):
        raise KernelInputError(f"{path}:1: no JSON that can be read: a number is too long or the nesting too deep") from None
    if not isinstance(table, dict):
        raise KernelInputError(f"{path}:1: must be a JSON object ({{…}}), is {_kind(table)}")
    return JsonFile(path, data, table)


def _bytes(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise KernelInputError(f"{path}: is no file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KernelInputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise KernelInputError(f"{path}: more than {MAX_BYTES:,d} bytes: no table of configurations")
    return data


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


class _Refused(Exception):
    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _Refused(json.dumps(twice), f"{shown(twice)} is there twice")
    return table


def _no_constant(name: str) -> NoReturn:
    raise _Refused(name, f"{name} is no number that JSON has")


def text_of(table: dict[str, Any]) -> bytes:
    """As vLLM writes its tables: indented by four."""
    return (json.dumps(table, indent=4, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_together(files: dict[Path, bytes]) -> None:
    """All of them, aside and then renamed in this order; an error leaves what was there before. Raises KernelInputError."""
    aside: dict[Path, Path] = {}
    replaced: list[tuple[Path, bytes | None]] = []
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside[path] = _write_aside(path, data)
        for path, made in aside.items():
            before = path.read_bytes() if path.is_file() else None
            os.replace(made, path)
            replaced.append((path, before))
    except OSError as error:
        for done, before in reversed(replaced):
            with contextlib.suppress(OSError):
                if before is None:
                    done.unlink()
                else:
                    os.replace(_write_aside(done, before), done)
        raise KernelInputError(f"{path}: cannot be written: {error.strerror}; name another folder") from error
    finally:
        for made in aside.values():
            made.unlink(missing_ok=True)


def _write_aside(path: Path, data: bytes) -> Path:
    handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    made = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        made.chmod(0o644)
    except OSError:
        made.unlink(missing_ok=True)
        raise
    return made
