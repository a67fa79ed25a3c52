"""How an API server answers, as everything of ours relies on it: the same assertions on the fake and on a real server.

The server is that of PACELINE_KUBECONFIG, where it is set. What cannot be brought about there (a compacted history, a cut
connection, a log without a kubelet) is in test_fake_server.py. One file on purpose: it is the list of what was verified.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from targets import APPLY, NAMES, STRATEGIC, Json, Target, done, needs_server, opened, refused


@pytest.fixture(scope="module", params=NAMES)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with opened(request.param) as found:
        yield found


@pytest.mark.cluster
def test_a_real_server_was_asked_the_same() -> None:
    """Says so, once, where it was not."""
    needs_server()


def a_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def a_job(name: str, container: Json | None = None, pod: Json | None = None, **spec: Any) -> Json:
    """Indexed, suspended: a real controller makes no pods of it."""
    main = {"name": "main", "image": "example.com/none:1"} | (container or {})
    template = {"spec": {"restartPolicy": "Never", "containers": [main]} | (pod or {})}
    shape = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "suspend": True, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": shape | spec}


def owned_by(obj: Json, owner: Json, *, blocks: bool = True) -> Json:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    obj["metadata"]["ownerReferences"] = [reference | {"blockOwnerDeletion": blocks}]
    return obj


def goes(target: Target, plural: str, name: str) -> None:
    target.until(lambda: not target.there(plural, name))


# --- objects -----------------------------------------------------------------------------------------------


def test_a_created_object_gets_uid_version_time_and_generation(target: Target) -> None:
    job = target.made("jobs", a_job(target.name("job")))
    metadata = job["metadata"]
    assert metadata["uid"]
    assert metadata["resourceVersion"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    assert job["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == metadata["name"]
    assert job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"


def test_a_name_is_made_from_generate_name(target: Target) -> None:
    made = target.made("configmaps", {"metadata": {"generateName": "made-"}})
    assert made["metadata"]["name"].startswith("made-")
    assert len(made["metadata"]["name"]) == len("made-") + 5


def test_the_same_name_twice_is_a_conflict_and_a_missing_one_is_not_found(target: Target) -> None:
    name = target.name()
    target.made("configmaps", a_map(name))
    status = refused(target.create("configmaps", a_map(name)), 409, "AlreadyExists")
    assert status["message"] == f'configmaps "{name}" already exists'
    status = refused(target.get("jobs", "nobody"), 404, "NotFound")
    assert status["message"] == 'jobs.batch "nobody" not found'
    assert status["details"] == {"name": "nobody", "group": "batch", "kind": "jobs"}


def test_a_namespace_in_the_body_that_is_not_that_of_the_url_is_a_bad_request(target: Target) -> None:
    body = a_map(target.name())
    body["metadata"]["namespace"] = "elsewhere"
    refused(target.create("configmaps", body), 400, "BadRequest")


def test_a_put_over_a_newer_version_is_a_conflict(target: Target) -> None:
    first = target.made("configmaps", a_map(target.name(), a="1"))
    name = first["metadata"]["name"]
    done(target.patch("configmaps", name, {"data": {"a": "2"}}))
    first["data"] = {"a": "3"}
    status = refused(target.api.put(target.path("configmaps", name), json=first), 409, "Conflict")
    assert "the object has been modified" in status["message"]
    assert target.get("configmaps", name).json()["data"] == {"a": "2"}


def test_the_generation_counts_changes_of_the_spec_and_status_is_written_apart(target: Target) -> None:
    name = target.name("pdb")
    target.made(
        "poddisruptionbudgets",
        {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"no": "body"}}}},
    )
    same = done(target.patch("poddisruptionbudgets", name, {"metadata": {"labels": {"a": "b"}}}))
    assert same["metadata"]["generation"] == 1
    more = done(target.patch("poddisruptionbudgets", name, {"spec": {"minAvailable": 2}, "status": {"currentHealthy": 77}}))
    assert more["metadata"]["generation"] == 2
    assert more.get("status", {}).get("currentHealthy") != 77
    status = {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}}
    pod = target.pod(target.name("pod"))
    written = done(target.patch("pods", pod["metadata"]["name"], status, sub="status"))
    assert written["status"]["phase"] == "Running"
    assert "activeDeadlineSeconds" not in written["spec"]


def test_nothing_changed_is_no_new_version(target: Target) -> None:
    made = target.made("configmaps", a_map(target.name(), a="1"))
    same = done(target.patch("configmaps", made["metadata"]["name"], {"data": {"a": "1"}}))
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_label_and_field_selectors_choose(target: Target) -> None:
    mark = target.name("mark")
    for name, tier in (("one", "a"), ("two", "b"), ("three", "c")):
        target.made("configmaps", {"metadata": {"name": f"{mark}-{name}", "labels": {"mark": mark, "tier": tier}}})

    def chosen(**query: str) -> set[str]:
        return {item["metadata"]["name"].removeprefix(f"{mark}-") for item in target.list("configmaps", **query)["items"]}

    assert chosen(labelSelector=f"mark={mark}") == {"one", "two", "three"}
    assert chosen(labelSelector=f"mark={mark},tier in (a,b)") == {"one", "two"}
    assert chosen(labelSelector=f"mark={mark},tier notin (a,b)") == {"three"}
    assert chosen(labelSelector=f"mark={mark},tier!=a,!missing") == {"two", "three"}
    assert chosen(labelSelector=f"mark={mark},missing") == set()
    assert chosen(fieldSelector=f"metadata.name={mark}-two") == {"two"}
    pod = target.pod(target.name("pod"), bound=True)["metadata"]["name"]
    found = target.list("pods", fieldSelector=f"spec.nodeName=paceline-no-such-node,metadata.name={pod}")["items"]
    assert [item["metadata"]["name"] for item in found] == [pod]
    refused(target.api.get(target.path("pods"), params={"fieldSelector": "spec.hostname=x"}), 400, "BadRequest")


def test_pages_of_a_list_belong_to_one_version(target: Target) -> None:
    mark = target.name("page")
    for i in range(5):
        target.made("configmaps", {"metadata": {"name": f"{mark}-{i}", "labels": {"page": mark}}})
    first = target.list("configmaps", labelSelector=f"page={mark}", limit="2")
    target.delete("configmaps", f"{mark}-3")
    names = [item["metadata"]["name"] for item in first["items"]]
    page, versions = first, {first["metadata"]["resourceVersion"]}
    while token := page["metadata"].get("continue"):
        page = target.list("configmaps", labelSelector=f"page={mark}", limit="2", **{"continue": token})
        names += [item["metadata"]["name"] for item in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
    assert names == [f"{mark}-{i}" for i in range(5)], "the object that went in between is still listed"
    assert len(versions) == 1


def test_items_of_a_list_do_not_say_what_they_are(target: Target) -> None:
    target.made("configmaps", a_map(target.name()))
    listed = target.list("configmaps")
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert not any("kind" in item or "apiVersion" in item for item in listed["items"])


def test_a_merge_patch_removes_by_null_and_a_strategic_one_merges_lists_by_key(target: Target) -> None:
    name = target.made("configmaps", a_map(target.name(), a="1", b="2"))["metadata"]["name"]
    assert done(target.patch("configmaps", name, {"data": {"a": None, "c": "3"}}))["data"] == {"b": "2", "c": "3"}
    name = target.name("svc")
    ports = [{"name": "control", "port": 5555}, {"name": "telemetry", "port": 5556}]
    target.made("services", {"metadata": {"name": name}, "spec": {"clusterIP": "None", "ports": ports}})
    more = {"spec": {"ports": [{"port": 5556, "name": "renamed"}, {"port": 5557, "name": "metrics"}]}}
    patched = done(target.patch("services", name, more, STRATEGIC))["spec"]["ports"]
    assert {port["port"]: port["name"] for port in patched} == {5555: "control", 5556: "renamed", 5557: "metrics"}
    replaced = done(target.patch("services", name, {"spec": {"ports": [{"port": 80, "name": "only"}]}}))["spec"]["ports"]
    assert [port["port"] for port in replaced] == [80]


def test_an_unknown_field_is_refused_when_strict_and_else_dropped_with_a_warning(target: Target) -> None:
    body = a_job(target.name("job"), container={"imagee": "x"})
    status = refused(target.create("jobs", body, fieldValidation="Strict"), 400, "BadRequest")
    assert 'unknown field "spec.template.spec.containers[0].imagee"' in status["message"]
    answer = target.create("jobs", body)
    assert "imagee" not in done(answer, 201)["spec"]["template"]["spec"]["containers"][0]
    assert "unknown field" in answer.headers["Warning"]


# --- deletion ----------------------------------------------------------------------------------------------


def test_a_finalizer_holds_a_deleted_object(target: Target) -> None:
    name = target.name()
    target.made("configmaps", {"metadata": {"name": name, "finalizers": ["paceline.dev/test"]}})
    done(target.delete("configmaps", name))
    assert "deletionTimestamp" in target.get("configmaps", name).json()["metadata"]
    done(target.patch("configmaps", name, {"metadata": {"finalizers": None}}))
    goes(target, "configmaps", name)


def test_a_bound_pod_keeps_its_grace_and_an_unbound_one_goes_at_once(target: Target) -> None:
    bound, loose = target.name("pod"), target.name("pod")
    target.pod(bound, bound=True)
    target.pod(loose)
    done(target.delete("pods", bound, gracePeriodSeconds=120))
    metadata = target.get("pods", bound).json()["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 120
    assert "deletionTimestamp" in metadata
    done(target.delete("pods", loose, gracePeriodSeconds=120))
    refused(target.get("pods", loose), 404, "NotFound")
    done(target.delete("pods", bound, gracePeriodSeconds=0, preconditions={"uid": metadata["uid"]}))
    refused(target.get("pods", bound), 404, "NotFound")


def test_a_wrong_uid_stops_a_deletion(target: Target) -> None:
    name = target.made("configmaps", a_map(target.name()))["metadata"]["name"]
    refused(target.delete("configmaps", name, preconditions={"uid": "somebody-else"}), 409, "Conflict")
    assert target.there("configmaps", name)


def test_what_an_owner_leaves_goes_after_it_before_it_or_stays(target: Target) -> None:
    owners = {}
    for policy in ("Background", "Foreground", "Orphan"):
        owner = target.made("configmaps", a_map(target.name("owner")))
        target.made("configmaps", owned_by(a_map(f"{owner['metadata']['name']}-child"), owner))
        held = owned_by(a_map(f"{owner['metadata']['name']}-held"), owner)
        held["metadata"]["finalizers"] = ["paceline.dev/test"]
        target.made("configmaps", held)
        owners[policy] = owner["metadata"]["name"]
    time.sleep(0 if target.cluster else 1)  # a real collector must have seen the owners
    for policy, name in owners.items():
        done(target.delete("configmaps", name, propagationPolicy=policy))
    for policy in ("Background", "Foreground"):
        goes(target, "configmaps", f"{owners[policy]}-child")
    assert not target.there("configmaps", owners["Background"])
    assert target.there("configmaps", owners["Foreground"]), "it waits for the dependent that a finalizer holds"
    goes(target, "configmaps", owners["Orphan"])
    orphan = target.get("configmaps", f"{owners['Orphan']}-child").json()
    assert "ownerReferences" not in orphan["metadata"]
    for name in owners.values():
        target.patch("configmaps", f"{name}-held", {"metadata": {"finalizers": None}})
    goes(target, "configmaps", owners["Foreground"])


def test_a_deleted_job_orphans_its_pods_unless_told_otherwise(target: Target) -> None:
    for policy, left in (({}, True), ({"propagationPolicy": "Foreground"}, False)):
        job = target.made("jobs", a_job(target.name("job")))
        pod: Json = {"metadata": {"name": target.name("pod")}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
        pod["spec"]["schedulerName"] = "paceline-nobody"
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        # Not as controller: a real Job controller deletes pods of a suspended Job that it takes for its own.
        pod["metadata"]["ownerReferences"] = [reference | {"blockOwnerDeletion": True}]
        made = target.made("pods", pod)["metadata"]["name"]
        time.sleep(0 if target.cluster else 1)
        done(target.delete("jobs", job["metadata"]["name"], **policy))
        goes(target, "jobs", job["metadata"]["name"])
        assert target.there("pods", made) == left


# --- server-side apply and dry run -------------------------------------------------------------------------


def test_applying_creates_updates_and_is_quiet_when_nothing_changes(target: Target) -> None:
    name = target.name()
    done(target.apply("configmaps", a_map(name, a="1")), 201)
    second = done(target.apply("configmaps", a_map(name, a="2")))
    third = done(target.apply("configmaps", a_map(name, a="2")))
    assert second["data"] == third["data"] == {"a": "2"}
    assert second["metadata"]["resourceVersion"] == third["metadata"]["resourceVersion"]
    entries = third["metadata"]["managedFields"]
    assert [(entry["manager"], entry["operation"]) for entry in entries] == [("console", "Apply")]
    assert entries[0]["fieldsV1"] == {"f:data": {"f:a": {}}}


def test_a_field_of_another_manager_is_a_conflict_that_force_takes_over(target: Target) -> None:
    name = target.name()
    done(target.apply("configmaps", a_map(name, a="1", b="1"), "first"), 201)
    status = refused(target.apply("configmaps", a_map(name, b="2"), "second"), 409, "Conflict")
    cause = status["details"]["causes"][0]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.b")
    assert 'conflict with "first"' in cause["message"]
    done(target.apply("configmaps", a_map(name, b="1"), "second"))  # the same value is shared, not fought over
    taken = done(target.apply("configmaps", a_map(name, b="2"), "second", force="true"))
    assert taken["data"] == {"a": "1", "b": "2"}
    status = refused(target.apply("configmaps", a_map(name, a="1", b="3"), "first"), 409, "Conflict")
    assert 'conflict with "second"' in status["message"]


def test_a_field_left_out_of_the_next_apply_is_removed_unless_another_manager_holds_it(target: Target) -> None:
    name = target.name()
    done(target.apply("configmaps", a_map(name, a="1", b="1", c="1"), "first"), 201)
    done(target.apply("configmaps", a_map(name, b="1"), "second"))
    assert done(target.apply("configmaps", a_map(name, a="1"), "first"))["data"] == {"a": "1", "b": "1"}


def test_a_write_without_apply_owns_what_it_changed(target: Target) -> None:
    name = target.name()
    done(target.apply("configmaps", a_map(name, a="1"), "first"), 201)
    done(target.patch("configmaps", name, {"data": {"a": "2"}}, fieldManager="scaler"))
    status = refused(target.apply("configmaps", a_map(name, a="3"), "first"), 409, "Conflict")
    assert 'conflict with "scaler"' in status["message"]


def test_lists_of_named_things_are_owned_item_by_item(target: Target) -> None:
    name = target.name("svc")

    def service(*ports: Json) -> Json:
        spec = {"clusterIP": "None", "ports": list(ports)}
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}

    control = {"name": "control", "port": 5555, "protocol": "TCP"}
    metrics = {"name": "metrics", "port": 9090, "protocol": "TCP"}
    done(target.apply("services", service(control), "first"), 201)
    both = done(target.apply("services", service(metrics), "second"))
    assert [port["port"] for port in both["spec"]["ports"]] == [5555, 9090]
    left = done(target.apply("services", service(control), "second"))
    assert [port["port"] for port in left["spec"]["ports"]] == [5555]


def test_applying_without_a_manager_or_with_an_unknown_field_is_refused(target: Target) -> None:
    name = target.name("job")
    status = refused(target.patch("jobs", name, a_job(name), APPLY), 422, "Invalid")
    assert "fieldManager: Required value" in status["message"]
    answer = target.apply("jobs", a_job(name, completionz=2), fieldValidation="Strict")
    assert answer.status_code == 500
    assert ".spec.completionz: field not declared in schema" in answer.json()["message"]


def test_a_dry_run_validates_everything_and_stores_nothing(target: Target) -> None:
    name = target.name("job")
    answer = done(target.apply("jobs", a_job(name), dryRun="All"), 201)
    assert answer["metadata"]["uid"]
    refused(target.get("jobs", name), 404, "NotFound")
    refused(target.apply("jobs", a_job(name, parallelism=-1), dryRun="All"), 422, "Invalid")
    kept = target.made("configmaps", a_map(target.name(), a="1"))
    at = kept["metadata"]["name"]
    assert done(target.patch("configmaps", at, {"data": {"a": "2"}}, dryRun="All"))["data"] == {"a": "2"}
    done(target.api.request("DELETE", target.path("configmaps", at), params={"dryRun": "All"}))
    left = target.get("configmaps", at).json()
    assert (left["data"], left["metadata"]["resourceVersion"]) == ({"a": "1"}, kept["metadata"]["resourceVersion"])
    done(target.create("configmaps", a_map("never"), dryRun="All"), 201)
    assert not target.there("configmaps", "never")


# --- what a Job may not be ---------------------------------------------------------------------------------

_IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
_LOST = {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"backoffLimitPerIndex": 1, "maxFailedIndexes": 3}, "spec.maxFailedIndexes"),
        ({"maxFailedIndexes": 1}, "spec.backoffLimitPerIndex"),
        (
            {"podFailurePolicy": {"rules": [_IGNORE]}, "podReplacementPolicy": "TerminatingOrFailed"},
            "spec.podReplacementPolicy",
        ),
        ({"podFailurePolicy": {"rules": [_IGNORE]}, "pod": {"restartPolicy": "OnFailure"}}, "spec.template.spec.restartPolicy"),
        ({"pod": {"restartPolicy": "Always"}}, "spec.template.spec.restartPolicy"),
        ({"podFailurePolicy": {"rules": [_LOST]}}, "spec.podFailurePolicy.rules[0].action"),
        (
            {"container": {"resources": {"requests": {"amd.com/gpu": "4"}, "limits": {"amd.com/gpu": "8"}}}},
            "spec.template.spec.containers[0].resources.requests",
        ),
        (
            {"container": {"resources": {"requests": {"amd.com/gpu": "8"}}}},
            "spec.template.spec.containers[0].resources.limits",
        ),
        ({"completions": None}, "spec.completions"),
        ({"pod": {"containers": [{"name": "A_b", "image": "x"}]}}, "spec.template.spec.containers[0].name"),
        (
            {"container": {"volumeMounts": [{"name": "none", "mountPath": "/x"}]}},
            "spec.template.spec.containers[0].volumeMounts[0].name",
        ),
    ],
)
def test_a_wrong_job_is_refused_with_the_field_named(target: Target, wrong: Json, field: str) -> None:
    job = a_job(target.name("job"), **wrong)
    status = refused(target.create("jobs", job), 422, "Invalid")
    assert field in [cause["field"] for cause in status["details"]["causes"]], status["message"]


@pytest.mark.parametrize("name", ["Upper", "under_score"])
def test_a_name_must_be_a_dns_label(target: Target, name: str) -> None:
    status = refused(target.create("jobs", a_job(name)), 422, "Invalid")
    assert "metadata.name" in [cause["field"] for cause in status["details"]["causes"]]


def test_a_job_with_every_policy_of_ours_is_accepted(target: Target) -> None:
    rules = {"rules": [_IGNORE, _LOST]}
    gpus = {"resources": {"limits": {"amd.com/gpu": 8}}}
    job = a_job(target.name("job"), gpus, backoffLimitPerIndex=6, maxFailedIndexes=2, podFailurePolicy=rules)
    made = target.made("jobs", job | {"spec": job["spec"] | {"podReplacementPolicy": "Failed"}})
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"amd.com/gpu": "8"}, "requests": {"amd.com/gpu": "8"}}


def test_a_job_is_scaled_by_both_counts_at_once_and_its_image_never_changes(target: Target) -> None:
    name = target.name("job")
    job = a_job(name, backoffLimitPerIndex=1, maxFailedIndexes=2)
    target.made("jobs", job)
    for count in (8, 4):
        scaled = done(target.patch("jobs", name, {"spec": {"parallelism": count, "completions": count}}))
        assert (scaled["spec"]["parallelism"], scaled["spec"]["completions"]) == (count, count)
    refused(target.patch("jobs", name, {"spec": {"completions": 6}}), 422, "Invalid")
    refused(target.patch("jobs", name, {"spec": {"parallelism": 1, "completions": 1}}), 422, "Invalid")
    done(target.patch("jobs", name, {"spec": {"parallelism": 9}}))
    image = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "example.com/none:2"}]}}}}
    status = refused(target.patch("jobs", name, image, STRATEGIC), 422, "Invalid")
    assert "field is immutable" in status["message"]
    elsewhere = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "b"}}}}}
    done(target.patch("jobs", name, elsewhere, STRATEGIC))
    done(target.patch("jobs", name, {"spec": {"suspend": False, "parallelism": 0}}))
    refused(target.patch("jobs", name, {"spec": {"template": {"spec": {"nodeSelector": {"pool": "c"}}}}}), 422, "Invalid")


# --- watching ----------------------------------------------------------------------------------------------


def test_a_watch_from_a_version_tells_each_change_once(target: Target) -> None:
    mark = target.name("w")
    start = target.list("configmaps")["metadata"]["resourceVersion"]
    target.made("configmaps", {"metadata": {"name": mark, "labels": {"w": mark}}, "data": {"a": "1"}})
    with target.watch("configmaps", resourceVersion=start, labelSelector=f"w={mark}") as events:
        assert next(events)["type"] == "ADDED"
        done(target.patch("configmaps", mark, {"data": {"a": "2"}}))
        event = next(events)
        assert (event["type"], event["object"]["data"], event["object"]["kind"]) == ("MODIFIED", {"a": "2"}, "ConfigMap")
        done(target.delete("configmaps", mark))
        assert next(events)["type"] == "DELETED"


def test_an_object_enters_and_leaves_a_watch_with_its_labels(target: Target) -> None:
    mark = target.name("w")
    start = target.list("configmaps")["metadata"]["resourceVersion"]
    target.made("configmaps", a_map(mark))
    with target.watch("configmaps", resourceVersion=start, labelSelector=f"w={mark}") as events:
        done(target.patch("configmaps", mark, {"metadata": {"labels": {"w": mark}}}))
        assert next(events)["type"] == "ADDED"
        done(target.patch("configmaps", mark, {"metadata": {"labels": {"w": "other"}}}))
        assert next(events)["type"] == "DELETED"
    assert target.there("configmaps", mark)


def test_list_and_watch_in_one_ends_the_list_with_a_bookmark(target: Target) -> None:
    mark = target.name("w")
    for i in range(3):
        target.made("configmaps", {"metadata": {"name": f"{mark}-{i}", "labels": {"w": mark}}})
    with target.watch(
        "configmaps",
        labelSelector=f"w={mark}",
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    ) as events:
        first = [next(events) for _ in range(4)]
        assert [event["type"] for event in first] == ["ADDED", "ADDED", "ADDED", "BOOKMARK"]
        metadata = first[-1]["object"]["metadata"]
        assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(metadata["resourceVersion"]) > 0
        done(target.delete("configmaps", f"{mark}-1"))
        assert next(events)["type"] == "DELETED"
    refused(target.api.get(target.path("configmaps"), params={"watch": "true", "sendInitialEvents": "true"}), 422, "Invalid")


def test_a_version_that_is_too_old_is_a_410_inside_the_stream_and_outside_it_for_a_list(target: Target) -> None:
    if target.cluster is not None:
        target.made("configmaps", a_map(target.name()))
        target.cluster.compact()
    with target.watch("configmaps", resourceVersion="1") as events:
        event = next(events)
    assert event["type"] == "ERROR"
    assert (event["object"]["kind"], event["object"]["code"], event["object"]["reason"]) == ("Status", 410, "Expired")
    query = {"resourceVersion": "1", "resourceVersionMatch": "Exact"}
    refused(target.api.get(target.path("configmaps"), params=query), 410, "Expired")


def test_a_version_of_the_future_hangs_and_junk_is_an_error(target: Target) -> None:
    future = str(int(target.list("configmaps")["metadata"]["resourceVersion"]) + 1_000_000)
    with target.watch("configmaps", read_s=3.0, resourceVersion=future) as events, pytest.raises(httpx.ReadTimeout):
        next(events)
    assert target.api.get(target.path("configmaps"), params={"watch": "true", "resourceVersion": "junk"}).status_code == 500


def test_the_server_ends_a_watch_after_the_time_that_was_asked_for(target: Target) -> None:
    began_s = time.monotonic()
    start = target.list("configmaps")["metadata"]["resourceVersion"]
    with target.watch("configmaps", resourceVersion=start, timeoutSeconds="1", labelSelector="no=body") as events:
        assert list(events) == []
    assert 0.8 < time.monotonic() - began_s < 20


# --- eviction ----------------------------------------------------------------------------------------------


def test_an_eviction_marks_the_pod_and_answers_with_a_status(target: Target) -> None:
    name = target.name("pod")
    target.pod(name, bound=True, ready=True)
    answer = target.evict(name, gracePeriodSeconds=300)
    assert answer.status_code == 201
    assert (answer.json()["kind"], answer.json()["status"]) == ("Status", "Success")
    pod = target.get("pods", name).json()
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 300
    condition = next(c for c in pod["status"]["conditions"] if c["type"] == "DisruptionTarget")
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")


def test_a_dry_eviction_answers_and_does_nothing(target: Target) -> None:
    name = target.name("pod")
    before = target.pod(name, bound=True, ready=True)
    assert target.evict(name, dry_run=True).status_code == 201
    assert target.evict(name, dryRun=["All"]).status_code == 201
    assert target.get("pods", name).json()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_evicting_a_missing_pod_is_not_found_and_another_incarnation_a_conflict(target: Target) -> None:
    refused(target.evict("nobody"), 404, "NotFound")
    name = target.name("pod")
    target.pod(name, bound=True, ready=True)
    refused(target.evict(name, preconditions={"uid": "somebody-else"}), 409, "Conflict")
    assert "deletionTimestamp" not in target.get("pods", name).json()["metadata"]


def test_a_budget_lets_go_what_it_can_spare_and_then_says_what_it_needs(target: Target) -> None:
    mark = target.name("b")
    pods = [target.name("pod") for _ in range(3)]
    for pod in pods:
        target.pod(pod, bound=True, ready=True, budget=mark)
    target.budget(mark, 2, budget=mark)
    assert target.evict(pods[0]).status_code == 201
    answer = target.evict(pods[1])
    status = refused(answer, 429, "TooManyRequests")
    assert "Retry-After" not in answer.headers
    cause = status["details"]["causes"][0]
    assert cause["reason"] == "DisruptionBudget"
    if target.cluster is not None:  # a real controller may have counted the pod that goes already
        assert cause["message"] == f"The disruption budget {mark} needs 2 healthy pods and has 3 currently"
    assert "deletionTimestamp" not in target.get("pods", pods[1]).json()["metadata"]


def test_a_spent_budget_still_lets_a_pod_go_that_is_not_ready(target: Target) -> None:
    mark = target.name("b")
    sick, well = target.name("pod"), target.name("pod")
    target.pod(sick, bound=True, budget=mark)
    target.pod(well, bound=True, ready=True, budget=mark)
    target.budget(mark, 2, budget=mark)
    refused(target.evict(well), 429, "TooManyRequests")
    assert target.evict(sick).status_code == 201


def test_a_budget_that_nobody_worked_out_says_it_is_still_being_processed(target: Target) -> None:
    """Which is for ever where it can never be: a percentage, or maxUnavailable, over pods without a scalable owner."""
    mark, name = target.name("b"), target.name("pod")
    target.pod(name, bound=True, ready=True, budget=mark)
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"budget": mark}}}
    target.made("poddisruptionbudgets", {"metadata": {"name": mark}, "spec": spec})
    answer = target.evict(name)
    status = refused(answer, 429, "TooManyRequests")
    assert status["details"]["causes"][0]["message"].endswith("is still being processed by the server.")
    assert status["details"]["retryAfterSeconds"] == 10
    assert answer.headers["Retry-After"] == "10"


def test_two_budgets_over_one_pod_are_an_internal_error(target: Target) -> None:
    mark, name = target.name("b"), target.name("pod")
    target.pod(name, bound=True, ready=True, budget=mark)
    target.budget(f"{mark}-1", 0, budget=mark)
    target.budget(f"{mark}-2", 0, budget=mark)
    answer = target.evict(name)
    assert answer.status_code == 500
    assert "more than one PodDisruptionBudget" in answer.json()["message"]


# --- who may do what ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watcher(target: Target) -> Iterator[httpx.Client]:
    """Somebody who may see pods, their logs and evictions of them, and nothing else."""
    target.made("serviceaccounts", {"metadata": {"name": "watcher"}})
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    ]
    target.made("roles", {"metadata": {"name": "watcher"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "watcher", "namespace": target.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "watcher"}
    target.made("rolebindings", {"metadata": {"name": "watcher"}, "roleRef": role, "subjects": [subject]})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = done(target.api.post(target.path("serviceaccounts", "watcher", "token"), json=asked), 201)["status"]["token"]
    with target.as_user(token) as client:
        target.until(lambda: client.get(target.path("pods")).status_code == 200)  # a real server takes a moment
        yield client


def test_what_no_role_allows_is_forbidden_in_words_that_name_it(target: Target, watcher: httpx.Client) -> None:
    name = target.name("pod")
    target.pod(name, bound=True, ready=True)
    user = f"system:serviceaccount:{target.namespace}:watcher"
    where = f'in the namespace "{target.namespace}"'
    status = refused(watcher.delete(target.path("pods", name)), 403, "Forbidden")
    assert status["message"] == (
        f'pods "{name}" is forbidden: User "{user}" cannot delete resource "pods" in API group "" {where}'
    )
    status = refused(watcher.get("/api/v1/nodes"), 403, "Forbidden")
    nodes = f'nodes is forbidden: User "{user}" cannot list resource "nodes" in API group "" at the cluster scope'
    assert status["message"] == nodes
    status = refused(watcher.get(target.path("secrets")), 403, "Forbidden")
    assert f'secrets is forbidden: User "{user}" cannot list resource "secrets" in API group "" {where}' in status["message"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": target.namespace}}
    assert watcher.post(target.path("pods", name, "eviction"), json=body).status_code == 201


def test_a_token_that_nobody_knows_is_unauthorized(target: Target) -> None:
    with target.as_user("nonsense") as client:
        status = refused(client.get(target.path("pods")), 401, "Unauthorized")
    assert status["message"] == "Unauthorized"


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"verb": "watch", "resource": "pods"}, True),
        ({"verb": "create", "resource": "pods", "subresource": "eviction"}, True),
        ({"verb": "delete", "resource": "pods"}, False),
        ({"verb": "get", "resource": "pods", "namespace": "elsewhere"}, False),
        ({"verb": "patch", "resource": "nodes", "namespace": ""}, False),
        ({"verb": "create", "group": "batch", "resource": "jobs"}, False),
    ],
)
def test_anybody_may_ask_what_they_may_do(target: Target, watcher: httpx.Client, asked: Json, allowed: bool) -> None:
    attributes = {"namespace": target.namespace} | asked
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    review = done(watcher.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=body), 201)
    assert review["status"]["allowed"] is allowed


def test_one_question_tells_all_rights_in_a_namespace(target: Target, watcher: httpx.Client) -> None:
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": target.namespace}}
    review = done(watcher.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json=body), 201)
    rules = [rule for rule in review["status"]["resourceRules"] if "pods" in rule["resources"]]
    assert {"get", "list", "watch"} <= {verb for rule in rules for verb in rule["verbs"]}
    assert review["status"]["incomplete"] is False


# --- forms of answers --------------------------------------------------------------------------------------


def test_a_table_has_the_columns_of_kubectl(target: Target) -> None:
    name = target.name("pod")
    target.pod(name, bound=True, ready=True, table=name)
    headers = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
    query = {"includeObject": "None", "labelSelector": f"table={name}"}
    table = done(target.api.get(target.path("pods"), headers=headers, params=query))
    assert table["kind"] == "Table"
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert columns[:7] == ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node"]
    (row,) = table["rows"]
    cells = dict(zip(columns, row["cells"], strict=True))
    assert (cells["Name"], cells["Ready"], cells["Status"]) == (name, "0/1", "Running")
    assert (cells["IP"], cells["Node"]) == ("10.9.8.7", "paceline-no-such-node")
    assert row["object"] is None


def test_metadata_alone_can_be_asked_for(target: Target) -> None:
    target.made("configmaps", a_map(target.name(), big="x" * 1000))
    headers = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
    listed = done(target.api.get(target.path("configmaps"), headers=headers))
    assert listed["kind"] == "PartialObjectMetadataList"
    assert all("metadata" in item and "data" not in item for item in listed["items"])


def test_the_server_tells_its_version_and_what_it_knows(target: Target) -> None:
    assert done(target.api.get("/version"))["gitVersion"].startswith("v1.")
    batch = done(target.api.get("/apis/batch/v1"))
    assert {"jobs", "jobs/status"} <= {resource["name"] for resource in batch["resources"]}
    core = {resource["name"] for resource in done(target.api.get("/api/v1"))["resources"]}
    assert {"pods", "pods/eviction", "pods/log", "pods/portforward", "nodes", "events"} <= core
    assert "policy" in [group["name"] for group in done(target.api.get("/apis"))["groups"]]
    assert target.api.get("/apis/jobset.x-k8s.io/v1alpha9").status_code == 404
