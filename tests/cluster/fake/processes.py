"""A kubelet that runs the containers' commands as real processes of this machine, so that real heads and workers meet.

What a container runtime would do and nobody can do here without rights: mounts and DNS (containers.py rewrites), and the end of
everything in a container with its first process. For that every process carries its pod's uid in the environment, and what
still carries it once the first process is gone is killed.
"""

from __future__ import annotations

import atexit
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .containers import ADDRESS, Mounts, NotConfigured, NotMounted, Volumes, base_environment, command_of, environment
from .errors import Json
from .kubelet import InStore, Kubelet, long_name
from .logs import PodLogs
from .loops import ended, going, uid_of
from .podstatus import Box, boxes_of, phase_from, restart_delay_s, restarts_on, write_pod
from .probes import why_unwell
from .started import Started, kill_marked, start
from .store import Store

_LOOK_S = 0.25  # at running processes and their probes, at least
_RETRY_S = 1.0  # a mount or a variable that is not there yet

Credentials = Callable[[Path, str, str], None]  # writes a kubeconfig there for a ServiceAccount: namespace, name


@dataclass
class _Container:
    spec: Json
    box: Box
    process: Started | None = None
    mounts: Mounts = field(default_factory=lambda: Mounts({}))
    again_s: float | None = None  # when it starts again
    started_s: float = 0.0
    probed_s: float = 0.0
    missed_s: float = 0.0
    misses: int = 0  # of its probe, as often as a real kubelet asks
    oom: bool = False


@dataclass
class _Pod:
    pod: Json
    folder: Path
    containers: list[_Container]
    inits: list[_Container]
    volumes: Volumes
    mounted: bool = False
    stop_by_s: float | None = None
    retry_s: float = 0.0


class ProcessKubelet(Kubelet):
    """`place`: where pods have their folders; claims lie in `place`/claims/NAMESPACE/NAME."""

    def __init__(self, store: Store, place: Path, *, logs: PodLogs, kubeconfig: Credentials | None = None) -> None:
        super().__init__(InStore(store))
        self.place = place
        self._store = store
        self._logs = logs
        self._kubeconfig = kubeconfig
        self._pods: dict[str, _Pod] = {}
        self._news = threading.Event()
        atexit.register(self._kill_all)

    # --- for tests -----------------------------------------------------------------------------------------

    def pids(self, pod: str) -> list[int]:
        """Of the containers' first processes, by the start of the pod's name."""
        return [
            container.process.running.pid
            for known in self._pods.values()
            if known.pod["metadata"]["name"].startswith(pod)
            for container in known.containers
            if container.process is not None and container.process.over() is None
        ]

    def kill(self, pod: str, *, oom: bool = False) -> None:
        """SIGKILL to the containers of the pods of that name, as the kernel does to one that takes too much memory."""
        for known in self._pods.values():
            if known.pod["metadata"]["name"].startswith(pod):
                for container in known.containers:
                    if container.process is not None and container.process.over() is None:
                        container.oom = oom
                        container.process.running.kill()

    def claim(self, namespace: str, name: str) -> Path:
        return self.place / "claims" / namespace / name

    def close(self) -> None:
        atexit.unregister(self._kill_all)
        self._kill_all()
        super().close()

    # --- the pods ------------------------------------------------------------------------------------------

    def _woken(self) -> bool:
        news = self._news.is_set()
        self._news.clear()
        return news

    def _look_at(self, pod: Json) -> None:
        known = self._pods.get(uid_of(pod))
        if ended(pod):
            if known is not None:
                self._forget(uid_of(pod))
            if going(pod):
                self.objects.remove(pod)
            return
        if known is None:
            known = self._pods[uid_of(pod)] = self._admit(pod)
        known.pod = pod
        if going(pod):
            self._stop(known)
        elif not known.mounted:
            self._prepare(known)
        else:
            self._go_on(known)

    def _forget_all_but(self, uids: object) -> None:
        for uid in [uid for uid in self._pods if uid not in uids]:  # type: ignore[operator]
            self._forget(uid)

    def _admit(self, pod: Json) -> _Pod:
        folder = self.place / "pods" / f"{pod['metadata']['name']}-{uid_of(pod)[:8]}"
        folder.mkdir(parents=True)
        volumes = Volumes(pod, folder, self.place / "claims", self._store.get)
        made = {
            kind: [_Container(spec, box) for spec, box in zip(pod["spec"].get(kind) or (), boxes_of(pod, kind), strict=True)]
            for kind in ("containers", "initContainers")
        }
        return _Pod(pod, folder, made["containers"], made["initContainers"], volumes)

    def _prepare(self, known: _Pod) -> None:
        if self.now_s < known.retry_s:
            self.again_at(known.retry_s)
            return
        try:
            known.volumes.make()
        except NotMounted as problem:
            known.retry_s = self.now_s + _RETRY_S
            self.again_at(known.retry_s)
            self.objects.say(known.pod, "FailedMount", str(problem), warning=True)
            self._write(known)
            return
        known.mounted = True
        for container in [*known.inits, *known.containers]:
            container.mounts = known.volumes.mounts_of(container.spec)
        self._go_on(known)

    def _go_on(self, known: _Pod) -> None:
        """Init containers one after the other, then all others at once; whoever ended is started again or is not."""
        before = _as_seen(known)
        waiting = next((container for container in known.inits if container.box.exit_code != 0), None)
        for container in [waiting] if waiting is not None else known.containers:
            self._tend(known, container)
        if waiting is not None and waiting.box.exit_code == 0:
            self.again_at(self.now_s)
        if _as_seen(known) != before or (known.pod.get("status") or {}).get("phase") != self._phase(known):
            self._write(known)

    def _tend(self, known: _Pod, container: _Container) -> None:
        if container.process is None:
            if container.box.exit_code is not None:
                return
            if container.again_s is not None and self.now_s < container.again_s:
                self.again_at(container.again_s)
                return
            self._start(known, container)
            return
        self._take_lines(known, container)
        code = container.process.over()
        if code is None:
            self.again_at(self.now_s + _LOOK_S)
            self._probe(known, container)
        else:
            self._ended(known, container, code)

    def _start(self, known: _Pod, container: _Container) -> None:
        now, uid = self.objects.stamp(), uid_of(known.pod)
        try:
            variables = environment(known.pod, container.spec, self._store.get)
        except NotConfigured as problem:
            container.box.wait("CreateContainerConfigError", str(problem))
            self.objects.say(known.pod, "Failed", f"Error: {problem}", warning=True)
            container.again_s = self.now_s + _RETRY_S
            self.again_at(container.again_s)
            return
        command = command_of(container.spec, variables, container.mounts)
        surroundings = base_environment(known.pod, known.folder) | self._credentials(known)
        surroundings |= {name: container.mounts.translated(value) for name, value in variables.items()}
        if container.again_s is not None and container.box.last:
            container.box.restarts += 1
            self._logs.restarted(uid, container.box.name)
        try:
            container.process = start(command, surroundings, known.folder / "home", self._news)
        except OSError as problem:
            container.box.wait("RunContainerError", f"exec: {command[0]!r}: {problem.strerror}")
            container.box.end(now, 128, "StartError")
            self.objects.say(
                known.pod, "Failed", f"Error: failed to start container {container.box.name}: {problem}", warning=True
            )
            return
        container.started_s, container.again_s, container.misses = self.now_s, None, 0
        container.probed_s = container.missed_s = 0.0
        container.box.run(now, ready=not _has_probe(container.spec), started="startupProbe" not in container.spec)
        self.objects.say(known.pod, "Started", f"Container started: {container.box.name}")
        self.again_at(self.now_s)

    def _ended(self, known: _Pod, container: _Container, code: int) -> None:
        """Everything else in the container ends with its first process; its last lines are read before anybody is told."""
        assert container.process is not None
        if len(known.containers) == 1:
            kill_marked({uid_of(known.pod)})
        container.process.finish()
        self._take_lines(known, container)
        container.process = None
        now = self.objects.stamp()
        container.box.end(now, code, "OOMKilled" if container.oom else "")
        container.oom = False
        self._logs.end(uid_of(known.pod), container.box.name)
        if not going(known.pod) and restarts_on(known.pod, container.spec, code):
            delay_s = restart_delay_s(container.box.restarts)
            container.box.rest(delay_s, long_name(known.pod))
            why = f"Back-off restarting failed container {container.box.name} in pod {long_name(known.pod)}"
            self.objects.say(known.pod, "BackOff", why, warning=True)
            container.again_s = self.now_s + delay_s
            self.again_at(container.again_s)

    def _stop(self, known: _Pod) -> None:
        """SIGTERM to each first process, SIGKILL when the grace is over."""
        everything = [*known.inits, *known.containers]
        if known.stop_by_s is None:
            grace_s = float(known.pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            known.stop_by_s = self.now_s + grace_s
            for container in everything:
                if container.process is not None and container.process.over() is None:
                    self.objects.say(known.pod, "Killing", f"Stopping container {container.box.name}")
                    container.process.running.terminate()
        grace_s = float(known.pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        late = self.now_s >= known.stop_by_s or grace_s == 0
        for container in everything:
            if container.process is None:
                continue
            self._take_lines(known, container)
            if late and container.process.over() is None:
                container.process.running.kill()
                container.process.running.wait(5)
            code = container.process.over()
            if code is not None:
                self._ended(known, container, code)
        if any(container.process is not None for container in everything):
            self.again_at(min(known.stop_by_s, self.now_s + _LOOK_S))
            return
        now = self.objects.stamp()
        for container in known.containers:
            if container.box.exit_code is None:
                container.box.end(now, 137, "ContainerStatusUnknown")
        self._write(known)
        self.objects.remove(known.pod)

    # --- probes --------------------------------------------------------------------------------------------

    def _probe(self, known: _Pod, container: _Container) -> None:
        """The startup probe until it succeeds, then the readiness probe. Oftener than asked for, so that no test waits for a
        period; but what fails is said, and a start is given up, after as many seconds as a real kubelet would take."""
        name = "readinessProbe" if container.box.started else "startupProbe"
        probe = container.spec.get(name)
        if probe is None:
            container.box.ready = True
            return
        first_s = container.started_s + probe.get("initialDelaySeconds", 0)
        if self.now_s < max(first_s, container.probed_s + _LOOK_S):
            return
        container.probed_s = self.now_s
        why = why_unwell(probe, container.spec, container.mounts, base_environment(known.pod, known.folder))
        if name == "readinessProbe":
            container.box.ready = not why
        elif not why:
            container.box.started, container.probed_s = True, 0.0
            self._probe(known, container)
            return
        if why and self.now_s >= max(first_s, container.missed_s) + probe.get("periodSeconds", 10):
            container.missed_s = self.now_s
            container.misses += 1
            self.objects.say(
                known.pod, "Unhealthy", f"{name.removesuffix('Probe').capitalize()} probe failed: {why}", warning=True
            )
            if name == "startupProbe" and container.misses >= probe.get("failureThreshold", 3):
                failed = f"Container {container.box.name} failed startup probe, will be restarted"
                self.objects.say(known.pod, "Killing", failed)
                assert container.process is not None
                container.process.running.terminate()

    # --- small parts ---------------------------------------------------------------------------------------

    def _credentials(self, known: _Pod) -> dict[str, str]:
        """A kubeconfig of the pod's ServiceAccount, where a real pod would find a token mounted."""
        spec, namespace = known.pod["spec"], known.pod["metadata"]["namespace"]
        account = spec.get("serviceAccountName", "default")
        owner = self._store.get("ServiceAccount", namespace, account) or {}
        if self._kubeconfig is None or not spec.get(
            "automountServiceAccountToken", owner.get("automountServiceAccountToken", True)
        ):
            return {}
        path = known.folder / "kubeconfig"
        if not path.exists():
            self._kubeconfig(path, namespace, account)
        return {"KUBECONFIG": str(path)}

    def _take_lines(self, known: _Pod, container: _Container) -> None:
        assert container.process is not None
        lines = container.process.lines
        while lines:
            self._logs.write(uid_of(known.pod), lines.popleft(), container.box.name)

    def _phase(self, known: _Pod) -> str:
        failed = any(container.box.exit_code for container in known.inits)
        return "Failed" if failed else phase_from([container.box for container in known.containers])

    def _write(self, known: _Pod) -> None:
        now, phase = self.objects.stamp(), self._phase(known)
        boxes = [container.box for container in known.containers]
        inits = [container.box for container in known.inits]
        address = ADDRESS if known.mounted else ""

        def write(target: Json) -> None:
            status = target.setdefault("status", {})
            write_pod(status, now, boxes, phase=phase, address=address, host=ADDRESS, init=inits)

        self.objects.write_status("Pod", known.pod, write)

    def _forget(self, uid: str, *, marked: bool = True) -> None:
        known = self._pods.pop(uid)
        for container in [*known.inits, *known.containers]:
            if container.process is not None:
                container.process.running.kill()
                container.process.running.wait(5)
        if marked:
            kill_marked({uid})
        shutil.rmtree(known.folder, ignore_errors=True)

    def _kill_all(self) -> None:
        uids = set(self._pods)
        kill_marked(uids)
        for uid in uids:
            self._forget(uid, marked=False)


def _has_probe(container: Json) -> bool:
    return "readinessProbe" in container or "startupProbe" in container


def _as_seen(known: _Pod) -> list[Json]:
    return [container.box.written() for container in [*known.inits, *known.containers]]
