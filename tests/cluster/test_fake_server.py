"""The fake API server's own: what tests can make it do, the logs and ports of its pods, and real kubectl against it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fake import EVERYTHING, ApiError, ApiServer, FakeCluster, Fault, ManualClock, Rule
from fake.clock import settle
from targets import Json, Target, done, refused

kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl on this machine")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(lambda: ApiServer(bookmark_s=0.2)) as found:
        yield found


@pytest.fixture
def target(cluster: FakeCluster) -> Iterator[Target]:
    headers = {"Authorization": f"Bearer {cluster.access.admin_token}"}
    with httpx.Client(base_url=cluster.url, headers=headers, timeout=20) as api:
        found = Target(api, cluster)
        done(api.post("/api/v1/namespaces", json={"metadata": {"name": found.namespace}}), 201)
        yield found


def ready_pod(target: Target, name: str = "worker-0") -> str:
    return str(target.pod(name, bound=True, ready=True)["metadata"]["uid"])


# --- hooks -------------------------------------------------------------------------------------------------


def test_a_server_that_restarts_keeps_its_port_and_its_objects(target: Target, cluster: FakeCluster) -> None:
    target.made("configmaps", {"metadata": {"name": "kept"}})
    url = cluster.url
    with target.watch("configmaps") as events:
        assert next(events)["object"]["metadata"]["name"] == "kept"
        cluster.stop()
        with pytest.raises(httpx.TransportError):
            next(events)
    with pytest.raises(httpx.ConnectError):
        target.get("configmaps", "kept")
    cluster.start()
    assert (cluster.url, target.there("configmaps", "kept")) == (url, True)


def test_watches_are_cut_in_mid_stream_and_the_version_can_be_taken_up_again(target: Target, cluster: FakeCluster) -> None:
    start = target.list("configmaps")["metadata"]["resourceVersion"]
    with target.watch("configmaps", resourceVersion=start) as events:
        target.made("configmaps", {"metadata": {"name": "one"}})
        seen = next(events)["object"]["metadata"]["resourceVersion"]
        cluster.cut_watches()
        with pytest.raises(httpx.TransportError):
            next(events)
    target.made("configmaps", {"metadata": {"name": "two"}})
    with target.watch("configmaps", resourceVersion=seen) as events:
        assert next(events)["object"]["metadata"]["name"] == "two"
    target.until(lambda: cluster.call(lambda: len(cluster.server.watches)) == 0)


def test_a_living_watch_can_be_told_that_it_is_too_old(target: Target, cluster: FakeCluster) -> None:
    start = target.list("configmaps")["metadata"]["resourceVersion"]
    with target.watch("configmaps", resourceVersion=start) as events:
        target.until(lambda: cluster.call(lambda: len(cluster.server.watches)) == 1)
        cluster.expire_watches()
        assert [(event["type"], event["object"]["code"]) for event in events] == [("ERROR", 410)]


def test_a_history_that_is_full_forgets_the_oldest(tmp_path: Path) -> None:
    with FakeCluster(lambda: ApiServer(history=5)) as cluster:
        headers = {"Authorization": f"Bearer {cluster.access.admin_token}"}
        with httpx.Client(base_url=cluster.url, headers=headers, timeout=20) as api:
            start = api.get("/api/v1/namespaces/default/configmaps").json()["metadata"]["resourceVersion"]
            for i in range(6):
                api.post("/api/v1/namespaces/default/configmaps", json={"metadata": {"name": f"m{i}"}})
            query = {"watch": "true", "resourceVersion": start, "timeoutSeconds": "5"}
            body = api.get("/api/v1/namespaces/default/configmaps", params=query).text
    assert json.loads(body)["object"]["code"] == 410


def test_bookmarks_come_while_nothing_happens(target: Target) -> None:
    start = target.list("configmaps")["metadata"]["resourceVersion"]
    target.made("secrets", {"metadata": {"name": "elsewhere"}})
    with target.watch("configmaps", resourceVersion=start, allowWatchBookmarks="true") as events:
        event = next(events)
    assert event["type"] == "BOOKMARK"
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(start)


def test_requests_can_be_delayed_made_to_fail_and_asked_about(target: Target, cluster: FakeCluster) -> None:
    busy = ApiError(429, "TooManyRequests", "Too many requests, please try again later.", {"retryAfterSeconds": 1})
    cluster.server.faults.append(Fault(busy, "list", "pods", times=1))
    answer = target.api.get(target.path("pods"))
    refused(answer, 429, "TooManyRequests")
    assert answer.headers["Retry-After"] == "1"
    assert target.api.get(target.path("pods")).status_code == 200
    calls = [(call.verb, call.resource, call.namespace, call.code) for call in cluster.server.calls][-2:]
    assert calls == [("list", "pods", target.namespace, 429), ("list", "pods", target.namespace, 200)]
    cluster.server.delay_s = 0.3
    began_s = time.monotonic()
    target.list("pods")
    assert time.monotonic() - began_s >= 0.3


def test_a_token_expires_and_its_rights_change_while_it_is_used(target: Target, cluster: FakeCluster) -> None:
    token = cluster.token("ann", Rule(("list",), resources=("pods",), namespace=target.namespace))
    with target.as_user(token) as ann:
        assert ann.get(target.path("pods")).status_code == 200
        refused(ann.get(target.path("pods", "nobody")), 403, "Forbidden")
        cluster.call(lambda: cluster.access.change(token, EVERYTHING))
        refused(ann.get(target.path("pods", "nobody")), 404, "NotFound")
        cluster.call(lambda: cluster.access.expire(token))
        refused(ann.get(target.path("pods")), 401, "Unauthorized")
    with httpx.Client(base_url=cluster.url) as nobody:
        status = refused(nobody.get(target.path("pods")), 403, "Forbidden")
        assert 'User "system:anonymous" cannot list' in status["message"]


def test_applying_something_new_needs_the_right_to_create_too(target: Target, cluster: FakeCluster) -> None:
    token = cluster.token("ann", Rule(("patch",), resources=("configmaps",)))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}
    headers = {"Content-Type": "application/apply-patch+yaml"}
    with target.as_user(token) as ann:
        answer = ann.patch(target.path("configmaps", "new"), json=body, headers=headers, params={"fieldManager": "ann"})
    status = refused(answer, 403, "Forbidden")
    assert "cannot create resource" in status["message"]


def test_a_pod_of_a_missing_service_account_is_forbidden(target: Target) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"serviceAccountName": "head", "containers": [{"name": "a", "image": "x"}]}}
    status = refused(target.create("pods", body), 403, "Forbidden")
    assert 'serviceaccount "head" not found' in status["message"]


def test_a_namespace_goes_with_everything_in_it_and_takes_nothing_new_meanwhile(target: Target) -> None:
    ready_pod(target)
    target.made("configmaps", {"metadata": {"name": "one"}})
    target.api.delete(f"/api/v1/namespaces/{target.namespace}")
    status = refused(target.create("configmaps", {"metadata": {"name": "two"}}), 403, "Forbidden")
    assert "is being terminated" in status["message"]
    done(target.delete("pods", "worker-0", gracePeriodSeconds=0))
    assert target.api.get(f"/api/v1/namespaces/{target.namespace}").status_code == 404


# --- logs --------------------------------------------------------------------------------------------------


def test_a_log_is_read_in_part_and_with_times(target: Target, cluster: FakeCluster) -> None:
    uid = ready_pod(target)
    cluster.call(lambda: cluster.logs.write(uid, "\n".join(f"line {i}" for i in range(5))))
    path = target.path("pods", "worker-0", "log")
    assert target.api.get(path).text.splitlines() == [f"line {i}" for i in range(5)]
    assert target.api.get(path, params={"tailLines": "2", "container": "main"}).text == "line 3\nline 4\n"
    stamped = target.api.get(path, params={"tailLines": "1", "timestamps": "true"}).text
    assert stamped.startswith("20")
    assert stamped.endswith("Z line 4\n")
    refused(target.api.get(path, params={"container": "other"}), 400, "BadRequest")
    refused(target.api.get(path, params={"previous": "true"}), 400, "BadRequest")
    cluster.call(lambda: cluster.logs.restarted(uid))
    cluster.call(lambda: cluster.logs.write(uid, "second start"))
    assert target.api.get(path).text == "second start\n"
    assert target.api.get(path, params={"previous": "true", "tailLines": "1"}).text == "line 4\n"


def test_a_followed_log_goes_on_to_the_last_line_and_is_gone_with_the_pod(target: Target, cluster: FakeCluster) -> None:
    uid = ready_pod(target)
    cluster.call(lambda: cluster.logs.write(uid, "before"))
    path, seen = target.path("pods", "worker-0", "log"), []
    with target.api.stream("GET", path, params={"follow": "true"}) as response:
        lines = response.iter_lines()
        seen.append(next(lines))
        cluster.call(lambda: cluster.logs.write(uid, "draining"))
        seen.append(next(lines))
        target.evict("worker-0")
        cluster.call(lambda: cluster.logs.write(uid, "drained"))
        done(target.patch("pods", "worker-0", {"status": {"phase": "Failed"}}, sub="status"))
        seen += list(lines)
    assert seen == ["before", "draining", "drained"]
    assert target.api.get(path).text.endswith("drained\n"), "an ended pod still has its log"
    done(target.delete("pods", "worker-0", gracePeriodSeconds=0))
    refused(target.api.get(path), 404, "NotFound")


def test_a_pod_that_has_not_started_says_why_it_has_no_log(target: Target) -> None:
    target.pod("waits")
    path = target.path("pods", "waits", "log")
    assert "does not have a host assigned" in refused(target.api.get(path), 400, "BadRequest")["message"]


# --- ports -------------------------------------------------------------------------------------------------


@pytest.fixture
def echo_port() -> Iterator[int]:
    """Says what it hears, until the other side has said all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    while data := connection.recv(65536):
                        connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_the_kubernetes_client_reaches_a_local_process_through_the_port_of_a_pod(
    target: Target, cluster: FakeCluster, echo_port: int, tmp_path: Path
) -> None:
    from kubernetes import client, config
    from kubernetes.stream import portforward

    uid = ready_pod(target)
    cluster.call(lambda: cluster.forwards.set(uid, "127.0.0.1", {5555: echo_port}))
    settings = client.Configuration()
    config.load_kube_config(str(cluster.kubeconfig(tmp_path / "kubeconfig")), client_configuration=settings)  # type: ignore[no-untyped-call]
    api = client.CoreV1Api(client.ApiClient(settings))
    forward = portforward(api.connect_get_namespaced_pod_portforward, "worker-0", target.namespace, ports="5555")
    with contextlib.closing(forward.socket(5555)) as through:
        through.settimeout(60)
        sent = os.urandom(300_000)
        threading.Thread(target=through.sendall, args=(sent,), daemon=True).start()
        heard = b""
        while len(heard) < len(sent):
            piece = through.recv(65536)
            assert piece, f"the connection ended after {len(heard)} bytes"
            heard += piece
    assert heard == sent
    assert forward.error(5555) is None
    closed = portforward(api.connect_get_namespaced_pod_portforward, "worker-0", target.namespace, ports="1")
    target.until(lambda: closed.error(1))
    assert "failed to connect to localhost:1" in closed.error(1)
    closed.close()


def test_a_port_of_a_pod_that_does_not_run_or_is_not_allowed_is_refused(target: Target, cluster: FakeCluster) -> None:
    target.pod("waits")
    query, headers = {"ports": "5555"}, {"Upgrade": "websocket", "Connection": "Upgrade"}
    path = target.path("pods", "waits", "portforward")
    status = refused(target.api.get(path, params=query, headers=headers), 400, "BadRequest")
    assert "pod is not running" in status["message"]
    token = cluster.token("ann", Rule(("get",), resources=("pods/portforward",)))
    with target.as_user(token) as ann:
        status = refused(ann.get(path, params=query, headers=headers), 403, "Forbidden")
    assert 'cannot create resource "pods/portforward"' in status["message"]


# --- other programs ----------------------------------------------------------------------------------------


@kubectl
def test_kubectl_applies_shows_and_deletes(tmp_path: Path) -> None:
    manifest = tmp_path / "objects.yaml"
    manifest.write_text(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: paceline}\n---\n"
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: run, namespace: paceline}\ndata: {a: '1', b: '2'}\n---\n"
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: head, namespace: paceline}\n"
        "spec: {template: {spec: {restartPolicy: Never, containers: [{name: head, image: head:1}]}}}\n"
    )
    # kubectl shows its credentials over TLS only.
    with FakeCluster(lambda: ApiServer(insecure=True)) as cluster:
        environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig")), "HOME": str(tmp_path)}

        def run(*arguments: str, code: int = 0) -> str:
            command = ["kubectl", *arguments]
            found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
            assert found.returncode == code, found.stderr
            return found.stdout + found.stderr

        assert "job.batch/head created" in run("apply", "-f", str(manifest))
        manifest.write_text(manifest.read_text().replace(", b: '2'", ", c: '3'"))
        assert "configmap/run configured" in run("apply", "-f", str(manifest))
        shown = json.loads(run("get", "configmap", "run", "-n", "paceline", "-o", "json"))
        assert shown["data"] == {"a": "1", "c": "3"}
        assert "Warning" not in run("apply", "--server-side", "-f", str(manifest)), "its own fields move to the new way"
        manifest.write_text(manifest.read_text().replace("c: '3'", "c: '4'"))
        other = ("apply", "--server-side", "--field-manager=other", "-f", str(manifest))
        assert 'conflict with "kubectl" using v1: .data.c' in run(*other, code=1)
        run(*other, "--force-conflicts")
        assert run("get", "jobs", "-n", "paceline").splitlines()[1].split()[:3] == ["head", "Running", "0/1"]
        assert "Completion Mode:  NonIndexed" in run("describe", "job", "head", "-n", "paceline")
        bad = manifest.with_name("bad.yaml")
        bad.write_text(manifest.read_text().replace("restartPolicy", "restartPolicyy"))
        assert "restartPolicyy" in run("apply", "-f", str(bad), code=1)
        run("delete", "-f", str(manifest), "--ignore-not-found", "--timeout=20s")
        assert "not found" in run("get", "namespace", "paceline", code=1)


@openssl
def test_it_speaks_tls_with_a_certificate_of_the_tests(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*make, *subject, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True, timeout=30)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with FakeCluster(lambda: ApiServer(ssl_context=context, ca_file=certificate)) as cluster:
        assert cluster.url.startswith("https://")
        headers = {"Authorization": f"Bearer {cluster.access.admin_token}"}
        trust = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=cluster.url, headers=headers, verify=trust) as api:
            assert done(api.get("/version"))["gitVersion"] == "v1.36.2"
        if shutil.which("kubectl"):
            config = cluster.kubeconfig(tmp_path / "kubeconfig")
            command = ["kubectl", "--kubeconfig", str(config), "get", "namespaces"]
            found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert "default" in found.stdout, found.stderr


# --- in a loop of one's own --------------------------------------------------------------------------------


async def test_the_server_runs_in_the_loop_of_a_test_with_a_clock_that_is_pushed() -> None:
    clock = ManualClock()
    async with ApiServer(clock) as server:
        queue = server.store.subscribe("ConfigMap")
        headers = {"Authorization": f"Bearer {server.access.admin_token}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as api:
            body: Json = {"metadata": {"name": "one"}}
            made = (await api.post("/api/v1/namespaces/default/configmaps", json=body)).json()
        change, obj = queue.get_nowait()
        assert (change, obj["metadata"]["uid"]) == ("ADDED", made["metadata"]["uid"])
        woken: list[float] = []

        async def sleeper(delay_s: float) -> None:
            await clock.sleep(delay_s)
            woken.append(clock.now_s())
            await clock.sleep(delay_s)
            woken.append(clock.now_s())

        tasks = [asyncio.create_task(sleeper(10)), asyncio.create_task(sleeper(15))]
        await settle()
        await clock.advance(25)
        assert woken == [1010.0, 1015.0, 1020.0]
        await clock.advance(5)
        assert woken[-1] == 1030.0
        await asyncio.gather(*tasks)
