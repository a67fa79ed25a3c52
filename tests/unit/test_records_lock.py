"""Whose a run's folder is, asked by many while one takes it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from harness.records.layout import RunFolder
from harness.records.lock import FolderTaken, folder_lock, is_held


def test_a_folder_has_one_holder_who_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not is_held(folder)
    with folder_lock(folder, "link"):
        assert is_held(folder)
        with pytest.raises(FolderTaken, match=f"held by the link with process {os.getpid()}"), folder_lock(folder, "link"):
            pass
    assert not is_held(folder)


def test_whoever_only_asks_does_not_keep_a_holder_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`is_held` locks, too, for a moment; here one that is slow."""
    folder = RunFolder(tmp_path)
    handle = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(handle, fcntl.LOCK_SH)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            os.close(handle)

    monkeypatch.setattr(time, "sleep", pause)
    with folder_lock(folder):
        assert len(pauses) == 2
