"""The bottom line: keys of this screen, as the user's key map has them; what cannot be done now is grey.

Every key has its place; where the width is short the labels of the less important ones go, and these keys stand together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, cast

from rich.style import Style
from textual.strip import Strip

from console.actions import ACTIONS, Action
from console.config import Config, shown_key
from console.session import Session
from console.widgets.paint import Painted, Run, size_of, strip_of

ALWAYS: Final = ("help", "leave", "back", "command_line")  # on the narrowest terminal too: the way out and the way to the rest
FIRST: Final = ("rate", "open", "filter", "evict")  # what one does most, where a screen has it
_PARTICULAR: Final = (2, 2)  # the rank of what two screens have at most
_SCREENS: Final = "screens"
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

    def offer(self, actions: Sequence[Action]) -> None:
        """Other keys than before: those of another view of the same screen."""
        self._actions = actions

    def _belongs(self, action: Action) -> bool:
        """A replay has its own keys, and nothing of it can be changed; without a cluster there are no pods."""
        session = cast(HasConfig, self.app).session
        replaying = session.kind == "replay"
        if action.of_pods and session.store.cluster.view is None:
            return False
        return not action.acts if replaying else not action.id.startswith("replay_")

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, mapped = self.inks, cast(HasConfig, self.app).config.keys
        actions = sorted((action for action in self._actions if self._belongs(action)), key=rank)
        keys = {action.id: shown_key(action, mapped).split(" ")[0] for action in actions}
        labels = {action.id: label_of(action, width < 110) for action in actions}
        digits = "0-6" if not any(mode.id in mapped for mode in _MODES) else "".join(shown_key(mode, mapped) for mode in _MODES)
        labels[_SCREENS] = "Screens"
        others = [action for action in actions if action.id not in ALWAYS]
        ends = [action for action in actions if action.id in ALWAYS]
        room = width - len(digits) - 2 - sum(len(keys[action.id]) + len(labels[action.id]) + 3 for action in ends)
        told = labelled(others, keys, labels, room)

        bold = ink.primary + Style(bold=True)
        runs: list[Run] = [(f" {digits} ", bold), ("Screens " if _SCREENS in told else "", ink.muted)]
        alone = [action for action in others if action.id not in told]
        for action in (*(action for action in others if action.id in told), *alone, *ends):
            off = bool(self._why_not(action))
            if action in alone:
                if size_of(runs) + len(keys[action.id]) + 1 > room + len(digits) + 2:
                    continue  # the narrowest terminals
                runs.append((f" {keys[action.id]}", ink.faint if off else bold))
                continue
            if action in ends[:1] and alone:
                runs.append(("  ", ink.muted))
            runs.append((f" {keys[action.id]} ", ink.faint if off else bold))
            runs.append((f"{labels[action.id]} ", ink.faint if off else ink.muted))
        return [strip_of(runs, width)]


def rank(action: Action) -> tuple[int, int]:
    """Who gets room first: what one does most, then what only few screens have; stable beyond that."""
    if action.id.startswith("replay_"):
        return 0, 0
    if action.id in FIRST:
        return 1, FIRST.index(action.id)
    return 2, 9 if "app" in action.where or action.id == "freeze" else len(action.where)


def labelled(actions: Sequence[Action], keys: Mapping[str, str], labels: Mapping[str, str], room: int) -> set[str]:
    """Whose label fits once every key has its place."""
    room -= sum(len(keys[action.id]) + 1 for action in actions) + 2
    order = [action.id for action in actions]
    order.insert(sum(rank(action) <= _PARTICULAR for action in actions), _SCREENS)
    told = set()
    for id in order:
        cost = len(labels[id]) + (1 if id == _SCREENS else 2)
        if cost <= room:
            room -= cost
            told.add(id)
    return told
