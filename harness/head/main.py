"""The head process: `python -m harness.head RUN_FOLDER` (what `paceline head` runs).

Holds the folder's lock for as long as it lives, makes the run's keys the first time, continues the run if a previous
head left it unfinished, and turns SIGTERM and SIGINT into an orderly stop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path

from pydantic import ValidationError

from harness.cluster.base import ClusterError
from harness.head.runbook import RunBook, RunOver
from harness.head.supervisor import Supervisor
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.lock import FolderTaken, folder_lock
from harness.records.logs import log_to_stderr
from harness.spec import RunSpec
from harness.wire.keys import KeyProblem, ServerKeys
from harness.wire.sockets import CannotListen, TooFewFiles, raise_fd_limit
from harness.wire.states import DONE, RUN_ENDED

EXIT_OK, EXIT_BAD_INPUT, EXIT_FAILED, EXIT_HANDED_OVER = 0, 2, 3, 143


log = logging.getLogger("paceline.head")


def run_head(path: Path) -> int:
    """Blocks until the run has ended. The exit status tells only whether it ended in order."""
    folder = RunFolder(path.resolve())
    log_to_stderr()
    try:
        spec = _spec(folder)
        raise_fd_limit(4 * spec.expected_replicas + 256)
        with folder_lock(folder):
            keys = _keys(folder)
            book = RunBook(folder, spec, keys.server.public.decode())
            gc.freeze()
            return asyncio.run(_supervise(folder, spec, keys, book))
    except (OSError, ValueError, KeyProblem, RecordError, RunOver, FolderTaken, TooFewFiles, CannotListen, ClusterError) as error:
        print(f"paceline head: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _spec(folder: RunFolder) -> RunSpec:
    path = folder.spec_json
    try:
        return RunSpec.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {field + ': ' if field else ''}{first['msg']}") from error


def _keys(folder: RunFolder) -> ServerKeys:
    if not (folder.keys / "server.key").exists():
        ServerKeys.fresh().save(folder.keys)
    return ServerKeys.load(folder.keys)


async def _supervise(folder: RunFolder, spec: RunSpec, keys: ServerKeys, book: RunBook) -> int:
    supervisor = Supervisor(folder, spec, keys, book)
    log.info("head of %s: process %d, epoch %d", folder.name, os.getpid(), book.epoch)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _stop, supervisor, signal.Signals(number).name)
    phase = await supervisor.run()
    # On a cluster a failed exit has the head replaced; a run that has ended needs none, whatever became of it.
    return EXIT_OK if phase == DONE or spec.cluster.kind == "kubernetes" else EXIT_FAILED


_LEAVING: list[asyncio.Future[None]] = []  # keeps the task alive


async def _hand_over(supervisor: Supervisor, signal_name: str) -> None:
    """A pod that is told to go is evicted, not stopped: the fleet stays warm for the head that takes its place."""
    await supervisor.hand_over(f"{signal_name} received: the head's pod goes, its successor continues the run")
    os._exit(EXIT_HANDED_OVER)  # an orderly end of this process would end the fleet


def _stop(supervisor: Supervisor, signal_name: str) -> None:
    if supervisor.spec.cluster.kind == "kubernetes":
        if supervisor.phase in RUN_ENDED:
            supervisor.inquiries.leave_record()
        else:
            _LEAVING.append(asyncio.ensure_future(_hand_over(supervisor, signal_name)))
        return
    supervisor.ops.stop("head", f"{signal_name} received", aborted=True)
