"""`start_run`: real runs in a temporary folder. What a test leaves running is killed; a process that survives that fails it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_kit import RunHandle, running, small_spec

from harness.cluster.local import kill_run
from harness.records.layout import new_run_folder
from harness.spec import RunSpec


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., RunHandle]]:
    handles: list[RunHandle] = []

    def start(spec: RunSpec | None = None, **changes: Any) -> RunHandle:
        spec = spec or small_spec(**changes)
        folder = new_run_folder(tmp_path / "runs", spec.name)
        (folder.path / "spec.json").write_text(spec.model_dump_json())
        handle = RunHandle(folder)
        handles.append(handle)
        return handle.launch()

    yield start
    left: list[int] = []
    for handle in handles:
        kill_run(handle.folder, handle.head_pid)
        deadline = time.monotonic() + 5
        pids = handle.seen_pids | {handle.head_pid}
        while time.monotonic() < deadline and any(running(pid) for pid in pids):
            time.sleep(0.05)
        left += [pid for pid in pids if running(pid)]
    assert not left, f"processes left running: {left}"
