"""The bottom line: keys of this screen from the action registry; what cannot be done now is grey."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.style import Style
from textual.strip import Strip

from console.actions import Action
from console.widgets.paint import Painted, Run, strip_of


class KeyFooter(Painted):
    def __init__(self, actions: Sequence[Action], why_not: Callable[[Action], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._actions, self._why_not = actions, why_not

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        runs: list[Run] = []
        used = 0
        for action in self._actions:
            label = action.short if width < 110 else action.footer
            size = len(action.shown_key) + len(label) + 4
            if used + size > width + 1:
                break
            used += size
            off = bool(self._why_not(action))
            runs.append((f" {action.shown_key} ", ink.faint if off else ink.primary + Style(bold=True)))
            runs.append((f"{label}  ", ink.faint if off else ink.muted))
        return [strip_of(runs, width)]
