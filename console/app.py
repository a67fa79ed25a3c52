"""The Textual app: wires a feed to the store, the render clock to the screen, and acts to the head's answers.

A client of the run and nothing more: leaving it, losing the terminal or killing it changes nothing there. Everything
that is drawn lives in widgets, everything that is known in the store, everything that talks in the feed. Each of the seven
screens is a mode with a stack of its own, so that going away and coming back finds it as it was; opening another run
makes those that show one anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args

from textual.app import ScreenStackError, SystemCommand
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.timer import Timer

from console.actions import BY_ID, Action, bindings
from console.commands import NAMES, parse
from console.config import Config, shown_key
from console.feeds.base import Feed
from console.feeds.replay import SPEEDS
from console.operator import Operator
from console.saving import Saving
from console.screens.base import PaintedScreen
from console.screens.command_line import CommandLine
from console.screens.detail import ReplicaScreen
from console.screens.dialogs import AskOnQuit, Dialog
from console.screens.events import EventsScreen
from console.screens.fleet import FleetScreen
from console.screens.help import HelpScreen
from console.screens.launch import LaunchScreen
from console.screens.live import LiveScreen
from console.screens.metrics import MetricsScreen
from console.screens.record import RecordScreen
from console.screens.runs import RunsScreen
from console.screens.sla import SlaScreen
from console.session import Session
from console.store import heat, promql
from console.store.fleet import FleetStore
from console.store.record import over, remedy
from console.store.view import TableView
from console.terminal import TerminalDriver
from console.theming import Theming
from console.typing_ahead import TypingAhead
from console.widgets.clock import RenderClock
from harness.records.errors import RecordError
from harness.spec import StragglerPolicy
from harness.wire.inquiry import Answer, Question

Result = Literal["detached", "stop", "left"]
#: Modes that show one run; the two others are there without one.
OF_A_RUN: Final = ("live", "fleet", "sla", "events", "metrics")


class PacelineApp(Saving, TypingAhead[Result], Theming[Result]):
    """Result: `detached` (the run goes on), `stop` (the operator asked for its end), `left` (it had ended before)."""

    TITLE = "Paceline"
    CSS_PATH = Path(__file__).parent / "styles" / "app.tcss"
    BINDINGS = bindings("app")
    ENABLE_COMMAND_PALETTE = True
    NOTIFICATION_TIMEOUT = 6.0

    def __init__(
        self,
        run_path: Path | None = None,
        *,
        role: Literal["operator", "viewer"] = "operator",
        read_only: bool = False,
        ask_on_quit: bool = False,
        fps: int | None = None,
        feed: Feed | None = None,
        config: Config | None = None,
        theme_folders: Iterable[Path] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._now_s, self.wall_s = now_s, wall_s
        self._read_only = read_only
        self.session = Session.nothing(now_s)
        if feed is not None:
            self.session = Session(feed, FleetStore(now_s), run_path, looks_only=read_only)
        elif run_path is not None:
            self.session = Session.of_run(run_path, role, looks_only=read_only, now_s=now_s)
        self.DEFAULT_MODE = "launch" if self.session.kind == "none" else "live"  # type: ignore[misc]
        super().__init__()
        self.config = config or Config()
        self.operator = Operator(self)
        self.operator.armed = self.config.armed
        self.render_clock = RenderClock(fps or self.config.fps)
        self.frozen = False
        self._ask_on_quit, self._asks_about = ask_on_quit, run_path
        self._before = self.DEFAULT_MODE
        self.begin_themes(theme_folders, self.config.theme)
        self._timer: Timer | None = None
        self.add_mode("launch", LaunchScreen)
        self.add_mode("runs", RunsScreen)
        self._add_run_modes()

    def _add_run_modes(self) -> None:
        session = self.session
        self.add_mode("live", lambda: LiveScreen(session.store, session.view))
        self.add_mode("fleet", lambda: FleetScreen(session.store, session.fleet_view))
        self.add_mode("sla", lambda: SlaScreen(session.store))
        self.add_mode("events", lambda: EventsScreen(session.store))
        self.add_mode("metrics", lambda: MetricsScreen(session.store))

    def clear_selection(self) -> None:
        """From Python 3.12 on Textual starts tasks at once: the fields of the very first screen are there before it is."""
        with contextlib.suppress(ScreenStackError):
            super().clear_selection()

    def get_driver_class(self) -> type[Driver]:
        chosen = super().get_driver_class()
        return TerminalDriver if chosen is LinuxDriver else chosen

    # --- what screens ask ----------------------------------------------------------------------------------

    @property
    def store(self) -> FleetStore:
        return self.session.store

    @property
    def view(self) -> TableView:
        return self.session.view

    def now_s(self) -> float:
        return self._now_s()

    @property
    def looks_only(self) -> bool:
        return self._read_only or self.session.looks_only

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def record_folder(self) -> Path | None:
        folder = self.session.path or (Path(self.store.record) if self.store.record else None)
        return folder if folder is not None and (folder / "run.json").is_file() else None

    async def inquire(self, question: Question) -> Answer | None:
        return await self.session.feed.ask(question)

    def why_not(self, action: Action) -> str:
        return self.operator.why_not(action)

    def ask_and_act(self, name: str, slots: list[str] | None = None, value: str = "") -> None:
        self.operator.act(name, slots, value)

    def tell(self, text: str, title: str = "", severity: Literal["information", "warning", "error"] = "information") -> None:
        """One toast at a time: a second one on top of the first hides rows."""
        self.clear_notifications()
        self.notify(text, title=title, severity=severity, markup=False)

    # --- life ----------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        if self.config.keys:
            self.set_keymap(self.config.keys)
        self._begin()
        self._timer = self.set_interval(1 / self.render_clock.fps, self.tick, name="render clock")
        self.theme_changed_signal.subscribe(self, lambda _: self.call_after_refresh(self._wipe))
        problems = [*self.config.problems, *self.theme_problems]
        if problems:
            self.tell("\n".join(problems), "not used", "warning")
        self._detach_on_hangup()

    def _begin(self) -> None:
        """Hear of the run, or show its record when there is no head to hear."""
        session = self.session
        try:
            state = over(session.path) if session.path is not None and session.kind == "head" else None
        except RecordError as problem:  # no head to ask and no record to show
            session.store.disconnected(str(problem))  # stays on screen
            return
        if state is not None and session.path is not None:
            session.store.apply_record(state)
            if not session.store.ended:
                session.store.disconnected(remedy(state.run))
            self.push_screen(RecordScreen(session.store, session.path, first=True))
        if not session.store.ended and session.kind != "none":
            self.run_worker(session.feed.follow(session.store), name="feed", exclusive=True, group="feed")

    def _detach_on_hangup(self) -> None:
        """Terminal closed or session ended: leave like `q` does."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGHUP, signal.SIGTERM):
            # Only the main thread may: an app run elsewhere (tests, a server) has no terminal of its own to lose.
            with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
                loop.add_signal_handler(name, partial(self.exit, "detached"))

    async def on_unmount(self) -> None:
        await self.session.feed.close()

    def open_run(self, path: Path, *, looks_only: bool = False) -> None:
        self.open_session(Session.of_run(path, looks_only=looks_only or self._read_only, now_s=self._now_s))

    def open_session(self, session: Session) -> None:
        self.run_worker(self._open(session), group="session", exclusive=True)

    async def _open(self, session: Session) -> None:
        before, came_from = self.session, self.current_mode
        if came_from in OF_A_RUN:
            await self.switch_mode("runs")
        self.workers.cancel_group(self, "feed")
        await before.feed.close()
        for mode in OF_A_RUN:
            await self.remove_mode(mode)
        self.session = session
        self._add_run_modes()
        await self.switch_mode("live")
        self._before = came_from if came_from not in OF_A_RUN else "runs"
        self._begin()

    # --- painting ------------------------------------------------------------------------------------------

    def tick(self) -> int:
        """Paint what is due; how many lines changed."""
        due = self.render_clock.tick()
        if self.frozen or not self.is_running:  # while it leaves, widgets go one by one and the clock still ticks
            return 0
        # Under a dialog, help or the palette the picture goes on: what is asked about must not look frozen. Once a second,
        # because a line that shows through costs its whole width: 13 ms and 16 kB a paint at 120x36 instead of 7 and 5.
        screen = self.painted_screen
        if due is None or screen is None or (screen is not self.screen and not due.charts):
            return 0
        self.render_clock.began()
        if due.charts and isinstance(self.screen, Dialog):
            self.screen.tell_again()
        lines = screen.paint(due)
        self.call_after_refresh(self.render_clock.finished)
        return lines

    @property
    def painted_screen(self) -> PaintedScreen | None:
        """The one on show, or the one behind a dialog; not one that is only being put together."""
        stack = reversed(self.screen_stack)
        return next((screen for screen in stack if isinstance(screen, PaintedScreen) and screen.is_mounted), None)

    def stop_clock(self) -> None:
        """Paint only when `tick` is called (benchmarks)."""
        if self._timer is not None:
            self._timer.stop()

    def _wipe(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, PaintedScreen):
                screen.wipe()

    # --- screens -------------------------------------------------------------------------------------------

    async def _go(self, mode: str) -> None:
        if mode in OF_A_RUN and self.session.kind == "none":
            self.tell("no run is open: choose one in 0 Launch or 5 Runs", severity="warning")
        elif mode != self.current_mode:
            self._before = self.current_mode
            await self.switch_mode(mode)

    async def action_mode_launch(self) -> None:
        await self._go("launch")

    async def action_mode_live(self) -> None:
        await self._go("live")

    async def action_mode_fleet(self) -> None:
        await self._go("fleet")

    async def action_mode_sla(self) -> None:
        await self._go("sla")

    async def action_mode_events(self) -> None:
        await self._go("events")

    async def action_mode_runs(self) -> None:
        await self._go("runs")

    async def action_mode_metrics(self) -> None:
        await self._go("metrics")

    async def action_promql(self) -> None:
        await self._go("metrics")
        if isinstance(self.screen, MetricsScreen):
            self.screen.action_query()

    async def command_promql(self, query: str) -> None:
        await self._go("metrics")
        if isinstance(self.screen, MetricsScreen):
            self.screen.put(query)

    async def action_last_view(self) -> None:
        await self._go(self._before)

    def open_replica(self, slot: str, crumb: str) -> None:
        self.push_screen(ReplicaScreen(self.store, slot, crumb))

    def show_record(self) -> None:
        folder = self.record_folder
        if not self.store.ended:
            self.tell("the run goes on: its result is there at its end", BY_ID["result"].title, "warning")
        elif folder is None:
            self.tell(f"the record is not on this machine: {self.store.record}", BY_ID["result"].title, "warning")
        else:
            self.push_screen(RecordScreen(self.store, folder, first=False))

    # --- keys of every screen ------------------------------------------------------------------------------

    def action_act(self, name: str) -> None:
        self.ask_and_act(name)

    def action_arm(self) -> None:
        self.operator.toggle_arm()

    def action_control(self) -> None:
        self.operator.control()

    def action_help(self) -> None:
        self.expect_typing()
        shown = self.painted_screen
        self.push_screen(HelpScreen(shown.WHERE if shown is not None else "live", self.config.keys))

    def action_freeze_picture(self) -> None:
        self.frozen = not self.frozen
        self._wipe()

    def action_leave(self) -> None:
        if self.session.kind != "head" or self.store.ended:
            self.exit("left")
        elif self._ask_on_quit and self.session.path == self._asks_about:  # another run that was opened here is not ours to end
            self.run_worker(self._leave_or_stop(), group="acts")
        else:
            self.exit("detached")

    async def _leave_or_stop(self) -> None:
        feed = self.session.feed
        answer = await self.push_screen_wait(AskOnQuit())
        if answer == "leave":
            self.exit("detached")
        elif answer == "stop":
            await feed.command("stop", {}, "stopped on leaving the console")
            self.exit("stop")

    async def action_quit(self) -> None:
        self.action_leave()

    def action_help_quit(self) -> None:
        self.tell("q leaves this console; the run goes on")

    # --- by name -------------------------------------------------------------------------------------------

    def action_command_line(self, begun: str = "") -> None:
        self.expect_typing()
        self.push_screen(CommandLine(self._values, begun), self._run_line)

    def _values(self, takes: str) -> Sequence[str]:
        """What the argument of a command can be."""
        screen = self.painted_screen
        if takes == "SLOT":
            return [info.slot for info in self.store.slots]
        if takes == "FIELD=VALUE":
            return screen.field_names() if isinstance(screen, LaunchScreen) else []
        if takes == "METRIC":
            return screen.heat_names() if isinstance(screen, LiveScreen) else heat.names(self.store)
        if takes == "COLUMNS":
            return screen.column_names() if isinstance(screen, FleetScreen) else []
        if takes == "QUERY":
            return promql.earlier()
        known = {"THEME": self.theme_names, "POLICY": get_args(StragglerPolicy), "SPEED": [f"{speed:g}" for speed in SPEEDS]}
        return known.get(takes) or (screen.sort_names() if takes == "COLUMN" and screen is not None else [])

    async def _run_line(self, text: str | None) -> None:
        if text:
            typed = parse(text)
            await self.run_named(typed.action, typed.argument)

    async def run_named(self, action: Action, argument: str = "") -> None:
        """An action by its name, from the `:` line or the palette."""
        if action.acts:
            self.ask_and_act(action.id, [argument] if action.takes == "SLOT" and argument else None, argument)
            return
        method = f"command_{action.id}" if argument else f"action_{action.id}"
        on = next((node for node in (self.painted_screen, self) if node is not None and hasattr(node, method)), None)
        shown = self.painted_screen
        if on is None or (on is shown and shown is not None and shown.WHERE not in action.where):
            self.tell(f"{action.command} belongs to {', '.join(action.where)}", action.title, "warning")
        elif argument:
            done = getattr(on, method)(argument)
            if asyncio.iscoroutine(done):
                await done
        else:
            await on.run_action(action.id)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        shown = self.painted_screen
        where = shown.WHERE if shown is not None else "live"
        for action in NAMES.values():
            if where in action.where or "app" in action.where:
                told = f"{shown_key(action, self.config.keys)} · {action.help or action.title.lower()}"
                yield SystemCommand(action.title, told, partial(self.run_named, action))
