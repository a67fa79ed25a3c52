"""link.json in a run's local folder: whose link it is and how far it has come. What a person is told of it begins here.

state   following: the record is being copied, or was when the link ended · whole: all of it is here · gone: the run's
        objects are no longer on the cluster, or its head ended before the copy was whole
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Literal

import msgspec

from harness.records.files import write_atomically
from harness.records.layout import RunFolder

State = Literal["following", "whole", "gone"]


class LinkFile(msgspec.Struct, omit_defaults=True, frozen=True):
    state: State = "following"
    started_here: bool = True  # False: somebody else's run, found on the cluster
    why: str = ""
    cleaned: bool = False  # nothing of the run is left on the cluster


class LinkTaken(Exception):
    """Another process follows this run already; the text says which."""


_decoder = msgspec.json.Decoder(LinkFile)


def read_link(folder: RunFolder) -> LinkFile | None:
    """None: the folder has never been linked to a cluster, or the file cannot be read."""
    try:
        return _decoder.decode((folder.path / "link.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def write_link(folder: RunFolder, about: LinkFile) -> None:
    """Raises RecordError."""
    write_atomically(folder.path / "link.json", msgspec.json.encode(about))


@contextlib.contextmanager
def folder_held(folder: RunFolder) -> Iterator[None]:
    """The lock that a local head holds, held by the link instead. Raises LinkTaken."""
    handle = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(handle, 64, 0).decode(errors="replace").strip() or "unknown"
            raise LinkTaken(f"{folder.path} is held by process {owner}") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def is_held(folder: RunFolder) -> bool:
    """Whether a link lives, also one that has the record and is still removing the run's objects."""
    try:
        handle = os.open(folder.lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
