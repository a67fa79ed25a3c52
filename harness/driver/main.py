"""The driver process: one attempt of load, then gone. Started by the supervisor as `python -m harness.driver CONFIG`.

A process of its own because LoadGen reads its configuration once a process, cannot be aborted from Python, hangs on
a lost sample and crashes on a stale id: each of these may cost an attempt, never a warm replica or the supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import sys
import threading
import time
from pathlib import Path

import zmq

from harness import datasets
from harness.driver.balance import make_policy
from harness.driver.config import DriverConfig
from harness.driver.dispatcher import Dispatcher
from harness.driver.explore import ExploreIssuer
from harness.driver.ledger import Ledger
from harness.driver.outbox import Outbox
from harness.driver.sinks import NullSink
from harness.driver.stages import Stages
from harness.records.logs import log_to_stderr
from harness.spec import RunSpec
from harness.wire import attempt as up
from harness.wire import sockets, states
from harness.wire.frames import encode
from harness.wire.keys import ServerKeys, ZapHandler, allow

log = logging.getLogger("paceline.driver")

EXIT_OK, EXIT_FAILED = 0, 4
_PR_SET_TIMERSLACK = 29
_PAIR_NS = 60_000_000_000  # a first KV transfer sets up a connection, with some connectors over every rail of a node
_TELL_PAIRS_EVERY_S = 2.0


def make_ledger(spec: RunSpec, out: Outbox) -> Ledger | Stages:
    fleet, max_tries, deadline_ns = spec.fleet, spec.load.max_tries, int(spec.load.sample_deadline_s * 1e9)
    if not fleet.split:
        policy = make_policy(fleet.balance, fleet.outstanding_cap)
        return Ledger(policy, out.query, max_tries=max_tries, deadline_ns=deadline_ns)
    return Stages(
        out.stage,
        out.cancel,
        out.n_prompt,
        prefill_policy=fleet.prefill_policy,
        decode_policy=fleet.decode_policy,
        cap=fleet.outstanding_cap,
        max_tries=max_tries,
        deadline_ns=deadline_ns,
        pairs_deadline_ns=min(deadline_ns, _PAIR_NS),
    )


class Driver:
    def __init__(self, config: DriverConfig) -> None:
        self.config = config
        self.spec: RunSpec = config.run_spec()
        self._context = sockets.context()
        self._pair = self._context.socket(zmq.PAIR)
        self._pair.sndhwm = self._pair.rcvhwm = 0
        self._pair.linger = 2000
        self._pair.connect(config.pair)
        self._issuer: ExploreIssuer | None = None  # made before the dispatcher runs: a new rate may come at any time

    def run(self) -> int:
        """Exit status; the reason of a failure has been sent to the supervisor."""
        try:
            dispatcher = self._open()
        except Exception as error:
            log.exception("the driver could not start")
            self._send_end(up.DriverEnd(False, f"the driver could not start: {error}", 0, 0))
            self._context.destroy(linger=2000)
            return EXIT_FAILED
        thread = threading.Thread(target=self._io, args=(dispatcher,), name="dispatcher", daemon=True)
        thread.start()
        try:
            self._wait_for_pool(dispatcher)
            self._warm_pairs(dispatcher)
            if dispatcher.failure is None:
                self._load(dispatcher)
        except Exception as error:
            log.exception("the driver failed")
            dispatcher.fail(f"the driver failed: {type(error).__name__}: {error}")
        if dispatcher.failure is None:
            dispatcher.tell(up.DriverPhase("logging"))
        dispatcher.stop()
        thread.join(10)
        self._context.destroy(linger=2000)  # the last words are out before the process goes
        return EXIT_OK if dispatcher.failure is None else EXIT_FAILED

    def _open(self) -> Dispatcher:
        config, spec = self.config, self.spec
        sockets.raise_fd_limit(len(config.slots) + 64)
        self._pair.send(encode(up.DriverPhase("loading")))
        self._dataset = datasets.load(spec, Path(config.dataset_base))
        keys = ServerKeys.load(Path(config.keys))
        zap = ZapHandler(self._context, allow(keys, "worker"))
        router, endpoint = sockets.server_router(self._context, keys, f"tcp://{config.bind}:0", domain="data")
        if config.advertise:
            endpoint = f"tcp://{config.advertise}:{endpoint.rpartition(':')[2]}"
        load = spec.load
        dispatcher = Dispatcher(
            epoch=config.epoch,
            dataset=self._dataset,
            make_ledger=lambda out: make_ledger(spec, out),
            router=router,
            pair=self._pair,
            zap=zap,
            n_slots=len(config.slots),
            max_tokens=load.output_limit,
            no_ready_grace_s=spec.fleet.no_ready_grace_s,
            on_command=self._on_command,
        )
        if load.kind == "explore":
            dispatcher.sink = NullSink()
            self._issuer = ExploreIssuer(dispatcher, len(self._dataset), load.target_qps, load.duration_s)
        dispatcher.tell(up.DriverUp(os.getpid(), endpoint, _loadgen_version()))
        return dispatcher

    def _io(self, dispatcher: Dispatcher) -> None:
        try:
            dispatcher.run()
        except BaseException as error:
            log.exception("the dispatcher failed")
            dispatcher.failure = dispatcher.failure or f"the dispatcher failed: {type(error).__name__}: {error}"
        reason = dispatcher.failure or ""
        self._send_end(up.DriverEnd(not reason, reason, dispatcher.issued, dispatcher.completed))
        if reason:
            # LoadGen cannot be stopped: it may hold the main thread for ever.
            self._context.destroy(linger=2000)
            sys.stderr.flush()
            os._exit(EXIT_FAILED)

    def _send_end(self, message: up.DriverEnd) -> None:
        self._pair.send(encode(message))

    def _wait_for_pool(self, dispatcher: Dispatcher) -> None:
        dispatcher.tell(up.DriverPhase("waiting for replicas"))
        deadline = time.monotonic() + self.config.wait_s
        while dispatcher.pool_size < self.config.expect and dispatcher.failure is None:
            if time.monotonic() > deadline:
                if dispatcher.pool_size == 0:
                    dispatcher.fail(f"no replica opened its data connection within {self.config.wait_s:g} s")
                return
            time.sleep(0.005)

    def _warm_pairs(self, dispatcher: Dispatcher) -> None:
        """Where roles are split: nobody takes samples before. The dispatcher ends the attempt when a pair cannot do it."""
        pairs = dispatcher.stages.pairs if dispatcher.stages is not None else None
        if pairs is None:
            return
        pairs.wanted = True
        tell_s = 0.0
        while True:
            settled = pairs.settled or dispatcher.failure is not None
            if pairs.total and time.monotonic() >= tell_s:  # at least once, also where the first look finds them settled
                tell_s = time.monotonic() + _TELL_PAIRS_EVERY_S
                dispatcher.tell(up.DriverPhase(f"{states.WARMING_PAIRS}: {pairs.done} of {pairs.total}"))
            if settled:
                return
            time.sleep(0.005)

    def _load(self, dispatcher: Dispatcher) -> None:
        # Everything made so far lives as long as the process: keep the collector from walking it in the hot path.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 1000)
        # LoadGen's thread wakes when a query is due and needs the GIL at once: with Python's 5 ms it waits 10 ms, with
        # 0.5 ms the lag's p99 was 0.9 ms, with 0.05 ms it is 0.24 ms, at the same cost a query.
        sys.setswitchinterval(0.00005)
        if self._issuer is not None:
            self._issuer.run()
            return
        from harness.driver.loadgen import run_loadgen

        run_loadgen(self.spec, self._dataset, dispatcher, Path(self.config.folder))

    def _on_command(self, message: up.ToDriver) -> None:
        issuer = self._issuer
        if issuer is None:
            return
        if isinstance(message, up.SetRate):
            issuer.set_rate(message.qps)
        elif isinstance(message, up.Finish):
            issuer.finish(message.drain_s)


def _loadgen_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mlcommons_loadgen")
    except PackageNotFoundError:
        return "not installed"


def _sharpen_timers() -> None:
    """Linux rounds a sleep up by 50 µs unless told otherwise: that is most of the issue lag of a query. Threads made later
    inherit it, so this comes first. Elsewhere, or where it is refused, the lag is that much larger and shown as such."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def main() -> None:
    faulthandler.enable()
    log_to_stderr()
    _sharpen_timers()
    status = Driver(DriverConfig.load(Path(sys.argv[1]))).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # LoadGen's destructors have nothing left to do, and have crashed before


if __name__ == "__main__":
    main()
