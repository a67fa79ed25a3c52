"""Local ports that lead to the head's pod: data arrives whole, and what breaks on the way is made anew by the next connection."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake.access import Rule
from fake.cluster import FakeCluster

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.access import Access, access
from harness.cluster.kube.forward import Forward, Stream, head_pod, ways_to_head
from harness.kubespec import KubernetesSpec

NAMESPACE, RUN = "paceline", "trial"
PATIENCE_S = 60.0


class Echo:
    """A head's port: answers with a prefix and what it is sent."""

    def __init__(self, prefix: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._prefix = prefix
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            peer.sendall(self._prefix)
            while data := peer.recv(65536):
                peer.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


def connected(endpoint: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), timeout=PATIENCE_S)
    made.settimeout(PATIENCE_S)
    return made


def exchanged(peer: socket.socket, data: bytes) -> bytes:
    """What came back, read while it is being sent: no side may wait for the other to read first."""
    sender = threading.Thread(target=peer.sendall, args=(data,), daemon=True)
    sender.start()
    found = bytearray()
    while len(found) < len(data):
        part = peer.recv(65536)
        if not part:
            break
        found += part
    sender.join(PATIENCE_S)
    return bytes(found)


def test_what_is_sent_comes_back_whole_on_every_connection(echo: Echo) -> None:
    forward = Forward(lambda: socket.create_connection(("127.0.0.1", echo.port)), "control")
    data = os.urandom(4 << 20)
    with contextlib.closing(forward), connected(forward.endpoint) as one, connected(forward.endpoint) as two:
        assert exchanged(one, data) == data
        assert exchanged(two, b"second") == b"second"


def test_a_way_that_cannot_be_made_closes_the_connection_says_why_and_the_next_one_may_work(echo: Echo) -> None:
    away = True

    def connect() -> Stream:
        if away:
            raise ClusterError("the API server does not answer")
        return socket.create_connection(("127.0.0.1", echo.port))

    forward = Forward(connect, "control")
    with contextlib.closing(forward):
        with connected(forward.endpoint) as peer:
            assert peer.recv(1) == b""
        assert forward.problem == "the API server does not answer"
        away = False
        with connected(forward.endpoint) as peer:
            assert exchanged(peer, b"again") == b"again"
        assert forward.problem == ""


def test_closing_a_forward_ends_what_is_open(echo: Echo) -> None:
    forward = Forward(lambda: socket.create_connection(("127.0.0.1", echo.port)), "control")
    with connected(forward.endpoint) as peer:
        assert exchanged(peer, b"x") == b"x"
        forward.close()
        assert peer.recv(1) == b""
        with pytest.raises(OSError):
            connected(forward.endpoint)


def test_an_address_is_used_as_it_is() -> None:
    kube = KubernetesSpec(address="fd00::7", control_port=7001, telemetry_port=7002)
    ways = ways_to_head(None, kube, RUN)  # type: ignore[arg-type]  # nobody is asked
    assert (ways.control, ways.telemetry) == ("tcp://[fd00::7]:7001", "tcp://[fd00::7]:7002")
    assert ways_to_head(None, KubernetesSpec(address="head.example.com"), RUN).control == "tcp://head.example.com:5555"  # type: ignore[arg-type]


# --- through an API server ---------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as made:
        made.call(lambda: made.store.create("Namespace", "", {"metadata": {"name": NAMESPACE}}))
        yield made


@pytest.fixture
def way(cluster: FakeCluster, tmp_path: Path) -> Access:
    return access(kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig"))


def head(cluster: FakeCluster, name: str, echo: Echo, phase: str = "Running") -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": name, "labels": names.labels(RUN, "head")},
        "spec": {"containers": [{"name": "head", "image": "head"}]},
    }

    def make() -> None:
        made = cluster.store.create("Pod", NAMESPACE, pod)
        cluster.store.update("Pod", NAMESPACE, name, lambda found: found["status"].update(phase=phase), status=True)
        cluster.forwards.set(made["metadata"]["uid"], "127.0.0.1", {5555: echo.port})

    cluster.call(make)


def test_a_connection_leads_to_the_pod_that_is_the_head_at_that_moment(cluster: FakeCluster, way: Access, echo: Echo) -> None:
    head(cluster, "head-a", echo)
    ways = ways_to_head(way, KubernetesSpec(namespace=NAMESPACE), RUN)
    successor = Echo(b"b:")
    with contextlib.closing(ways), contextlib.closing(successor):
        data = os.urandom(2 << 20)
        with connected(ways.control) as peer:
            assert exchanged(peer, data) == data
            cluster.run(cluster.forwards.cut())
            assert peer.recv(1) == b""
        cluster.call(lambda: cluster.store.delete("Pod", NAMESPACE, "head-a", grace_s=0))
        with connected(ways.control) as peer:
            assert peer.recv(1) == b""
        assert "has no pod" in ways.problem
        head(cluster, "head-b", successor)
        with connected(ways.control) as peer:
            assert peer.recv(2) == b"b:"
        assert ways.problem == ""


def test_a_restart_of_the_api_server_is_survived(cluster: FakeCluster, way: Access, echo: Echo) -> None:
    head(cluster, "head-a", echo)
    ways = ways_to_head(way, KubernetesSpec(namespace=NAMESPACE), RUN)
    with contextlib.closing(ways):
        with connected(ways.control) as peer:
            assert exchanged(peer, b"before") == b"before"
            cluster.stop()
            assert peer.recv(1) == b""
        with connected(ways.control) as peer:
            assert peer.recv(1) == b""
        assert "does not answer" in ways.problem
        cluster.start()
        with connected(ways.control) as peer:
            assert exchanged(peer, b"after") == b"after"


def test_a_pod_that_does_not_run_is_named_with_its_phase(cluster: FakeCluster, way: Access, echo: Echo) -> None:
    head(cluster, "head-a", echo, "Pending")
    with pytest.raises(ClusterError, match="pod head-a is Pending"):
        head_pod(way, NAMESPACE, RUN)


def test_without_the_right_to_forward_it_is_said_who_can_give_it(cluster: FakeCluster, echo: Echo, tmp_path: Path) -> None:
    head(cluster, "head-a", echo)
    token = cluster.token("viewer", Rule(("list",), ("",), ("pods",), NAMESPACE))
    way = access(kubeconfig=cluster.kubeconfig(tmp_path / "viewer", token=token))
    ways = ways_to_head(way, KubernetesSpec(namespace=NAMESPACE), RUN)
    with contextlib.closing(ways):
        with connected(ways.control) as peer:
            assert peer.recv(1) == b""
        assert "forbidden" in ways.problem
        assert "pods/portforward" in ways.problem


def test_no_thread_is_left_once_connections_and_forward_are_closed(cluster: FakeCluster, way: Access, echo: Echo) -> None:
    head(cluster, "head-a", echo)
    before = threading.active_count()
    ways = ways_to_head(way, KubernetesSpec(namespace=NAMESPACE), RUN)
    for _ in range(5):
        with connected(ways.control) as peer:
            assert exchanged(peer, b"x") == b"x"
    ways.close()
    until_s = time.monotonic() + PATIENCE_S
    most = before + 12  # pools of asyncio and of the echo end with the test
    while (left := [t.name for t in threading.enumerate() if "orward" in t.name]) or threading.active_count() > most:
        assert time.monotonic() < until_s, (left, threading.active_count())
        time.sleep(0.05)
