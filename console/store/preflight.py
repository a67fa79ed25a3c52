"""What must hold before a start: what `paceline doctor` looks at, and what this very spec needs of this machine.

Each probe looks, changes nothing, and answers with a Check: ok, a note, or a failure with the next step. They take from
microseconds to a second (LoadGen is imported in a process of its own) and as long as a dataset is large: call them in a
thread. Those that do not depend on the spec are remembered until somebody asks to check again.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from console.errors import BadInput
from console.starting import read_dataset
from console.store.launching import plan_of
from harness import doctor
from harness.doctor import Check
from harness.records.layout import runs_root
from harness.spec import RunSpec

#: Measured: a head, a driver or a worker with synthetic replicas holds 80 to 120 MB.
PROCESS_MB: Final = 120
#: Synthetic replicas that a core carries beside head and driver; the demo's 64 go well on two cores.
REPLICAS_A_CORE: Final = 32


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    ask: Callable[[], Check]
    of_machine: bool = False

    def answer(self) -> Check:
        """A probe that cannot look is a finding, not the end of whoever asks."""
        try:
            return self.ask()
        except Exception as error:
            return Check(self.name, None, f"could not be looked at: {type(error).__name__}: {error}")


def probes(spec: RunSpec) -> list[Probe]:
    """In the order in which they are worth knowing."""
    machine: list[Callable[[], Check]] = [
        doctor.python, doctor.libraries, doctor.loadgen, doctor.loopback_port, doctor.clock_resolution,
        doctor.clock_synchronised, _terminal, doctor.locale,
    ]  # fmt: skip
    names = ("python", "libraries", "loadgen", "loopback", "clock", "time sync", "terminal", "locale")
    remote = spec.cluster.kind == "kubernetes"
    here = [  # what the processes of a fleet need of this machine; a link to a cluster needs none of it
        Probe("fleet", lambda: fleet(spec)),
        Probe("memory", lambda: memory(spec)),
        Probe("open files", lambda: open_files(spec)),
        Probe("ports", lambda: ports(spec)),
        Probe("engine", lambda: doctor.engine(spec.fleet.engine, spec.fleet.python)),
        *([Probe("kernels", lambda: kernels(spec))] if spec.fleet.kernels.asked else []),
    ]
    own = [
        *(cluster_probes(spec) if remote else [Probe("cluster", cluster), *here]),
        Probe("keys", keys, of_machine=True),
        Probe("dataset", lambda: dataset(spec)),
        Probe("runs folder", lambda: runs_folder(spec)),
        Probe("metrics", lambda: gpu_metrics(spec)),
    ]
    return [*own, *(Probe(name, ask, of_machine=True) for name, ask in zip(names, machine, strict=True))]


def _terminal() -> Check:
    return doctor.terminal(tty=True)


def cluster() -> Check:
    """Of a fleet of this machine; for the others there are `cluster_probes`."""
    return Check("cluster", True, "local: workers are processes of this machine")


#: What harness.cluster.kube.preflight looks at, in its order.
CLUSTER_CHECKS: Final = (
    "cluster", "namespace", "rights", "claims", "objects", "features", "capacity", "quota", "images", "shm",
)  # fmt: skip


def cluster_probes(spec: RunSpec) -> list[Probe]:
    """All from one look at the cluster, which the first that is asked takes and the others wait for."""
    looking = threading.Lock()
    seen: list[Check] = []

    def look(name: str) -> Check:
        from harness.cluster.kube.preflight import preflight

        with looking:
            if not seen:
                seen.extend(preflight(spec))
        return merged(name, [check for check in seen if check.name == name])

    return [Probe(name, lambda name=name: look(name)) for name in CLUSTER_CHECKS]  # type: ignore[misc]


def merged(name: str, checks: list[Check]) -> Check:
    """Several findings under one name, as one line: the worst first."""
    if not checks:
        return Check(name, None, "not looked at: what comes before it failed, or the cluster has nothing to say")
    worst = sorted(checks, key=lambda check: {False: 0, None: 1, True: 2}[check.ok])
    of_kind = [check for check in worst if check.ok == worst[0].ok]
    fixes = dict.fromkeys(check.fix for check in of_kind if check.fix)
    return Check(name, worst[0].ok, "; ".join(check.detail for check in of_kind), "; ".join(fixes))


def fleet(spec: RunSpec, usable: int | None = None) -> Check:
    """Whether the cores carry a local fleet: its latencies hold the wait for a core."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = able if usable is None else usable
    plan = plan_of(spec)
    workers = f"{plan.workers:,d} worker{'s' * (plan.workers != 1)}"
    detail = f"{plan.replicas:,d} replicas in {workers} on {cores} core{'s' * (cores != 1)}"
    if plan.replicas > REPLICAS_A_CORE * cores:
        most = REPLICAS_A_CORE * cores
        fix = f"fleet.nodes or fleet.replicas_per_node lower (about {most:,d} replicas go well here), or expect slow replicas"
        return Check("fleet", None, f"{detail}: step times will hold the wait for a core", fix)
    if cores < doctor.CORES_FOR_LOCAL_FLEET:
        return Check("fleet", None, f"{detail}: head and driver need one each at full load", doctor.cpus(cores).fix)
    return Check("fleet", True, detail)


def memory(spec: RunSpec, available_mb: float | None = None) -> Check:
    free = _available_mb() if available_mb is None else available_mb
    if free is None:
        return Check("memory", None, "cannot be known here how much is free")
    plan, share = plan_of(spec), spec.fleet.slots_per_process
    engines = spec.fleet.nodes * -(-spec.fleet.replicas_per_node // share) if share else plan.workers
    need = (2 + plan.workers + engines) * PROCESS_MB
    detail = f"{free / 1024:,.1f} GB free, about {need / 1024:,.1f} GB needed"
    if need > free:
        return Check("memory", False, detail, "fewer nodes, or cluster.nodes_per_worker higher: a worker can stand for many")
    return Check("memory", True, detail)


def _available_mb() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(found) / 1024 if found is not None else None


def open_files(spec: RunSpec, hard: int | None = None) -> Check:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    need = doctor.FILES_BASE + doctor.FILES_PER_REPLICA * spec.expected_replicas
    if limit == resource.RLIM_INFINITY:
        return Check("open files", True, f"unlimited, {need:,d} needed")
    detail = f"at most {limit:,d}, {need:,d} needed"
    if limit < need:
        return Check("open files", False, detail, f"ulimit -Hn {need}, or LimitNOFILE={need} in the service")
    return Check("open files", True, detail)


def kernels(spec: RunSpec) -> Check:
    return doctor.kernels(spec.fleet.kernels, spec.fleet.python) or Check("kernels", True, "the engine's own choice")


def ports(spec: RunSpec) -> Check:
    from harness.wire.sockets import why_no_listening

    refusal = why_no_listening(spec.cluster.listen)
    if refusal:
        return Check(
            "ports", False, f"{spec.cluster.listen} cannot be listened on: {refusal}", "cluster.bind: an address of here"
        )
    return Check("ports", True, f"{spec.cluster.listen} can be listened on; ports are taken as they are free")


def keys() -> Check:
    import zmq

    try:
        made = bool(zmq.has("curve")) and len(zmq.curve_keypair()) == 2
    except zmq.ZMQError as error:
        return Check("keys", False, f"no CURVE keys can be made: {error}", "install pyzmq with libsodium (its wheels have it)")
    if not made:
        return Check("keys", False, "this pyzmq has no CURVE", "install pyzmq from its wheels: they are built with libsodium")
    return Check("keys", True, "CURVE keys can be made; each run gets its own")


def dataset(spec: RunSpec) -> Check:
    """Reads it whole, as the driver will."""
    from harness.datasets import DatasetError

    data = spec.dataset
    try:
        found = read_dataset(spec)
    except (DatasetError, BadInput, OSError) as error:
        return Check("dataset", False, str(error), "set dataset.path, dataset.kind or load.performance_samples right")
    if data.kind != "lengths" and spec.cluster.kind == "kubernetes":
        return dataset_in_pod(spec)
    if data.kind == "lengths":
        return Check("dataset", True, f"{data.samples or found:,d} made-up samples" if found or data.samples else "made up")
    return Check("dataset", True, f"{found:,d} samples read from {data.path}")


def dataset_in_pod(spec: RunSpec) -> Check:
    """The head's pod reads it; what can be seen from here is whether a claim is mounted where it should be."""
    kube, path = spec.cluster.kubernetes, spec.dataset.path or ""
    mount = kube.data_mount.rstrip("/") + "/"
    if kube.data_claim and path.startswith(mount):
        return Check(
            "dataset", None, f"{path} on claim {kube.data_claim}: the head reads it in its pod, so it is not looked at here"
        )
    if kube.data_claim:
        fix = f"dataset.path = {mount}FILE"
        return Check("dataset", False, f"{path} is not under {mount}, where claim {kube.data_claim} is mounted", fix)
    fix = f"set cluster.kubernetes.data_claim and dataset.path = {mount}FILE"
    return Check("dataset", None, f"{path} must be in the head's image: no claim is mounted for it", fix)


def runs_folder(spec: RunSpec) -> Check:
    root = runs_root(spec.record.dir)
    at = next(folder for folder in (root, *root.parents) if folder.exists())
    if not at.is_dir() or not os.access(at, os.W_OK):
        return Check("runs folder", False, f"{at} cannot be written", "set record.dir or PACELINE_RUNS to a folder of yours")
    free_gb, need_gb = shutil.disk_usage(at).free / 1e9, plan_of(spec).record_bytes / 1e9
    detail = f"{free_gb:,.1f} GB free in {root}"
    if free_gb < spec.record.min_free_gb:
        fix = "free some space, or set record.dir to another disk"
        return Check("runs folder", False, f"{detail}; record.min_free_gb asks for {spec.record.min_free_gb:g}", fix)
    if need_gb == need_gb and free_gb < need_gb + spec.record.min_free_gb:
        return Check("runs folder", None, f"{detail}; the record may take {need_gb:,.1f} GB", "free some space before the end")
    return Check("runs folder", True, detail)


def gpu_metrics(spec: RunSpec) -> Check:
    """Whether their source answers, and whether it has as many GPUs as the fleet."""
    from harness.metrics.gpu.preflight import gpu_metrics as look

    return look(spec)
