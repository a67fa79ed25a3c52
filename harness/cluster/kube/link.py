"""The link: one process of this machine for a run on a cluster (`python -m harness.cluster.kube.link RUN_FOLDER`).

It makes the run look like a local one: head.json leads to local ports and names this process as what lives, the record is
copied here while the run goes on, and once the run has ended and all of it is here, the run's objects are removed.

It decides nothing about the run. Ended by SIGTERM it leaves the run as it is; another link goes on where it was. It never
gives up while the run's ConfigMap is there: API servers restart, laptops sleep, heads are replaced.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.access import Access, access
from harness.cluster.kube.api import Api, ApiProblem, once
from harness.cluster.kube.forward import Ways, ways_to_head
from harness.cluster.kube.headlog import keep_head_log
from harness.cluster.kube.jobsets import why_set_failed
from harness.cluster.kube.linkfile import LinkFile, read_link, write_link
from harness.cluster.kube.mirror import CannotCopy, Mirror, Progress
from harness.cluster.kube.removal import remove
from harness.cluster.kube.views import reduce_job
from harness.cluster.procinfo import start_ticks
from harness.records.errors import RecordError
from harness.records.files import write_atomically
from harness.records.layout import RunFolder
from harness.records.lock import FolderTaken, folder_lock
from harness.records.logs import log_to_stderr
from harness.records.runfile import read_run
from harness.spec import RunSpec
from harness.wire import inquiry
from harness.wire.client import HeadAddress, HeadClient, HeadUnreachable
from harness.wire.keys import ClientKeys, KeyProblem, load_client_keys

log = logging.getLogger("paceline.link")

EXIT_OK, EXIT_BAD_INPUT, EXIT_GONE = 0, 2, 3

STEP_S = 1.0
#: What a copy may take of the way to the cluster: a console's telemetry goes over the same one.
BYTES_A_STEP, BYTES_A_STEP_AT_END = 8 << 20, 64 << 20
_ASK_S = 6.0
_LOOK_EVERY_S = 10.0
_HEAD_ENDS_WITHIN_S = 20.0  # once its record has been taken
#: Whoever started the run takes its record first; a guest only if nobody has.
_GUEST_WAITS_S = 30.0
REMOVE_WITHIN_S = 900.0


class Ended(KeyboardInterrupt):
    """SIGTERM or SIGINT. Of a kind that event loops let pass."""


class Link:
    """`now_s` and `pause` are passed in by tests; `pause` waits for up to so many seconds."""

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        way: Access,
        *,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._folder, self._spec, self._access = folder, spec, way
        self._kube = spec.cluster.kubernetes
        self._instance = names.instance_of(folder.name)
        self._about = read_link(folder) or LinkFile()
        self._now_s, self._pause = now_s, pause
        self._told: tuple[int, str] | None = None  # epoch and control address in head.json
        self._trouble = ""
        self._looked_s = float("-inf")
        self._head_failed = False

    def run(self) -> int:
        """Until the run's record is here and its objects are removed, or nothing of it is left. Raises Ended, KeyProblem, and
        ClusterError where not even the way to the head can be written down."""
        keys = _best_keys(self._folder)
        ways = ways_to_head(self._access, self._kube, self._instance)
        log.info("link to %s in namespace %s, process %d", self._instance, self._kube.namespace, os.getpid())
        try:
            with HeadClient(HeadAddress(ways.control, ways.telemetry, os.getpid(), 0), keys) as head:
                why_gone = self._follow(ways, head)
        finally:
            ways.close()
        if why_gone:
            log.error("%s", why_gone)
        self._keep_last_words()
        if self._kube.clean_up:
            self._clean_up()
        else:
            log.info(
                "cluster.kubernetes.clean_up is false: the run's objects stay until `paceline clean-up %s`", self._folder.name
            )
        return EXIT_GONE if why_gone else EXIT_OK

    # --- following ---------------------------------------------------------------------------------------

    def _follow(self, ways: Ways, head: HeadClient) -> str:
        """Until the record is whole; returns why it never will be."""
        mirror = Mirror(self._folder, lambda question: head.ask(question, _ASK_S))
        budget = BYTES_A_STEP
        while True:
            began_s = self._now_s()
            try:
                progress = mirror.step(budget)
                self._heard(ways, progress)
                if progress.whole:
                    return self._take(head)
                budget = BYTES_A_STEP_AT_END if progress.ended else BYTES_A_STEP
                hurry = progress.ended and progress.copied_bytes > 0
            except (HeadUnreachable, CannotCopy) as error:
                hurry = False
                if gone := self._look(ways.problem or str(error)):
                    self._write(LinkFile("gone", self._about.started_here, gone))
                    return gone
            except (RecordError, OSError) as error:
                if self._told is None:
                    raise ClusterError(f"the record cannot be kept here: {error}") from error  # whoever starts a link waits
                hurry = False
                self._say_trouble(f"the record cannot be kept here: {error}")
            if not hurry:
                self._pause(max(0.05, STEP_S - (self._now_s() - began_s)))

    def _heard(self, ways: Ways, progress: Progress) -> None:
        if self._trouble:
            log.info("the head answers again")
            self._trouble = ""
        self._head_failed = False
        try:
            epochs = read_run(self._folder.path).head_epochs
        except RecordError:
            return  # not copied yet, or replaced at this moment
        epoch = epochs[-1].epoch if epochs else 0
        if self._told != (epoch, ways.control):
            self._tell(epoch, ways)
        if progress.ended and progress.left:
            log.info("the run has ended; %d files (%.1f MB) are still to come", progress.left, progress.left_bytes / 1e6)

    def _tell(self, epoch: int, ways: Ways) -> None:
        """head.json, as a head of this machine would write it."""
        about = {
            "pid": os.getpid(),
            "ticks": start_ticks(os.getpid()),
            "epoch": epoch,
            "control": ways.control,
            "telemetry": ways.telemetry,
            "host": socket.gethostname(),
            "started_unix": time.time(),
        }
        write_atomically(self._folder.head_json, json.dumps(about, indent=1).encode())
        if self._told is not None:
            log.warning("the head is a new one: epoch %d", epoch)
        self._told = (epoch, ways.control)

    def _take(self, head: HeadClient) -> str:
        try:
            if not self._about.started_here:
                self._let_others_first(head)
            head.ask(inquiry.RecordTaken(uuid.uuid4().hex), _ASK_S)
        except HeadUnreachable:
            log.info("the head has ended before it could be told that its record is here")
        self._write(LinkFile("whole", self._about.started_here))
        self._folder.head_json.unlink(missing_ok=True)  # nobody should look for the head, while its objects are removed
        log.info("the record is whole in %s", self._folder.path)
        return ""

    def _let_others_first(self, head: HeadClient) -> None:
        """Raises HeadUnreachable once somebody has taken the record, for then the head ends."""
        until_s = self._now_s() + _GUEST_WAITS_S
        while self._now_s() < until_s:
            self._pause(STEP_S)
            head.ask(inquiry.GetFiles(uuid.uuid4().hex), _ASK_S)

    def _write(self, about: LinkFile) -> None:
        self._about = about
        try:
            write_link(self._folder, about)
        except RecordError as error:
            log.error("%s", error)

    # --- when the head is silent -------------------------------------------------------------------------

    def _look(self, problem: str) -> str:
        """Asks the cluster now and then what has become of the run; returns why there is nothing left to wait for."""
        if self._now_s() - self._looked_s < _LOOK_EVERY_S:
            return ""
        self._looked_s = self._now_s()
        try:
            return once(self._access, lambda api: self._asked(api, problem), namespace=self._kube.namespace)
        except ClusterError as error:
            self._say_trouble(str(error))
            return ""

    async def _asked(self, api: Api, problem: str) -> str:
        namespace = self._kube.namespace
        try:
            await api.get("ConfigMap", names.config_map(self._instance))
        except ApiProblem as error:
            if not error.not_found:
                raise
            return (
                f"{self._instance} has been removed from namespace {namespace} before its record was whole here; "
                f"the head's own is on the claim {self._kube.results_claim}"
            )
        await keep_head_log(api, self._folder)
        if self._kube.jobset and (why := await why_set_failed(api, self._instance)):
            return (
                f"{why}; its head and its workers have ended with it; the record as far as it got is on the claim "
                f"{self._kube.results_claim} of namespace {namespace}, in {self._there()}"
            )
        jobs = [reduce_job(raw) for raw in await api.list("Job", selector=names.selector(self._instance, "head"))]
        if any((condition := job.condition("Complete")) and condition.status == "True" for job in jobs):
            return (
                f"the head of {self._instance} waited {self._kube.keep_record_s:g} s for its record to be taken and has ended; "
                f"the record is whole on the claim {self._kube.results_claim} of namespace {namespace}, in {self._there()}"
            )
        failed = [condition for job in jobs if (condition := job.condition("Failed")) and condition.status == "True"]
        if failed and not self._head_failed:
            self._head_failed = True
            log.error("the head has failed for good (%s): `paceline restart-head %s`", failed[0].message, self._folder.name)
        self._say_trouble(problem)
        return ""

    def _there(self) -> str:
        return f"{self._kube.results_mount.rstrip('/')}/{self._folder.name}"

    def _say_trouble(self, text: str) -> None:
        if text != self._trouble:
            log.warning("%s", text)
            self._trouble = text

    # --- the end -----------------------------------------------------------------------------------------

    def _keep_last_words(self) -> None:
        """Of the head, which it said after it had read its own log for the last time."""
        try:
            once(
                self._access,
                lambda api: keep_head_log(api, self._folder, wait_s=_HEAD_ENDS_WITHIN_S),
                namespace=self._kube.namespace,
            )
        except ClusterError as error:
            log.warning("the last lines of the head's log are not here: %s", error)

    def _clean_up(self) -> None:
        """Tries for a while when the API server does not answer; what is left after that is a person's."""
        until_s = self._now_s() + REMOVE_WITHIN_S
        while True:
            left_s = until_s - self._now_s()
            try:
                if once(
                    self._access,
                    lambda api, within_s=left_s: remove(api, self._instance, say=log.info, within_s=within_s),  # type: ignore[misc]
                    namespace=self._kube.namespace,
                ):
                    self._write(LinkFile(self._about.state, self._about.started_here, self._about.why, cleaned=True))
                return
            except ClusterError as error:
                if left_s <= 0 or not (isinstance(error, ApiProblem) and error.may_pass):
                    log.error("%s; `paceline clean-up %s` removes what is left", error, self._folder.name)
                    return
                self._say_trouble(str(error))
            self._pause(_LOOK_EVERY_S)


def _best_keys(folder: RunFolder) -> ClientKeys:
    """An operator's if there are any: to copy a record a viewer's are enough."""
    try:
        return load_client_keys(folder.keys, "operator")
    except KeyProblem:
        return load_client_keys(folder.keys, "viewer")


def run_link(path: Path) -> int:
    """Blocks until the run is over for this machine."""
    folder = RunFolder(path.resolve())
    log_to_stderr()
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)  # a line a request
    threading.excepthook = _one_line
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        spec = RunSpec.model_validate_json(folder.spec_json.read_bytes())
        with folder_lock(folder, "link"):
            return Link(folder, spec, access(spec.cluster.kubernetes.context)).run()
    except Ended as ended:
        log.info("%s: the link ends, the run goes on", ended)
        return EXIT_OK
    except (OSError, ValidationError, KeyProblem, RecordError, FolderTaken, ClusterError) as error:
        print(f"paceline link: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(f"{signal.Signals(number).name} received")


def _one_line(failed: threading.ExceptHookArgs) -> None:
    """Threads that lead a connection end when the way breaks, and the next connection has others."""
    log.warning("a connection broke: %s: %s", failed.exc_type.__name__, failed.exc_value)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python -m harness.cluster.kube.link RUN_FOLDER", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT)
    raise SystemExit(run_link(Path(sys.argv[1])))
