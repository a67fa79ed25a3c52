"""What a worker tells a replica process, as JSON lines: the configuration first, then commands; status comes back.

stdin of the replica process:  LaunchConfig, then {"start": SlotLife} and {"stop": slot, "incarnation": …}
status pipe to the worker:     {"begun": pid}, then {"up" | "stopped" | "died": slot, "incarnation": …, "reason": …, "final": …}
EOF on stdin means that the worker is gone; the replica process then ends.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

STDIN = 0


@dataclass(frozen=True, slots=True)
class SlotLife:
    """One incarnation to be."""

    slot: str
    node: int
    gpu: int
    ordinal: int  # position in the whole fleet
    incarnation: str
    life: int  # 0 for the first that this worker starts in the slot

    def line(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, line: dict[str, Any]) -> SlotLife:
        return cls(**line)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    spec: str  # RunSpec as JSON
    slots: tuple[SlotLife, ...]
    head: str  # control endpoint
    keys: str  # folder
    worker: str
    worker_pid: int
    status_fd: int
    guarded: bool = False  # its engine may start helper processes, which must not outlive it

    def line(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, line: dict[str, Any]) -> LaunchConfig:
        return cls(**{**line, "slots": tuple(SlotLife.of(slot) for slot in line["slots"])})


def read_first_line(fd: int) -> tuple[bytes, bytes]:
    """Blocks for the first line of `fd`; returns it and the bytes that came after it. Empty line: the writer is gone."""
    buffer = bytearray()
    while (end := buffer.find(b"\n")) < 0:
        chunk = os.read(fd, 65536)
        if not chunk:
            return b"", b""
        buffer += chunk
    return bytes(buffer[:end]), bytes(buffer[end + 1 :])
