"""A right that the head lacks is asked for again: once an admin has given it, the head has it without a restart."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of
from head_cluster_kit import head_side, may_see_nodes, place_run, spec_of

Json = dict[str, Any]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(3, tmp_path, backoff_s=1.0) as made:
        yield made


async def test_nodes_are_seen_and_may_be_cordoned_once_that_is_allowed(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: set(side.view.denied) == {"hosts", "cordon"}, "both are denied")
        may_see_nodes(kit)
        await side.until(lambda: not side.view.denied, "neither is")
        await side.until(lambda: side.ready() == 2 and len(side.view.hosts) >= 2 and side.view.budget, "nodes are shown")
        host = side.row(0).host
        assert side.cluster.removal(0).why_no_cordon == ""
        assert f"node {host} is cordoned" in await side.cluster.evict(0, cordon=True, why="bad memory")


async def test_an_eviction_that_was_forbidden_is_possible_once_it_is_allowed(kit: ClusterKit, tmp_path: Path) -> None:
    role = kit.get("Role", "paceline-head")
    assert role is not None
    as_installed = copy.deepcopy(role["rules"])
    wanted = [rule for rule in as_installed if "pods/eviction" not in rule["resources"]]

    def give(rules: list[Json]) -> None:
        kit.update("Role", "paceline-head", lambda role: role.update(rules=rules))

    give(wanted)
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2 and "pods/eviction" in side.cluster.removal(1).why_not, "it is denied")
        give(as_installed)
        await side.until(lambda: side.cluster.removal(1).why_not == "", "it is allowed")
        assert "evicted" in await side.cluster.evict(1, cordon=False, why="slow")
