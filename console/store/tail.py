"""Looking at many lines through a small window, and the end of one log file. Pure: no clock, no drawing.

`Pager` knows rows by number only; how many lines a row takes is asked for the few rows around the window, so wrapping costs
nothing for the thousands that nobody sees. Following means: the cursor is on the newest row and goes on to the next one.
Any move up stops it, and what came since is counted, never scrolled to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from harness.wire.inquiry import ReplicaDetail

SIDE_STEP: Final = 16  # columns that one press of an arrow key scrolls

Heights = Callable[[int], int]


def one_line(_: int) -> int:
    return 1


class Pager:
    def __init__(self) -> None:
        self.count = 0
        self.cursor = -1
        self.top = 0
        self.x = 0
        self.follow = True

    def resize(self, count: int) -> None:
        """There are so many rows now."""
        self.count = count
        if self.follow or self.cursor >= count:
            self.cursor = count - 1
        elif self.cursor < 0 < count:
            self.cursor = 0

    def move(self, by: int) -> None:
        if self.count:
            self.move_to(self.cursor + by)
            if by < 0:
                self.follow = False

    def move_to(self, row: int) -> None:
        self.cursor = min(max(row, 0), self.count - 1)
        self.follow = self.cursor == self.count - 1

    def aside(self, steps: int, longest: int) -> None:
        """Left or right, as far as the longest line that is in view needs."""
        self.x = max(0, min(self.x + steps * SIDE_STEP, max(self.x if steps < 0 else 0, longest)))

    def window(self, height: int, lines_of: Heights = one_line) -> list[int]:
        """Rows to draw from the top; the cursor's row is among them. Each may take several lines; the last may be cut."""
        if not self.count or height <= 0:
            return []
        never_emptier_than_it_must_be = self._top_for(self.count - 1, height, lines_of)
        self.top = min(self.top, never_emptier_than_it_must_be, self.cursor)
        self.top = max(self.top, self._top_for(self.cursor, height, lines_of), 0)
        rows, room = [], height
        for row in range(self.top, self.count):
            if room <= 0:
                break
            rows.append(row)
            room -= lines_of(row)
        return rows

    @staticmethod
    def _top_for(last: int, height: int, lines_of: Heights) -> int:
        """The first row of a window whose last lines are those of `last`."""
        row, room = last, height - lines_of(last)
        while row > 0 and room >= lines_of(row - 1):
            row -= 1
            room -= lines_of(row)
        return row


class LogTail:
    """The end of one replica's log as the head last sent it. While somebody reads further up, the lines under their eyes
    stay: later ones are counted in bytes and come when the end is asked for again."""

    def __init__(self) -> None:
        self.pager = Pager()
        self.lines: Sequence[str] = ()
        self.path = ""
        self.left_out = 0  # bytes before the first line
        self.size = 0  # bytes up to the last line
        self.newer = 0  # bytes after it
        self.written_s = float("nan")  # how long ago it was written, as of the answer

    def take(self, answer: ReplicaDetail) -> None:
        self.written_s = answer.log_written_s
        same = answer.log == self.path and answer.log_size >= self.size
        if same and not self.pager.follow:
            self.newer = answer.log_size - self.size
            return
        if not same:
            self.pager.follow = True
        self.path, self.lines = answer.log, [clean(line) for line in answer.log_lines]
        self.left_out, self.size, self.newer = answer.log_left_out, answer.log_size, 0
        self.pager.resize(len(self.lines))


_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def clean(text: str) -> str:
    """Colours and control characters of a log would be written to this terminal; progress bars leave their last state."""
    return _ESCAPES.sub("", text.rstrip("\r\n").rpartition("\r")[2]).expandtabs(4).replace("\n", " ")
