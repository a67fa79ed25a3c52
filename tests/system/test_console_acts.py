"""Every act by its keys, from the real console to a real head, and then looked up in the head's journal and state."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from run_kit import RunHandle
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Button, Input

from console.app import PacelineApp
from console.feeds.head import HeadFeed
from console.screens.base import PaintedScreen
from console.screens.dialogs import Dialog
from harness.wire.control import JournalEntry

Start = Callable[..., RunHandle]

SMALL_AND_LASTING = {
    "load__kind": "explore",
    "load__duration_s": 0,
    "load__target_qps": 20,
    "fleet__replicas_per_node": 3,
    "fleet__keep_warm_s": 60,
    "stragglers__max_acts_per_10min": 8,
}


class Console:
    """One console on one run, driven by keys."""

    def __init__(self, app: PacelineApp, pilot: Pilot[Any], run: RunHandle) -> None:
        self.app, self.pilot, self.run = app, pilot, run
        self.toasts: list[str] = []  # all of them: on screen the next one replaces the last, and each goes after a few seconds
        notify = app.notify

        def note(message: str, *, title: str = "", **more: Any) -> None:
            self.toasts.append(f"{title}: {message}")
            notify(message, title=title, **more)

        app.notify = note  # type: ignore[method-assign]

    @property
    def screen(self) -> Screen[Any]:
        return self.app.screen

    @property
    def told(self) -> str:
        return " | ".join(self.toasts)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, what: str, true: Callable[[], Any], within_s: float = 45.0) -> Any:
        deadline = time.monotonic() + within_s
        while not (found := true()):
            assert time.monotonic() < deadline, (
                f"not within {within_s:g} s: {what}; told: {self.told}\n{self.run.story()[-3000:]}"
            )
            await asyncio.sleep(0.05)
        return found

    async def journalled(self, what: str, subject: str = "", after: str = "", nth: int = 1) -> JournalEntry:
        def found() -> JournalEntry | None:
            entries = [entry for entry in self.run.journal(what, subject) if not after or entry.after == after]
            return entries[nth - 1] if len(entries) >= nth else None

        entry = await self.until(f"journal {what} {subject} {after}", found)
        assert isinstance(entry, JournalEntry)
        return entry

    async def asked(self, title: str) -> Dialog:
        """The dialog of that title is open, with Cancel or a field focused: never the act."""
        await self.until(
            f"a question: {title}", lambda: title in str(getattr(self.dialog, "_title", "")) and self.dialog.is_mounted
        )
        await self.until("the focus", lambda: self.app.focused is not None and self.app.focused.screen is self.screen)
        await self.pilot.pause()
        assert self.app.focused is not self.screen.query_one("#yes", Button)
        return self.dialog  # type: ignore[return-value]

    @property
    def dialog(self) -> Any:
        return self.app.screen if isinstance(self.app.screen, Dialog) else None

    async def focus(self, name: str) -> None:
        self.screen.query_one(f"#{name}").focus()
        await self.focused(name)

    async def focused(self, name: str) -> None:
        """The next key is for that widget of the dialog."""
        await self.until(f"the focus on {name}", lambda: self.app.focused is not None and self.app.focused.id == name)

    async def yes(self) -> None:
        """From Cancel to the other button, and there."""
        await self.focus("cancel")
        await self.press("right")
        await self.focused("yes")
        await self.press("enter")

    async def confirm(self, *keys: str) -> None:
        """What is typed or chosen, enter to the button, enter again."""
        await self.press(*keys, "enter")
        await self.focused("yes")
        await self.press("enter")

    async def answered(self) -> None:
        """No dialog is open and no command is on its way."""
        await self.until("the head's answer", lambda: isinstance(self.app.screen, PaintedScreen) and not self._acting())

    def _acting(self) -> bool:
        return any(worker.group == "acts" and worker.is_running for worker in self.app.workers)

    def state(self, slot: str) -> str:
        return self.app.store.state_name(self.app.store.index[slot])

    def life(self, slot: str) -> str:
        return self.app.store.slots[self.app.store.index[slot]].incarnation

    async def ready(self, slot: str, not_life: str = "") -> None:
        await self.until(f"{slot} READY", lambda: self.state(slot) in ("READY", "SLOW") and self.life(slot) != not_life)

    async def choose(self, slot: str) -> None:
        """The cursor of the table goes there."""
        store, view = self.app.store, self.app.view
        await self.until("rows", lambda: view.position(store) >= 0)
        view.cursor, view.bound = slot, True
        view.hold(self.app.now_s())


@asynccontextmanager
async def console_on(run: RunHandle, operator: str = "kim@head", *, role: str = "operator") -> AsyncIterator[Console]:
    path = run.folder.path
    feed = HeadFeed(path, role, operator=operator)  # type: ignore[arg-type]
    app = PacelineApp(path, feed=feed)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        console = Console(app, pilot, run)
        await console.until("the first snapshot", lambda: app.store.snapshot is not None and app.store.run)
        run.seen_pids.update(slot.pid for slot in app.store.slots if slot.pid)
        yield console
        run.seen_pids.update(slot.pid for slot in app.store.slots if slot.pid)


async def exploring(console: Console) -> None:
    def issuing() -> bool:
        snap = console.app.store.snapshot
        return snap is not None and snap.mechanism == "at once" and snap.completed > 0

    await console.until("an exploration that issues", issuing, 40)


async def test_the_load_of_an_exploration_obeys_the_keys(start_run: Start) -> None:
    run = start_run(**SMALL_AND_LASTING)
    async with console_on(run) as console:
        await exploring(console)

        await console.press("equals_sign")
        await console.asked("Change the target rate")
        await console.confirm("3", "0")
        entry = await console.journalled("act.set_rate")
        assert (entry.who, entry.before, entry.after) == ("operator:kim@head", "20 QPS", "30 QPS")
        await console.until("30 qps on screen", lambda: console.app.store.snapshot.target_qps == 30)  # type: ignore[union-attr]
        await console.answered()
        assert "at once (exploration)" in console.told

        await console.press("plus")
        await console.asked("Change the target rate")
        await console.confirm("plus")
        assert (await console.journalled("act.set_rate", nth=2)).after == "32 QPS"
        await console.answered()

        await console.press("equals_sign")
        await console.asked("Change the target rate")
        await console.press("4", "0", "tab")
        await console.focused("ramp")
        await console.confirm("1")
        assert (await console.journalled("act.set_rate", nth=3)).data["ramp_s"] == 1
        assert (await console.journalled("rate.ramp")).after == "40 QPS"
        await console.answered()

        await console.press("p")
        await console.asked("Pause issuing?")
        await console.yes()
        await console.journalled("act.pause")
        await console.until("paused", lambda: console.app.store.snapshot.paused)  # type: ignore[union-attr]
        await console.answered()
        await console.press("p")
        await console.asked("Resume issuing?")
        await console.yes()
        await console.journalled("act.resume")
        await console.answered()

        await console.press("P")
        await console.asked("Change the straggler policy?")
        await console.confirm("down")
        entry = await console.journalled("act.set_policy")
        assert (entry.before, entry.after) == ("flag", "drain")
        await console.until("the policy on screen", lambda: console.app.store.snapshot.policy == "drain")  # type: ignore[union-attr]
        await console.answered()

        await console.press("S")
        await console.asked("Stop the run?")
        await console.confirm(*console.app.store.run)
        await console.journalled("act.stop")
        await console.until("the end", lambda: console.app.store.ended)
    end = run.wait_end()
    assert end.attempts[0].verdict == "EXPLORATION"


async def test_replicas_are_drained_readmitted_recycled_and_evicted_by_keys(start_run: Start) -> None:
    run = start_run(**SMALL_AND_LASTING)
    async with console_on(run) as console:
        await exploring(console)

        await console.choose("node000/gpu1")
        await console.press("d")
        await console.asked("Drain node000/gpu1?")
        await console.press("shift+tab")  # the reason stands before Cancel
        await console.focused("reason")
        await console.press(*"hot")
        await console.until("the reason", lambda: console.screen.query_one("#reason", Input).value == "hot")
        await console.yes()
        assert (await console.journalled("act.drain")).why == "hot"
        await console.until("drained", lambda: console.state("node000/gpu1") == "DRAINED")
        await console.answered()
        await console.choose("node000/gpu1")
        await console.press("a")
        await console.asked("Readmit node000/gpu1?")
        await console.yes()
        await console.journalled("act.readmit", "node000/gpu1")
        await console.ready("node000/gpu1")
        await console.answered()

        before = console.life("node000/gpu2")
        await console.choose("node000/gpu2")
        await console.press("r")
        await console.asked("Recycle node000/gpu2?")
        await console.yes()
        await console.journalled("act.recycle", "node000/gpu2")
        await console.ready("node000/gpu2", before)
        await console.answered()

        before = console.life("node001/gpu0")
        await console.choose("node001/gpu0")
        await console.press("e")
        await console.asked("Evict node001/gpu0?")
        await console.yes()
        assert (await console.journalled("act.evict", "node001/gpu0")).data["incarnation"] == before
        await console.journalled("replica.state", "node001/gpu0", "DRAINING")
        await console.journalled("replica.state", "node001/gpu0", "EVICTED")
        await console.ready("node001/gpu0", before)
        await console.answered()

        two = ["node001/gpu1", "node001/gpu2"]
        console.app.ask_and_act("evict", two)
        await console.asked("Evict 2 replicas?")
        await console.focus("mode")
        await console.press("down")
        await console.yes()
        for slot in two:
            await console.journalled("act.evict", slot)
            entries = [entry.after for entry in run.journal("replica.state", slot)]
            assert "DRAINING" not in entries  # at once
        await console.until("the sum of it", lambda: "evicting 2 of 2" in console.told)
        await console.until("three evictions", lambda: console.app.store.snapshot.evictions == 3)  # type: ignore[union-attr]


async def test_the_dialog_foretells_the_latencies_and_a_later_life_is_not_hit(start_run: Start) -> None:
    run = start_run(**SMALL_AND_LASTING | {"load__target_qps": 300})
    async with console_on(run) as console:
        await exploring(console)
        await console.until("samples", lambda: console.app.store.snapshot.completed > 1400)  # type: ignore[union-attr]
        slot = "node001/gpu1"
        pid, life = next((info.pid, info.incarnation) for info in console.app.store.slots if info.slot == slot)
        console.app.ask_and_act("evict", [slot])
        dialog = await console.asked(f"Evict {slot}?")

        def figures() -> str:
            return next(text for label, text in dialog._told if label.startswith("p99"))

        await console.until("the head's figures", lambda: "–" not in figures())
        assert "TTFT" in figures()
        assert "without its samples" in figures()
        os.kill(pid, signal.SIGKILL)
        await console.ready(slot, life)
        dialog.tell_again()
        assert dict(dialog._told)["acts on"].endswith("which is gone by now: the head will refuse")
        await console.yes()
        await console.until("the refusal", lambda: "Evict replica: refused" in console.told)
        assert f"you acted on {life}, which is gone" in console.told
        assert not run.journal("act.evict")


async def test_two_consoles_one_control_and_a_viewer(start_run: Start) -> None:
    run = start_run(**SMALL_AND_LASTING)
    async with console_on(run, "kim@head") as kim, console_on(run, "lee@laptop") as lee:
        await exploring(kim)
        await kim.press("C")
        await lee.until("the holder's name", lambda: lee.app.store.controller == "kim@head")
        lee.app.ask_and_act("drain", ["node000/gpu0"])
        await lee.asked("kim@head holds control. Take it over?")
        await lee.press("escape")
        await lee.answered()
        assert not run.journal("act.drain")
        lee.app.ask_and_act("drain", ["node000/gpu0"])
        await lee.asked("kim@head holds control. Take it over?")
        await lee.yes()
        await lee.asked("Drain node000/gpu0?")
        await lee.yes()
        assert (await lee.journalled("act.take_control", nth=2)).before == "kim@head"
        assert (await lee.journalled("act.drain")).who == "operator:lee@laptop"
        await kim.until("the loss of control", lambda: kim.app.store.controller == "lee@laptop")
        await lee.until("control", lambda: lee.app.store.controller == "lee@laptop")
        await lee.answered()
        await lee.press("C")
        await lee.journalled("act.release_control")
        await kim.until("control is free", lambda: not kim.app.store.controller)
    async with console_on(run, "max@desk", role="viewer") as viewer:
        await viewer.until("its role", lambda: viewer.app.store.role == "viewer")
        for key in ("e", "d", "equals_sign", "S", "C"):
            viewer.toasts.clear()
            await viewer.press(key)
            await viewer.until(f"why {key} does nothing", lambda: "viewer's key" in viewer.told)
            assert viewer.dialog is None
        reply = await viewer.app.session.feed.command("drain", {"slot": "node000/gpu1"})
        assert not reply.ok
        assert "this key may only watch" in reply.message


async def test_a_loadgen_attempt_is_superseded_aborted_and_followed_by_an_exploration(start_run: Start) -> None:
    run = start_run(load__duration_s=120, fleet__keep_warm_s=60)
    async with console_on(run) as console:
        store = console.app.store
        await console.until("LoadGen's load", lambda: store.snapshot is not None and store.snapshot.completed > 0, 40)
        await console.press("equals_sign")
        await console.asked("Change the target rate")
        assert console.screen.query_one("#ramp", Input).disabled
        await console.confirm("7", "0")
        await console.journalled("attempt.end", "1", "SUPERSEDED")
        await console.until(
            "attempt 2", lambda: store.snapshot is not None and (store.snapshot.attempt, store.snapshot.target_qps) == (2, 70)
        )
        await console.until("its load", lambda: store.snapshot is not None and store.snapshot.completed > 0, 30)
        await console.answered()

        await console.press("X")
        await console.asked("Abort attempt 2?")
        await console.yes()
        await console.journalled("attempt.end", "2", "ABORTED")
        await console.answered()

        await console.until(
            "no attempt", lambda: store.snapshot is not None and not store.snapshot.attempt and store.phase == "READY"
        )
        await console.press("B")
        await console.asked("Begin the next attempt?")
        await console.focus("kind")
        await console.confirm("down")
        await console.journalled("act.start_attempt")
        await console.until("an exploration", lambda: store.snapshot is not None and store.snapshot.mechanism == "at once", 30)


async def test_a_slot_that_never_comes_is_waived_at_the_barrier_by_its_key(start_run: Start) -> None:
    faults = [{"slot": "node001/gpu1", "kind": "flaky_start", "times": 50}]
    run = start_run(
        fleet__engine_args={"preset": "demo", "faults": faults},
        fleet__restart_backoff_s=1.0,
        fleet__barrier={"deadline_s": 110},  # it waits for the keys
    )
    async with console_on(run) as console:
        store = console.app.store
        await console.until("three READY", lambda: store.count_states().get("READY") == 3, 40)
        await console.until("its row first", lambda: console.app.view.cursor == "node001/gpu1")
        await console.press("W")
        await console.asked("Waive node001/gpu1?")
        await console.yes()
        await console.journalled("act.waive", "node001/gpu1")
        await console.until("the load", lambda: store.snapshot is not None and store.snapshot.attempt == 1)
