"""Control sides of many replicas in one process: the worker's own Session code, one CURVE connection a replica.

`python -m tests.bench.replicas JSON` with folder (of the run), slots and state (WARMING or READY). Waits for a line on
stdin, then connects and registers all at once; prints one line whenever all of them are acknowledged by a head epoch that
it has not printed yet: epoch, when (monotonic s) and how many. Engines here only answer for their statistics, with numbers
that change every beat. Data endpoints are ignored. Ends with its parent.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from harness.engines import registry
from harness.engines.base import EngineStats, Key, Request
from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire import control, sockets
from harness.wire.client import HeadAddress
from harness.wire.keys import load_client_keys
from harness.worker import session
from harness.worker.incarnation import Incarnation
from harness.worker.launch import SlotLife
from harness.worker.session import Session
from harness.worker.versions import own_versions
from tests.bench.rig import child_config

# One process stands for hundreds here; each would look its versions up once.
session.own_versions = functools.cache(own_versions)  # type: ignore[attr-defined]


class IdleEngine:
    synthetic = True
    many_per_process = True

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def start(self) -> None:
        pass

    def submit(self, request: Request) -> None:
        raise RuntimeError("no data connection leads here")

    def cancel(self, key: Key) -> None:
        pass

    def stats(self) -> EngineStats:
        batch = self._rng.gauss(40, 3)
        return EngineStats(
            running=int(batch), kv_use=0.5, tokens_out=2000, steps=75, step_ms=18 + batch / 20, batch=batch, prefill_tokens=60.0
        )

    def versions(self) -> dict[str, str]:
        return {"echo": "1"}

    def facts(self) -> dict[str, Any]:
        return {"kind": "bench", "layout": "TP1"}

    async def stop(self) -> None:
        pass


class NoData:
    """In place of the data plane: these replicas never receive work."""

    def open(self, message: control.DataEndpoint) -> None:
        pass

    def close_epoch(self, epoch: int) -> None:
        pass


class Fleet:
    def __init__(self, config: dict[str, Any]) -> None:
        self._folder = RunFolder(Path(config["folder"]))
        self._spec = RunSpec.model_validate_json((self._folder.path / "spec.json").read_bytes())
        self._state = config["state"]
        self._ordinal = {slot: number for number, slot in enumerate(self._spec.slots())}
        self._rng = random.Random(secrets.randbits(64))
        self._replicas = [self._replica(slot) for slot in config["slots"]]

    def _replica(self, slot: str) -> Incarnation:
        node, gpu = slot.removeprefix("node").split("/gpu")
        life = SlotLife(slot, int(node), int(gpu), self._ordinal[slot], secrets.token_hex(8), 0)
        replica = Incarnation(self._spec, life, registry.factory("synthetic"), None, None)  # type: ignore[arg-type]
        replica.engine, replica.state = IdleEngine(self._rng), self._state
        return replica

    async def run(self) -> None:
        keys = load_client_keys(self._folder.keys, "worker")
        head = HeadAddress.read(self._folder).control
        args_hash = registry.args_hash(self._spec)
        loop, context = asyncio.get_running_loop(), sockets.context()
        registering = []
        for replica in self._replicas:
            connection = Session(
                loop,
                context,
                keys,
                head=head,
                spec=self._spec,
                worker="bench",
                args_hash=args_hash,
                slots={replica.slot: replica},
                plane=NoData(),  # type: ignore[arg-type]
                rng=self._rng,
            )
            registering.append(loop.create_task(connection.register(replica)))
        said = 0
        while True:
            await asyncio.sleep(0.02)
            epoch = min(replica.acked_epoch for replica in self._replicas)
            if epoch > said:
                said = epoch
                print(json.dumps({"epoch": epoch, "at_s": time.monotonic(), "count": len(self._replicas)}), flush=True)


if __name__ == "__main__":
    sockets.raise_fd_limit(8192)
    fleet = Fleet(child_config())
    print(json.dumps({"prepared": True}), flush=True)
    sys.stdin.readline()
    asyncio.run(fleet.run())
