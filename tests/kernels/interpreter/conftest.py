"""Tests of the kernels in triton's interpreter: in a process of their own, since triton decides when it defines a kernel whether
it interprets or compiles it.

`make test-kernels` runs them so. Elsewhere each is skipped by name, with the reason.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Set by `make test-kernels` where no environment could be made.
WHY_NOT = "PACELINE_VLLM_SKIP"


def _why_skipped() -> str:
    if os.environ.get(WHY_NOT):
        return os.environ[WHY_NOT]
    for needed in ("triton", "torch"):
        if importlib.util.find_spec(needed) is None:
            return f"{needed} is not installed in {sys.prefix}; `make test-kernels` runs these in an environment that has it"
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "TRITON_INTERPRET is not 1 in this process; `make test-kernels` runs these in one where it is"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not (why := _why_skipped()):
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session", autouse=True)
def one_core_each() -> None:
    """Small matrices on several threads take longer than on one."""
    if not _why_skipped():
        import torch

        torch.set_num_threads(1)
