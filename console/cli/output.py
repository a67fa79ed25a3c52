"""Results go to stdout, everything else to stderr: `--json` on stdout stays one object whatever happens beside it."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from console.typed import typed as typed

#: What a terminal obeys (but for bold, in which pages have their titles), what turns the direction of its text, and bytes of a
#: path that are no UTF-8. Records, labels and folders may be anybody's.
_OBEYED: Final = re.compile("(?!\x1b\\[[01]m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def open_streams() -> None:
    """stdout and stderr take any text: what their encoding lacks is written as an escape, and where they are closed nothing
    is written. All of it: without a buffer (PYTHONUNBUFFERED) Python drops the rest of a write that a stop (Ctrl-Z) cut short."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if isinstance(stream.buffer, io.RawIOBase):
                whole = io.BufferedWriter(io.FileIO(stream.fileno(), "w", closefd=False))
                setattr(sys, name, io.TextIOWrapper(whole, stream.encoding, "backslashreplace", line_buffering=True))


def harmless(text: str) -> str:
    """Control characters as they are written in programs, lines as they are."""
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


def say(text: str = "") -> None:
    sys.stdout.write(harmless(text) + "\n")


def note(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, and the exit code must still tell
        sys.stderr.write(harmless(text) + "\n")
        sys.stderr.flush()


def complain(text: str) -> None:
    note(f"paceline: {text}")


def say_json(value: Any) -> None:
    """One JSON value. NaN (too few samples for that figure) becomes null: JSON has no NaN."""
    sys.stdout.write(json_text(value, indent=2 if sys.stdout.isatty() else None) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    text = json.dumps(clean(value), indent=indent, ensure_ascii=False)
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plural(n: int, thing: str) -> str:
    """`1 node`, `2,048 nodes`."""
    return f"{n:,d} {thing}" if n == 1 else f"{n:,d} {thing}s"


def clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Columns as wide as needed, two spaces between; `right` are the numbers of the right-aligned ones."""
    cells = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    to_right = set(right)
    lines = [
        "  ".join(
            cell.rjust(width) if column in to_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def number(value: float | int | None, digits: int = 1) -> str:
    """`1,234.5`; `-` where nothing is known."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    return f"{value:,d}" if isinstance(value, int) else f"{value:,.{digits}f}"


def clock(seconds: float | None) -> str:
    """`1:23` or `2:03:04`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def when(unix: float | None) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix)) if unix else "-"
    except (OverflowError, ValueError, OSError):  # a damaged record must not hide the others
        return "?"
