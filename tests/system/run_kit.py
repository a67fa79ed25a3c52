"""Handling a real run in a system test: a head, workers, replicas and a driver as processes, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.cluster.local import head_alive, kill_run, launch_head
from harness.cluster.procinfo import is_alive
from harness.records.errors import RecordError
from harness.records.journal import read_journal
from harness.records.layout import RunFolder, new_run_folder
from harness.records.runfile import AttemptRecord, RunFile, read_run
from harness.spec import RunSpec
from harness.wire.client import HeadClient, HeadUnreachable
from harness.wire.control import CommandReply, JournalEntry, RunState
from harness.wire.states import RUN_ENDED


@contextlib.contextmanager
def runs_in(place: Path, gone_within_s: float) -> Iterator[Callable[..., RunHandle]]:
    """Yields what starts a run. At the end whatever still runs is killed; a process that survives that is a failure."""
    handles: list[RunHandle] = []

    def start(spec: RunSpec | None = None, **changes: Any) -> RunHandle:
        spec = spec or small_spec(**changes)
        folder = new_run_folder(place, spec.name)
        (folder.path / "spec.json").write_text(spec.model_dump_json())
        handle = RunHandle(folder)
        handles.append(handle)
        return handle.launch()

    yield start
    for handle in handles:
        kill_run(handle.folder, handle.head_pid)
    pids = {pid for handle in handles for pid in (*handle.seen_pids, handle.head_pid) if pid}
    deadline = time.monotonic() + gone_within_s
    while time.monotonic() < deadline and any(running(pid) for pid in pids):
        time.sleep(0.05)
    left = [pid for pid in pids if running(pid)]
    assert not left, f"processes left running: {left}"


def small_spec(**changes: Any) -> RunSpec:
    """A few seconds of LoadGen Server over 2 nodes x 2 replicas, each replica a process of its own. `table__field=value`."""
    raw: dict[str, Any] = {
        "name": "test",
        "dataset": {
            "samples": 100,
            "input_tokens": {"mean": 50, "sigma": 0.5, "min": 4, "max": 200},
            "output_tokens": {"mean": 40, "sigma": 0.4, "min": 4, "max": 120},
        },
        "load": {"target_qps": 60, "duration_s": 4, "sample_deadline_s": 30, "max_tries": 5},
        "limits": {"ttft_p99_ms": 30_000, "tpot_p99_ms": 10_000},
        "fleet": {
            "nodes": 2,
            "replicas_per_node": 2,
            "slots_per_process": 1,
            "engine_args": {"preset": "demo"},
            "heartbeat_s": 0.2,
            "lease_s": 3.0,  # what a busy machine does to a healthy replica is no silence
            "restart_backoff_s": 0.2,
            "drain_deadline_s": 3,
            "no_ready_grace_s": 2,
            "orphan_s": 20,
            "barrier": {"deadline_s": 60},
        },
        "record": {"chunk_s": 0.5, "min_free_gb": 0},
    }
    for path, value in changes.items():
        table = raw
        *tables, field = path.split("__")
        for name in tables:
            table = table.setdefault(name, {})
        table[field] = value
    return RunSpec.model_validate(raw)


class RunHandle:
    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.head_pid = 0
        self.seen_pids: set[int] = set()

    def launch(self) -> RunHandle:
        self.head_pid = launch_head(self.folder)
        return self

    # --- looking -----------------------------------------------------------------------------------------

    @property
    def run(self) -> RunFile:
        return read_run(self.folder.path)

    @property
    def attempts(self) -> list[AttemptRecord]:
        return self.run.attempts

    def journal(self, what: str = "", subject: str = "") -> list[JournalEntry]:
        return [e for e in read_journal(self.folder.journal) if e.what.startswith(what) and subject in e.subject]

    def state(self) -> RunState:
        with HeadClient.of_run(self.folder.path, operator="test") as client:
            state = client.state(timeout_s=20)
        self.seen_pids.update(slot.pid for slot in state.slots if slot.pid)
        return state

    def slot(self, name: str) -> Any:
        return next(slot for slot in self.state().slots if slot.slot == name)

    def workers(self) -> list[dict[str, Any]]:
        return json.loads((self.folder.path / "workers.json").read_text())  # type: ignore[no-any-return]

    def driver_pid(self) -> int:
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                line = (proc / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if "harness.driver" in line and str(self.folder.path) in line:
                return int(proc.name)
        raise AssertionError("no driver is running")

    # --- acting and waiting ------------------------------------------------------------------------------

    def command(self, name: str, reason: str = "test", **args: Any) -> CommandReply:
        with HeadClient.of_run(self.folder.path, operator="test") as client:
            return client.command(name, args, reason=reason, timeout_s=30)

    def kill_head(self) -> None:
        """From here on nobody may be sent a signal by its number: that can be another process's."""
        pid, self.head_pid = self.head_pid, 0
        kill(pid)
        os.waitpid(pid, 0)

    def wait(self, what: str, true: Callable[[], Any], within_s: float = 45.0) -> Any:
        deadline = time.monotonic() + within_s
        while True:
            try:
                found = true()
            except (HeadUnreachable, RecordError, OSError, StopIteration, IndexError):
                found = None
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s:g} s: {what}\n{self.story()}")
            time.sleep(0.05)

    def wait_journal(self, what: str, within_s: float = 45.0, subject: str = "", after: str = "") -> JournalEntry:
        def found() -> JournalEntry | None:
            return next((e for e in self.journal(what, subject) if not after or e.after == after), None)

        entry = self.wait(f"journal {what} {subject} {after}", found, within_s)
        assert isinstance(entry, JournalEntry)
        return entry

    def wait_issuing(self, within_s: float = 60.0) -> None:
        self.wait_journal("attempt.phase", within_s, after="issuing")

    def wait_measuring(self) -> None:
        """Every replica has samples behind it."""
        self.wait_issuing()
        self.wait("completions", lambda: (self.state().series.completed_qps or [0])[-1] > 20)

    def wait_end(self, within_s: float = 75.0) -> RunFile:
        self.wait("the run's end", lambda: self.run.phase in RUN_ENDED and not head_alive(self.folder), within_s)
        return self.run

    def finish(self) -> RunFile:
        """The end of the attempt, and then of a fleet that would stay warm: a slow machine's recoveries may need it longer."""
        self.wait("the attempt's end", lambda: self.attempts[-1].state == "ENDED", 75)
        self.command("stop")
        return self.wait_end()

    def story(self) -> str:
        lines = [f"{e.unix % 1000:.2f} {e.what} {e.subject} {e.before}>{e.after} {e.why}" for e in self.journal()[-40:]]
        for log in sorted(self.folder.logs.glob("*.log")):
            lines += [f"--- {log.name}", log.read_text(errors="replace")[-1500:]]
        return "\n".join(lines)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def running(pid: int) -> bool:
    """Alive, and not only waiting to be reaped by this test process."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return is_alive(pid, None)
