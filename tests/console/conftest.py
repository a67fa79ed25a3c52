"""What console tests share: a store filled from sample data, and apps that only move when told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_helpers import AppMaker, HandClock, quiet

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.store.fleet import FleetStore
from console.themes import shipped_folder


@pytest.fixture(scope="session", autouse=True)
def a_slow_machine_changes_nothing() -> Iterator[None]:
    """`pilot.press` and `pilot.pause` wait for the app and not for a time, and what goes after seconds stays for a minute."""
    with pytest.MonkeyPatch.context() as patch:
        for where in ("textual.app", "textual.pilot"):
            patch.setattr(f"{where}.wait_for_idle", quiet)
        patch.setattr("console.typing_ahead.OPENS_WITHIN_S", 60.0)
        patch.setattr(PacelineApp, "NOTIFICATION_TIMEOUT", 60.0)
        yield


@pytest.fixture
def hand_clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(hand_clock: HandClock) -> FleetStore:
    filled = FleetStore(hand_clock)
    fleet = ScriptedFleet()
    filled.apply(fleet.run_state())
    filled.apply(fleet.snapshot())
    return filled


@pytest.fixture
def make_app(hand_clock: HandClock) -> AppMaker:
    def make(fleet: ScriptedFleet | None = None, **options: object) -> PacelineApp:
        feed = ScriptedFeed(fleet or ScriptedFleet(), hz=0)
        return PacelineApp(feed=feed, fps=1, now_s=hand_clock, theme_folders=[shipped_folder()], **options)  # type: ignore[arg-type]

    return make
