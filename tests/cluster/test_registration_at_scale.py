"""128 replicas in 16 pods that start together: all are READY soon, and again under the next head without a reload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_in_pods import Fleet, fleet_of

from harness.wire.states import READY, REGISTERED

NODES = 16
#: A process for the worker and one for its replicas start in each pod: half a CPU second each, here on two cores for all.
STARTS_S = 60
#: One head has to start; its peers try to reach it at 0.1, 0.3, 0.7, 1.5, 3.1 and 6.3 s after they have lost it.
AGAIN_S = 60
#: From the first REGISTER to the last beat that makes READY, once a head listens to a fleet that is warm.
STORM_S = 5

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_of(NODES, tmp_path) as made:
        made.place()
        made.until_ready(STARTS_S)
        yield made


def test_a_fleet_that_starts_together_registers_and_a_restarted_head_finds_it_warm(fleet: Fleet) -> None:
    registered, ready = fleet.moves(REGISTERED), fleet.moves(READY)
    assert set(registered) == set(ready) == set(fleet.spec.slots())
    assert fleet.ready_after_s()[-1] < STARTS_S
    processes = {pod.uid: pod.pid for pod in fleet.worker_pods().values()}

    killed_unix = fleet.kill_head()
    fleet.until_ready(AGAIN_S, epoch=2)

    again = fleet.arrivals(killed_unix, epoch=2)
    assert again.ready_s[-1] - again.registered_s[0] < STORM_S, again
    assert {slot: entry.data for slot, entry in fleet.moves(READY, 2).items()} == {s: e.data for s, e in ready.items()}
    assert {pod.uid: pod.pid for pod in fleet.worker_pods().values()} == processes
    assert [entry for entry in fleet.journal() if entry.level == "error"] == []
    assert [slot.state for slot in fleet.state(within_s=AGAIN_S).slots] == [READY] * len(ready)
