"""The real driver process with echo replicas, and this side in the supervisor's place on its pipe.

Admits every slot, starts the replicas when the driver says where it listens, keeps each Batch with the time it came, and
ends with the driver's own last word. One attempt a call; nothing of it is left behind.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from harness.driver.config import DriverConfig
from harness.spec import RunSpec
from harness.wire import attempt as up
from harness.wire.frames import encode
from harness.wire.keys import ServerKeys
from tests.bench.rig import ROOT, BenchTimeout, children, peers_cpus, split

EPOCH = 1
INCARNATION = "bench"
PEER_PROCESSES = 2


@dataclass
class Attempt:
    """What the driver reported."""

    batches: list[tuple[float, up.Batch]] = field(default_factory=list)  # with the monotonic second it came
    phases: list[str] = field(default_factory=list)
    end: up.DriverEnd | None = None

    @property
    def rows(self) -> np.ndarray[Any, Any]:
        from harness.wire.attempt import SAMPLE_DTYPE

        return np.frombuffer(b"".join(batch.rows for _, batch in self.batches), SAMPLE_DTYPE)


def run_driver(
    spec: RunSpec,
    *,
    within_s: float,
    answer_tokens: int = 0,
    keys: ServerKeys | None = None,
    epoch: int = EPOCH,
    join: Callable[[str], None] | None = None,
) -> Attempt:
    """With echo replicas, or with what `join` brings to the driver's endpoint, all of one incarnation name.

    Raises BenchTimeout when it does not end in time, or ends otherwise than by finishing its load."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place, children() as peers:
        folder = Path(place)
        (keys or ServerKeys.fresh()).save(folder / "keys")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        pair = context.socket(zmq.PAIR)
        pair.sndhwm = pair.rcvhwm = 0
        pair.bind(f"ipc://{folder}/pair")
        config = _config(folder, spec, epoch)

        def echo(endpoint: str) -> None:
            asked = {"endpoint": endpoint, "keys": config.keys, "epoch": epoch, "tokens": answer_tokens}
            for part in split([(slot, INCARNATION) for slot in config.slots], PEER_PROCESSES):
                peers.start("echo", {**asked, "slots": part}, peers_cpus())

        config.save(folder / "driver.json")
        with (folder / "driver.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "harness.driver", str(folder / "driver.json")], stdout=log, stderr=log, cwd=ROOT
            )
        try:
            return _follow(pair, process, config, join or echo, time.monotonic() + within_s)
        except BenchTimeout as error:
            raise BenchTimeout(f"{error}; its log: {(folder / 'driver.log').read_text()[-1500:]}") from error
        finally:
            process.kill()
            process.wait(10)
            context.destroy(linger=0)


def _config(folder: Path, spec: RunSpec, epoch: int) -> DriverConfig:
    (folder / "attempt").mkdir()
    return DriverConfig(
        run="bench",
        attempt=1,
        epoch=epoch,
        spec=spec.model_dump_json(),
        slots=spec.slots(),
        expect=spec.expected_replicas,
        pair=f"ipc://{folder}/pair",
        bind="127.0.0.1",
        advertise=None,
        keys=str(folder / "keys"),
        folder=str(folder / "attempt"),
        dataset_base=str(folder),
        wait_s=40.0,
    )


def _follow(
    pair: zmq.Socket[bytes],
    process: subprocess.Popen[bytes],
    config: DriverConfig,
    join: Callable[[str], None],
    deadline: float,
) -> Attempt:
    attempt = Attempt()
    while attempt.end is None:
        if time.monotonic() > deadline:
            last = attempt.batches[-1][1] if attempt.batches else None
            counts = f"{last.completed} of {last.issued} issued" if last else "nothing issued"
            raise BenchTimeout(f"the driver did not end in time: {counts}, phases {attempt.phases}")
        if not pair.poll(200):
            if process.poll() is not None:
                raise BenchTimeout(f"the driver ended with status {process.returncode} and without a word")
            continue
        message = up.TO_SUPERVISOR.decode(pair.recv())
        if isinstance(message, up.Batch):
            attempt.batches.append((time.monotonic(), message))
        elif isinstance(message, up.DriverPhase):
            attempt.phases.append(message.phase)
        elif isinstance(message, up.DriverUp):
            for index, slot in enumerate(config.slots):
                pair.send(encode(up.Admit(slot, index, INCARNATION, 1)))
            join(message.endpoint)
        elif isinstance(message, up.DriverEnd):
            attempt.end = message
    if not attempt.end.ok:
        raise BenchTimeout(f"the driver's load did not finish: {attempt.end.reason}")
    process.wait(10)
    return attempt
