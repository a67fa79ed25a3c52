"""One run that this console looks at: where it is heard from, what is known of it, and which part of it tables show.

The app has exactly one at a time; opening another run (or the replay of one) replaces it as a whole, so that nothing of
the last run can stay on a screen of the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from console.feeds.base import Feed, NoFeed
from console.feeds.head import HeadFeed
from console.store.fleet import FleetStore
from console.store.view import TableView

Kind = Literal["none", "head", "replay"]


@dataclass(slots=True)
class Session:
    feed: Feed
    store: FleetStore
    path: Path | None = None
    kind: Kind = "head"
    looks_only: bool = False
    view: TableView = field(default_factory=TableView)  # Live's table and heat map
    fleet_view: TableView = field(default_factory=TableView)

    @classmethod
    def nothing(cls, now_s: Callable[[], float] = time.monotonic) -> Session:
        """Before a run is chosen."""
        return cls(NoFeed(), FleetStore(now_s), kind="none")

    @classmethod
    def of_run(
        cls,
        path: Path,
        role: Literal["operator", "viewer"] = "operator",
        *,
        looks_only: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> Session:
        """Read-only is kept by the head as well: such a console holds the viewer's key."""
        feed = HeadFeed(path, "viewer" if looks_only else role)
        return cls(feed, FleetStore(now_s), path, looks_only=looks_only)
