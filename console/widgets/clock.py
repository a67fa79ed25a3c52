"""When to paint what. One timer of the app drives it; widgets own none, and input always goes first.

Numbers at every tick (4 Hz), heat map at half of that, charts and the table once a second, each in a tick of its own:
rows are sorted by the very values that are painted with them, and no key waits for everything at once. A tick whose
predecessor has not reached the terminal yet is skipped: a slow line loses frames, never keys.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Due:
    numbers: bool
    table: bool
    heat: bool
    charts: bool


EVERYTHING = Due(True, True, True, True)


class RenderClock:
    def __init__(self, fps: int) -> None:
        self.fps = max(1, fps)
        self.ticks = 0
        self.skipped = 0
        self._painting = False

    def tick(self) -> Due | None:
        """What to paint now; None when the last paint is unfinished."""
        self.ticks += 1
        if self._painting:
            self.skipped += 1
            return None
        beat = self.ticks % self.fps
        slow = self.fps // 2  # charts and table never in one tick: a key waits for the longest one
        return Due(numbers=True, table=beat == 0, heat=self.fps < 4 or beat % 2 == 1, charts=beat == slow % self.fps)

    def began(self) -> None:
        self._painting = True

    def finished(self) -> None:
        self._painting = False
