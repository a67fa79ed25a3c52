"""From a key to the head's answer: why not, the question, the command, what came back.

The only place that sends commands. Whom an act is about (slot, incarnation) is captured when it is asked for; the
dialog's figures go on while it is open.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from console.actions import BY_ID, Action
from console.screens.acts import facts_for, rate_facts, stop_facts, target_of
from console.screens.base import PaintedScreen
from console.screens.dialogs import Answer, AskRate, ConfirmAct, TypeToConfirm, parse_qps

if TYPE_CHECKING:
    from console.app import PacelineApp

ON_A_REPLICA = ("evict", "drain", "recycle", "readmit", "waive")
ON_THE_ATTEMPT = ("rate", "rate_up", "rate_down", "pause", "abort")


class Operator:
    def __init__(self, app: PacelineApp) -> None:
        self._app = app
        self.armed = True

    # --- may it? -------------------------------------------------------------------------------------------

    def why_not(self, action: Action) -> str:
        """Why this act cannot be done now, in words; empty when it can. The head has the last word."""
        if not action.acts:
            return ""
        session, store = self._app.session, self._app.session.store
        if session.kind == "none":
            return "no run is open: choose one in 0 Launch or 5 Runs"
        if session.kind == "replay":
            return "this is a replay: what happened cannot be changed"
        if session.looks_only:
            return "this console was opened read-only"
        if store.role == "viewer":
            return "this console holds a viewer's key: it may look, not act"
        if not self.armed:
            return "this console is disarmed: A arms it"
        if store.ended:
            return "the run has ended"
        if not store.link().trusted:
            return "the head is silent: acts wait until it answers again"
        return self._why_not_now(action)

    def _why_not_now(self, action: Action) -> str:
        snap = self._app.store.snapshot
        if action.id in ("rate", "rate_up", "rate_down") and (snap is None or not snap.mechanism):
            return "no attempt is running whose rate could change"
        if action.id == "pause" and (snap is None or snap.attempt_kind != "explore"):
            return "only an explore attempt can pause: LoadGen's schedule is fixed before it starts"
        if action.id in ON_A_REPLICA and not self.targets():
            return "no replica under the cursor"
        return ""

    def toggle_arm(self) -> None:
        self.armed = not self.armed
        self._app.tell("acts are possible again" if self.armed else "no key of this console can act until A arms it")

    def control(self) -> None:
        """Take the controller lease (asking first when another operator has it), or give it back."""
        self._app.run_worker(self._control(), group="acts")

    async def _control(self) -> None:
        mine = self._app.store.controller == self._app.session.feed.operator
        await self._send("release_control" if mine else "take_control", {}, "")

    def targets(self) -> list[str]:
        for screen in reversed(self._app.screen_stack):
            if isinstance(screen, PaintedScreen):
                return screen.targets()
        return []

    # --- do it ---------------------------------------------------------------------------------------------

    def act(self, name: str, slots: list[str] | None = None, value: str = "") -> None:
        reason = self.why_not(BY_ID[name])
        if reason:
            self._app.tell(reason, BY_ID[name].title, "warning")
            return
        wanted = slots if slots is not None else self.targets()
        asks = {"rate": self._rate, "pause": self._pause, "stop_run": self._stop}
        self._app.run_worker(asks[name]() if name in asks else self._on_replica(name, wanted[0]), group="acts")

    async def _on_replica(self, name: str, slot: str) -> None:
        target = target_of(self._app.store, slot)
        if target is None:
            return
        title = f"{name.capitalize()} {target.slot}?"
        facts = partial(facts_for, self._app.store, name, target)
        dialog = ConfirmAct(title, facts, name.capitalize(), danger=name in ("evict", "recycle"))
        answer = await self._ask(dialog)
        if answer is not None:
            args = {"slot": target.slot} if name == "readmit" else {"slot": target.slot, "incarnation": target.incarnation}
            await self._send(name, args, answer.reason)

    async def _rate(self) -> None:
        store = self._app.store
        current = store.snapshot.target_qps if store.snapshot else 0.0
        answer = await self._ask(AskRate(partial(rate_facts, store), current))
        qps = parse_qps(answer.value) if answer is not None else None
        if answer is not None and qps is not None:
            await self._send("set_rate", {"qps": qps}, answer.reason)

    async def _pause(self) -> None:
        snapshot = self._app.store.snapshot
        name = "resume" if snapshot is not None and snapshot.paused else "pause"
        effect = {"resume": "issuing starts again at the target rate", "pause": "no new samples; those in flight are finished"}[
            name
        ]
        answer = await self._ask(ConfirmAct(f"{name.capitalize()} issuing?", lambda: [("effect", effect)], name.capitalize()))
        if answer is not None:
            await self._send(name, {}, answer.reason)

    async def _stop(self) -> None:
        store = self._app.store
        dialog = TypeToConfirm("Stop the run?", partial(stop_facts, store), "Stop run", store.run, "the run's name")
        if await self._ask(dialog) is not None:
            await self._send("stop", {}, "stopped from the console")

    async def _ask(self, dialog: Screen[Answer | None]) -> Answer | None:
        return await self._app.push_screen_wait(dialog)

    async def _send(self, name: str, args: dict[str, Any], reason: str) -> bool:
        reply = await self._app.session.feed.command(name, args, reason)
        title = name.replace("_", " ") + ("" if reply.ok else " refused")
        self._app.tell(reply.message or "done", title, "information" if reply.ok else "error")
        return reply.ok
