"""The lines of pods' logs: as the API server gives them, and as a run's record has them.

Every line that begins with a time gets that time's zone, for the record is read on machines elsewhere. A pod's zone is known
by comparison: what it wrote and when the kubelet received it are moments apart.
"""

from __future__ import annotations

import re
from datetime import datetime

from harness.cluster.kube.views import PodView
from harness.spec import node_name

# Lines that records/logs.py finds a time in: our own, and vLLM's, which has no year either.
_TIME = re.compile(r"(?:--- )?\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?(Z|[+-]\d\d:?\d\d)?")
_VLLM_TIME = re.compile(
    r"(\([A-Za-z][^()]{0,60} pid=\d+\) )?(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?\s*"
)
_ZONE_STEP_S, _MOST_ZONE_S, _MOMENTS_S = 900, 14 * 3600, 120  # zones lie a multiple of 15 minutes apart


def stamp_of(unix: float) -> str:
    """With the zone."""
    return datetime.fromtimestamp(unix).astimezone().isoformat(sep=" ", timespec="milliseconds")


def zoned(text: str, unix: float) -> str | None:
    """A line that begins with a time, with that time's zone; None for any other. `unix`: when it was written."""
    if (found := _TIME.match(text)) is not None:
        if found[3]:
            return text
        try:
            ahead_s = datetime.fromisoformat(f"{found[1]}T{found[2]}Z").timestamp() - unix
        except ValueError:
            return None
        zone_s = round(ahead_s / _ZONE_STEP_S) * _ZONE_STEP_S
        if abs(ahead_s - zone_s) > _MOMENTS_S or abs(zone_s) > _MOST_ZONE_S:
            return None  # not the time at which it was written
        sign, minutes = "-" if zone_s < 0 else "+", abs(zone_s) // 60
        return f"{text[: found.end()]}{sign}{minutes // 60:02d}:{minutes % 60:02d}{text[found.end() :]}"
    if (found := _VLLM_TIME.match(text)) is not None:
        return f"{stamp_of(unix)} {found[2]} {found[1] or ''}{text[found.end() :]}"
    return None


def parted(line: str) -> tuple[int | None, str]:
    """Time in ns and text of `2026-03-01T10:00:00.123456789Z text`; None where there is no time."""
    stamp, _, text = line.partition(" ")
    seconds, dot, rest = stamp.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    zone = rest[len(digits) :] if dot else ""
    try:
        whole = datetime.fromisoformat(seconds + zone)
    except ValueError:
        return None, line
    if whole.tzinfo is None:
        return None, line
    return int(whole.timestamp()) * 1_000_000_000 + int(digits.ljust(9, "0")[:9] or 0), text


# --- where a pod's log begins and ends ----------------------------------------------------------------------------------


def name_of(pod: PodView) -> str:
    """Of its log: `head`, or its node of the fleet. A pod's only container is called as its component."""
    return "head" if pod.component == "head" else node_name(pod.index)


def begins(pod: PodView) -> str:
    return f"pod {pod.name} on {pod.node or 'no node'} begins"


def has_ended(pod: PodView) -> str:
    return f"pod {pod.name} has ended{_how_it_ended(pod)}"


def _how_it_ended(pod: PodView) -> str:
    for container in pod.containers:
        if container.name == pod.component and container.state == "terminated":
            why = f" ({container.reason})" if container.reason not in ("", "Error", "Completed") else ""
            return f": exit code {container.exit_code}{why}"
    return f": {pod.reason}" if pod.reason else ""
