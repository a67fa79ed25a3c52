"""The command line: `paceline …`. One small file a group of commands; what costs time to import is imported by its command.

`paceline --help` and `paceline rate` start without Textual and without polars.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

__all__ = ["main", "process"]


def main(tokens: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code. Never raises, save with PACELINE_DEBUG=1."""
    from console.cli.app import main as run

    return run(tokens)


def process() -> int:
    """`main` of a process of its own. A Ctrl-C while modules are loaded, or when all is done, ends it at once: no traceback
    is told, and no thread is waited for."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started it wants none
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from console.cli.app import main as run

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run()
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code
