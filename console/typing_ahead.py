"""Keys that were typed ahead go where they were meant for: into the field that the key before them is opening.

A terminal hands over what was typed (or pasted by a macro, or held up by a slow line) in one piece. `/ready` then arrives
before the filter has the focus, and its letters would be keys of the screen: `r` recycles, `a` readmits. Textual looks for
a binding only when a key comes back from the widget that it was sent to; here that moment is used to send it on.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Generic

from textual import events
from textual.app import App, ReturnType
from textual.screen import ModalScreen
from textual.widgets import Input

OPENS_WITHIN_S: Final = 2.0
LOOK_EVERY_S: Final = 0.005

if TYPE_CHECKING:
    _Base = App[ReturnType]
else:

    class _Base(Generic[ReturnType]):
        pass


class TypingAhead(_Base[ReturnType]):
    _opens_until_s: float = 0.0
    _early: list[events.Key] | None = None  # held until there is a field to take them
    _on_the_way = 0

    def expect_typing(self) -> None:
        """What is being done opens a field or a dialog; it is not there yet."""
        self._opens_until_s = time.monotonic() + OPENS_WITHIN_S

    def expect_nothing(self) -> None:
        """It will not open after all."""
        self._opens_until_s = 0.0

    def _can_type(self) -> bool:
        if not self._screen_stack:  # the app is leaving
            return False
        return isinstance(self.focused, Input) or (isinstance(self.screen, ModalScreen) and self.focused is not None)

    def _opening(self) -> bool:
        return time.monotonic() < self._opens_until_s and not self._can_type()

    def on_descendant_focus(self) -> None:
        if self._can_type():
            self.expect_nothing()  # what was to open is open: leaving it by mouse must not make the next keys wait

    async def on_key(self, event: events.Key) -> None:
        """A key that nobody took, before its bindings are looked for."""
        if self._can_type():
            self.expect_nothing()
        if self._early is not None:
            event.prevent_default()
            self._early.append(event)
        elif self._opening():
            event.prevent_default()
            self._early = [event]
            self.run_worker(self._hand_over(), group="typing", exit_on_error=False)
        elif isinstance(self.focused, Input) and (event.is_printable or self._on_the_way):
            event.prevent_default()
            self._send(event)

    async def _hand_over(self) -> None:
        while self._opening():  # noqa: ASYNC110 - Textual tells nobody that a widget of another screen got the focus
            await asyncio.sleep(LOOK_EVERY_S)
        early, self._early = self._early or [], None
        if self._can_type():  # else nothing opened: what was meant for it is better lost than taken for keys that act
            for event in early:
                self._send(event)

    def _send(self, event: events.Key) -> None:
        target: Any = self.focused or self.screen
        key = events.Key(event.key, event.character)
        key._set_forwarded()  # else it would be taken for one that comes from the terminal when it comes back here
        target.post_message(key)
        if event.is_printable:  # an enter behind it must not overtake it
            self._on_the_way += 1
            target.call_later(self._arrived)

    def _arrived(self) -> None:
        self._on_the_way -= 1
