"""What a head that watches a cluster tells its consoles: pods, nodes, the disruption budget, and what it cannot see.

Small and slow: sent whole when something in it changed, at most once a second. Times are wall-clock seconds.
"""

from __future__ import annotations

import msgspec


class PodRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """The newest pod of one node of the fleet (one worker), or the head's own (`node` -1)."""

    node: int
    pod: str = ""  # "" : there is none
    uid: str = ""
    phase: str = ""  # Pending, Running, Terminating, Succeeded, Failed
    ready: bool = False
    host: str = ""  # the Kubernetes node it is bound to
    rack: str = ""  # its topology.kubernetes.io/zone
    reason: str = ""  # why it is not running or not ready, in words
    restarts: int = 0  # of its container
    since_unix: float = 0.0
    evictions: int = 0  # of this index, by anybody
    next_delay_s: float = 0.0  # until a successor starts, should it be evicted now
    replacement_unix: float = 0.0  # when the successor of an evicted pod is expected


class HostRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """A Kubernetes node that carries, or could carry, a worker."""

    name: str
    ready: bool = True
    cordoned: bool = False
    reason: str = ""  # NotReady since …, pressure, fewer GPUs allocatable than there are
    rack: str = ""
    gpus: int = 0  # allocatable
    gpus_there: int = 0  # capacity
    taints: list[str] = []
    pods: list[str] = []  # of this run


class BudgetRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """The PodDisruptionBudget of the workers. `allowed`: evictions that it lets pass now."""

    name: str
    allowed: int = 0
    healthy: int = 0
    desired: int = 0
    expected: int = 0
    problem: str = ""  # it can never allow one, in words


class ClusterView(msgspec.Struct, tag=True, omit_defaults=True, frozen=True):
    kind: str
    namespace: str = ""
    run: str = ""  # the label of its objects
    wanted: int = 0  # nodes asked for now; fleet.nodes is the most
    seen_unix: float = 0.0  # last word of the API server
    problem: str = ""  # what cannot be seen now, since when and why
    pods: list[PodRow] = []
    hosts: list[HostRow] = []  # empty where nodes may not be read; `denied` says why
    budget: BudgetRow | None = None
    denied: dict[str, str] = {}  # "evict", "cordon", "hosts", "logs" → why not
