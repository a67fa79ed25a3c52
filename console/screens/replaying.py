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
