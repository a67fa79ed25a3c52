"""From a key to the head's answer: why not, the question, the command, what came back.

The only place that sends commands. Whom an act is about (slot, incarnation) is captured when it is asked for; the
dialog's figures go on while it is open. What stands in the way is told in words, what needs control of the run asks for it
first, and every outcome is what the head answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from textual.screen import Screen

from console.actions import BY_ID, Action
from console.feeds.base import Feed
from console.screens.dialogs import Answer, ConfirmAct, Dialog, Sending
from console.screens.load_acts import control_facts, why_no_new_attempt
from console.screens.questions import ON_A_REPLICA, Order, Question, question
from console.screens.scale_acts import why_no_scale
from harness.wire.control import CommandReply
from harness.wire.inquiry import GetSla, SlaDetail

if TYPE_CHECKING:
    from console.app import PacelineApp

_RATE: Final = ("rate", "rate_up", "rate_down")
#: The head lets any operator end things, whoever holds control.
_WITHOUT_CONTROL: Final = frozenset({"abort", "stop_run"})
_PREDICT_EVERY_S: Final = 5.0
_REFUSALS_TOLD: Final = 3


class Operator:
    def __init__(self, app: PacelineApp) -> None:
        self._app = app
        self.armed = True
        self._asking = False

    # --- may it? -------------------------------------------------------------------------------------------

    def why_not(self, action: Action) -> str:
        """Why this act cannot be done now, in words; empty when it can. The head has the last word."""
        if not action.acts:
            return ""
        return self._why_no_act() or self._why_not_now(action)

    def _why_no_act(self) -> str:
        """What stands against any act of this console."""
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
        link = store.link()
        if link.kind == "connecting":
            return "still connecting to the head: acts wait until it has answered"
        if not link.trusted:
            return "the head is silent: acts wait until it answers again"
        return ""

    def _why_not_now(self, action: Action) -> str:
        store = self._app.store
        snap = store.snapshot
        if action.id == "new_attempt":
            return why_no_new_attempt(store)
        if action.id in _RATE and snap is not None and not snap.attempt and snap.phase == "READY" and store.attempts:
            return "no attempt is running: B begins the next one, at any rate"
        if action.id in _RATE and (snap is None or not snap.mechanism):
            return "no attempt is running whose rate could change"
        if action.id == "pause" and (snap is None or not snap.attempt or snap.attempt_kind != "explore"):
            return "only a running explore attempt can pause: LoadGen's schedule is fixed before it starts"
        if action.id == "abort" and (snap is None or not snap.attempt):
            return "no attempt is running; S stops the run"
        if action.id == "waive" and not store.at_barrier:
            return "no barrier is waiting: a missing slot holds nobody up"
        if action.id == "scale":
            return why_no_scale(store)
        if action.id in ON_A_REPLICA and not self.targets():
            return "no replica under the cursor"
        return ""

    def toggle_arm(self) -> None:
        self.armed = not self.armed
        self._app.tell("acts are possible again" if self.armed else "no key of this console can act until A arms it")

    def targets(self) -> list[str]:
        screen = self._app.painted_screen
        return screen.targets() if screen is not None else []

    def _chosen(self) -> list[str]:
        """The targets, which stay the chosen ones from now on, whichever way the act was asked for."""
        screen = self._app.painted_screen
        if screen is not None:
            screen.hold()
        return self.targets()

    # --- do it ---------------------------------------------------------------------------------------------

    def act(self, name: str, slots: list[str] | None = None, value: str = "") -> None:
        """Whom it is about is settled here, before anything can move."""
        action = BY_ID[name]
        said: Question | str = self.why_not(action)
        if not said:
            said = question(self._app.store, name, slots if slots is not None else self._chosen(), value)
        if isinstance(said, str):
            self._app.tell(said, action.title, "warning")
        else:
            self._start(self._ask_and_send(action, said))

    def control(self) -> None:
        """Take the controller lease (asking first when another operator has it), or give it back."""
        reason = self._why_no_act()
        if reason:
            self._app.tell(reason, BY_ID["control"].title, "warning")
        elif self._app.store.controller == self._feed.operator:
            self._start(self._send_one(self._feed, BY_ID["control"], Order("release_control")))
        else:
            self._start(self._get_control(""))

    def _start(self, asking: Coroutine[Any, Any, object]) -> None:
        """One question at a time: a key pressed twice must not ask twice."""
        if self._asking:
            asking.close()
            if not isinstance(self._app.screen, Dialog):
                self._app.tell("the last act still waits for the head's answer", severity="warning")
            return
        self._asking = True
        self._app.expect_typing()
        self._app.run_worker(self._to_its_end(asking), group="acts")

    async def _to_its_end(self, asking: Coroutine[Any, Any, object]) -> None:
        try:
            await asking
        finally:
            self._asking = False
            self._app.expect_nothing()

    @property
    def _feed(self) -> Feed:
        return self._app.session.feed

    async def _ask_and_send(self, action: Action, asked: Question) -> None:
        feed = self._feed
        if action.id not in _WITHOUT_CONTROL and self._held_by_another() and not await self._get_control(action.title):
            return
        with self._predicting(asked):
            answer = await self._ask(asked.dialog)
        if answer is None:
            return
        reason = self._why_no_act()  # minutes may have passed
        if reason or feed is not self._feed:
            self._app.tell(reason or "another run was opened meanwhile: nothing was sent", action.title, "warning")
            return
        self._asking = False  # the next question may be asked while this answer is awaited
        orders = asked.orders(answer)
        if asked.goes_on:
            self._app.tell(asked.goes_on, action.title)
        if len(orders) == 1:
            await self._send_one(feed, action, orders[0])
        else:
            await self._send_all(feed, action, orders, asked)

    async def _ask(self, dialog: Screen[Answer | None]) -> Answer | None:
        self._app.clear_notifications()  # what was told before must not lie over the question
        return await self._app.push_screen_wait(dialog)

    # --- control -------------------------------------------------------------------------------------------

    def _held_by_another(self) -> str:
        holder = self._app.store.controller
        return holder if holder != self._feed.operator else ""

    async def _get_control(self, act: str) -> bool:
        """`act` is the title of what it is wanted for. A free lease is taken without a question, and comes with any act."""
        holder, reason = self._held_by_another(), ""
        if holder:
            facts = partial(control_facts, holder, self._feed.operator, act)
            answer = await self._ask(ConfirmAct(f"{holder} holds control. Take it over?", facts, "Take over"))
            if answer is None:
                return False
            reason = answer.reason
        return await self._send_one(self._feed, BY_ID["control"], Order("take_control", {}, reason))

    # --- what the head foretells -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _predicting(self, asked: Question) -> Iterator[None]:
        """The figures without the targets, asked for again and again while the dialog is open; it never waits for them."""
        if not asked.without:
            yield
            return
        worker = self._app.run_worker(self._predict(asked), group="prediction", exclusive=True)
        try:
            yield
        finally:
            worker.cancel()

    async def _predict(self, asked: Question) -> None:
        while True:
            detail = await self._app.inquire(GetSla(uuid.uuid4().hex, list(asked.without)))
            if isinstance(detail, SlaDetail):
                asked.prediction.sla = detail
                if asked.dialog.is_mounted:
                    asked.dialog.tell_again()
            await asyncio.sleep(_PREDICT_EVERY_S)

    # --- sending -------------------------------------------------------------------------------------------

    async def _send_one(self, feed: Feed, action: Action, order: Order) -> bool:
        reply = await feed.command(order.name, order.args, order.reason)
        outcome = "" if reply.ok else ": no answer" if _unanswered(reply) else ": refused"
        self._app.tell(reply.message or "done", f"{action.title}{outcome}", "information" if reply.ok else "error")
        return reply.ok

    async def _send_all(self, feed: Feed, action: Action, orders: list[Order], asked: Question) -> None:
        """One after the other, so that esc can stop the rest and each refusal is told with its slot."""
        progress = Sending(asked.doing, len(orders))
        self._app.expect_nothing()  # it has no field: its esc is its own
        await self._app.push_screen(progress)
        done, refused, silent = 0, [], ""
        try:
            for number, order in enumerate(orders, 1):
                if progress.stopped:
                    break
                slot = str(order.args.get("slot", ""))
                progress.at(number, slot)
                reply = await feed.command(order.name, order.args, order.reason)
                if reply.ok:
                    done += 1
                elif _unanswered(reply):
                    silent = f"{slot}: {reply.message}"
                    break
                else:
                    refused.append(reply.message if reply.message.startswith(slot) else f"{slot}: {reply.message}")
        finally:
            if progress.is_attached:
                progress.dismiss(None)
        left = len(orders) - done - len(refused) - bool(silent)
        text = f"{asked.doing} {done} of {len(orders)}{_and_not(refused, silent, left, progress.stopped)}"
        self._app.tell(text, action.title, "information" if done == len(orders) else "error" if refused or silent else "warning")


def _and_not(refused: list[str], silent: str, left: int, stopped: bool) -> str:
    text = ""
    if refused:
        more = len(refused) - _REFUSALS_TOLD
        text += f"; refused: {'; '.join(refused[:_REFUSALS_TOLD])}" + (f"; and {more} more, see 4 Events" if more > 0 else "")
    if silent:
        text += f"; {silent}"
    if left:
        text += f"; {left} not sent" + (" (stopped)" if stopped else "")
    return text


def _unanswered(reply: CommandReply) -> bool:
    """A feed that got no answer says so itself: whether the act was done is then open."""
    return reply.message.startswith("no answer")
