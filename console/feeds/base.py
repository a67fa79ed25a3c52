"""The seam between the console and whatever tells it about a run."""

from __future__ import annotations

from typing import Any, Protocol

from console.store.fleet import FleetStore
from harness.wire.control import CommandReply
from harness.wire.inquiry import Answer, Question


class Feed(Protocol):
    """Runs in the app's event loop; must never block it."""

    operator: str  # the name under which acts are journalled

    async def follow(self, store: FleetStore) -> None:
        """Fill the store until cancelled. Trouble is told through `store.disconnected`, never raised."""

    async def command(self, name: str, args: dict[str, Any] | None = None, reason: str = "") -> CommandReply:
        """Ask for an act and return the answer. No answer in time is a reply with ok = False that says so."""

    async def ask(self, question: Question) -> Answer | None:
        """More of the run than snapshots carry; None: nobody answered in time (the picture is stale then as well)."""

    async def close(self) -> None:
        """Let go of the source. The run does not notice."""


class NoFeed:
    """No run is open."""

    operator = ""

    async def follow(self, store: FleetStore) -> None:
        return

    async def command(self, name: str, args: dict[str, Any] | None = None, reason: str = "") -> CommandReply:
        return CommandReply("", False, "no run is open")

    async def ask(self, question: Question) -> Answer | None:
        return None

    async def close(self) -> None:
        return
