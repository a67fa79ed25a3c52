"""The process behind one browser tab: the console, speaking textual-serve's packets on stdin and stdout.

Which run, and whether it may act, comes in an environment variable and not in the arguments, which everybody on the
machine can read. It ends with its tab: on a word from the server, or when the server is gone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from textual.app import App
from textual.drivers.web_driver import WebDriver

ORDER: Final = "PACELINE_TAB"
DRIVER: Final = "console.serving.tab:TabDriver"


def order_of(run: Path, operator: bool) -> str:
    return json.dumps({"run": str(run), "operator": operator})


class TabDriver(WebDriver):
    """Leaves when nobody reads any more; Textual's own driver would go on drawing, unseen and without end."""

    def __init__(self, app: App[Any], **how: Any) -> None:
        super().__init__(app, **how)
        self._gone = False
        self._write: Any = self._send

    def _send(self, data: bytes) -> None:
        """All of it: a packet cut short would turn the rest of the stream into noise."""
        view = memoryview(data)
        while view and not self._gone:
            try:
                view = view[os.write(self.fileno, view) :]
            except OSError:
                self._leave()

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._leave()

    def _leave(self) -> None:
        self._gone = True
        self._app.call_later(self._app.exit, "detached")


def main() -> int:
    from console.app import PacelineApp
    from console.config import load_config

    order = json.loads(os.environ.pop(ORDER))
    operator = bool(order["operator"])
    app = PacelineApp(Path(order["run"]), role="operator" if operator else "viewer", read_only=not operator, config=load_config())
    app.run()
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
