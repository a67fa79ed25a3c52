"""Starting a head, in a new folder or in one whose head has died, and waiting for either end of its life.

What can be wrong with the samples is found out here, before there is a folder or a process. For the command line, for the
Launch screen and for its checks: errors tell what to do, and only what takes long is told, to whoever wants to hear it.
On Kubernetes the head is a pod, placed with all else of the run, and what is started here is the link to it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from console.errors import BadInput, HeadDied, NotStarted
from harness.cluster.base import ClusterError
from harness.cluster.interrupts import deaf, like_ctrl_c
from harness.cluster.local import head_alive, kill_run, launch_head, log_of_start, placed_on
from harness.cluster.procinfo import end_group, is_alive
from harness.records.layout import RunFolder, new_run_folder, runs_root
from harness.spec import RunSpec
from harness.wire.client import HeadAddress, HeadUnreachable
from harness.wire.sockets import why_no_listening

#: From the start of the process to head.json; a head imports for about a second, on a loaded machine for several.
START_DEADLINE_S = 45.0
LOG_LINES = 15


def read_dataset(spec: RunSpec) -> int:
    """How many samples it has; 0 for made-up lengths, which are not made. Raises DatasetError, BadInput."""
    data, wanted = spec.dataset, spec.load.performance_samples
    if data.kind == "lengths" and wanted is None:
        return 0
    if data.kind != "lengths" and spec.cluster.kind == "kubernetes":
        return 0  # a file of the head's pod
    from harness.datasets import load

    found = len(load(spec))
    if wanted is not None and wanted > found:
        has = f"{found:,d} sample{'s' * (found != 1)}"
        raise BadInput(f"load.performance_samples: {wanted:,d} is more than the dataset has ({has})")
    return found


def new_run(spec: RunSpec, say: Callable[[str], None] = lambda line: None) -> RunFolder:
    """A run's folder with its spec in it, and a head that answers. `say`: what is being waited for, where that takes long."""
    root = runs_root(spec.record.dir)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        named = "record.dir" if spec.record.dir else "PACELINE_RUNS (or the current folder)"
        raise BadInput(f"{named}: runs cannot be kept in {root}: {error.strerror}") from error
    remote = spec.cluster.kind == "kubernetes"
    refusal = "" if remote else why_no_listening(spec.cluster.listen)
    if refusal:
        raise BadInput(
            f"cluster.bind: {spec.cluster.listen!r} cannot be listened on ({refusal}); give an address of this machine"
        )
    free_gb = shutil.disk_usage(root).free / 1e9
    if free_gb < spec.record.min_free_gb:
        raise NotStarted(
            f"{root} has {free_gb:.2f} GB free, record.min_free_gb asks for {spec.record.min_free_gb:g}: "
            "free some space or set record.dir to another disk"
        )
    folder = new_run_folder(root, spec.name)
    folder.spec_json.write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")
    with like_ctrl_c():
        if remote:
            _place(folder, spec, say)
        try:
            start_head(folder)
        except BaseException as why:
            _end(folder, why)
            raise
    return folder


def _place(folder: RunFolder, spec: RunSpec, say: Callable[[str], None]) -> None:
    """On Kubernetes. What fails removes all that it has made there; the folder has nothing to show then but what a head said."""
    from harness.cluster.kube.placing import place

    try:
        place(folder, spec, say=say)
    except BaseException:
        shutil.rmtree(folder.keys if folder.log("head").exists() else folder.path, ignore_errors=True)
        raise


def _end(folder: RunFolder, why: BaseException) -> None:
    """The workers that it may have started, or all of the run that is on a cluster."""
    try:
        with deaf():
            kill_run(folder)
    except ClusterError as error:
        raise NotStarted(f"{why}; and {error}") from why


def start_head(folder: RunFolder, deadline_s: float = START_DEADLINE_S) -> int:
    """The pid of a head that has written how to reach it. Interrupted, or out of time, it is ended; workers are left alone:
    those of a run that is taken up again are warm, and another try may find them."""
    pid = launch_head(folder)
    try:
        _wait_for_address(folder, pid, deadline_s)
    except BaseException:
        end_group(pid, None, grace_s=3.0)
        raise
    return pid


def _wait_for_address(folder: RunFolder, pid: int, deadline_s: float) -> None:
    until_s = time.monotonic() + deadline_s
    while True:
        try:
            if HeadAddress.read(folder).pid == pid:
                return
        except HeadUnreachable:
            pass  # not written yet
        if not is_alive(pid, None):
            raise HeadDied(f"{_what(folder)} ended before it could be reached{log_tail(log_of_start(folder))}")
        if time.monotonic() > until_s:
            raise HeadDied(f"{_what(folder)} was not ready within {deadline_s:g} s{log_tail(log_of_start(folder))}")
        time.sleep(0.05)


def _what(folder: RunFolder) -> str:
    what = "the link to the head" if placed_on(folder) == "kubernetes" else "the head"
    return f"{what} of {folder.name}"


def wait_for_head_to_end(folder: RunFolder, within_s: float) -> bool:
    until_s = time.monotonic() + within_s
    while head_alive(folder):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


def log_tail(path: Path, lines: int = LOG_LINES) -> str:
    """For the end of a sentence: `; the end of LOG:` and its last lines."""
    try:
        last = path.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        last = []
    if not last:
        return f"; its log {path} is empty"
    return f"; the end of {path}:\n" + "\n".join(f"  {line}" for line in last)
