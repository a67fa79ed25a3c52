"""The worker process: one for a node (or, locally, for a group of nodes). What `paceline worker` runs.

It registers with the head until it is given a plan, beats, and hands plan and commands to the agent. The head's epoch is
in every answer: another one means a restarted head, to which the worker registers again while its replicas run on.
A worker that hears nothing from any head for `fleet.orphan_s` ends itself, so that nothing is left on a cluster.
One asyncio loop, no threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket as os_socket
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pydantic

from harness.engines import registry
from harness.engines.base import EngineError
from harness.metrics.exposition import listen_address
from harness.spec import FleetSpec, RunSpec
from harness.wire import control, sockets
from harness.wire.frames import VersionMismatch, WireError, encode
from harness.wire.keys import KeyProblem, load_client_keys
from harness.wire.page import PageServer
from harness.wire.pump import Pump
from harness.worker.agent import LOG_CHECK_S, Agent
from harness.worker.backoff import full_jitter, jittered
from harness.worker.echo import LogEcho
from harness.worker.exposition import WorkerMetrics
from harness.worker.hearing import Hearing
from harness.worker.surroundings import Maker
from harness.worker.versions import own_versions

EXIT_OK, EXIT_REFUSED, EXIT_ORPHANED = 0, 2, 3
EXIT_AGAIN = 88
REPLICA_COMMAND = (sys.executable, "-m", "harness.worker.replica")

log = logging.getLogger("paceline.worker")


def run_worker(
    *,
    head: str,
    keys: Path,
    nodes: list[int],
    name: str,
    logs: Path,
    replica_command: Sequence[str] = REPLICA_COMMAND,
    echo_logs: bool = False,
    ready_file: Path | None = None,
) -> int:
    """Blocks until the worker ends. 0: stopped by the head; 128 and more: by a signal; 2: refused or unusable keys;
    3: no head for `fleet.orphan_s`; 88: it failed itself, and another try in the same place may help.

    `echo_logs`: replicas' lines also on the worker's own output; `ready_file`: is there while the head knows the worker.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        echo = LogEcho(_print) if echo_logs else None
        return asyncio.run(_Worker(head, keys, nodes, name, logs, replica_command, echo, ready_file).run())
    except KeyProblem as problem:
        log.error("%s", problem)
        return EXIT_REFUSED
    except Exception:
        log.exception("the worker failed")
        return EXIT_AGAIN


def _print(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


class _Worker:
    def __init__(
        self,
        head: str,
        keys: Path,
        nodes: list[int],
        name: str,
        logs: Path,
        replica_command: Sequence[str],
        echo: LogEcho | None,
        ready_file: Path | None,
    ) -> None:
        self._head, self._keys_folder, self._nodes, self._name, self._logs = head, keys, nodes, name, logs
        self._command, self._echo, self._ready_file = replica_command, echo, ready_file
        self._keys = load_client_keys(keys, "worker")
        self._incarnation = uuid.uuid4().hex[:12]
        self._rng = random.Random()
        self._epoch = 0
        self._fleet = FleetSpec()  # its waits hold until the plan brings the run's
        self._registered = asyncio.Event()
        self._unregistered = asyncio.Event()
        self._unregistered.set()
        self._hearing = Hearing(time.monotonic)
        self._page: PageServer | None = None  # begun with the first plan, which says where

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        context = sockets.context()
        self._end: asyncio.Future[tuple[int, str]] = loop.create_future()
        self._pump = Pump(loop, sockets.client_dealer(context, self._keys, self._head), self._on_frames)
        self._agent = Agent(
            loop,
            head=self._head,
            keys=self._keys_folder,
            worker=self._name,
            worker_pid=os.getpid(),
            logs=self._logs,
            surroundings=Maker(self._command, self._logs).of,
            slots_per_process=registry.default_slots_per_process,
            report=self._send,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            # As a shell would say it: an evicted pod whose worker exits with 0 counts as done and gets no successor.
            loop.add_signal_handler(number, self._finish, 128 + number, f"worker got {number.name}")
        loop.add_signal_handler(signal.SIGCHLD, self._agent.check)
        tasks = [loop.create_task(job()) for job in (self._register, self._beat, self._watch_for_orphanage, self._watch_logs)]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        log.info("worker %s (%s) for nodes %s, head %s", self._name, self._incarnation, self._nodes, self._head)
        try:
            code, reason = await self._end
            log.info("ending: %s", reason)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tell_ready(False)
            await self._agent.shut_down("the worker ends")
            self._copy_logs()
            if self._page is not None:
                await self._page.close()
            self._pump.close()
            context.term()
        return code

    def _finish(self, code: int, reason: str) -> None:
        if not self._end.done():
            self._end.set_result((code, reason))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._end.done():
            self._end.set_exception(error)

    def _send(self, message: msgspec.Struct) -> None:
        self._pump.send([encode(message)])

    # --- towards the head -------------------------------------------------------------------------------------

    async def _register(self) -> None:
        versions = own_versions()
        while True:
            await self._unregistered.wait()
            for wait_s in full_jitter(self._rng):
                self._send(
                    control.RegisterWorker(
                        self._name, self._incarnation, self._nodes, os_socket.gethostname(), os.getpid(), versions, self._epoch,
                        os.environ.get("POD_NAME", ""), os.environ.get("NODE_NAME", ""),
                    )
                )  # fmt: skip
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._registered.wait(), wait_s)
                if self._registered.is_set():
                    break

    async def _beat(self) -> None:
        while True:
            await self._registered.wait()
            self._send(control.WorkerBeat(self._name, self._incarnation, self._epoch))
            self._hearing.asked()
            await asyncio.sleep(jittered(self._rng, self._hearing.pace_s(self._fleet.heartbeat_s)))

    async def _watch_for_orphanage(self) -> None:
        while True:
            left_s = self._fleet.orphan_s - self._hearing.silent_s()
            if left_s <= 0:
                self._finish(EXIT_ORPHANED, f"no head has answered for {self._fleet.orphan_s:g} s")
                return
            await asyncio.sleep(min(left_s, 5.0))

    async def _watch_logs(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            try:
                self._copy_logs()
                self._agent.keep_logs_bounded()
            except OSError as error:
                log.warning("a replica's log cannot be kept bounded: %s", error)

    def _copy_logs(self) -> None:
        if self._echo is not None:
            self._echo.look(self._agent.log_paths)

    def _tell_ready(self, ready: bool) -> None:
        """For whoever probes the worker from outside."""
        if self._ready_file is None:
            return
        try:
            if ready:
                self._ready_file.parent.mkdir(parents=True, exist_ok=True)
                self._ready_file.touch()
            else:
                self._ready_file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be kept: %s", self._ready_file, error.strerror or error)

    # --- from the head ----------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            message = control.TO_WORKER.decode(frames[0])
        except WireError as error:
            log.error("the head's message cannot be used: %s", error.reason)
            if isinstance(error, VersionMismatch) and self._epoch == 0:
                self._finish(EXIT_REFUSED, error.reason)
            return
        self._hearing.heard()
        match message:
            case control.WorkerPlan():
                self._planned(message)
            case control.BeatAck(head_epoch=epoch):
                if epoch != self._epoch:
                    self._register_again(f"the head's epoch is {epoch}, it was {self._epoch}")
            case control.Unknown():
                self._register_again("the head does not know this worker")
            case control.Rejected(slot="", reason=reason):
                self._finish(EXIT_REFUSED, f"the head refuses this worker: {reason}")
            case control.RecycleSlot():
                self._agent.recycle(message)
            case control.StopSlot():
                self._agent.stop_slot(message)
            case control.StartSlot():
                self._agent.start_slot(message)
            case control.StopWorker(reason=reason):
                self._finish(EXIT_OK, f"the head stops this worker: {reason}")

    def _planned(self, plan: control.WorkerPlan) -> None:
        try:
            spec = RunSpec.model_validate_json(plan.spec)
            self._fleet = spec.fleet
            self._agent.apply(plan)
        except (pydantic.ValidationError, UnicodeDecodeError, EngineError) as error:
            self._finish(EXIT_REFUSED, f"the head's plan cannot be carried out here: {error}")
            return
        if plan.head_epoch != self._epoch:
            log.info("registered with head epoch %d: %d slots", plan.head_epoch, len(plan.slots))
        self._epoch = plan.head_epoch
        self._unregistered.clear()
        self._registered.set()
        self._tell_ready(True)
        if self._page is None and (address := listen_address(spec.metrics, spec.cluster)) is not None:
            metrics = WorkerMetrics(self._name, self._agent.slot_lines, self._agent.process_lines, self._hearing.silent_s)
            self._page = PageServer(metrics.render)
            self._opening = asyncio.get_running_loop().create_task(self._show_page(self._page, *address))

    async def _show_page(self, page: PageServer, host: str, port: int) -> None:
        try:
            log.info("metrics at %s", await page.start(host, port))
        except OSError as error:
            log.warning("no metrics: %s:%d cannot be listened on: %s (metrics.listen)", host, port, error.strerror or error)

    def _register_again(self, why: str) -> None:
        if self._registered.is_set():
            log.info("registering again: %s", why)
            self._registered.clear()
            self._unregistered.set()
            self._tell_ready(False)
