"""`start_run`: real runs in a temporary folder. What a test leaves running is killed; a process that survives that fails it.

`standing_run`: one for all tests of a module that only ask it, or are refused by it: to start one costs seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_kit import RunHandle, runs_in

GONE_WITHIN_S = 15.0


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., RunHandle]]:
    with runs_in(tmp_path / "runs", GONE_WITHIN_S) as start:
        yield start


@pytest.fixture(scope="module")
def standing_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunHandle]:
    """LoadGen Server, which measures for longer than the tests take. It stays as it is: whoever changes it starts another."""
    with runs_in(tmp_path_factory.mktemp("standing") / "runs", GONE_WITHIN_S) as start:
        run = start(load__duration_s=900, load__target_qps=40)
        run.wait_issuing()
        run.state()
        yield run
