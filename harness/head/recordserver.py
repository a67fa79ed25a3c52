"""The run's record for whoever keeps a copy of it: which files there are, and their bytes.

Only what a copy needs is served: neither keys nor what belongs to the head's own machine. Reads block: call from a thread.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.records.layout import RunFolder
from harness.wire import inquiry

#: Names at the top of a run's folder that stay where they are.
PRIVATE = frozenset({"keys", "lock", "reserve", "workers.json", "head.json"})


def files_of(folder: RunFolder) -> list[inquiry.FileInfo]:
    """Sorted by path; what is being written aside (a leading dot or .tmp) is left out."""
    found = []
    for at, names, files in os.walk(folder.path):
        inside = Path(at).relative_to(folder.path)
        if inside == Path():
            names[:] = [name for name in names if name not in PRIVATE]
            files = [name for name in files if name not in PRIVATE]
        names.sort()
        for name in sorted(files):
            if name.startswith(".") or name.endswith(".tmp"):
                continue
            try:
                about = os.lstat(os.path.join(at, name))
            except OSError:
                continue  # replaced this moment
            if os.path.islink(os.path.join(at, name)):
                continue
            found.append(inquiry.FileInfo(str(inside / name), about.st_size, about.st_mtime_ns))
    return found


def _inside(folder: RunFolder, asked: str) -> Path | None:
    """The file meant, if it is one of the record: a path that goes up, round or through a link is none."""
    parts = asked.split("/")
    if parts[0] in PRIVATE or any(part in ("", ".", "..") for part in parts):
        return None
    path = folder.path.joinpath(*parts)
    try:
        real = path.resolve(strict=True)
    except OSError:
        return None
    return path if real == folder.path.resolve().joinpath(*parts) and path.is_file() else None


def part_of(folder: RunFolder, question: inquiry.GetPart) -> inquiry.Part:
    """The bytes asked for; a problem in words for a path that is not the record's, or is gone."""
    answer = inquiry.Part(question.request_id, question.path, question.offset)
    path = _inside(folder, question.path)
    if path is None:
        answer.problem = f"{question.path[:200]!r} is no file of this record"
        return answer
    if question.offset < 0:
        answer.problem = f"offset {question.offset} is before the file begins"
        return answer
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            file.seek(question.offset)
            answer.data = file.read(max(0, min(question.length, inquiry.PART_BYTES)))
    except OSError as error:
        answer.problem = f"{question.path} cannot be read: {error.strerror or error}"
        return answer
    answer.size, answer.written_ns = about.st_size, about.st_mtime_ns
    return answer
