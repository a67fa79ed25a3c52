"""What takes long: said on stderr, and ended in order when somebody ends it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

from console.cli.output import note

SILENT_S: Final = 1.0


@contextlib.contextmanager
def told_if_slow(what: str, after_s: float | None = None) -> Iterator[None]:
    """`what`: "reading 2.4 million samples"."""
    timer = threading.Timer(SILENT_S if after_s is None else after_s, note, [f"{what} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does: what it has begun to write is taken away again, and no further signal
    interrupts that."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    usual = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    taken = [one for one, handler in usual.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]

    def end(number: int, _: FrameType | None) -> NoReturn:
        for one in taken:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for one in taken:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in taken:
            if signal.getsignal(one) is end:  # else the process is on its way out
                signal.signal(one, usual[one])
