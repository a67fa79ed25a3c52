"""The way from this machine to the ports of a run's head: through the API server, or by an address that leads there.

A local port each for control and telemetry. Every connection to one is a port-forward stream of its own to the pod that is
the head at that moment (the `kubernetes` package's, which runs a thread for it): when the pod is replaced, the API server
restarts or the laptop has slept, connections break, ZeroMQ makes new ones to the same local port, and those lead to the new
pod. Nobody behind the local port is told anything else.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.access import Access
from harness.cluster.kube.api import once
from harness.cluster.kube.views import PodView, reduce_pod
from harness.kubespec import KubernetesSpec

log = logging.getLogger("paceline.link")

_CHUNK = 256 * 1024
_BACKLOG = 64


class Stream(Protocol):
    """What a connection is led over; a socket is one."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


Connect = Callable[[], Stream]  # raises ClusterError


class Forward:
    """A port of this machine; every connection to it goes on over what `connect` gives."""

    def __init__(self, connect: Connect, what: str) -> None:
        self._connect, self._what = connect, what
        self.problem = ""  # why the last connection led nowhere, in words
        self._open: set[Stream] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name=f"forward {what}", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accept
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for stream in left:
            _end(stream)

    def _accept(self) -> None:
        while not self._closed:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._lead, args=(here,), name=f"forward {self._what}", daemon=True).start()

    def _lead(self, here: socket.socket) -> None:
        try:
            there = self._connect()
        except ClusterError as error:
            if str(error) != self.problem:
                log.warning("%s: %s", self._what, error)
            self.problem = str(error)
            _end(here)
            return
        if self.problem:
            log.info("%s: leads to the head again", self._what)
        self.problem = ""
        with self._lock:
            self._open |= {here, there}
        back = threading.Thread(target=_pump, args=(there, here), name=f"forward {self._what} back", daemon=True)
        back.start()
        _pump(here, there)
        back.join()
        with self._lock:
            self._open -= {here, there}
        here.close()
        there.close()


def _pump(source: Stream, target: Stream) -> None:
    """Ends both when either has: ZeroMQ has no use for half a connection."""
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
    except OSError:
        pass
    finally:
        _end(source, close=False)
        _end(target, close=False)


def _end(stream: Stream, *, close: bool = True) -> None:
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
    if close:
        stream.close()


class PodPort:
    """Opens a stream to a port of the pod that is the run's head now."""

    def __init__(self, access: Access, namespace: str, instance: str, port: int) -> None:
        self._access, self._namespace, self._instance, self._port = access, namespace, instance, port

    def __call__(self) -> Stream:
        pod = head_pod(self._access, self._namespace, self._instance)
        try:
            return self._open(pod.name)
        except _Refused as refused:
            if refused.unauthorised and self._access.renew():
                with contextlib.suppress(_Refused):
                    return self._open(pod.name)
            raise ClusterError(refused.sentence(pod.name, self._port, self._namespace)) from refused

    def _open(self, pod: str) -> Stream:
        from kubernetes.client import ApiClient, CoreV1Api
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream import portforward

        self._access.headers()  # an expired token is read anew
        # An ApiClient of its own: the package swaps a method of it while it connects.
        core = CoreV1Api(ApiClient(self._access.configuration))
        try:
            forward = portforward(core.connect_get_namespaced_pod_portforward, pod, self._namespace, ports=str(self._port))
        except ApiException as error:
            raise _Refused(str(error.reason or error)) from error
        stream: Stream = forward.socket(self._port)
        return stream


class _Refused(Exception):
    """The handshake failed; the package gives no status but within the text."""

    @property
    def unauthorised(self) -> bool:
        return "401" in str(self)

    def sentence(self, pod: str, port: int, namespace: str) -> str:
        said = " ".join(str(self).split())[:300]
        failed = f"no port-forward to port {port} of pod {pod}"
        if "403" in said:
            return (
                f"{failed}: forbidden; an admin can allow it by a Role in namespace {namespace} "
                "(verbs get and create on pods/portforward), or set cluster.kubernetes.address"
            )
        if self.unauthorised:
            return f"{failed}: the API server does not accept the credentials; log in again"
        return f"{failed}: {said}"


def head_pod(access: Access, namespace: str, instance: str) -> PodView:
    """The newest pod of the head that runs. Raises ClusterError: there is none, and what there is instead."""
    raw = once(access, lambda api: api.list("Pod", selector=names.selector(instance, "head")), namespace=namespace)
    pods = sorted((reduce_pod(pod) for pod in raw), key=lambda pod: pod.created_unix)
    running = [pod for pod in pods if pod.phase == "Running" and not pod.deletion_unix]
    if running:
        return running[-1]
    if not pods:
        raise ClusterError(f"the head of {instance} has no pod in namespace {namespace}")
    raise ClusterError(f"the head of {instance} does not run: pod {pods[-1].name} is {pods[-1].shown_phase}")


class Ways:
    """Control and telemetry of a run's head as endpoints that can be connected to from here."""

    def __init__(self, control: str, telemetry: str, forwards: tuple[Forward, ...] = ()) -> None:
        self.control, self.telemetry, self._forwards = control, telemetry, forwards

    @property
    def problem(self) -> str:
        return next((forward.problem for forward in self._forwards if forward.problem), "")

    def close(self) -> None:
        for forward in self._forwards:
            forward.close()


def ways_to_head(access: Access, kube: KubernetesSpec, instance: str) -> Ways:
    if kube.address:
        host = f"[{kube.address}]" if ":" in kube.address and not kube.address.startswith("[") else kube.address
        return Ways(f"tcp://{host}:{kube.control_port}", f"tcp://{host}:{kube.telemetry_port}")
    control, telemetry = (
        Forward(PodPort(access, kube.namespace, instance, port), what)
        for what, port in (("control", kube.control_port), ("telemetry", kube.telemetry_port))
    )
    return Ways(control.endpoint, telemetry.endpoint, (control, telemetry))
