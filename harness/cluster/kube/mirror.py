"""A copy of a remote head's record, kept in a folder of this machine while the run goes on.

The local files are the whole memory of what has been copied, so a copy that was killed goes on where it was:

- chunks of samples, timeline and gpus never change: they are fetched whole, beside their place, and renamed;
- logs, the journal and what was seen of the cluster only grow: what is missing is appended, after the last bytes that are here
  have been compared with the head's (another file may have taken the name since);
- all else is replaced in one go by the head, and so it is here. Size and time of writing say whether it is current.

Never touched: keys, lock, head.json, spec.json and exports, which are this machine's own.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.records.layout import RunFolder
from harness.wire import inquiry

OWN = frozenset({"keys", "lock", "reserve", "workers.json", "head.json", "spec.json", "link.json", "labels.json", "exports"})
LINK_LOG = "logs/link.log"
_CHUNK = re.compile(r"^(samples|timeline|gpus)/[^/]+\.parquet$")
_GROWING = re.compile(r"^((?:journal|cluster)\.jsonl|logs/.+|attempts/.+\.(txt|log|jsonl)|attempts/.+/mlperf_log_[^/]+)$")
_COMPARED = 4096

Ask = Callable[[inquiry.Question], inquiry.Answer]


class CannotCopy(Exception):
    """The head's answer cannot be used; the text says why. Trying again may help."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`left`: files of the record that are not here as they are there. `whole`: nothing is missing and nothing will come."""

    ended: bool
    copied_bytes: int
    left: int
    left_bytes: int

    @property
    def whole(self) -> bool:
        return self.ended and not self.left


class Mirror:
    def __init__(self, folder: RunFolder, ask: Ask) -> None:
        self._folder = folder
        self._ask = ask

    def step(self, budget_bytes: int) -> Progress:
        """Copies until everything is current or about so many bytes have come; a chunk that was begun is finished.

        Raises CannotCopy, OSError (of this machine's disk) and whatever asking raises.
        """
        files = self._files()
        copied, behind = 0, []
        for about in sorted(files.files, key=_urgency):
            if not _wanted(about.path) or self._is_current(about):
                continue
            if copied >= budget_bytes:
                behind.append(about)
                continue
            came, current = self._copy(about, budget_bytes - copied)
            copied += came
            if not current:
                behind.append(about)
        return Progress(files.ended, copied, len(behind), sum(self._missing_bytes(about) for about in behind))

    def _files(self) -> inquiry.Files:
        answer = self._ask(inquiry.GetFiles(uuid.uuid4().hex))
        if not isinstance(answer, inquiry.Files):
            raise CannotCopy(f"the head answered {type(answer).__name__} when asked for its files")
        if answer.problem:
            raise CannotCopy(answer.problem)
        return answer

    def _is_current(self, about: inquiry.FileInfo) -> bool:
        try:
            here = os.stat(self._path(about))
        except OSError:
            return False
        return here.st_size == about.size and (bool(_CHUNK.match(about.path)) or here.st_mtime_ns == about.written_ns)

    def _missing_bytes(self, about: inquiry.FileInfo) -> int:
        if not _GROWING.match(about.path):
            return about.size
        try:
            return max(0, about.size - os.path.getsize(self._path(about)))
        except OSError:
            return about.size

    def _path(self, about: inquiry.FileInfo) -> Path:
        return self._folder.path / about.path

    def _copy(self, about: inquiry.FileInfo, budget_bytes: int) -> tuple[int, bool]:
        """Bytes that came, and whether the file is now as it was listed or newer."""
        path = self._path(about)
        path.parent.mkdir(parents=True, exist_ok=True)
        if _GROWING.match(about.path) and path.is_file():
            appended = self._append(about, path, budget_bytes)
            if appended is not None:
                return appended
        if _GROWING.match(about.path):
            path.unlink(missing_ok=True)
            path.touch(0o644)
            return self._append(about, path, budget_bytes) or (0, False)
        return self._replace(about, path)

    def _append(self, about: inquiry.FileInfo, path: Path, budget_bytes: int) -> tuple[int, bool] | None:
        """None: what is here is not the beginning of what is there."""
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size > about.size:
                return None
            same = min(size, _COMPARED)
            file.seek(size - same)
            known = file.read(same)
            copied = 0
            while True:
                part = self._part(about.path, size - len(known), len(known) + inquiry.PART_BYTES // 2)
                if part is None:
                    return copied, False
                if part.data[: len(known)] != known:
                    return None if not copied else (copied, False)
                news = part.data[len(known) :]
                file.seek(size)
                file.write(news)
                file.flush()
                size, copied, known = size + len(news), copied + len(news), news[-_COMPARED:] or known
                if size >= part.size or not news:
                    os.utime(file.fileno(), ns=(part.written_ns, part.written_ns))
                    return copied, size >= about.size
                if copied >= budget_bytes:
                    return copied, False

    def _replace(self, about: inquiry.FileInfo, path: Path) -> tuple[int, bool]:
        aside = path.with_name(f".{path.name}.tmp")
        try:
            with aside.open("wb") as file:
                first = part = self._part(about.path, 0, inquiry.PART_BYTES)
                while part is not None and first is not None:
                    if (part.size, part.written_ns) != (first.size, first.written_ns):
                        return file.tell(), False  # replaced meanwhile: the next step has the new one
                    file.write(part.data)
                    if file.tell() >= part.size:
                        break
                    if not part.data:
                        return file.tell(), False
                    part = self._part(about.path, file.tell(), inquiry.PART_BYTES)
                if part is None or first is None:
                    return file.tell(), False
                file.flush()
                os.fsync(file.fileno())
                os.utime(file.fileno(), ns=(part.written_ns, part.written_ns))
                copied = file.tell()
            os.replace(aside, path)
            return copied, True
        finally:
            aside.unlink(missing_ok=True)

    def _part(self, path: str, offset: int, length: int) -> inquiry.Part | None:
        """None: the head has no such file any more."""
        answer = self._ask(inquiry.GetPart(uuid.uuid4().hex, path, offset, min(length, inquiry.PART_BYTES)))
        if not isinstance(answer, inquiry.Part):
            raise CannotCopy(f"the head answered {type(answer).__name__} when asked for a part of {path}")
        return None if answer.problem else answer


def _wanted(path: str) -> bool:
    """A path that stays within the folder and is the record's. The head is trusted with its run, not with this machine."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or "\0" in path or parts[0] in OWN or path == LINK_LOG:
        return False
    return all(part not in ("..", ".") and not part.startswith(".") and not part.endswith(".tmp") for part in parts)


def _urgency(about: inquiry.FileInfo) -> tuple[int, str]:
    """What the run is doing first, then what was measured, then what was said."""
    tops = ("run.json", "journal.jsonl", "cluster.jsonl", "attempts", "gpus", "timeline", "samples")
    top = about.path.split("/", 1)[0]
    return (tops.index(top) if top in tops else len(tops), about.path)


def size_in_words(files: Iterable[inquiry.FileInfo]) -> str:
    return f"{sum(about.size for about in files) / 1e6:,.1f} MB"
