"""The pool with real compiling children: a killed one and one that is too slow cost a job, and a kept result is had at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from kernels.compiling.job import gemm_job
from kernels.compiling.pool import Pool, triton_version
from kernels.errors import NotHere
from kernels.shapes import model
from kernels.tile import Tile

try:
    triton_version()
except NotHere as error:
    pytest.skip(str(error), allow_module_level=True)

QUICK = [gemm_job("gfx942", model("gpt-oss-120b"), Tile(16, 32, 64, warps=warps), "bf16", "down") for warps in (1, 2)]
#: A second or more each.
SLOW = [gemm_job("gfx942", model("gpt-oss-120b"), Tile(256, 256, 64, warps=8), "bf16", which) for which in ("gate_up", "down")]
SLOW += [gemm_job("gfx942", model("gpt-oss-120b"), Tile(256, 256, 64, warps=8), "fp16", which) for which in ("gate_up", "down")]


def _children() -> set[int]:
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            found |= {int(pid) for pid in (thread / "children").read_text().split()}
    return found


def test_a_kept_result_needs_no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = Pool(tmp_path).compile(QUICK[:1])
    started: list[str] = []
    monkeypatch.setattr(Pool, "_start", lambda pool, tritons: started.append(tritons))
    (again,) = Pool(tmp_path).compile(QUICK[:1])
    assert again.cached
    assert again.resources == first.resources
    assert first.problems == []
    assert started == []
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]  # triton's own cache is gone


def test_a_job_beyond_its_deadline_costs_only_itself(tmp_path: Path) -> None:
    before = _children()
    pool = Pool(tmp_path, workers=1, deadline_s=0.05)
    found = {each.job: each for each in pool.compile(SLOW[:1])}
    assert found[SLOW[0]].problems == ["compiler lost: no answer in 0.05 s"]
    assert _children() <= before


def test_a_killed_compiler_costs_only_its_job(tmp_path: Path) -> None:
    before = _children()
    killed = threading.Event()

    def kill_when_compiling() -> None:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline and not killed.is_set():
            # Triton's cache is written to while its first job is compiled.
            if any(path.is_dir() and any(path.iterdir()) for path in tmp_path.glob("triton-*")):
                for pid in _children() - before:
                    os.kill(pid, signal.SIGKILL)
                killed.set()
            time.sleep(0.01)

    killer = threading.Thread(target=kill_when_compiling)
    killer.start()
    found = {each.job: each for each in Pool(tmp_path, workers=1, deadline_s=120.0).compile([*SLOW, *QUICK])}
    killer.join(70)
    assert killed.is_set()
    lost = [job for job in found if found[job].error.startswith("compiler lost: the process ended by SIGKILL")]
    assert len(lost) == 1  # the first, or a later one where this machine was slow to kill
    assert lost[0] in SLOW
    assert all(found[job].resources is not None for job in SLOW if job != lost[0])
    assert [found[job].problems for job in QUICK] == [[], []]
    assert _children() <= before
