"""A head on a fresh run folder and replicas that register with it, as the benches of the supervisor need them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire.keys import ServerKeys
from tests.bench.rig import Child, Children, split, wait_for


def fleet_spec(replicas: int, **load: Any) -> RunSpec:
    """Leases are long: a machine that is too busy for its beats must not turn registration into something else."""
    return RunSpec.model_validate(
        {
            "name": "bench",
            "load": load,
            "fleet": {"nodes": replicas // 8, "replicas_per_node": 8, "heartbeat_s": 1.5, "lease_s": 60},
            "record": {"min_free_gb": 0},
        }
    )


class Head:
    def __init__(self, place: Path, spec: RunSpec, processes: Children, driver: str = "") -> None:
        self.folder = RunFolder(place)
        self.spec = spec
        self._processes = processes
        self._driver = driver
        self._epoch = 0
        self.process: Child | None = None
        (place / "spec.json").write_text(spec.model_dump_json())
        self.folder.logs.mkdir()  # the cluster's work, which is not here
        ServerKeys.fresh().save(self.folder.keys)

    def start(self) -> float:
        """Returns the monotonic second of the start, once the head listens."""
        began_s = time.monotonic()
        self._epoch += 1
        self.process = self._processes.start("bare_head", {"folder": str(self.folder.path), "driver": self._driver})
        wait_for(f"head epoch {self._epoch} listens", self._listens, 20)
        return began_s

    def _listens(self) -> bool:
        try:
            return int(json.loads(self.folder.head_json.read_text())["epoch"]) == self._epoch
        except (OSError, ValueError, KeyError):
            return False

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.end()

    def prepare(self, state: str, processes: int) -> list[Child]:
        """Client processes with a share of the slots each; they register when told to go."""
        clients = [
            self._processes.start("replicas", {"folder": str(self.folder.path), "slots": part, "state": state})
            for part in split(self.spec.slots(), processes)
        ]
        for client in clients:
            client.says(30)
        return clients
