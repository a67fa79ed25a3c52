"""Keys of a replay on the screens that show one: play or stop, wind back and on, faster. Mixed into PaintedScreens.

Where it stands and how fast it goes is in the header; these keys say something only when they cannot do what was asked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from console.feeds.replay import SPEEDS, ReplayFeed

if TYPE_CHECKING:
    from console.screens.base import PaintedScreen as _Screen
else:
    _Screen = object

STEP_S: Final = 10.0
#: `3:20`, `1:03:20`, `200` seconds; with a sign from where it stands.
_PLACE: Final = re.compile(r"([+-]?)(?:(\d{1,3}):)?(\d{1,4}):(\d{2})|([+-]?)(\d{1,6})(?:s)?", re.ASCII)
_SPEED: Final = re.compile(r"x?(\d{1,6}(?:\.\d{1,6})?)x?", re.ASCII | re.IGNORECASE)


class ReplayKeys(_Screen):
    def _replay(self) -> ReplayFeed | None:
        """The replay that goes on; says so if none does."""
        feed = self.console_app.session.feed
        if isinstance(feed, ReplayFeed):
            return feed
        self.console_app.tell("nothing is being replayed: R in 5 Runs replays a run", severity="warning")
        return None

    def action_replay_play(self) -> None:
        if (replay := self._replay()) is not None:
            replay.play_pause()

    def action_replay_back(self) -> None:
        if (replay := self._replay()) is not None:
            replay.seek_by(-STEP_S)

    def action_replay_forward(self) -> None:
        if (replay := self._replay()) is not None:
            replay.seek_by(STEP_S)

    def action_replay_next(self) -> None:
        if (replay := self._replay()) is not None and not replay.seek_mark(1):
            self.console_app.tell("no act, alert or end of an attempt comes after this", "Replay")

    def action_replay_before(self) -> None:
        if (replay := self._replay()) is not None and not replay.seek_mark(-1):
            self.console_app.tell("no act, alert or start of an attempt lies before this", "Replay")

    async def action_replay_to(self) -> None:
        if self._replay() is not None:
            await self.app.run_action("command_line('replay-to ')")

    def command_replay_to(self, text: str) -> None:
        if (replay := self._replay()) is None:
            return
        wanted_s = place_of(text, replay.position_s, replay.length_s)
        if wanted_s is None:
            said = f"{text!r} is no time of a replay: 3:20, 200 (seconds), +30, -1:00, begin or end"
            self.console_app.tell(said, "Replay", "error")
        elif not 0 <= wanted_s <= replay.length_s:
            minutes, seconds = divmod(int(replay.length_s), 60)
            self.console_app.tell(f"the record ends at {minutes}:{seconds:02d}", "Replay", "warning")
        else:
            replay.seek_to(wanted_s)

    def leave_replay(self) -> bool:
        """To 5 Runs, and it stands meanwhile; False: nothing is being replayed."""
        feed = self.console_app.session.feed
        if not isinstance(feed, ReplayFeed):
            return False
        feed.pause()
        self.run_worker(self.app.run_action("mode_runs"))
        return True

    def action_replay_speed(self) -> None:
        """The next faster one; after the fastest the first again."""
        if (replay := self._replay()) is not None:
            replay.next_speed()

    def command_replay_speed(self, text: str) -> None:
        if (replay := self._replay()) is None:
            return
        found = _SPEED.fullmatch(text.strip())
        try:
            replay.set_speed(float(found[1]) if found is not None else 0.0)
        except ValueError:
            choice = ", ".join(f"{speed:g}" for speed in SPEEDS)
            self.console_app.tell(f"{text!r} is no replay speed; there are {choice}", severity="error")


def place_of(text: str, here_s: float, length_s: float) -> float | None:
    """The second of the record that is meant; None: not understood."""
    text = text.strip().lower()
    if text in ("begin", "start", "end"):
        return length_s if text == "end" else 0.0
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    sign = found[1] or found[5] or ""
    seconds = float(found[6]) if found[6] else int(found[2] or 0) * 3600.0 + int(found[3]) * 60.0 + int(found[4])
    return here_s + (seconds if sign == "+" else -seconds) if sign else seconds
