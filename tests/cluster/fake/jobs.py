"""The Job controller of the fake cluster: Indexed and plain Jobs, as a real 1.36 was seen to treat them.

Two things are easily missed. An evicted pod is not counted, yet delays its index's successor as a failure does (10, 20, 40 …
seconds). And a failed pod keeps its finalizer until its successor is there, because the counts travel from annotation to
annotation: so both exist side by side for a second, and that is how long the logs of the old one can still be read.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from .errors import ApiError, Json
from .jobpods import FIRST_BACKOFF_S, TRACKING, backoff_s, counts_of, index_of, indexes_from, indexes_in_words, pod_of, verdict
from .loops import Loop, ended, going, is_true, key_of, phase_of, set_condition, uid_of
from .store import Store

_BATCH_S = 1.0  # in which a real controller collects what it takes off or declares final
_BY = "job-controller"


@dataclass
class _Memory:
    """What the controller knows of a Job beyond what is written down."""

    seen_s: dict[str, float] = field(default_factory=dict)  # uid of an ended pod → when
    followed_s: dict[str, float] = field(default_factory=dict)  # uid of a failed pod with a successor → since when
    failures_in_a_row: int = 0
    started_s: float | None = None
    doomed_s: float | None = None
    refusals: int = 0
    refused_until_s: float = 0.0


class JobLoop(Loop):
    """`first_backoff_s`: less than the 10 s of a real one for tests in which processes run by the real clock."""

    kinds = ("Job", "Pod", "ResourceQuota")

    def __init__(self, store: Store, *, first_backoff_s: float = FIRST_BACKOFF_S) -> None:
        super().__init__(store)
        self.first_backoff_s = first_backoff_s
        self._memory: dict[str, _Memory] = {}

    def sync(self) -> None:
        of_job: dict[str, list[Json]] = {}
        for pod in self.all("Pod"):
            for reference in pod["metadata"].get("ownerReferences") or ():
                if reference["kind"] == "Job" and reference.get("controller"):
                    of_job.setdefault(reference["uid"], []).append(pod)
        jobs = {uid_of(job): job for job in self.all("Job")}
        for uid, job in jobs.items():
            _Sync(self, job, of_job.get(uid, []), self._memory.setdefault(uid, _Memory())).run()
        for pod in self.all("Pod"):
            owners = pod["metadata"].get("ownerReferences") or ()
            if TRACKING in pod["metadata"].get("finalizers", ()) and not any(o["uid"] in jobs for o in owners):
                release(self, pod)
        for uid in self._memory.keys() - jobs.keys():
            del self._memory[uid]


def release(loop: Loop, pod: Json) -> None:
    """Takes the Job's finalizer off a pod."""

    def without(target: Json) -> None:
        target["metadata"]["finalizers"] = [f for f in target["metadata"].get("finalizers", ()) if f != TRACKING]

    with contextlib.suppress(ApiError):
        loop.store.update("Pod", *key_of(pod), without)


class _Sync:
    """One look at one Job."""

    def __init__(self, loop: JobLoop, job: Json, pods: list[Json], memory: _Memory) -> None:
        self._loop = loop
        self._job = job
        self._pods = pods
        self._memory = memory
        self._spec = job["spec"]
        self._status: Json = {k: v for k, v in (job.get("status") or {}).items() if k != "conditions"}
        self._status["conditions"] = [dict(c) for c in (job.get("status") or {}).get("conditions") or ()]
        self._indexed = self._spec.get("completionMode") == "Indexed"
        self._per_index: int | None = self._spec.get("backoffLimitPerIndex")
        self._only_failed = self._spec.get("podReplacementPolicy") == "Failed"
        self._failed_indexes = indexes_from(self._status.get("failedIndexes"))
        self._done_indexes = indexes_from(self._status.get("completedIndexes"))
        self._doom: tuple[str, str] | None = None
        self._now_s = loop.now_s
        self._now = loop.store.stamp()

    def run(self) -> None:
        if is_true(self._job, "Complete") or is_true(self._job, "Failed"):
            for pod in self._pods:
                self._end(pod)
            return
        if going(self._job):
            for pod in self._pods:
                self._release(pod)
            return
        if self._spec.get("suspend"):
            self._suspend()
        else:
            self._resume()
            self._count()
            self._judge()
            if self._doom is None:
                self._manage()
        self._take_off_finalizers()
        self._write_status()

    # --- suspending ----------------------------------------------------------------------------------------

    def _suspend(self) -> None:
        for pod in self._active():
            self._discard(pod)
        self._count()
        self._memory.started_s = None
        self._status.pop("startTime", None)
        if not self._said("Suspended"):
            set_condition(self._status, self._now, "Suspended", True, "JobSuspended", "Job suspended")
            self._say("Suspended", "Job suspended")

    def _resume(self) -> None:
        if self._said("Suspended"):
            set_condition(self._status, self._now, "Suspended", False, "JobResumed", "Job resumed")
            self._say("Resumed", "Job resumed")
        if self._memory.started_s is None:
            self._memory.started_s = self._now_s
            self._status["startTime"] = self._now

    # --- counting ------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Every pod that ended since the last look, once."""
        for pod in self._pods:
            uid = uid_of(pod)
            if uid in self._memory.seen_s or TRACKING not in pod["metadata"].get("finalizers", ()):
                continue
            if phase_of(pod) == "Succeeded":
                self._memory.seen_s[uid] = self._now_s
                self._memory.failures_in_a_row = 0
                if not self._indexed:
                    self._status["succeeded"] = self._status.get("succeeded", 0) + 1
                elif (index := index_of(pod)) is not None and index < self._completions():
                    self._done_indexes.add(index)
            elif self._has_failed(pod):
                self._memory.seen_s[uid] = self._now_s
                self._count_failed(pod)
        if self._indexed:
            self._done_indexes = {index for index in self._done_indexes if index < self._completions()}
            self._failed_indexes = {index for index in self._failed_indexes if index < self._completions()}
            if self._done_indexes:
                self._status["succeeded"] = len(self._done_indexes)

    def _count_failed(self, pod: Json) -> None:
        self._memory.failures_in_a_row += 1
        index = index_of(pod) if self._indexed else None
        if index is not None and index >= self._completions():
            return  # scaled away
        action, words = verdict(self._job, pod)
        if action == "Ignore":
            return
        self._status["failed"] = self._status.get("failed", 0) + 1
        if action == "FailJob":
            self._doom = ("PodFailurePolicy", words)
        if index is None or self._per_index is None:
            return
        if action == "FailIndex" or counts_of(pod)[0] + 1 > self._per_index:
            self._failed_indexes.add(index)

    def _has_failed(self, pod: Json) -> bool:
        if phase_of(pod) == "Failed":
            return True
        return going(pod) and not self._only_failed and phase_of(pod) != "Succeeded"

    # --- ending --------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        target = next((c for c in self._status["conditions"] if c["type"] == "FailureTarget" and c["status"] == "True"), None)
        if target is not None:
            self._doom = (target["reason"], target["message"])
        else:
            self._doom = self._doom or self._why_doomed()
        if self._doom is not None:
            self._fail(*self._doom)
        elif self._is_complete():
            self._complete()

    def _why_doomed(self) -> tuple[str, str] | None:
        limit_s = self._spec.get("activeDeadlineSeconds")
        if limit_s is not None and self._memory.started_s is not None:
            if self._now_s >= self._memory.started_s + limit_s:
                return "DeadlineExceeded", "Job was active longer than specified deadline"
            self._loop.again_at(self._memory.started_s + limit_s)
        most = self._spec.get("maxFailedIndexes")
        if most is not None and len(self._failed_indexes) > most:
            return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
        if self._status.get("failed", 0) > self._spec.get("backoffLimit", 6):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if self._failed_indexes and len(self._failed_indexes | self._done_indexes) >= self._completions():
            return "FailedIndexes", "Job has failed indexes"
        return None

    def _fail(self, reason: str, message: str) -> None:
        if not self._said("FailureTarget"):
            set_condition(self._status, self._now, "FailureTarget", True, reason, message)
        if self._memory.doomed_s is None:
            self._memory.doomed_s = self._now_s
        active = self._active()
        for pod in active:
            self._delete(pod)
        due_s = self._memory.doomed_s + _BATCH_S
        if self._now_s < due_s:
            self._loop.again_at(due_s)
        elif not active and not self._terminating():
            set_condition(self._status, self._now, "Failed", True, reason, message)
            self._say(reason, message, warning=True)

    def _is_complete(self) -> bool:
        if self._indexed:
            return len(self._done_indexes) >= self._completions()
        wanted = self._spec.get("completions")
        done = self._status.get("succeeded", 0)
        return done >= wanted if wanted is not None else bool(done) and not self._active()

    def _complete(self) -> None:
        reached = ("CompletionsReached", "Reached expected number of succeeded pods")
        if not self._said("SuccessCriteriaMet"):
            set_condition(self._status, self._now, "SuccessCriteriaMet", True, *reached)
        active = self._active()
        for pod in active:
            self._delete(pod)
        if not active and not self._terminating():
            set_condition(self._status, self._now, "Complete", True, *reached)
            self._status["completionTime"] = self._now
            self._say("Completed", "Job completed")

    # --- pods ----------------------------------------------------------------------------------------------

    def _manage(self) -> None:
        if self._said("SuccessCriteriaMet"):
            return
        if self._indexed:
            self._manage_indexes()
        else:
            self._manage_plain()

    def _manage_indexes(self) -> None:
        parallelism, completions = self._spec["parallelism"], self._completions()
        active = sorted(self._active(), key=lambda pod: index_of(pod) or 0)
        room = parallelism
        kept: set[int] = set()
        for pod in active:
            index = index_of(pod)
            if index is None or index >= completions or index in kept or not room:
                self._discard(pod)
            else:
                kept.add(index)
                room -= 1
        blocked = kept | self._done_indexes | self._failed_indexes
        if self._only_failed:
            leaving = {index for pod in self._terminating() if (index := index_of(pod)) is not None}
            blocked |= leaving
            room -= len(leaving - kept)
        for index in range(completions):
            if room <= 0:
                return
            if index not in blocked and self._make_index(index):
                room -= 1

    def _make_index(self, index: int) -> bool:
        last = self._last_failed(index)
        if last is None:
            return self._make(pod_of(self._job, index))
        failures, ignored = counts_of(last)
        if verdict(self._job, last)[0] == "Ignore":
            ignored += 1
        else:
            failures += 1
        so_many = failures + ignored if self._per_index is not None else self._memory.failures_in_a_row
        if not self._is_due(backoff_s(so_many, self._loop.first_backoff_s), last):
            return False
        if not self._make(pod_of(self._job, index, failures=failures, ignored=ignored)):
            return False
        self._memory.followed_s[uid_of(last)] = self._now_s
        return True

    def _manage_plain(self) -> None:
        active = self._active()
        wanted = self._spec["parallelism"]
        if self._spec.get("completions") is not None:
            wanted = min(wanted, self._spec["completions"] - self._status.get("succeeded", 0))
        for pod in active[max(wanted, 0) :]:
            self._discard(pod)
        missing = wanted - len(active) - (len(self._terminating()) if self._only_failed else 0)
        if missing <= 0:
            return
        failed = [pod for pod in self._pods if uid_of(pod) in self._memory.seen_s and phase_of(pod) != "Succeeded"]
        if self._memory.failures_in_a_row and failed:
            newest = max(failed, key=lambda pod: self._memory.seen_s[uid_of(pod)])
            if not self._is_due(backoff_s(self._memory.failures_in_a_row, self._loop.first_backoff_s), newest):
                return
        for _ in range(missing):
            if not self._make(pod_of(self._job, None)):
                return

    def _last_failed(self, index: int) -> Json | None:
        """The failed pod of an index that has no successor yet."""
        mine = [
            pod
            for pod in self._pods
            if index_of(pod) == index
            and uid_of(pod) in self._memory.seen_s
            and uid_of(pod) not in self._memory.followed_s
            and TRACKING in pod["metadata"].get("finalizers", ())
        ]
        return max(mine, key=lambda pod: self._memory.seen_s[uid_of(pod)]) if mine else None

    def _is_due(self, delay_s: float, failed: Json) -> bool:
        """Whether its successor may be made; otherwise the loop comes back for it."""
        due_s = self._memory.seen_s[uid_of(failed)] + delay_s
        if self._now_s >= due_s:
            return True
        self._loop.again_at(due_s)
        return False

    def _make(self, pod: Json) -> bool:
        if self._now_s < self._memory.refused_until_s:
            self._loop.again_at(self._memory.refused_until_s)
            return False
        try:
            made = self._loop.store.create("Pod", self._job["metadata"]["namespace"], pod)
        except ApiError as problem:
            self._memory.refusals += 1
            self._memory.refused_until_s = self._now_s + min(2.0 ** (self._memory.refusals - 1), 60.0)
            self._loop.again_at(self._memory.refused_until_s)
            self._say("FailedCreate", f"Error creating: {problem.message}", warning=True)
            return False
        self._memory.refusals, self._memory.refused_until_s = 0, 0.0
        self._pods.append(made)
        self._say("SuccessfulCreate", f"Created pod: {made['metadata']['name']}")
        return True

    def _discard(self, pod: Json) -> None:
        """Away with a pod that is not wanted any more: not counted, whatever becomes of it."""
        self._memory.seen_s.setdefault(uid_of(pod), self._now_s)
        self._release(pod)
        self._delete(pod)

    def _delete(self, pod: Json) -> None:
        with contextlib.suppress(ApiError):
            self._loop.store.delete("Pod", *key_of(pod), uid=uid_of(pod))
            self._say("SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")
        self._refresh(pod)

    def _end(self, pod: Json) -> None:
        """Of a Job that has ended."""
        if not ended(pod) and not going(pod):
            self._delete(pod)
        else:
            self._release(pod)

    def _release(self, pod: Json) -> None:
        if TRACKING in pod["metadata"].get("finalizers", ()):
            release(self._loop, pod)
            self._refresh(pod)

    def _refresh(self, pod: Json) -> None:
        self._pods[:] = [
            newest
            for known in self._pods
            if (newest := known if known is not pod else self._loop.store.get("Pod", *key_of(pod))) is not None
        ]

    def _take_off_finalizers(self) -> None:
        """A failed pod of an index that will be tried again keeps its own until a moment after its successor came."""
        for pod in list(self._pods):
            uid = uid_of(pod)
            if uid not in self._memory.seen_s or not ended(pod):
                continue
            if not self._waits_for_successor(pod):
                self._release(pod)
            elif uid in self._memory.followed_s:
                due_s = self._memory.followed_s[uid] + _BATCH_S
                if self._now_s >= due_s:
                    self._release(pod)
                else:
                    self._loop.again_at(due_s)

    def _waits_for_successor(self, pod: Json) -> bool:
        if self._per_index is None or self._spec.get("suspend") or self._doom is not None or phase_of(pod) == "Succeeded":
            return False
        index = index_of(pod)
        return index is not None and index < self._completions() and index not in self._failed_indexes | self._done_indexes

    # --- status --------------------------------------------------------------------------------------------

    def _write_status(self) -> None:
        active = self._active()
        status = self._status
        _set_or_leave_out(status, "active", len(active))
        status["ready"] = sum(is_true(pod, "Ready") for pod in active)
        status["terminating"] = len(self._terminating())
        status["uncountedTerminatedPods"] = {}
        if self._indexed:
            _set_or_leave_out(status, "completedIndexes", indexes_in_words(self._done_indexes))
            _set_or_leave_out(status, "succeeded", len(self._done_indexes))
            if self._per_index is not None:
                status["failedIndexes"] = indexes_in_words(self._failed_indexes)
        if not status["conditions"]:
            del status["conditions"]

        def write(target: Json) -> None:
            target["status"] = status

        with contextlib.suppress(ApiError):
            self._loop.store.update("Job", *key_of(self._job), write, status=True)

    def _active(self) -> list[Json]:
        return [pod for pod in self._pods if not ended(pod) and not going(pod)]

    def _terminating(self) -> list[Json]:
        return [pod for pod in self._pods if not ended(pod) and going(pod)]

    def _completions(self) -> int:
        return int(self._spec.get("completions") or 0)

    def _said(self, condition: str) -> bool:
        return any(c["type"] == condition and c["status"] == "True" for c in self._status["conditions"])

    def _say(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._loop.events.say(self._job, reason, message, by=_BY, warning=warning)


def _set_or_leave_out(status: Json, name: str, value: int | str) -> None:
    if value:
        status[name] = value
    else:
        status.pop(name, None)
