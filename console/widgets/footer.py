"""The bottom line: keys of this screen, as the user's key map has them; what cannot be done now is grey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from rich.style import Style
from textual.strip import Strip

from console.actions import ACTIONS, Action
from console.config import Config, shown_key
from console.session import Session
from console.widgets.paint import Painted, Run, size_of, strip_of

ALWAYS: Final = ("help", "leave", "back", "command_line")  # on the narrowest terminal too: the way out and the way to the rest


_MODES: Final = tuple(action for action in ACTIONS if action.id.startswith("mode_"))


class HasConfig(Protocol):
    config: Config
    session: Session


def label_of(action: Action, short: bool) -> str:
    return action.short if short else action.footer or action.title


class KeyFooter(Painted):
    def __init__(self, actions: Sequence[Action], why_not: Callable[[Action], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._actions, self._why_not = actions, why_not

    def _belongs(self, action: Action) -> bool:
        """A replay has its own keys, and nothing of it can be changed."""
        replaying = cast(HasConfig, self.app).session.kind == "replay"
        return not action.acts if replaying else not action.id.startswith("replay_")

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, mapped = self.inks, cast(HasConfig, self.app).config.keys
        short = width < 110
        actions = [action for action in self._actions if self._belongs(action)]
        actions.sort(key=lambda action: not action.id.startswith("replay_"))
        keys = [shown_key(action, mapped).split(" ")[0] for action in actions]
        digits = "0-5" if not any(mode.id in mapped for mode in _MODES) else "".join(shown_key(mode, mapped) for mode in _MODES)
        runs: list[Run] = [(f" {digits} ", ink.primary + Style(bold=True)), ("Screens  ", ink.muted)]
        sizes = [len(key) + len(label_of(action, short)) + 4 for action, key in zip(actions, keys, strict=True)]
        always = [action.id in ALWAYS for action in actions]
        room = width + 1 - size_of(runs) - sum(size for size, keep in zip(sizes, always, strict=True) if keep)
        for action, key, size, keep in zip(actions, keys, sizes, always, strict=True):
            if not keep:
                room -= size
                if room < 0:
                    continue
            off = bool(self._why_not(action))
            runs.append((f" {key} ", ink.faint if off else ink.primary + Style(bold=True)))
            runs.append((f"{label_of(action, short)}  ", ink.faint if off else ink.muted))
        return [strip_of(runs, width)]
