"""`start_run`: real runs in a temporary folder. What a test leaves running is killed; a process that survives that fails it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_kit import RunHandle, runs_in

GONE_WITHIN_S = 5.0


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., RunHandle]]:
    with runs_in(tmp_path / "runs", GONE_WITHIN_S) as start:
        yield start
