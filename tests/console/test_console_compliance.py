"""Compliance tests where the console knows attempts: the next attempt, what a launch will take, and what an old journal adds."""

from __future__ import annotations

from pathlib import Path

import pytest
from acting_helpers import app_on, press, say_yes, sent
from console_helpers import settle

from console.feeds.chronicle import Chronicle
from console.screens.dialogs.fields import Choice
from console.screens.load_acts import attempt_args, kinds_for, load_problem
from console.store.fleet import FleetStore
from console.store.launching import plan_of
from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire.control import JournalEntry


def store_of(model: str | None, **load: object) -> FleetStore:
    store = FleetStore()
    store.spec = RunSpec.model_validate({"model": {"mlperf_name": model}, "load": load})
    return store


@pytest.mark.parametrize(
    ("model", "tests"),
    [
        ("deepseek-r1", ["TEST06"]),
        ("gpt-oss-120b-interactive", ["TEST07", "TEST09"]),
        (None, ["TEST06", "TEST07", "TEST09"]),
    ],
)
def test_a_model_is_offered_its_own_tests(model: str | None, tests: list[str]) -> None:
    store = store_of(model)
    assert [kind for kind, _ in kinds_for(store)] == ["performance", "explore", "accuracy", *tests]
    assert all(load_problem(store, kind, 10.0) == "" for kind, _ in kinds_for(store))


def test_a_run_of_a_test_may_go_on_with_another_kind() -> None:
    store = store_of("gpt-oss-120b", kind="compliance", test="TEST09")
    assert load_problem(store, "performance", 10.0) == ""
    assert "TEST06 is for deepseek-r1" in load_problem(store, "TEST06", 10.0)
    assert attempt_args("TEST09") == {"kind": "compliance", "test": "TEST09"}


async def test_the_dialog_sends_the_test_that_was_chosen() -> None:
    app = app_on("warm")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await press(pilot, "B")
        app.screen.query_one("#kind", Choice).focus()
        await press(pilot, *["down"] * 5)
        await say_yes(pilot)
        assert sent(app) == [("start_attempt", {"kind": "compliance", "test": "TEST09", "qps": 4000.0})]


def test_a_launch_says_how_long_a_test_takes_and_not_how_long_the_spec_would() -> None:
    plan = plan_of(
        RunSpec.model_validate({"load": {"kind": "compliance", "test": "TEST09", "target_qps": 100, "duration_s": 600}})
    )
    assert plan.queries == 6396
    assert plan.load_s == pytest.approx(63.96)
    assert "compliance TEST09 Server 100 QPS" in plan.short


def test_a_score_that_came_days_later_does_not_lengthen_a_replay(tmp_path: Path) -> None:
    entries = [
        JournalEntry(1, 100.0, "head", "run.phase", after="PLACING"),
        JournalEntry(2, 160.0, "head", "head.end"),
        JournalEntry(3, 900_000.0, "operator:kim", "attempt.scored", "1", after="VALID", attempt=1),
    ]
    told = Chronicle(entries, [], RunSpec(), RunFolder(tmp_path), synthetic=True)
    assert told.span == (100.0, 160.0)
