"""run.json and head.json in the hands of the head: what has been run, where the head listens, who went before.

A head that starts on a folder with a run.json continues that run: next epoch, same endpoints, next attempt number,
and the attempt that its predecessor left open is CRASHED.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from harness.cluster.procinfo import start_ticks
from harness.engines import registry
from harness.records.errors import RecordError
from harness.records.files import write_atomically
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, HeadEpoch, RunFile, end_open_attempts, read_run, write_run
from harness.spec import RunSpec
from harness.wire.states import PLACING, RUN_ENDED

_RESERVE = 128 << 10  # bytes kept back for run.json on a disk that has become full
_LIBRARIES = ("paceline", "mlcommons-loadgen", "pyzmq", "msgspec", "numpy", "polars", "pydantic")


class RunOver(Exception):
    """The run in this folder has ended; it cannot be continued."""


class RunBook:
    def __init__(self, folder: RunFolder, spec: RunSpec, server_public: str) -> None:
        """Raises RunOver, RecordError."""
        self._folder = folder
        self.server_public = server_public
        self.trouble: str | None = None
        before: dict[str, Any] = {}
        if folder.run_json.exists():
            self.run = read_run(folder.path)
            if self.run.phase in RUN_ENDED:
                raise RunOver(f"{folder.name} ended as {self.run.phase} ({self.run.verdict}); start a new run")
            before = _head_json(folder)
            end_open_attempts(self.run, "CRASHED", "the head ended during this attempt")
        else:
            self.run = RunFile(
                run=folder.name,
                spec=spec.model_dump(mode="json"),
                phase=PLACING,
                synthetic=registry.is_synthetic(spec),
                host=socket.gethostname(),
                started_unix=time.time(),
            )
        self.run.versions = versions()
        self.epoch = 1 + max((life.epoch for life in self.run.head_epochs), default=0)
        self.resumed = self.epoch > 1
        self.run.head_epochs.append(HeadEpoch(self.epoch, os.getpid(), time.time()))
        self.control_address, self.telemetry_address = _addresses(spec, before)
        write_run(folder.path, self.run)
        self._reserve = folder.reserve
        self._reserve.write_bytes(bytes(_RESERVE))

    @property
    def attempts(self) -> list[AttemptRecord]:
        return self.run.attempts

    @property
    def last_attempt(self) -> AttemptRecord | None:
        return self.run.attempts[-1] if self.run.attempts else None

    @property
    def next_number(self) -> int:
        return 1 + max((attempt.number for attempt in self.run.attempts), default=0)

    def new_attempt(self, kind: str, scenario: str, qps: float, supersedes: int) -> AttemptRecord:
        number = self.next_number
        record = AttemptRecord(
            number=number,
            kind=kind,
            scenario=scenario,
            target_qps=qps,
            epoch=number,  # numbers go on over head restarts, so an attempt's number is its epoch on the wire
            started_unix=time.time(),
            state="STARTING",
            supersedes=supersedes,
        )
        self.run.attempts.append(record)
        return record

    def phase(self, phase: str) -> None:
        self.run.phase = phase
        self.save()

    def end(self, verdict: str, reasons: list[str]) -> None:
        self.run.verdict, self.run.reasons = verdict, reasons
        self.run.acts = sum(attempt.acts for attempt in self.run.attempts)
        self.run.ended_unix = time.time()

    def save(self) -> None:
        """A full disk is reported by the head, not raised here; the reserve makes room for the last word."""
        try:
            write_run(self._folder.path, self.run)
            return
        except RecordError as error:
            self.trouble = str(error)
        self._reserve.unlink(missing_ok=True)
        with contextlib.suppress(RecordError):
            write_run(self._folder.path, self.run)

    def listen(self, control: str, telemetry: str, metrics: str = "") -> None:
        about = {
            "pid": os.getpid(),
            "ticks": start_ticks(os.getpid()),
            "epoch": self.epoch,
            "control": control,
            "telemetry": telemetry,
            "metrics": metrics,
            "host": socket.gethostname(),
            "started_unix": time.time(),
        }
        write_atomically(self._folder.head_json, json.dumps(about, indent=1).encode())

    def gone(self) -> None:
        """The head ends on purpose: nobody should look for it."""
        self._folder.head_json.unlink(missing_ok=True)
        self._reserve.unlink(missing_ok=True)

    def close_left_open(self, reason: str) -> None:
        end_open_attempts(self.run, "CRASHED", reason)


def _addresses(spec: RunSpec, before: dict[str, Any]) -> tuple[str, str]:
    """Where to listen: in a pod on the ports of the spec, else on free ones, and after a restart on the same again."""
    host, kube = spec.cluster.listen, spec.cluster.kubernetes
    if spec.cluster.kind == "kubernetes":
        return f"tcp://{host}:{kube.control_port}", f"tcp://{host}:{kube.telemetry_port}"
    free = f"tcp://{host}:0"
    return str(before.get("control", free)), str(before.get("telemetry", free))


def _head_json(folder: RunFolder) -> dict[str, Any]:
    try:
        found = json.loads(folder.head_json.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
