"""The bottom line: keys of this screen from the action registry; what cannot be done now is grey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.style import Style
from textual.strip import Strip

from console.actions import Action
from console.widgets.paint import Painted, Run, size_of, strip_of

ALWAYS: Final = ("help", "leave", "back", "command_line")  # on the narrowest terminal too: the way out and the way to the rest


def label_of(action: Action, short: bool) -> str:
    return action.short if short else action.footer or action.title


class KeyFooter(Painted):
    def __init__(self, actions: Sequence[Action], why_not: Callable[[Action], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._actions, self._why_not = actions, why_not

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        short = width < 110
        runs: list[Run] = [(" 0-5 ", ink.primary + Style(bold=True)), ("Screens  ", ink.muted)]
        sizes = [len(action.shown_key) + len(label_of(action, short)) + 4 for action in self._actions]
        always = [action.id in ALWAYS for action in self._actions]
        room = width + 1 - size_of(runs) - sum(size for size, keep in zip(sizes, always, strict=True) if keep)
        for action, size, keep in zip(self._actions, sizes, always, strict=True):
            if not keep:
                room -= size
                if room < 0:
                    continue
            off = bool(self._why_not(action))
            runs.append((f" {action.shown_key} ", ink.faint if off else ink.primary + Style(bold=True)))
            runs.append((f"{label_of(action, short)}  ", ink.faint if off else ink.muted))
        return [strip_of(runs, width)]
