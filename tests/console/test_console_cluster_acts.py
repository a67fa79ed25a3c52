"""Evicting on a cluster: the pod goes with all its replicas, the budget and the delay are told, and its node can be cordoned."""

from __future__ import annotations

import pytest
from acting_helpers import acts_over, app_on, complaint, facts, feed_of, opened, press, say_yes, sent, told
from cluster_helpers import SLOW_SLOT, cluster_of, clustered
from console_helpers import settle

from console.screens.dialogs import Dialog
from console.screens.dialogs.fields import Tick
from console.widgets import pods
from harness.wire.clusterview import BudgetRow
from harness.wire.states import REPLICA_CODE


async def test_the_dialog_says_that_the_pod_goes_with_all_its_replicas_and_what_that_costs() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "e")
        shown = facts(app)
        assert str(app.screen.query_one("#dialog").border_title) == "Evict the pod of node015?"
        assert shown["pod"] == "▲ sample-worker-15-x001 on mi355x-016 goes, with its 8 replicas"
        assert shown["budget"] == "lets 1 go now: 63 healthy, 62 needed"
        assert shown["after it"] == "a successor starts about 40 s after it has ended: third eviction of this index"
        assert shown["quorum"].startswith("494 would be READY")
        assert shown["limit"].startswith("0 evictions in the last 10 min")
        assert shown["acts on"].endswith("of node015/gpu3, and no other")
        assert feed_of(app).questions[-1].without == [f"node015/gpu{gpu}" for gpu in range(8)]  # type: ignore[union-attr]


async def test_cordoning_is_offered_sent_when_ticked_and_off_by_default() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "e")
        tick = app.screen.query_one("#cordon", Tick)
        assert not tick.disabled
        assert not tick.on
        assert "cordon mi355x-016, the replacement lands elsewhere" in str(tick.render())
        tick.focus()
        await press(pilot, "space")
        await say_yes(pilot)
        ((name, args),) = sent(app)
        assert (name, args["slot"], args["cordon"]) == ("evict", SLOW_SLOT, True)
        await settle(pilot, app)
        feed_of(app).push()
        assert pods.replacement(app.store, "node015").startswith("replacement in ~4")
        host = app.store.cluster.host("node015")
        assert host is not None
        assert host.cordoned
        app.ask_and_act("evict", ["node005/gpu0"])
        await opened(pilot)
        await say_yes(pilot)
        assert "cordon" not in sent(app)[-1][1]


@pytest.mark.parametrize(
    ("denied", "cordoned", "why"),
    [
        ({"cordon": "no right to patch nodes"}, False, "not possible, no right to patch nodes"),
        ({}, True, "not possible, it is cordoned already"),
    ],
)
async def test_cordoning_that_cannot_be_done_says_why(denied: dict[str, str], cordoned: bool, why: str) -> None:
    fleet = clustered()
    cluster_of(fleet).denied = denied
    cluster_of(fleet).change_host(15, cordoned=cordoned)
    app = app_on(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "e")
        tick = app.screen.query_one("#cordon", Tick)
        assert tick.disabled
        assert why in str(tick.render())
        await say_yes(pilot)
        assert "cordon" not in sent(app)[0][1]


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (BudgetRow("w", 0, 62, 62, 64), "▲ lets none go now: 62 healthy, 62 needed: the head tries for a while"),
        (
            BudgetRow("w", problem="maxUnavailable does not work for pods of a Job"),
            "▲ lets none go: maxUnavailable does not work",
        ),
        (None, "no disruption budget is known"),
    ],
)
async def test_a_budget_that_lets_none_go_says_why(budget: BudgetRow | None, says: str) -> None:
    fleet = clustered()
    cluster_of(fleet).budget = budget  # type: ignore[assignment]
    app = app_on(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "e")
        assert facts(app)["budget"].startswith(says)
        assert complaint(app) == ""


async def test_marked_replicas_of_one_pod_are_one_eviction() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("evict", ["node005/gpu1", "node005/gpu2", "node006/gpu0"])
        await opened(pilot)
        shown = facts(app)
        assert shown["pods"].startswith("▲ 2 pods go, with their 16 replicas: sample-worker-5-")
        assert shown["limit"].endswith("ok")
        tick = str(app.screen.query_one("#cordon", Tick).render())
        assert "cordon mi355x-006, mi355x-007, the replacements land elsewhere" in tick
        await say_yes(pilot)
        await acts_over(pilot)
        assert [args["slot"] for _, args in sent(app)] == ["node005/gpu1", "node006/gpu0"]


@pytest.mark.parametrize(
    ("slot", "denied", "says"),
    [
        ("node012/gpu1", {}, "node012 has no pod now · replacement in ~32 s"),
        (
            SLOW_SLOT,
            {"evict": "no right to create pods/eviction"},
            "pods cannot be evicted here: no right to create pods/eviction",
        ),
    ],
)
async def test_what_cannot_be_evicted_is_told_without_a_question(slot: str, denied: dict[str, str], says: str) -> None:
    fleet = clustered()
    cluster_of(fleet).denied = denied
    app = app_on(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("evict", [slot])
        await opened(pilot)
        assert not isinstance(app.screen, Dialog)
        assert says in told(app)


async def test_a_pod_whose_replicas_are_all_lost_can_still_be_evicted() -> None:
    fleet = clustered()
    fleet.state[40:48] = REPLICA_CODE["LOST"]
    app = app_on(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("evict", ["node005/gpu2"])
        await opened(pilot)
        assert facts(app)["pod"].endswith("goes, with its 1 replica")
        await say_yes(pilot)
        assert sent(app)[0][1]["slot"] == "node005/gpu2"


async def test_draining_and_recycling_stay_with_one_replica() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "r")
        assert "pod" not in facts(app)
        assert not app.screen.query("#cordon")
        await say_yes(pilot)
        assert [args["slot"] for _, args in sent(app)] == [SLOW_SLOT]
