"""The real supervisor on a run folder, with a cluster that starts nothing and, when asked, a stand-in for its driver.

`python -m tests.bench.bare_head JSON` with folder and driver (a module of this folder that is started in place of
harness.driver, with the same argument; empty: the real one). The folder holds spec.json and keys. Everything else is what
the head process does. Benches end it with SIGKILL: the record stays readable, which is part of what they rely on.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.cluster.base import ClusterError, NodeEvent, Place, Removal
from harness.head import attempt
from harness.head import supervisor as supervisors
from harness.head.runbook import RunBook
from harness.records.layout import RunFolder
from harness.records.lock import folder_lock
from harness.spec import RunSpec
from harness.wire.clusterview import ClusterView
from harness.wire.keys import ServerKeys
from harness.wire.sockets import raise_fd_limit
from tests.bench.rig import child_config


class NoCluster:
    """Replicas come from the bench."""

    kind = "local"
    evicts_nodes = False

    def start(self, place: Place) -> None:
        pass

    def poll(self, now_s: float) -> list[NodeEvent]:
        return []

    def why_missing(self, node: int) -> str:
        return "the bench has not registered it yet"

    def view(self) -> ClusterView | None:
        return None

    def removal(self, node: int) -> Removal:
        return Removal()

    async def evict(self, node: int, *, cordon: bool, why: str) -> str:
        raise ClusterError("the bench's replicas are not evicted")

    def scaled(self, nodes: int) -> None:
        pass

    def describe(self, node: int) -> list[str]:
        return []

    def stop(self, deadline_s: float) -> None:
        pass


def stand_in(module: str) -> None:
    """Attempts of this process run `module` as their driver."""

    def start(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", f"tests.bench.{module}", command[-1]], **how)

    names = ("DEVNULL", "PIPE", "STDOUT", "TimeoutExpired")
    attempt.subprocess = SimpleNamespace(Popen=start, **{name: getattr(subprocess, name) for name in names})  # type: ignore[assignment,attr-defined]


async def supervise(folder: RunFolder) -> None:
    spec = RunSpec.model_validate_json((folder.path / "spec.json").read_bytes())
    raise_fd_limit(4 * spec.expected_replicas + 256)
    keys = ServerKeys.load(folder.keys)
    supervisors.cluster_of = lambda folder, spec: NoCluster()  # type: ignore[attr-defined]
    supervisor = supervisors.Supervisor(folder, spec, keys, RunBook(folder, spec, keys.server.public.decode()))
    gc.freeze()
    await supervisor.run()


if __name__ == "__main__":
    config = child_config()
    if config["driver"]:
        stand_in(config["driver"])
    folder = RunFolder(Path(config["folder"]))
    with folder_lock(folder):
        asyncio.run(supervise(folder))
