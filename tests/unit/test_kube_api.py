"""One-shot requests: what goes over the wire, and each refusal as a sentence with its cause and the next step."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kube_server import PODS, TinyServer, kubeconfig, serving, status_of

from harness.cluster.base import ClusterError
from harness.cluster.kube.access import access
from harness.cluster.kube.api import Api, ApiProblem, lines_of, once, path_of

JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "run-worker"}, "spec": {}}
JOBS = "/apis/batch/v1/namespaces/ns/jobs"
EVICTION = f"{PODS}/w-3/eviction"


@pytest.fixture
async def tiny() -> AsyncIterator[TinyServer]:
    async with serving(TinyServer()) as made:
        yield made


@pytest.fixture
async def api(tiny: TinyServer, tmp_path: Path) -> AsyncIterator[Api]:
    async with Api(access(kubeconfig=kubeconfig(tmp_path, tiny.url), environ={}), timeout_s=60.0) as made:
        yield made


# --- what is sent ------------------------------------------------------------------------------------------------------


async def test_apply_is_server_side_with_our_field_manager(tiny: TinyServer, api: Api) -> None:
    tiny.answers("PATCH", f"{JOBS}/run-worker", JOB | {"status": {}})
    assert "status" in await api.apply(JOB, dry_run=True)
    asked = tiny.asked[-1]
    assert asked.query == {"fieldManager": "paceline", "force": "true", "dryRun": "All"}
    assert asked.headers["Content-Type"] == "application/apply-patch+yaml"
    assert asked.headers["Authorization"] == "Bearer sesame"
    assert asked.body == JOB


async def test_create_get_patch_and_delete(tiny: TinyServer, api: Api) -> None:
    for method, path in (("POST", JOBS), *((m, f"{JOBS}/run-worker") for m in ("GET", "PATCH", "DELETE"))):
        tiny.answers(method, path, JOB)
    assert await api.create(JOB) == JOB
    assert await api.get("Job", "run-worker") == JOB
    await api.patch("Job", "run-worker", {"spec": {"parallelism": 4, "completions": 4}})
    assert tiny.asked[-1].headers["Content-Type"] == "application/merge-patch+json"
    await api.delete("Job", "run-worker", uid="u-1")
    assert tiny.asked[-1].body["propagationPolicy"] == "Foreground"
    assert tiny.asked[-1].body["preconditions"] == {"uid": "u-1"}


async def test_a_list_is_read_page_by_page(tiny: TinyServer, api: Api) -> None:
    async def pages(request: web.Request) -> web.StreamResponse:
        last = request.query.get("continue") == "more"
        meta = {"resourceVersion": "7"} | ({} if last else {"continue": "more"})
        return web.json_response({"metadata": meta, "items": [{"n": 2 if last else 1}]})

    tiny.on("GET", PODS, pages)
    assert await api.list("Pod", selector="a=b", fields="status.phase=Running") == [{"n": 1}, {"n": 2}]
    assert tiny.asked[-1].query["labelSelector"] == "a=b"
    assert tiny.asked[-1].query["fieldSelector"] == "status.phase=Running"


async def test_an_eviction_carries_uid_and_grace(tiny: TinyServer, api: Api) -> None:
    tiny.answers("POST", EVICTION, {"kind": "Status", "status": "Success"}, 201)
    await api.evict("w-3", uid="u-3", grace_s=90, dry_run=True)
    body = tiny.asked[-1].body
    assert (body["apiVersion"], body["kind"]) == ("policy/v1", "Eviction")
    assert body["metadata"] == {"name": "w-3", "namespace": "ns"}
    assert body["deleteOptions"] == {"preconditions": {"uid": "u-3"}, "gracePeriodSeconds": 90, "dryRun": ["All"]}


async def test_a_log_is_followed_line_by_line(tiny: TinyServer, api: Api) -> None:
    async def log(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse()
        await reply.prepare(request)
        for chunk in ("[node003/gpu0] lo", "aded\n\nzwölf".encode()[:-3], "zwölf".encode()[3:], b"\nlast"):
            await reply.write(chunk.encode() if isinstance(chunk, str) else chunk)
            await asyncio.sleep(0.01)
        return reply

    tiny.on("GET", f"{PODS}/w-3/log", log)
    found = [line async for line in api.log("w-3", follow=True, tail_lines=10, timestamps=True)]
    assert found == ["[node003/gpu0] loaded", "", "zwölf", "last"]
    assert tiny.asked[-1].query == {"follow": "true", "tailLines": "10", "timestamps": "true"}


async def test_rights_are_asked_one_by_one_and_all_at_once(tiny: TinyServer, api: Api) -> None:
    reviews = "/apis/authorization.k8s.io/v1"
    tiny.answers("POST", f"{reviews}/selfsubjectaccessreviews", {"status": {"allowed": False, "reason": "no role"}}, 201)
    rules = [
        {"verbs": ["create"], "apiGroups": [""], "resources": ["pods/eviction"]},
        {"verbs": ["*"], "apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": ["mine"]},
        {"verbs": ["get"], "apiGroups": ["*"], "resources": ["*/log", "pods"]},
    ]
    tiny.answers("POST", f"{reviews}/selfsubjectrulesreviews", {"status": {"resourceRules": rules, "incomplete": False}}, 201)
    said = await api.can_i("create", "pods/eviction", namespace="other")
    assert not said
    assert said.reason == "no role"
    attributes = tiny.asked[-1].body["spec"]["resourceAttributes"]
    assert attributes == {"namespace": "other", "verb": "create", "resource": "pods", "subresource": "eviction"}
    may = (await api.rules()).may
    assert may("create", "pods/eviction")
    assert may("get", "pods/log")
    assert may("delete", "jobs", "batch", name="mine")
    assert not may("delete", "jobs", "batch")
    assert not may("delete", "pods")


async def test_groups_and_version_are_discovered(tiny: TinyServer, api: Api) -> None:
    tiny.answers("GET", "/apis", {"groups": [{"name": "jobset.x-k8s.io", "versions": [{"version": "v1alpha2"}]}]})
    tiny.answers("GET", "/version", {"gitVersion": "v1.36.2"})
    assert await api.has_group("jobset.x-k8s.io")
    assert await api.has_group("jobset.x-k8s.io", "v1alpha2")
    assert not await api.has_group("jobset.x-k8s.io", "v1")
    assert not await api.has_group("kueue.x-k8s.io")
    assert await api.version() == "v1.36.2"


def test_paths() -> None:
    assert path_of("Pod", "a b", "log", namespace="ns") == "/api/v1/namespaces/ns/pods/a%20b/log"
    assert path_of("Node") == "/api/v1/nodes"
    assert path_of("Event", namespace="*") == "/api/v1/events"
    assert path_of("JobSet", namespace="ns", version="jobset.x-k8s.io/v1") == "/apis/jobset.x-k8s.io/v1/namespaces/ns/jobsets"
    with pytest.raises(ClusterError, match="kind 'Pot' is not one that Paceline handles"):
        path_of("Pot")


# --- what is refused ---------------------------------------------------------------------------------------------------


async def refused(tiny: TinyServer, api: Api, code: int, reason: str, message: str, **details: Any) -> ApiProblem:
    tiny.refuses("PATCH", f"{JOBS}/run-worker", code, reason, message, **details)
    with pytest.raises(ApiProblem) as told:
        await api.apply(JOB)
    assert told.value.code == code
    return told.value


async def test_a_forbidden_verb_names_user_verb_and_role(tiny: TinyServer, api: Api) -> None:
    message = (
        'jobs.batch "run-worker" is forbidden: User "bob" cannot patch resource "jobs" in API group "batch" in the namespace "ns"'
    )
    problem = await refused(tiny, api, 403, "Forbidden", message)
    assert problem.forbidden
    assert str(problem) == (
        "cannot apply job run-worker: user bob may not patch jobs of group batch in namespace ns; "
        "an admin can allow it by a Role (verb patch)"
    )
    cluster = 'nodes "a" is forbidden: User "bob" cannot patch resource "nodes" in API group "" at the cluster scope'
    assert "may not patch nodes in the whole cluster; an admin can allow it by a ClusterRole" in str(
        await refused(tiny, api, 403, "Forbidden", cluster)
    )


async def test_a_quota_is_not_taken_for_a_missing_right(tiny: TinyServer, api: Api) -> None:
    message = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.amd.com/gpu=8, used: 64, limited: 64'
    problem = await refused(tiny, api, 403, "Forbidden", message)
    assert not problem.forbidden
    assert "exceeded quota: gpus" in str(problem)
    assert "ask for a larger quota" in str(problem)


async def test_an_invalid_field_and_a_conflict_name_the_field(tiny: TinyServer, api: Api) -> None:
    causes = [{"reason": "FieldValueInvalid", "field": "spec.maxFailedIndexes", "message": "must be at most completions"}]
    problem = await refused(tiny, api, 422, "Invalid", "Job is invalid", causes=causes)
    assert "invalid: spec.maxFailedIndexes: must be at most completions" in str(problem)
    causes = [{"reason": "FieldManagerConflict", "field": ".spec.parallelism", "message": 'conflict with "kueue"'}]
    problem = await refused(tiny, api, 409, "Conflict", "Apply failed", causes=causes)
    assert problem.conflict
    assert '.spec.parallelism belongs to somebody else: conflict with "kueue"' in str(problem)


async def test_a_budget_says_its_counts_and_an_uncounted_one_to_retry(tiny: TinyServer, api: Api) -> None:
    full = [{"reason": "DisruptionBudget", "message": "The disruption budget b needs 62 healthy pods and has 62 currently"}]
    tiny.refuses("POST", EVICTION, 429, "TooManyRequests", "Cannot evict pod", causes=full)
    with pytest.raises(
        ApiProblem, match=r"cannot evict pod w-3: the disruption budget does not allow it now: .* needs 62"
    ) as told:
        await api.evict("w-3")
    assert told.value.budget is not None
    assert told.value.may_pass
    new = [{"reason": "DisruptionBudget", "message": "The disruption budget b is still being processed by the server."}]
    tiny.refuses("POST", EVICTION, 429, "TooManyRequests", "Cannot evict pod", causes=new, retryAfterSeconds=10)
    with pytest.raises(ApiProblem, match="has not been counted yet") as told:
        await api.evict("w-3")
    assert told.value.retry_after_s == 10.0


async def test_two_budgets_a_missing_pod_and_a_busy_server(tiny: TinyServer, api: Api) -> None:
    tiny.refuses("POST", EVICTION, 500, "InternalError", "This pod has more than one PodDisruptionBudget, which ... not support")
    with pytest.raises(ApiProblem, match="two budgets select this pod: remove one"):
        await api.evict("w-3")
    with pytest.raises(ApiProblem, match="cannot read pod gone") as told:
        await api.get("Pod", "gone")
    assert told.value.not_found
    tiny.answers("GET", f"{PODS}/w-3", status_of(429, "TooManyRequests", "too many requests"), 429, {"Retry-After": "3"})
    with pytest.raises(ApiProblem, match="the API server is busy") as told:
        await api.get("Pod", "w-3")
    assert told.value.retry_after_s == 3.0
    assert told.value.budget is None


async def test_expired_credentials_are_read_again_once_and_then_told(tiny: TinyServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    async def version(request: web.Request) -> web.StreamResponse:
        good = request.headers["Authorization"] == "Bearer new"
        return web.json_response(
            {"gitVersion": "v1"} if good else status_of(401, "Unauthorized", "Unauthorized"), status=200 if good else 401
        )

    tiny.on("GET", "/version", version)
    found = access(kubeconfig=kubeconfig(tmp_path, tiny.url, user={"tokenFile": str(token)}), environ={})
    async with Api(found) as api:
        token.write_text("new")
        assert await api.version() == "v1"
        token.write_text("old")
        found.renew()
    other = access(kubeconfig=kubeconfig(tmp_path, tiny.url, user={"token": "wrong"}), environ={})
    async with Api(other) as api:
        with pytest.raises(ApiProblem, match=r"does not accept the credentials of .*, context ctx; log in again, then retry"):
            await api.version()


async def test_requests_that_are_refused_together_all_go_on_with_the_new_credentials(tmp_path: Path, tiny: TinyServer) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    refused = asyncio.Barrier(3)

    async def version(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer new":
            return web.json_response({"gitVersion": "v1"})
        await asyncio.wait_for(refused.wait(), 60)
        return web.json_response(status_of(401, "Unauthorized", "Unauthorized"), status=401)

    tiny.on("GET", "/version", version)
    async with Api(access(kubeconfig=kubeconfig(tmp_path, tiny.url, user={"tokenFile": str(token)}), environ={})) as api:
        token.write_text("new")
        assert await asyncio.gather(*(api.version() for _ in range(3))) == ["v1"] * 3


async def test_a_server_that_is_gone_or_silent_is_told_with_its_address(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with Api(access(kubeconfig=kubeconfig(tmp_path, url), environ={})) as api:
            with pytest.raises(ApiProblem, match=f"the API server {url} does not answer: connection refused") as told:
                await api.get("Pod", "x")
        assert told.value.no_reply
        taken.listen(1)
        async with Api(access(kubeconfig=kubeconfig(tmp_path, url), environ={}), timeout_s=0.2) as api:
            began_s = time.monotonic()
            with pytest.raises(ApiProblem, match=r"does not answer: no reply within 0\.2 s \(read pod x\)"):
                await api.get("Pod", "x")
            assert time.monotonic() - began_s < 20.0


async def test_a_server_that_is_no_api_server_is_told(tiny: TinyServer, api: Api) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>welcome to the portal</html>")

    tiny.on("GET", "/version", page)
    with pytest.raises(ApiProblem, match="is no API server: its reply to GET /version is not JSON"):
        await api.version()


def test_the_blocking_twin_runs_and_raises(tmp_path: Path) -> None:
    found = access(kubeconfig=kubeconfig(tmp_path, "http://127.0.0.1:1"), environ={})
    with pytest.raises(ClusterError, match="connection refused"):
        once(found, lambda api: api.version())


async def test_a_line_without_an_end_is_handed_on_in_parts() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 10
        yield b"\nshort\n"

    assert [line async for line in lines_of(chunks(), longest=25)] == [b"x" * 30, b"x" * 20, b"short"]
