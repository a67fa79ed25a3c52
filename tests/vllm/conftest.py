"""Tests with a real vLLM on this machine's CPU: its tiny models, real runs, and that no engine process is left behind.

`make test-vllm` runs them in their own environment. Elsewhere each is skipped by name, with the reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))  # run_kit: real runs are handled as in the system tests

from descendants import adopt_orphans, descendants
from run_kit import RunHandle, runs_in

from harness.engines.tinymodel import write_tiny_model

HERE = Path(__file__).parent
#: Set by `make test-vllm` where no environment could be made.
WHY_NOT = "PACELINE_VLLM_SKIP"
GONE_WITHIN_S = 15.0


def _why_skipped() -> str:
    if os.environ.get(WHY_NOT):
        return os.environ[WHY_NOT]
    if importlib.util.find_spec("vllm") is None:
        return f"vllm is not installed in {sys.prefix}; `make test-vllm` runs these in an environment that has it"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = _why_skipped()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="module", autouse=True)
def environment_of_its_own() -> Iterator[None]:
    """vLLM, our engine and its kit set variables, which would make the replicas of later runs other than a user's.

    What has not changed is not set again: a process whose whole environment has moved cannot change its title, and tests
    know vLLM's processes by theirs.
    """
    before = dict(os.environ)
    yield
    changed = [name for name in os.environ.keys() | before.keys() if os.environ.get(name) != before.get(name)]
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    write_tiny_model(folder, "llama")
    return folder


@pytest.fixture(scope="session")
def tiny_gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-gpt-oss"
    write_tiny_model(folder, "gpt-oss")
    return folder


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., RunHandle]]:
    """As in the system tests: what a test leaves running is killed; a process that survives that fails it."""
    with runs_in(tmp_path / "runs", GONE_WITHIN_S) as start:
        yield start


@pytest.fixture(autouse=True)
def no_engine_left() -> Iterator[None]:
    """vLLM's processes have a title of their own (VLLM::EngineCore); those that a test leaves are killed and fail it."""
    adopt_orphans()
    before = _engine_processes()
    yield
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := _engine_processes() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"vLLM processes left running: {sorted(left)}"


def _engine_processes() -> set[int]:
    """Of ours only: those of others on this machine are none of our business."""
    return {pid for pid, title in descendants().items() if title.startswith("VLLM::")}
