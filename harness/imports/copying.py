"""Taking over files: out of a folder or an archive, regular files only, and nothing that points outside.

Links, devices, absolute names and names with `..` are left out and named. An archive that ends early gives what it has.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from harness.imports.errors import ImportProblem
from harness.imports.staging import Staging
from harness.imports.told import Progress, Told

_MOST_FILES: Final = 200_000
_MOST_DEEP: Final = 24
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, OverflowError, RuntimeError,
            NotImplementedError, IndexError, KeyError)  # fmt: skip


def is_archive(path: Path) -> bool:
    try:
        return path.is_file() and (zipfile.is_zipfile(path) or (_begins_as_tar(path) and tarfile.is_tarfile(path)))
    except (OSError, *_DAMAGED):
        return False


def _begins_as_tar(path: Path) -> bool:
    """Without it the reader of .xz looks for the first byte that is not 0, in a huge file for hours."""
    with path.open("rb") as file:
        start = file.read(512)
    return start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")) or start[257:262] == b"ustar"


def copy_file(source: Path, target: Path, progress: Progress) -> None:
    """Raises ImportProblem. An OSError that concerns the target goes through."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as open_files:
        try:
            reading: IO[bytes] = open_files.enter_context(source.open("rb"))
        except OSError as error:
            raise ImportProblem(f"{source}: cannot be read: {error.strerror or error}") from error
        _pour(reading, open_files.enter_context(target.open("wb")), f"copying {source.name}", progress, source.stat().st_size)


def copy_tree(source: Path, staging: Staging, told: Told, progress: Progress, wanted: Callable[[Path], bool]) -> int:
    """Files of `source` (of those whose path within it is `wanted`) into the staged run; how many."""
    files = [(at, size) for at, size in _regular_files(source, told) if wanted(at)]
    total = sum(size for _, size in files)
    staging.needs(total, str(source))
    done = 0
    for at, size in files:
        copy_file(source / at, staging.run.path / at, lambda what, n, _: progress(what, done + n, total))  # noqa: B023
        done += size
    return len(files)


def _regular_files(source: Path, told: Told) -> Iterator[tuple[Path, int]]:
    count = 0
    for folder, folders, names in os.walk(source):
        inside = Path(folder).relative_to(source)
        if len(inside.parts) > _MOST_DEEP:
            raise ImportProblem(f"{source}: folders lie more than {_MOST_DEEP} deep in each other; that is no run")
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            found = os.lstat(os.path.join(folder, name))
            if not stat.S_ISREG(found.st_mode):
                told.left_out.append(f"{inside / name}: {'a link' if stat.S_ISLNK(found.st_mode) else 'not a plain file'}")
                continue
            count += 1
            if count > _MOST_FILES:
                raise ImportProblem(f"{source}: more than {_MOST_FILES:,d} files; that is no run")
            yield inside / name, found.st_size


def unpack(archive: Path, staging: Staging, told: Told, progress: Progress) -> Path:
    """The folder with what the archive has. Raises ImportProblem."""
    staging.unpacked.mkdir(exist_ok=True)
    room = _Room(staging, archive, told, progress)
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, room)
        else:
            _untar(archive, room)
    except _DAMAGED as error:
        if not room.files:
            raise ImportProblem(f"{archive}: the archive cannot be read: {_first_line(error)}") from error
        told.lacks(f"{archive.name} is damaged: read up to its file {room.files:,d}, not what follows ({_first_line(error)})")
    if not room.files:
        raise ImportProblem(f"{archive}: the archive holds no files that can be taken over" + _listed(told.left_out))
    return staging.unpacked


class _Room:
    """Puts members where they belong and counts."""

    def __init__(self, staging: Staging, archive: Path, told: Told, progress: Progress) -> None:
        self.staging, self.archive, self.told, self.progress = staging, archive, told, progress
        self.files = self.bytes = 0

    def take(self, name: str, size: int, reading: Callable[[], IO[bytes] | None]) -> None:
        target = self._target(name)
        if target is None:
            self.told.left_out.append(f"{name[:200]!r}: leads out of the folder")
            return
        self.files += 1
        if self.files > _MOST_FILES:
            raise ImportProblem(f"{self.archive}: more than {_MOST_FILES:,d} files; that is no run")
        self.staging.needs(size, f"{self.archive.name}: {name[:200]}")
        source = reading()
        if source is None:
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            writing = target.open("xb")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            self.told.left_out.append(f"{name[:200]!r}: the archive has that name twice")
            return
        except OSError as error:
            self.told.left_out.append(f"{name[:200]!r}: {error.strerror}")
            return
        with source, writing:
            self.bytes += _pour(source, writing, f"unpacking {self.archive.name}", self.progress, 0, self.bytes, most=size)

    def _target(self, name: str) -> Path | None:
        parts = name.split("/")
        plain = [part for part in parts if part not in ("", ".")]
        if name.startswith("/") or not plain or ".." in plain or len(plain) > _MOST_DEEP or "\0" in name or "\\" in name:
            return None
        return self.staging.unpacked.joinpath(*plain)


def _unzip(archive: Path, room: _Room) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            if member.is_dir():
                continue
            mode = member.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                room.told.left_out.append(f"{member.filename[:200]!r}: {'a link' if stat.S_ISLNK(mode) else 'not a plain file'}")
                continue
            room.take(member.filename, member.file_size, lambda member=member: opened.open(member))  # type: ignore[misc]


def _untar(archive: Path, room: _Room) -> None:
    with tarfile.open(archive, "r:*") as opened:
        for member in opened:
            if member.isdir():
                continue
            if not member.isreg():
                linked = member.issym() or member.islnk()
                room.told.left_out.append(f"{member.name[:200]!r}: {'a link' if linked else 'not a plain file'}")
                continue
            room.take(member.name, member.size, lambda member=member: opened.extractfile(member))  # type: ignore[misc]


def _pour(
    source: IO[bytes], target: IO[bytes], what: str, progress: Progress, total: int, before: int = 0, most: int | None = None
) -> int:
    done = 0
    while block := source.read(1 << 20):
        done += len(block)
        if most is not None and done > most:
            raise ValueError("a file is longer than the archive says")
        target.write(block)
        progress(what, before + done, total)
    return done


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _listed(left_out: list[str]) -> str:
    return f" (left out: {'; '.join(left_out[:5])})" if left_out else ""
