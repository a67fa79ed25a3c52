"""Sample data for tests of acts: a feed that foretells latencies, refuses some slots and may answer slowly or as another
operator. `python tests/console/acting_helpers.py [explore|warm|barrier|taken|many]` opens the console on it, for pictures."""

from __future__ import annotations

import asyncio
import sys
from threading import Timer
from typing import Any

from console_helpers import HandClock
from textual.pilot import Pilot
from textual.widgets import Button, Static

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.screens.dialogs import Dialog
from console.themes import shipped_folder
from harness.spec import FleetSpec
from harness.wire.control import AttemptInfo, CommandReply
from harness.wire.inquiry import Answer, GetSla, LatencyDetail, Question, SlaDetail


class ForetellingFeed(ScriptedFeed):
    """What a head does beyond ScriptedFeed, as far as acts notice it."""

    def __init__(self, fleet: ScriptedFleet | None = None, *, hz: float = 0.0, operator: str = "kim@head") -> None:
        super().__init__(fleet, hz=hz)
        self.operator = operator
        self.questions: list[Question] = []
        self.refuse_slots: dict[str, str] = {}
        self.silent_slots: set[str] = set()
        self.turns: asyncio.Semaphore | None = None  # a command waits for one

    async def ask(self, question: Question) -> Answer | None:
        self.questions.append(question)
        if not isinstance(question, GetSla):
            return None
        ttft = LatencyDetail(3000.0, window_ms={"p99": 2690.0}, window_n=240_000, without_p99_ms=2610.0)
        tpot = LatencyDetail(80.0, window_ms={"p99": 36.5}, window_n=240_000, without_p99_ms=36.1)
        return SlaDetail(question.request_id, 1, 60.0, ttft, tpot)

    async def command(self, name: str, args: dict[str, Any] | None = None, reason: str = "") -> CommandReply:
        if self.turns is not None:
            await self.turns.acquire()
        slot = str((args or {}).get("slot", ""))
        if slot in self.silent_slots:
            return CommandReply("", False, "no answer from the head within 12 s; look at the events before repeating")
        self.refuse = self.refuse_slots.get(slot, "")
        return await super().command(name, args, reason)

    def hold_control(self, holder: str) -> None:
        """From the next snapshot on."""
        assert self._store is not None
        self._store.controller = holder


def warm_fleet() -> ScriptedFleet:
    """Between attempts: nothing runs, the fleet is kept warm for five minutes."""
    fleet = ScriptedFleet(phase="READY")
    fleet.spec = fleet.spec.model_copy(update={"fleet": FleetSpec(nodes=64, replicas_per_node=8, keep_warm_s=600.0)})
    fleet.earlier = [AttemptInfo(1, "performance", "Server", 4000.0, 1, verdict="VALID", state="ENDED")]
    fleet.verdict = "VALID"
    return fleet


def acting_fleet(kind: str) -> ScriptedFleet:
    if kind == "warm":
        return warm_fleet()
    if kind == "barrier":
        return ScriptedFleet(phase="WARMING", at_s=0.0)
    return ScriptedFleet(kind="explore" if kind == "explore" else "performance")


# --- driving it --------------------------------------------------------------------------------------------


def app_on(fleet: ScriptedFleet | str = "", *, operator: str = "kim@head") -> PacelineApp:
    feed = ForetellingFeed(acting_fleet(fleet) if isinstance(fleet, str) else fleet, operator=operator)
    return PacelineApp(feed=feed, fps=1, now_s=HandClock(), theme_folders=[shipped_folder()])


def feed_of(app: PacelineApp) -> ForetellingFeed:
    assert isinstance(app.session.feed, ForetellingFeed)
    return app.session.feed


def sent(app: PacelineApp) -> list[tuple[str, dict[str, Any]]]:
    return [(command.name, command.args) for command in feed_of(app).sent]


def facts(app: PacelineApp) -> dict[str, str]:
    labels = [str(label.render()) for label in app.screen.query(".fact-label") if label.parent is not None]
    texts = [str(text.render()) for text in app.screen.query(".fact-text")]
    return dict(zip(labels, texts, strict=False))


def complaint(app: PacelineApp) -> str:
    return str(app.screen.query_one("#complaint", Static).render())


def told(app: PacelineApp) -> str:
    return " | ".join(f"{note.title}: {note.message}" for note in app._notifications)


async def press(pilot: Pilot[Any], *keys: str) -> None:
    """And wait for what they open: a key typed ahead is handed to its dialog only once that is there."""
    await pilot.press(*keys)
    for _ in range(400):
        await pilot.pause()
        if pilot.app._early is None and not pilot.app._opening():  # type: ignore[attr-defined]
            break
        await asyncio.sleep(0.005)
    await pilot.pause()


async def opened(pilot: Pilot[Any]) -> None:
    """The dialog that an act asks with is there, focus and hint included; or the act asks nothing."""
    await pilot.pause()
    for _ in range(500):
        screen = pilot.app.screen
        if isinstance(screen, Dialog):
            if screen._open and screen.query_one("#dialog").border_subtitle:
                break
        elif not any(worker.group == "acts" and worker.is_running for worker in pilot.app.workers):
            break
        await asyncio.sleep(0.01)
    await pilot.pause()


async def say_yes(pilot: Pilot[Any]) -> None:
    pilot.app.screen.query_one("#yes", Button).press()
    await pilot.pause()
    await pilot.pause()


async def acts_over(pilot: Pilot[Any]) -> None:
    for _ in range(300):
        if not any(worker.group == "acts" and worker.is_running for worker in pilot.app.workers):
            return
        await pilot.pause(0.02)
    raise AssertionError("an act has not ended within 6 s")


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    shown = ForetellingFeed(acting_fleet(wanted), hz=4.0, operator="lee@laptop" if wanted == "taken" else "kim@head")
    app = PacelineApp(feed=shown)
    if wanted == "many":
        several = [f"node{node:03d}/gpu6" for node in range(2, 12)]
        Timer(2.5, lambda: app.call_from_thread(app.ask_and_act, "evict", several)).start()
    print(app.run())
