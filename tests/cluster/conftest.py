"""A cluster whose pods are processes, and a laptop with an operator's rights: what whole runs begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import ClusterKit, cluster_of
from laptop_kit import Laptop, laptop_of


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(5, tmp_path, processes=True, backoff_s=0.5) as made:
        yield made


@pytest.fixture
def laptop(kit: ClusterKit, tmp_path: Path) -> Iterator[Laptop]:
    with laptop_of(kit, tmp_path) as made:
        yield made
