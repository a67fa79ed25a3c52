"""What this process really loaded, as a file that whoever started it can read: $PACELINE_KERNELS_REPORT/<pid>.json.

Only a process that loads a mixture-of-experts layer writes one. It is there before the engine is ready, since it is written while
the model is made and its weights are loaded: whole (aside, then renamed), and again when what it says has changed. Standard
library only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels.identity import KERNEL_NAME

FOLDER = "PACELINE_KERNELS_REPORT"
SCHEMA = 1

log = logging.getLogger("vllm.paceline_moe")


@dataclass(slots=True)
class Device:
    node_class: str = ""
    device_name: str = ""
    target: str = ""


@dataclass(slots=True)
class Config:
    """The table of configurations; a `how` of "default" has no file."""

    how: str = ""  # tuned, untimed, default
    file: str = ""
    hash: str = ""
    keys: list[int] = field(default_factory=list)
    of_floor: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Loaded:
    """Of this process. Layers are counted twice: when they are made, and when their weights are in place."""

    rank: int = 0
    kernel_hash: str = ""
    device: Device = field(default_factory=Device)
    config: Config = field(default_factory=Config)
    fallback: str = ""
    made: int = 0
    ready: int = 0
    fell_back: int = 0

    def layer_made(self) -> None:
        self.made += 1

    def layer_ready(self) -> None:
        """The last one writes the report."""
        self.ready += 1
        if self.ready >= self.made:
            self.write()

    def layer_fell_back(self, reason: str) -> None:
        """At once: nothing of ours is told when vLLM's own method has its weights."""
        self.fallback = self.fallback or reason
        self.fell_back += 1
        self.write()

    def report(self) -> dict[str, Any]:
        ours = self.fell_back == 0
        return {
            "schema": SCHEMA,
            "pid": os.getpid(),
            "rank": self.rank,
            "kernel": KERNEL_NAME if ours else "",
            "kernel_hash": self.kernel_hash if ours else "",
            "node_class": self.device.node_class,
            "device_name": self.device.device_name,
            "target": self.device.target,
            "triton": _version("triton"),
            "torch": _version("torch"),
            "vllm": _version("vllm"),
            "layers": self.made if ours else self.fell_back,
            "config": {
                "how": self.config.how if ours else "",
                "file": self.config.file if ours else "",
                "hash": self.config.hash if ours else "",
                "keys": self.config.keys if ours else [],
                "of_floor": self.config.of_floor if ours else {},
            },
            "vllm_tables": os.environ.get("VLLM_TUNED_CONFIG_FOLDER", ""),
            "fallback": self.fallback,
        }

    def write(self) -> None:
        """A folder that cannot be written costs the report, not the engine."""
        folder = os.environ.get(FOLDER, "")
        if not folder:
            return
        path = Path(folder) / f"{os.getpid()}.json"
        aside = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(self.report(), ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(aside, path)
        except OSError as error:
            log.warning("%s: the report of what was loaded cannot be written: %s", path, error.strerror)
            with contextlib.suppress(OSError):
                aside.unlink()


def _version(package: str) -> str:
    """As imported here; "" where it is not."""
    return str(getattr(sys.modules.get(package), "__version__", ""))


_loaded: dict[int, Loaded] = {}


def this_process() -> Loaded:
    """By pid: a forked child has loaded nothing yet."""
    return _loaded.setdefault(os.getpid(), Loaded())
