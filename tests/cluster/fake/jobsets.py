"""A JobSet controller (jobset.x-k8s.io/v1alpha2), as far as its public source says what it does to sets like ours.

Its webhook makes Jobs Indexed unless told otherwise and lets nobody change what a set says of its Jobs (validation.py). Its
controller makes a Job wherever one is missing whose dependency is Ready, and leaves those that are there as they are, also when
somebody has made them smaller. A Job that has failed fails the set (there are no restarts here), success is that of the Jobs
it names, and a set that has ended deletes the Jobs that still run. Replicas, restarts, start-up policies, suspension: not here.
"""

from __future__ import annotations

import contextlib

from .errors import ApiError, Json
from .kinds import Kind, copied
from .loops import Loop, is_true, key_of, set_condition, uid_of

JOB_SET = Kind("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets", status=True, generation=True)
_BY = "jobset-controller"
_PREFIX = "jobset.sigs.k8s.io"


class JobSetLoop(Loop):
    kinds = ("JobSet", "Job")

    def sync(self) -> None:
        for job_set in self.all("JobSet"):
            if "deletionTimestamp" not in job_set["metadata"]:
                self._look_at(job_set)

    def _look_at(self, job_set: Json) -> None:
        jobs = {
            job["metadata"]["name"]: job
            for job in self.all("Job")
            if any(owner["uid"] == uid_of(job_set) for owner in job["metadata"].get("ownerReferences") or ())
        }
        status: Json = copied(job_set.get("status") or {})
        failed = [name for name, job in jobs.items() if is_true(job, "Failed")]
        if is_true(job_set, "Failed") or is_true(job_set, "Completed"):
            for job in jobs.values():
                self._delete(job)
        elif failed:
            message = f"jobset failed due to reaching max number of restarts (first failed job: {failed[0]})"
            self._end(job_set, status, "Failed", "ReachedMaxRestarts", message)
        elif self._has_succeeded(job_set, jobs):
            self._end(job_set, status, "Completed", "AllJobsCompleted", "jobset completed successfully")
        else:
            for replicated in job_set["spec"]["replicatedJobs"]:
                self._make(job_set, replicated, jobs)
        status["replicatedJobsStatus"] = [
            {"name": one["name"], "ready": int(_ready(jobs.get(_child(job_set, one["name"]))))}
            for one in job_set["spec"]["replicatedJobs"]
        ]
        self._write(job_set, status)

    def _has_succeeded(self, job_set: Json, jobs: dict[str, Json]) -> bool:
        policy = job_set["spec"].get("successPolicy") or {}
        names = policy.get("targetReplicatedJobs") or [one["name"] for one in job_set["spec"]["replicatedJobs"]]
        return all(is_true(jobs.get(_child(job_set, name), {}), "Complete") for name in names)

    def _make(self, job_set: Json, replicated: Json, jobs: dict[str, Json]) -> None:
        name = _child(job_set, replicated["name"])
        needed = [jobs.get(_child(job_set, one["name"])) for one in replicated.get("dependsOn") or ()]
        if name in jobs or not all(_ready(job) or is_true(job or {}, "Complete") for job in needed):
            return
        template = copied(replicated["template"])
        own = {
            f"{_PREFIX}/jobset-name": job_set["metadata"]["name"],
            f"{_PREFIX}/replicatedjob-name": replicated["name"],
            f"{_PREFIX}/job-index": "0",
            f"{_PREFIX}/restart-attempt": "0",
        }
        spec: Json = {"completionMode": "Indexed"} | template["spec"]
        inner = spec["template"].setdefault("metadata", {})
        inner["labels"] = (inner.get("labels") or {}) | own
        owner = {"apiVersion": JOB_SET.api_version, "kind": "JobSet", "name": job_set["metadata"]["name"], "uid": uid_of(job_set)}
        meta = template.get("metadata") or {}
        job = {
            "metadata": {
                "name": name,
                "labels": (meta.get("labels") or {}) | own,
                "annotations": meta.get("annotations") or {},
                "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
            },
            "spec": spec,
        }
        try:
            self.store.create("Job", job_set["metadata"]["namespace"], job)
        except ApiError as problem:
            if problem.code != 409:  # one that is on its way out
                self.events.say(job_set, "JobCreationFailed", problem.message, by=_BY, warning=True)
            self.again_at(self.now_s + 1.0)

    def _end(self, job_set: Json, status: Json, kind: str, reason: str, message: str) -> None:
        set_condition(status, self.store.stamp(), kind, True, reason, message)
        status["terminalState"] = kind
        self.events.say(job_set, reason, message, by=_BY, warning=kind == "Failed")

    def _delete(self, job: Json) -> None:
        if not (is_true(job, "Complete") or is_true(job, "Failed") or "deletionTimestamp" in job["metadata"]):
            with contextlib.suppress(ApiError):
                self.store.delete("Job", *key_of(job), propagation="Foreground")

    def _write(self, job_set: Json, status: Json) -> None:
        if status != (job_set.get("status") or {}):
            with contextlib.suppress(ApiError):
                self.store.update("JobSet", *key_of(job_set), lambda target: target.__setitem__("status", status), status=True)


def _child(job_set: Json, replicated: str) -> str:
    return f"{job_set['metadata']['name']}-{replicated}-0"


def _ready(job: Json | None) -> bool:
    if job is None:
        return False
    status, spec = job.get("status") or {}, job["spec"]
    wanted = min(spec.get("parallelism", 1), spec.get("completions") or spec.get("parallelism", 1))
    return int(status.get("succeeded", 0)) + int(status.get("ready", 0)) >= int(wanted)
