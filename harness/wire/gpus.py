"""What the head tells its consoles of GPU metrics and alerts: sent whole after each round of the source, every 1 to 15 s.

Columns are little-endian float32 in roster order, `devices` entries a slot (the GPUs that a replica owns; engine roles use
the first), NaN where the source says nothing. Values are in the unit of their role (harness/metrics/gpu/roles.py).
"""

from __future__ import annotations

import msgspec

_NAN = float("nan")


class RoleColumn(msgspec.Struct, omit_defaults=True, frozen=True):
    role: str
    values: bytes
    metric: str = ""  # as the exporter calls it
    sampled_unix: float = 0.0  # of its newest value
    oldest_unix: float = 0.0  # of its oldest value that is shown


class AlertRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """An alert that fires. `subject`: a slot, a node or "fleet"."""

    rule: str
    subject: str
    severity: str  # info, warn, crit
    since_unix: float
    value: float = _NAN
    text: str = ""  # what, in words, with figures
    cause: str = ""  # a few words beside a straggler: "power cap"
    act: str = ""  # "evict": an operator should; empty: look


class GpuView(msgspec.Struct, tag=True, omit_defaults=True, frozen=True):
    unix: float
    state: str  # none (no source), starting, ok, partial, stale, down
    kind: str = ""  # promql, scrape, simulated
    source: str = ""
    profiles: list[str] = []
    interval_s: float = 0.0
    resolution_s: float = _NAN
    devices: int = 1  # a replica
    roles: list[RoleColumn] = []
    not_collected: dict[str, str] = {}  # role → why
    problem: str = ""  # why it is not ok, and the next step
    warnings: list[str] = []
    matched: int = 0  # GPUs of the fleet that have a series
    gpus_unmatched: int = 0  # … that have none
    series_unmatched: int = 0  # GPUs of the source that are no replica's
    unmatched: list[str] = []  # a few examples of both, in words
    alerts: list[AlertRow] = []
    rules: int = 0  # that are being evaluated
