"""What console tests share: a store filled from sample data, and apps that only move when told."""

from __future__ import annotations

import pytest
from console_helpers import AppMaker, HandClock

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.store.fleet import FleetStore
from console.themes import shipped_folder


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
