"""From a spec to Kubernetes objects: names, selectors, sizes, pods, keys, and what only some clusters have."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_kit import (
    SERVICE,
    Object,
    as_kubectl_knows_it,
    by_name,
    check_schema,
    container_of,
    pod_of,
    refusals,
    selects,
    spec_of,
    without_nothing,
)

from console.cli.app import main
from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.render import (
    QUEUE_LABEL,
    Features,
    as_yaml,
    child_job,
    notes,
    owned_by,
    render,
    replicas_patch,
)
from harness.specfile import spec_from_json
from harness.wire.keys import ServerKeys, load_client_keys
from harness.worker.main import EXIT_AGAIN

RUNS = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,80}", fullmatch=True)


def rendered(*, run: str = "r", features: Features | None = None, **asked: Any) -> dict[tuple[str, str], Object]:
    return by_name(render(spec_of(**asked), run, features=features or Features()))


def job(component: names.Component, **asked: Any) -> Object:
    return rendered(**asked)["Job", f"r-{component}"]


# --- names, labels, selectors --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(run=RUNS, nodes=st.integers(1, 512), failures=st.integers(1, 20), evictions=st.integers(1, 600))
def test_any_run_of_any_size_is_taken_by_a_server(run: str, nodes: int, failures: int, evictions: int) -> None:
    spec = spec_of(nodes, max_failed=failures, max_evictions=evictions)
    objects = render(spec, run)
    assert [problem for thing in objects for problem in refusals(thing)] == []
    instance = names.instance_of(run)
    found = by_name(objects)
    worker = found["Job", names.job(instance, "worker")]["spec"]
    assert worker["parallelism"] == worker["completions"] == nodes
    assert 1 <= worker["maxFailedIndexes"] <= nodes
    assert 0 <= found["PodDisruptionBudget", names.job(instance, "worker")]["spec"]["minAvailable"] < nodes
    assert all(thing["metadata"]["name"].startswith(f"{instance}-") for thing in objects)
    for thing in objects:
        assert selects(names.labels(instance), thing["metadata"]["labels"])
        assert thing["metadata"]["namespace"] == "paceline"


@settings(max_examples=30, deadline=None)
@given(one=RUNS, other=RUNS)
def test_no_selector_of_a_run_meets_a_pod_of_the_other_component_or_of_another_run(one: str, other: str) -> None:
    pods = {
        (run, component): by_name(render(spec_of(), run))["Job", names.job(names.instance_of(run), component)]
        for run in (one, other)
        for component in ("head", "worker")
    }
    for (run, component), thing in pods.items():
        found = by_name(render(spec_of(), run))
        key = names.job(names.instance_of(run), component)  # type: ignore[arg-type]
        selector = found["PodDisruptionBudget", key]["spec"]["selector"]["matchLabels"]
        assert selector == found["Service", key]["spec"]["selector"] == thing["metadata"]["labels"]
        met = {at for at, pod in pods.items() if selects(selector, pod["spec"]["template"]["metadata"]["labels"])}
        assert met == {(run, component)}


def test_a_service_never_begins_with_a_digit() -> None:
    try:
        objects = render(spec_of(), "2026-12-01")
    except ClusterError:
        return  # said before anything is made
    assert all(SERVICE.fullmatch(thing["metadata"]["name"]) for thing in objects if thing["kind"] == "Service")


@pytest.mark.parametrize("run", ["", "a/b", "a b", "-a", "$(HOME)", "ü"])
def test_a_name_that_cannot_be_a_folder_is_refused(run: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a run"):
        render(spec_of(), run)


def test_a_local_spec_has_no_objects() -> None:
    spec = spec_of()
    local = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"kind": "local"})})
    with pytest.raises(ClusterError, match=r'cluster\.kind "local"'):
        render(local, "r")


def test_the_config_map_comes_first_and_the_workers_last() -> None:
    kinds = [(thing["kind"], thing["metadata"]["name"]) for thing in render(spec_of(), "r", keys=ServerKeys.fresh())]
    assert kinds == [
        ("ConfigMap", "r-run"),
        *(("Secret", f"r-{holder}-keys") for holder in ("head", "worker", "operator", "viewer")),
        ("Service", "r-head"), ("Service", "r-worker"),
        ("PodDisruptionBudget", "r-head"), ("PodDisruptionBudget", "r-worker"),
        ("NetworkPolicy", "r-head"), ("Job", "r-head"), ("Job", "r-worker"),
    ]  # fmt: skip


def test_everything_but_the_config_map_is_owned_by_it() -> None:
    objects = render(spec_of(), "r")
    owned = owned_by(objects, "uid-1")
    assert "ownerReferences" not in owned[0]["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "r-run", "uid": "uid-1", "blockOwnerDeletion": True}
    assert all(thing["metadata"]["ownerReferences"] == [reference] for thing in owned[1:])
    assert not any("ownerReferences" in thing["metadata"] for thing in objects)
    for thing in owned:
        check_schema(thing)


def test_rendering_twice_gives_the_same_and_shares_nothing() -> None:
    first, second = render(spec_of(4), "r"), render(spec_of(4), "r")
    assert first == second
    first[0]["metadata"]["labels"]["x"] = "y"
    assert first != second == render(spec_of(4), "r")


# --- the run in it -------------------------------------------------------------------------------------------


def test_the_head_reads_the_very_spec_and_keeps_the_runs_own_name() -> None:
    spec = spec_of(4, env={"NCCL_DEBUG": "INFO"})
    found = by_name(render(spec, "My.Run_1"))
    instance = names.instance_of("My.Run_1")
    data = found["ConfigMap", f"{instance}-run"]["data"]
    assert data["run"] == "My.Run_1"
    assert spec_from_json(data["spec.json"], "spec.json") == spec
    head = container_of(found["Job", f"{instance}-head"])
    assert [*head["command"], *head["args"]] == [
        "paceline", "head", "--run", "/results/My.Run_1", "--spec", "/etc/paceline/spec.json", "--keys", "/etc/paceline-keys",
    ]  # fmt: skip


def test_workers_are_told_where_their_head_is_and_who_they_are() -> None:
    worker = container_of(job("worker", namespace="bench", control_port=6000, telemetry_port=6001))
    assert [*worker["command"], *worker["args"]] == [
        "paceline", "worker", "--head", "tcp://r-head.bench.svc:6000", "--keys", "/etc/paceline-keys",
        "--nodes", "$(JOB_COMPLETION_INDEX)", "--name", "worker-$(JOB_COMPLETION_INDEX)", "--logs", "/var/log/paceline",
        "--echo-logs", "--ready-file", "/run/paceline/registered",
    ]  # fmt: skip
    for probe in ("startupProbe", "readinessProbe"):
        assert worker[probe]["exec"]["command"] == ["test", "-f", "/run/paceline/registered"]


def test_ports_of_the_spec_are_those_of_service_and_pod() -> None:
    found = rendered(control_port=6000, telemetry_port=6001)
    service = {port["name"]: port["port"] for port in found["Service", "r-head"]["spec"]["ports"]}
    pod = {port["name"]: port["containerPort"] for port in container_of(found["Job", "r-head"])["ports"]}
    assert service == {"control": 6000, "telemetry": 6001}
    assert pod == {**service, "metrics": 9464}


@pytest.mark.parametrize(("listen", "head", "worker"), [
    (None, ["control", "telemetry", "metrics:9464"], ["metrics:9464"]),
    ("0.0.0.0:9999", ["control", "telemetry", "metrics:9999"], ["metrics:9999"]),
    ("off", ["control", "telemetry"], []),
    ("127.0.0.1:0", ["control", "telemetry"], []),
])  # fmt: skip
def test_the_port_of_our_own_metrics_has_a_name_where_something_listens(listen: str, head: list[str], worker: list[str]) -> None:
    spec = spec_of()
    found = by_name(render(spec.model_copy(update={"metrics": spec.metrics.model_copy(update={"listen": listen})}), "r"))
    for component, wanted in (("head", head), ("worker", worker)):
        ports = container_of(found["Job", f"r-{component}"]).get("ports", [])
        assert [f"{p['name']}:{p['containerPort']}" if p["name"] == "metrics" else p["name"] for p in ports] == wanted


def test_files_of_the_metrics_source_come_from_a_secret_of_the_head_alone() -> None:
    found = rendered(metrics_secret="prometheus-token")
    head, worker = pod_of(found["Job", "r-head"]), pod_of(found["Job", "r-worker"])
    assert {"name": "metrics", "secret": {"secretName": "prometheus-token", "defaultMode": 0o440}} in head["volumes"]
    assert {"name": "metrics", "mountPath": "/etc/paceline-metrics", "readOnly": True} in head["containers"][0]["volumeMounts"]
    assert "metrics" not in {volume["name"] for volume in worker["volumes"]}


def test_start_nodes_are_placed_at_first() -> None:
    found = rendered(nodes=16, start_nodes=4)
    assert found["Job", "r-worker"]["spec"]["completions"] == 4
    assert found["PodDisruptionBudget", "r-worker"]["spec"]["minAvailable"] == 2


@pytest.mark.parametrize(("nodes", "size", "stay"), [(1, 1, 0), (2, 2, 0), (12, 8, 10), (64, 8, 62)])
def test_scaling_patches_are_what_that_many_nodes_would_have_been_rendered_with(nodes: int, size: int, stay: int) -> None:
    patch = replicas_patch(nodes, spec_of(64))
    assert patch["Job"] == {"spec": {"parallelism": nodes, "completions": nodes, "maxFailedIndexes": size}}
    assert patch["PodDisruptionBudget"] == {"spec": {"minAvailable": stay}}
    before, after = rendered(nodes=64), rendered(nodes=nodes)
    for kind in ("Job", "PodDisruptionBudget"):
        thing = before[kind, "r-worker"]
        assert thing | {"spec": thing["spec"] | patch[kind]["spec"]} == after[kind, "r-worker"]


@pytest.mark.parametrize("nodes", [0, -1, 65])
def test_scaling_beyond_the_fleet_is_refused(nodes: int) -> None:
    with pytest.raises(ClusterError, match=f"nodes {nodes}: the run can have 1 to 64"):
        replicas_patch(nodes, spec_of(64))


# --- pods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"engine": "synthetic"}, None),
        ({"engine": "vllm", "gpu_resource": "none"}, None),
        ({"engine": "vllm"}, ("amd.com/gpu", "8")),
        ({"engine": "vllm", "gpu_resource": "nvidia.com/gpu"}, ("nvidia.com/gpu", "8")),
        ({"engine": "vllm", "fleet": {"replicas_per_node": 1, "layout": {"tp": 4}}}, ("amd.com/gpu", "4")),
        ({"engine": "vllm", "gpus_per_worker": 2}, ("amd.com/gpu", "2")),
        ({"engine": "vllm", "fleet": {"layout": {"device": "cpu"}}}, None),
    ],
)
def test_workers_ask_for_the_gpus_of_their_replicas_and_heads_for_none(asked: Object, gpus: tuple[str, str] | None) -> None:
    worker = job("worker", **asked)
    resources = container_of(worker)["resources"]
    named = {one.get("key") for one in pod_of(worker)["tolerations"]}
    if gpus is None:
        assert "limits" not in resources
        assert not {name for name in (*resources["requests"], *named) if name.endswith("/gpu")}
    else:
        assert resources["limits"] == dict([gpus])
        assert resources["requests"][gpus[0]] == gpus[1]
        assert gpus[0] in named
    assert container_of(job("head", **asked))["resources"]["limits"].keys() == {"memory"}


def test_claims_are_mounted_where_they_are_read() -> None:
    asked = {"model_claim": "weights", "model_mount": "/w", "data_claim": "sets", "data_mount": "/d", "results_claim": "out"}
    head, worker = pod_of(job("head", **asked)), pod_of(job("worker", **asked))

    def claims(pod: Object) -> dict[str, tuple[str, bool]]:
        mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
        return {
            volume["persistentVolumeClaim"]["claimName"]: (
                mounts[volume["name"]]["mountPath"],
                mounts[volume["name"]].get("readOnly", False),
            )
            for volume in pod["volumes"]
            if "persistentVolumeClaim" in volume
        }

    assert claims(head) == {"out": ("/results", False), "sets": ("/d", True)}
    assert claims(worker) == {"weights": ("/w", True)}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"data_claim": "d", "data_mount": "/tmp"}, 'cluster.kubernetes.data_mount "/tmp": another volume'),
        ({"data_claim": "d", "data_mount": "/results"}, 'cluster.kubernetes.data_mount "/results": another volume'),
        ({"model_claim": "m", "model_mount": "/dev/shm"}, 'cluster.kubernetes.model_mount "/dev/shm": another volume'),
        ({"results_mount": "/a:b"}, 'cluster.kubernetes.results_mount "/a:b": a path in a pod has no ":"'),
        ({"env": {"POD_NAME": "x"}}, 'cluster.kubernetes.env "POD_NAME": is set by the cluster'),
    ],
)
def test_what_a_server_would_refuse_of_a_pod_is_told_by_field(asked: Object, said: str) -> None:
    with pytest.raises(ClusterError) as refused:
        rendered(**asked)
    assert str(refused.value).startswith(said)


def test_a_worker_has_as_long_to_register_as_the_spec_says() -> None:
    probe = container_of(job("worker", startup_s=125))["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 130


def test_shared_memory_grace_images_and_restarts_are_the_specs() -> None:
    asked: Object = {"shm": "64Gi", "grace_s": 45, "registry": "reg.example/team/", "pull_secret": "pull", "head_restarts": 5}
    found = rendered(**asked, pull_policy="Always", worker_image="w@sha256:0")
    worker, head = found["Job", "r-worker"], found["Job", "r-head"]
    shm = next(volume for volume in pod_of(worker)["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert {pod_of(thing)["terminationGracePeriodSeconds"] for thing in (worker, head)} == {45}
    assert container_of(worker)["image"] == "reg.example/team/w@sha256:0"
    assert container_of(head)["image"] == "reg.example/team/paceline-head:0.1.0"
    assert pod_of(head)["imagePullSecrets"] == pod_of(worker)["imagePullSecrets"] == [{"name": "pull"}]
    assert container_of(head)["imagePullPolicy"] == "Always"
    assert head["spec"]["backoffLimit"] == 5


@pytest.mark.parametrize("breaks", ["\x85", "\u2028 and \u2029", "a\r\nb", "a\n\x85"])
def test_a_text_with_other_ends_of_lines_comes_back_as_it_was(breaks: str) -> None:
    objects = render(spec_of(1, env={"A": breaks}), "r")
    assert list(yaml.safe_load_all(as_yaml(objects))) == objects


def test_variables_and_the_hub_token_reach_the_workers() -> None:
    variables = {one["name"]: one for one in container_of(job("worker", env={"NCCL_DEBUG": "INFO"}))["env"]}
    assert variables["NCCL_DEBUG"] == {"name": "NCCL_DEBUG", "value": "INFO"}
    assert variables["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": "token", "optional": True}
    assert "HF_TOKEN" not in {one["name"] for one in container_of(job("worker", hub_token_secret=None))["env"]}
    assert {"POD_NAME", "POD_NAMESPACE", "NODE_NAME", "POD_IP"} <= {one["name"] for one in container_of(job("head"))["env"]}


def test_placement_of_workers_and_tolerations_of_both() -> None:
    toleration = {"key": "bench", "operator": "Equal", "value": "yes", "effect": "NoExecute", "toleration_s": 5}
    asked = {"node_selector": {"zone": "a"}, "avoid_nodes": ("n1", "n2"), "tolerations": (toleration,)}
    head, worker = pod_of(job("head", **asked)), pod_of(job("worker", **asked))
    expected = {"key": "bench", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 5}
    assert head["tolerations"] == [expected]
    assert worker["tolerations"][-1] == expected
    assert worker["nodeSelector"] == {"zone": "a"}
    assert "nodeSelector" not in head
    (term,) = worker["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [(one["operator"], one["values"]) for one in term["matchFields"]] == [("NotIn", ["n1"]), ("NotIn", ["n2"])]
    assert "affinity" not in pod_of(job("worker", one_per_node=False))
    assert "podAntiAffinity" not in pod_of(job("worker", one_per_node=False, avoid_nodes=("n1",)))["affinity"]


def test_an_address_from_outside_opens_the_two_ports_of_consoles_and_no_other() -> None:
    closed = rendered()["NetworkPolicy", "r-head"]["spec"]["ingress"]
    opened = rendered(address="bench.example")["NetworkPolicy", "r-head"]["spec"]["ingress"]
    assert opened[:-1] == closed
    assert opened[-1].keys() == {"ports"}
    assert [port["port"] for port in opened[-1]["ports"]] == ["control", "telemetry"]


@settings(max_examples=25, deadline=None)
@given(
    asked=st.fixed_dictionaries(
        {},
        optional={
            "engine": st.sampled_from(["synthetic", "vllm"]),
            "gpu_resource": st.sampled_from(["amd.com/gpu", "nvidia.com/gpu", "none"]),
            "security": st.sampled_from(["restricted", "rocm"]),
            "one_per_node": st.booleans(),
            "model_claim": st.sampled_from(["m"]),
            "data_claim": st.sampled_from(["d"]),
            "pull_secret": st.sampled_from(["p"]),
            "hub_token_secret": st.sampled_from([None, "hub"]),
            "tolerations": st.just(({"key": "a"}, {"operator": "Exists", "toleration_s": 0, "effect": "NoExecute"})),
            "avoid_nodes": st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple),
            "env": st.dictionaries(
                st.sampled_from(["A", "HF_TOKEN"]), st.text(st.characters(exclude_characters="\0"), max_size=3)
            ),
            "address": st.sampled_from([None, "x"]),
        },
    ),
    rules=st.booleans(),
    jobset=st.booleans(),
)
def test_any_spec_gives_objects_of_known_fields(asked: Object, rules: bool, jobset: bool) -> None:
    features = Features(kueue=True, jobset=True, restart_rules=rules)
    objects = render(spec_of(3, **asked, jobset=jobset, queue="q"), "r", keys=ServerKeys.fresh(), features=features)
    for thing in objects:
        check_schema(thing)
        assert refusals(thing) == []
    assert list(yaml.safe_load_all(as_yaml(objects))) == objects


def test_kubectl_loses_no_field_of_a_full_pod() -> None:
    asked = {
        "engine": "vllm", "security": "rocm", "model_claim": "m", "data_claim": "d", "pull_secret": "p", "avoid_nodes": ("n1",),
        "node_selector": {"a": "b"}, "env": {"A": "1"}, "tolerations": ({"key": "k", "effect": "NoExecute", "toleration_s": 9},),
    }  # fmt: skip
    for component in ("head", "worker"):
        thing = job(component, **asked)
        assert without_nothing(as_kubectl_knows_it(thing)) == without_nothing(thing)


# --- keys ----------------------------------------------------------------------------------------------------


def test_without_keys_there_is_no_secret_and_no_key_anywhere() -> None:
    keys = ServerKeys.fresh()
    text = json.dumps(render(spec_of(), "r"))
    assert '"Secret"' not in text
    assert json.dumps(render(spec_of(), "r", keys=keys)) != text


def test_secrets_hold_the_keys_of_their_reader_and_no_more(tmp_path: Path) -> None:
    keys = ServerKeys.fresh()
    found = by_name(render(spec_of(), "r", keys=keys))
    folders: dict[str, Path] = {}
    for holder in ("head", "worker", "operator", "viewer"):
        folders[holder] = tmp_path / holder
        folders[holder].mkdir()
        for name, text in found["Secret", f"r-{holder}-keys"]["data"].items():
            (folders[holder] / name).write_bytes(base64.b64decode(text))
    assert ServerKeys.load(folders["head"]) == keys
    assert [path.name for path in folders["worker"].iterdir()] == ["worker.key"]
    assert {path.name for path in folders["operator"].iterdir()} == {"operator.key", "viewer.key"}
    assert [path.name for path in folders["viewer"].iterdir()] == ["viewer.key"]
    assert load_client_keys(folders["worker"], "worker") == keys.client("worker")
    assert load_client_keys(folders["operator"], "viewer") == keys.client("viewer")


def test_pods_mount_the_keys_of_their_component_only() -> None:
    found = rendered()
    for component in ("head", "worker"):
        volumes = pod_of(found["Job", f"r-{component}"])["volumes"]
        assert [v["secret"]["secretName"] for v in volumes if "secret" in v] == [f"r-{component}-keys"]


# --- what only some clusters have ----------------------------------------------------------------------------


def test_what_a_cluster_lacks_is_left_out_and_told() -> None:
    spec = spec_of(2, queue="gpus", jobset=True, gang=True)
    plain = spec_of(2)
    without = by_name(render(spec, "r"))
    for key, thing in by_name(render(plain, "r")).items():
        assert key[0] == "ConfigMap" or without[key] == thing
    told = notes(spec, Features())
    assert [note.partition(":")[0] for note in told] == [
        'cluster.kubernetes.queue "gpus"', "cluster.kubernetes.jobset", "cluster.kubernetes.gang",
    ]  # fmt: skip
    assert notes(spec, Features(kueue=True, jobset=True, gang=True)) == notes(plain, Features()) == []
    assert Features.asked_for(spec) == Features(kueue=True, jobset=True, gang=True)


def test_a_queue_holds_the_workers_and_not_the_head_that_tells_about_it() -> None:
    found = rendered(queue="gpus", features=Features(kueue=True))
    assert found["Job", "r-worker"]["metadata"]["labels"][QUEUE_LABEL] == "gpus"
    assert QUEUE_LABEL not in found["Job", "r-head"]["metadata"]["labels"]
    assert "suspend" not in found["Job", "r-worker"]["spec"]  # Kueue's


def test_a_jobset_wraps_the_same_jobs_and_starts_workers_after_the_head() -> None:
    found = rendered(jobset=True, queue="gpus", features=Features(jobset=True, kueue=True))
    assert not [key for key in found if key[0] == "Job"]
    whole = found["JobSet", "r"]
    head, worker = whole["spec"]["replicatedJobs"]
    jobs = rendered()
    assert head["template"]["spec"] == jobs["Job", "r-head"]["spec"] | {"completionMode": "NonIndexed"}
    assert worker["template"]["spec"] == jobs["Job", "r-worker"]["spec"]
    assert worker["dependsOn"] == [{"name": "head", "status": "Ready"}]
    assert whole["metadata"]["labels"] == names.labels("r") | {QUEUE_LABEL: "gpus"}
    assert child_job("r", "worker") == f"{whole['metadata']['name']}-{worker['name']}-0"


def test_restarts_in_place_are_asked_for_only_where_the_server_knows_them() -> None:
    assert "restartPolicyRules" not in container_of(job("worker"))
    found = rendered(features=Features(restart_rules=True))
    worker = container_of(found["Job", "r-worker"])
    assert worker["restartPolicy"] == "Never"
    assert worker["restartPolicyRules"] == [{"action": "Restart", "exitCodes": {"operator": "In", "values": [EXIT_AGAIN]}}]
    assert "restartPolicyRules" not in container_of(found["Job", "r-head"])


# --- paceline manifests --------------------------------------------------------------------------------------


def test_the_command_prints_what_is_rendered_without_any_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "demo", "-s", "fleet.nodes=3", "--run", "mine"]) == 0
    out, err = capsys.readouterr()
    found = by_name(yaml.safe_load_all(out))
    assert found["Job", "mine-worker"]["spec"]["completions"] == 3
    spec = spec_from_json(found["ConfigMap", "mine-run"]["data"]["spec.json"], "spec.json")
    assert found == by_name(render(spec, "mine"))
    assert "--with-keys" in err


def test_the_command_prints_json_and_keys_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "demo", "--with-keys", "--json"]) == 0
    out, err = capsys.readouterr()
    listed = json.loads(out)
    assert (listed["kind"], err) == ("List", "")
    assert [thing["metadata"]["name"] for thing in listed["items"] if thing["kind"] == "Secret"] == [
        f"demo-{holder}-keys" for holder in ("head", "worker", "operator", "viewer")
    ]
    assert main(["manifests", "demo", "--only-keys"]) == 0
    assert {thing["kind"] for thing in yaml.safe_load_all(capsys.readouterr().out)} == {"Secret"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothere"], "neither a profile"),
        (["demo", "-s", "cluster.kind=local"], "cluster.kind=local has no Kubernetes objects"),
        (["demo", "--run", "a b"], 'run "a b": cannot name a run'),
        (["demo", "-s", "cluster.kubernetes.shm=lots"], "is not an amount of memory"),
    ],
)
def test_the_command_says_what_to_type_instead(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, said in err) == ("", True)
