"""What an import has to say for itself: files that were read, and what they did not say; and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: What is being done, bytes done, bytes in all (0: not known).
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Progress for nobody."""


@dataclass(slots=True)
class Told:
    """Lines for people. `left_out`: files of the source that were not taken over, and why."""

    read: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def lacks(self, text: str) -> None:
        if text not in self.missing:
            self.missing.append(text)
