"""The console in a real terminal: tmux types the keys, its screen is read back.

What a key does is waited for on the screen before the next one is typed that depends on it. On a slow machine a program reads
keys typed one after the other at once, and Escape with whatever follows it is then another key: `press` refuses it, `leave`
types it and waits for what has to go.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable

TYPED_EVERY_S = 0.1


def environment(**more: str) -> dict[str, str]:
    """What a program in a terminal gets, whatever the test runner's own one is."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "XDG_STATE_HOME") if name in os.environ}
    return {"TERM": "tmux-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", **kept, **more}


class Terminal:
    def __init__(self, name: str, command: list[str], env: dict[str, str], columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-L", name, "-f", "/dev/null"]
        settings = [part for key, value in env.items() for part in ("-e", f"{key}={value}")]
        size = ["-x", str(columns), "-y", str(rows)]
        # What a test runner says of its own terminal must not be believed of this one.
        own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        subprocess.run([*self._tmux, "new-session", "-d", *size, *settings, shlex.join(command)], check=True, timeout=30, env=own)

    def screen(self, *, styled: bool = False) -> str:
        command = [*self._tmux, "capture-pane", "-p", *(["-e"] if styled else [])]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout

    def press(self, *keys: str) -> None:
        """Keys that do not need one another's effect."""
        assert "Escape" not in keys, "leave() waits for what Escape does"
        self._type(*keys)

    def press_until(self, key: str, shown: str) -> None:
        """What the key brings, before anything else is typed."""
        self.press(key)
        self.wait(shown)

    def press_and_see(self, key: str, text: str) -> None:
        """A key whose effect is another style of a text, as the focus is."""
        before = self._styled(text)
        while before != (again := self._styled(text)):  # what the keys before did is still being drawn
            before = again
        self.press(key)
        self._until(lambda: self._styled(text) not in ("", before), f"{key} did not change how {text!r} is drawn")

    def leave(self, gone: str) -> None:
        """Escape, and what it closes has gone."""
        self._type("Escape")
        self.wait_gone(gone)

    def wait(self, text: str, within_s: float = 45.0) -> None:
        """What else belongs to it may be drawn a moment later: it is waited for as well."""
        self._until(lambda: text in self.screen(), f"never saw {text!r}", within_s)

    def wait_gone(self, text: str, within_s: float = 45.0) -> None:
        self._until(lambda: text not in self.screen(), f"still saw {text!r}", within_s)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=30, check=False)

    def _type(self, *keys: str) -> None:
        for key in keys:
            subprocess.run([*self._tmux, "send-keys", key], check=True, timeout=30)
            time.sleep(TYPED_EVERY_S)

    def _styled(self, text: str) -> str:
        """The text with its style and that of what is left of it; nothing where it is not on the screen."""
        before, found, _ = self.screen(styled=True).partition(text)
        return before[-40:] + found if found else ""

    def _until(self, true: Callable[[], bool], complaint: str, within_s: float = 45.0) -> None:
        deadline = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < deadline, f"{complaint}, within {within_s:g} s:\n{self.screen()}"
            time.sleep(0.1)
