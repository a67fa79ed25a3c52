"""Ends a server's whole process group when the replica that started it is gone, in whatever way it went.

Run by path (standard library only, no package is imported): it leads the group, the server joins it, and the replica
holds the other end of its stdin. A server's helpers (engine cores, tensor-parallel workers) outlive a killed parent and
keep the accelerator; nothing but the group reaches them all.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__" and os.getpgrp() == os.getpid():
    main()
