"""Why the head of a run that is being started is not there yet, from what the API server says at this moment."""

from __future__ import annotations

import time

from harness.cluster.base import ClusterError
from harness.cluster.kube import names, words
from harness.cluster.kube.api import Api
from harness.cluster.kube.views import EventView, PodView, reduce_event, reduce_job

#: Will not pass by waiting.
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull")
_PULLS_FAILED = ("ErrImagePull", "ImagePullBackOff")
_PULLS_FOR_S = 90.0
_LINES = 12


async def why_waiting(api: Api, instance: str, pod: PodView | None) -> str:
    """One sentence, never empty. Raises ClusterError where the API server does not answer."""
    if pod is None:
        jobs = [reduce_job(raw) for raw in await api.list("Job", selector=names.selector(instance, "head"))]
        if not jobs:
            return f"{names.job(instance, 'head')} has no Job yet"  # that of a JobSet is made by its controller
        job = jobs[0].name
        if jobs[0].suspended:
            return f"job {job} is suspended: whoever suspended it, as a queue does, has to let it go on"
        refused = [event for event in await _events(api, job) if event.reason == "FailedCreate"]
        return words.refused_words(job, refused[-1].message) if refused else f"job {job} has made no pod yet"
    now_unix = time.time()
    why = words.why_not_ready(pod, events=await _events(api, pod.name), now_unix=now_unix)
    return why or f"pod {pod.name} is {pod.shown_phase or 'new'}"


def hopeless(pod: PodView, now_unix: float | None = None) -> bool:
    """The image's name cannot be one, or pulling it has failed for long."""
    waiting = {container.reason for container in pod.containers if container.state == "waiting"}
    if waiting & set(_HOPELESS):
        return True
    age_s = (time.time() if now_unix is None else now_unix) - pod.created_unix
    return bool(waiting & set(_PULLS_FAILED)) and age_s > _PULLS_FOR_S


async def last_lines(api: Api, pod: PodView | None) -> str:
    """For the end of a sentence: what the pod said last; "" where it has no log."""
    if pod is None:
        return ""
    lines = []
    try:
        async for line in api.log(pod.name, tail_lines=_LINES):
            lines.append(line)
    except ClusterError:
        return ""
    return f"; the end of its log:\n{chr(10).join('  ' + line for line in lines)}" if lines else ""


async def _events(api: Api, subject: str) -> list[EventView]:
    """Oldest first; none where they may not be read."""
    try:
        raw = await api.list("Event", fields=f"involvedObject.name={subject}")
    except ClusterError:
        return []
    return sorted((reduce_event(one) for one in raw), key=lambda event: event.last_unix)
