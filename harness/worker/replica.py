"""The start of a replica process: `python -m harness.worker.replica`, started by a worker; carrier.py is what it then does.

Its configuration is the first line of stdin, commands follow, and EOF means that the worker is gone. The process also
asks the kernel to be killed with its worker (PR_SET_PDEATHSIG), for the case that its loop is stuck when that happens.

Only the standard library is imported here, so that an interpreter chosen by `fleet.python` which lacks something can say
what, as the final reason of its slots, and so that the guard is forked while the process is small.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from harness.worker.guard import die_with, start_guard
from harness.worker.launch import STDIN, LaunchConfig, read_first_line

__all__ = ["die_with", "main"]

OLDEST_PYTHON = (3, 11)


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    line, rest = read_first_line(STDIN)
    if not line:
        return 0  # the worker ended before it had said what to do
    told = json.loads(line)
    if not die_with(told["worker_pid"]):
        return 0
    os.set_inheritable(told["status_fd"], False)
    _tell(told["status_fd"], {"begun": os.getpid()})
    if sys.version_info[:2] < OLDEST_PYTHON:
        return _give_up(told, f"it is Python {sys.version.split()[0]}; replicas need 3.11 or newer")
    config = LaunchConfig.of(told)
    if config.guarded:
        start_guard()
    try:
        from harness.worker import carrier
    except ImportError as error:
        return _give_up(told, f"{error}; replicas need pyzmq, msgspec, pydantic and numpy beside their engine")
    return carrier.run(config, rest)


def _give_up(told: dict[str, Any], what: str) -> int:
    """It would be the same next time."""
    chosen = json.loads(told["spec"])["fleet"].get("python")
    reason = f"fleet.python = {chosen}: {what}" if chosen else f"{sys.executable}: {what}"
    logging.getLogger("paceline.replica").error("%s", reason)
    for life in told["slots"]:
        _tell(told["status_fd"], {"died": life["slot"], "incarnation": life["incarnation"], "reason": reason, "final": True})
    return 1


def _tell(status_fd: int, message: dict[str, Any]) -> None:
    os.write(status_fd, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
