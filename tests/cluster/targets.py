"""What the contract tests of the API talk to: the fake, or the server of PACELINE_KUBECONFIG; plain httpx to both.

Each opening has a namespace of its own, removed afterwards. Pods ask for a scheduler that nobody runs, so no kubelet of
a real cluster ever sees one; what a kubelet would say, the tests write into /status.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fake import FakeCluster
from fake.evicting import is_ready
from fake.selectors import selects

Json = dict[str, Any]
KUBECONFIG = "PACELINE_KUBECONFIG"
NAMES = ["fake", *([pytest.param("server", marks=pytest.mark.cluster)] if os.environ.get(KUBECONFIG) else [])]
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
NOWHERE = "paceline-no-such-node"
_PATIENCE_S = 20.0

_PREFIX = {
    "jobs": "/apis/batch/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
}


class Target:
    def __init__(self, api: httpx.Client, cluster: FakeCluster | None) -> None:
        self.api = api
        self.cluster = cluster
        self.namespace = f"paceline-contract-{secrets.token_hex(3)}"
        self._count = 0

    @property
    def fake(self) -> FakeCluster:
        """For what only the fake can be made to do."""
        if self.cluster is None:
            pytest.skip("only the fake has hooks for this")
        return self.cluster

    def name(self, what: str = "x") -> str:
        self._count += 1
        return f"{what}-{self._count}"

    def path(self, plural: str, name: str = "", subresource: str = "") -> str:
        parts = [_PREFIX.get(plural, "/api/v1"), "namespaces", self.namespace, plural, name, subresource]
        return "/".join(part for part in parts if part)

    def create(self, plural: str, obj: Json, **query: str) -> httpx.Response:
        return self.api.post(self.path(plural), json=obj, params=query)

    def made(self, plural: str, obj: Json) -> Json:
        return done(self.create(plural, obj), 201)

    def get(self, plural: str, name: str) -> httpx.Response:
        return self.api.get(self.path(plural, name))

    def there(self, plural: str, name: str) -> bool:
        return self.get(plural, name).status_code == 200

    def list(self, plural: str, **query: str) -> Json:
        return done(self.api.get(self.path(plural), params=query))

    def patch(self, plural: str, name: str, body: Json, how: str = MERGE, sub: str = "", **query: str) -> httpx.Response:
        headers = {"Content-Type": how}
        return self.api.patch(self.path(plural, name, sub), content=json.dumps(body), headers=headers, params=query)

    def apply(self, plural: str, body: Json, manager: str = "console", **query: str) -> httpx.Response:
        return self.patch(plural, body["metadata"]["name"], body, APPLY, **({"fieldManager": manager} | query))

    def delete(self, plural: str, name: str, **options: Any) -> httpx.Response:
        return self.api.request("DELETE", self.path(plural, name), json=options)

    def evict(self, pod: str, *, dry_run: bool = False, **options: Any) -> httpx.Response:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        query = {"dryRun": "All"} if dry_run else {}
        return self.api.post(self.path("pods", pod, "eviction"), json=body | {"deleteOptions": options}, params=query)

    def pod(self, name: str, *, bound: bool = False, ready: bool = False, **labels: str) -> Json:
        spec: Json = {"schedulerName": "paceline-nobody", "containers": [{"name": "main", "image": "example.com/none"}]}
        if bound:
            spec["nodeName"] = NOWHERE
        obj = self.made("pods", {"metadata": {"name": name, "labels": labels}, "spec": spec})
        if ready or bound:
            conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
            status = {"phase": "Running", "conditions": conditions, "podIP": "10.9.8.7"}
            obj = done(self.patch("pods", name, {"status": status}, sub="status"))
        return obj

    def budget(self, name: str, at_least: int, **labels: str) -> None:
        """Returns when the controller has worked it out; what it works out is done here for the fake."""
        spec: Json = {"minAvailable": at_least, "selector": {"matchLabels": labels}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
        made = self.made("poddisruptionbudgets", {"metadata": {"name": name}, "spec": spec})
        if self.cluster is not None:
            pods = [pod for pod in self.list("pods")["items"] if selects(spec["selector"], pod["metadata"].get("labels"))]
            healthy = sum(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
            status = {
                "observedGeneration": made["metadata"]["generation"],
                "currentHealthy": healthy,
                "desiredHealthy": at_least,
                "expectedPods": len(pods),
                "disruptionsAllowed": max(0, healthy - at_least),
            }
            done(self.patch("poddisruptionbudgets", name, {"status": status}, sub="status"))
        self.until(lambda: self.get("poddisruptionbudgets", name).json().get("status", {}).get("observedGeneration") == 1)

    def as_user(self, token: str) -> httpx.Client:
        client = httpx.Client(base_url=self.api.base_url, verify=_verify(self.api), timeout=_PATIENCE_S)
        client.headers["Authorization"] = f"Bearer {token}"
        return client

    def until(self, holds: Callable[[], object], within_s: float = _PATIENCE_S) -> None:
        until_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < until_s, "what was waited for did not happen"
            time.sleep(0.02 if self.cluster is not None else 0.2)

    @contextmanager
    def watch(self, plural: str, *, read_s: float = _PATIENCE_S, **query: str) -> Iterator[Iterator[Json]]:
        """The events of a watch, one by one; httpx.ReadTimeout when nothing comes for `read_s`."""
        timeout = httpx.Timeout(_PATIENCE_S, read=read_s)
        params = {"watch": "true", "timeoutSeconds": "30"} | query
        with self.api.stream("GET", self.path(plural), params=params, timeout=timeout) as response:
            assert response.status_code == 200, response.read()
            yield (json.loads(line) for line in response.iter_lines() if line)


def done(response: httpx.Response, code: int = 200) -> Json:
    assert response.status_code == code, response.text
    found: Json = response.json()
    return found


def refused(response: httpx.Response, code: int, reason: str) -> Json:
    """The Status of a refusal."""
    assert response.status_code == code, response.text
    status: Json = response.json()
    assert (status["kind"], status["status"], status.get("reason", ""), status["code"]) == ("Status", "Failure", reason, code)
    return status


def needs_server() -> None:
    if not os.environ.get(KUBECONFIG):
        pytest.skip(f"{KUBECONFIG} is not set: nothing was checked against a real API server")


@contextmanager
def opened(name: str) -> Iterator[Target]:
    """The fake or the server, with a fresh namespace."""
    if name == "fake":
        with FakeCluster() as cluster:
            headers = {"Authorization": f"Bearer {cluster.access.admin_token}"}
            with httpx.Client(base_url=cluster.url, headers=headers, timeout=_PATIENCE_S) as api:
                yield from _in_namespace(Target(api, cluster))
        return
    needs_server()
    with _server_client(os.environ[KUBECONFIG]) as api:
        yield from _in_namespace(Target(api, None))


def _in_namespace(target: Target) -> Iterator[Target]:
    done(target.api.post("/api/v1/namespaces", json={"metadata": {"name": target.namespace}}), 201)
    target.until(lambda: target.there("serviceaccounts", "default"))
    try:
        yield target
    finally:
        for pod in target.list("pods")["items"]:
            target.delete("pods", pod["metadata"]["name"], gracePeriodSeconds=0)
        target.api.delete(f"/api/v1/namespaces/{target.namespace}")


def _server_client(kubeconfig: str) -> httpx.Client:
    import ssl

    from kubernetes import client, config

    settings = client.Configuration()
    config.load_kube_config(kubeconfig, client_configuration=settings)  # type: ignore[no-untyped-call]
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if not settings.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    token = settings.get_api_key_with_prefix("authorization")
    api = httpx.Client(
        base_url=settings.host, verify=context, timeout=_PATIENCE_S, headers={"Authorization": token} if token else {}
    )
    _CONTEXTS[str(api.base_url)] = _without_certificate(settings.ssl_ca_cert, settings.verify_ssl)
    return api


#: How to trust the server while being somebody else: a client certificate would win over the token.
_CONTEXTS: dict[str, Any] = {}


def _without_certificate(ca_file: str | None, verify: bool) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _verify(api: httpx.Client) -> Any:
    return _CONTEXTS.get(str(api.base_url), True)
