"""The Textual app: wires a feed to the store, the render clock to the screen, and acts to the head's answers.

A client of the run and nothing more: leaving it, losing the terminal or killing it changes nothing there. Everything
that is drawn lives in widgets, everything that is known in the store, everything that talks in the feed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from textual.app import App, SystemCommand
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.timer import Timer

from console.actions import ACTIONS, BY_ID, Action, bindings
from console.feeds.base import Feed
from console.feeds.head import HeadFeed
from console.screens.acts import facts_for, rate_facts, stop_facts, target_of
from console.screens.base import PaintedScreen
from console.screens.detail import ReplicaScreen
from console.screens.dialogs import Answer, AskOnQuit, AskRate, ConfirmAct, Dialog, TypeToConfirm, parse_qps
from console.screens.help import HelpScreen
from console.screens.live import LiveScreen
from console.screens.record import RecordScreen
from console.store.fleet import FleetStore
from console.store.record import over, remedy
from console.store.view import TableView
from console.terminal import TerminalDriver
from console.themes import DEFAULT_THEME, fallback_variables, load_themes
from console.widgets.clock import RenderClock
from console.widgets.paint import Paint

Result = Literal["detached", "stop", "left"]
ON_A_REPLICA = ("evict", "drain", "recycle", "readmit")


class PacelineApp(App[Result]):
    """Result: `detached` (the run goes on), `stop` (the operator asked for its end), `left` (it had ended before)."""

    TITLE = "Paceline"
    CSS_PATH = Path(__file__).parent / "styles" / "app.tcss"
    BINDINGS = bindings("app")
    ENABLE_COMMAND_PALETTE = True
    NOTIFICATION_TIMEOUT: ClassVar[float] = 6.0

    def __init__(
        self,
        run_path: Path | None = None,
        *,
        role: Literal["operator", "viewer"] = "operator",
        read_only: bool = False,
        ask_on_quit: bool = False,
        fps: int = 4,
        feed: Feed | None = None,
        theme_folders: Iterable[Path] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if feed is None and run_path is None:
            raise ValueError("a run's folder or a feed is needed")
        super().__init__()
        self.store = FleetStore(now_s)
        self.view = TableView()
        self.render_clock = RenderClock(fps)
        self._now_s = now_s
        self._read_only = read_only
        self._run_path = run_path
        # Read-only is kept by the head as well: such a console holds the viewer's key.
        self._feed: Feed = feed or HeadFeed(run_path, "viewer" if read_only else role)  # type: ignore[arg-type]
        self._ask_on_quit = ask_on_quit
        self._ours, self._theme_problems = load_themes(theme_folders)
        for theme in self._ours:
            self.register_theme(theme)
        names = [theme.name for theme in self._ours]
        self.theme = DEFAULT_THEME if DEFAULT_THEME in names else names[0] if names else "textual-dark"
        self._inks: tuple[str, Paint] | None = None
        self._timer: Timer | None = None

    def get_driver_class(self) -> type[Driver]:
        chosen = super().get_driver_class()
        return TerminalDriver if chosen is LinuxDriver else chosen

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return fallback_variables()

    @property
    def inks(self) -> Paint:
        if self._inks is None or self._inks[0] != self.theme:
            self._inks = (self.theme, Paint(self.theme_variables))
        return self._inks[1]

    def now_s(self) -> float:
        return self._now_s()

    @property
    def looks_only(self) -> bool:
        return self._read_only

    @property
    def record_folder(self) -> Path | None:
        folder = self._run_path or (Path(self.store.record) if self.store.record else None)
        return folder if folder is not None and (folder / "run.json").is_file() else None

    # --- life ----------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        return LiveScreen(self.store, self.view)

    def on_mount(self) -> None:
        if not self._from_record():
            self.run_worker(self._feed.follow(self.store), name="feed", exclusive=True, group="feed")
        self._timer = self.set_interval(1 / self.render_clock.fps, self.tick, name="render clock")
        self.theme_changed_signal.subscribe(self, lambda _: self.call_after_refresh(self._wipe))
        if self._theme_problems:
            self.tell("\n".join(self._theme_problems), "theme skipped", "warning")
        self._detach_on_hangup()

    def _from_record(self) -> bool:
        """A run without a head is shown from its record; True if it has ended, so that no head is to be waited for."""
        state = over(self._run_path) if self._run_path is not None else None
        if state is None or self._run_path is None:
            return False
        self.store.apply_record(state)
        if not self.store.ended:
            self.store.disconnected(remedy(state.run))
        self.push_screen(RecordScreen(self.store, self._run_path, first=True))
        return self.store.ended

    def _detach_on_hangup(self) -> None:
        """Terminal closed or session ended: leave like `q` does."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGHUP, signal.SIGTERM):
            # Only the main thread may: an app run elsewhere (tests, a server) has no terminal of its own to lose.
            with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
                loop.add_signal_handler(name, partial(self.exit, "detached"))

    async def on_unmount(self) -> None:
        await self._feed.close()

    def tick(self) -> int:
        """Paint what is due; how many lines changed."""
        due = self.render_clock.tick()
        # Under a dialog, help or the palette the picture goes on: what is asked about must not look frozen. Once a second,
        # because a line that shows through costs its whole width: 13 ms and 16 kB a paint at 120x36 instead of 7 and 5.
        screen = next((screen for screen in reversed(self.screen_stack) if isinstance(screen, PaintedScreen)), None)
        if due is None or screen is None or (screen is not self.screen and not due.charts):
            return 0
        self.render_clock.began()
        if due.charts and isinstance(self.screen, Dialog):
            self.screen.tell_again()
        lines = screen.paint(due)
        self.call_after_refresh(self.render_clock.finished)
        return lines

    def stop_clock(self) -> None:
        """Paint only when `tick` is called (benchmarks)."""
        if self._timer is not None:
            self._timer.stop()

    def _wipe(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, PaintedScreen):
                screen.wipe()

    def tell(self, text: str, title: str = "", severity: Literal["information", "warning", "error"] = "information") -> None:
        """One toast at a time: a second one on top of the first hides rows."""
        self.clear_notifications()
        self.notify(text, title=title, severity=severity, markup=False)

    # --- acts ----------------------------------------------------------------------------------------------

    def why_not(self, action: Action) -> str:
        """Why this act cannot be done now, in words; empty when it can. The head has the last word."""
        if not action.acts:
            return ""
        store, link = self.store, self.store.link()
        if self._read_only:
            return "this console was opened read-only"
        if store.role == "viewer":
            return "this console holds a viewer's key: it may look, not act"
        if store.ended:
            return "the run has ended"
        if not link.trusted:
            return "the head is silent: acts wait until it answers again"
        snap = store.snapshot
        if action.id == "rate" and (snap is None or not snap.mechanism):
            return "no attempt is running whose rate could change"
        if action.id == "pause" and (snap is None or snap.attempt_kind != "explore"):
            return "only an explore attempt can pause: LoadGen's schedule is fixed before it starts"
        if action.id in ON_A_REPLICA and self._slot_in_view() is None:
            return "no replica under the cursor"
        return ""

    def _slot_in_view(self) -> str | None:
        shown = next((screen for screen in reversed(self.screen_stack) if isinstance(screen, PaintedScreen)), None)
        return shown.slot if isinstance(shown, ReplicaScreen) else self.view.cursor

    def ask_and_act(self, name: str) -> None:
        """The whole way of an act: why not, the question, the command, the head's answer."""
        reason = self.why_not(BY_ID[name])
        if reason:
            self.tell(reason, BY_ID[name].title, "warning")
            return
        asks = {"rate": self._rate, "pause": self._pause, "stop_run": self._stop}
        self.run_worker(asks[name]() if name in asks else self._on_replica(name), group="acts")

    async def _on_replica(self, name: str) -> None:
        target = target_of(self.store, self._slot_in_view())
        if target is None:
            return
        title = f"{name.capitalize()} {target.slot}?"
        facts = partial(facts_for, self.store, name, target)
        dialog = ConfirmAct(title, facts, name.capitalize(), danger=name in ("evict", "recycle"))
        answer = await self._ask(dialog)
        if answer is not None:
            args = {"slot": target.slot} if name == "readmit" else {"slot": target.slot, "incarnation": target.incarnation}
            await self._send(name, args, answer.reason)

    async def _rate(self) -> None:
        current = self.store.snapshot.target_qps if self.store.snapshot else 0.0
        answer = await self._ask(AskRate(partial(rate_facts, self.store), current))
        qps = parse_qps(answer.value) if answer is not None else None
        if answer is not None and qps is not None:
            await self._send("set_rate", {"qps": qps}, answer.reason)

    async def _pause(self) -> None:
        name = "resume" if self.store.snapshot is not None and self.store.snapshot.paused else "pause"
        effect = {"resume": "issuing starts again at the target rate", "pause": "no new samples; those in flight are finished"}[
            name
        ]
        answer = await self._ask(ConfirmAct(f"{name.capitalize()} issuing?", lambda: [("effect", effect)], name.capitalize()))
        if answer is not None:
            await self._send(name, {}, answer.reason)

    async def _stop(self) -> None:
        dialog = TypeToConfirm("Stop the run?", partial(stop_facts, self.store), "Stop run", self.store.run, "the run's name")
        if await self._ask(dialog) is not None:
            await self._send("stop", {}, "stopped from the console")

    async def _ask(self, dialog: Screen[Answer | None]) -> Answer | None:
        return await self.push_screen_wait(dialog)

    async def _send(self, name: str, args: dict[str, Any], reason: str) -> bool:
        reply = await self._feed.command(name, args, reason)
        title = name.replace("_", " ") + ("" if reply.ok else " refused")
        self.tell(reply.message or "done", title, "information" if reply.ok else "error")
        return reply.ok

    # --- keys of every screen ------------------------------------------------------------------------------

    def action_stop_run(self) -> None:
        self.ask_and_act("stop_run")

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_next_theme(self) -> None:
        names = [theme.name for theme in self._ours]
        if names:
            self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]

    def action_picture(self) -> None:
        """Into the run's record when it lies here and can be written, else into the working directory."""
        record = self.record_folder
        folder = record if record is not None and os.access(record, os.W_OK) else Path.cwd()
        try:
            where = self.save_screenshot(time.strftime("console-%Y%m%d-%H%M%S.svg"), str(folder))
        except OSError as error:
            self.tell(f"no picture: {error}", severity="error")
        else:
            self.tell(f"picture in {where}")

    def show_record(self) -> None:
        folder = self.record_folder
        if not self.store.ended:
            self.tell("the run goes on: its result is there at its end", BY_ID["result"].title, "warning")
        elif folder is None:
            self.tell(f"the record is not on this machine: {self.store.record}", BY_ID["result"].title, "warning")
        else:
            self.push_screen(RecordScreen(self.store, folder, first=False))

    def copy_log_path(self, slot: str | None) -> None:
        at = self.store.index.get(slot) if slot is not None else None
        path = self.store.slots[at].log if at is not None else ""
        if not path:
            self.tell("no log of this replica is known (yet)", severity="warning")
            return
        self.copy_to_clipboard(path)
        self.tell(path, "log path copied (OSC 52; in tmux: set -g set-clipboard on)")

    def action_leave(self) -> None:
        if self.store.ended:
            self.exit("left")
        elif self._ask_on_quit:
            self.run_worker(self._leave_or_stop(), group="acts")
        else:
            self.exit("detached")

    async def _leave_or_stop(self) -> None:
        answer = await self.push_screen_wait(AskOnQuit())
        if answer == "leave":
            self.exit("detached")
        elif answer == "stop":
            await self._feed.command("stop", {}, "stopped on leaving the console")
            self.exit("stop")

    async def action_quit(self) -> None:
        self.action_leave()

    def action_help_quit(self) -> None:
        self.tell("q leaves this console; the run goes on")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for action in ACTIONS:
            if action.group == "Move":
                continue  # keys that a hand is on already
            namespace = self if action.scope == "app" else screen
            if action.id != "command_palette" and hasattr(namespace, f"action_{action.id}"):
                yield SystemCommand(action.title, action.help, partial(namespace.run_action, action.id))
