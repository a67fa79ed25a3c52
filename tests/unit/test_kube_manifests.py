"""manifests/: what kustomize makes of them is what is rendered, is valid, and gives no more rights than said."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from kube_kit import (
    Object,
    as_kubectl_knows_it,
    by_name,
    check_schema,
    folder_of_repository,
    in_order,
    kustomize,
    need_kustomize,
    pod_of,
    refusals,
    without_nothing,
)

from harness.cluster.kube import names
from harness.cluster.kube.render import Features, manifests_folder, render
from harness.cluster.kube.render_base import base_objects
from harness.spec import RunSpec
from harness.specfile import load_spec, spec_from_json

RUNS = ["n1", "n8", "n64", "amd-mi355x", "nvidia", "cpu-smoke"]
INSTALLS = ["install", "overlays/install-amd"]


def spec_in(objects: dict[tuple[str, str], Object]) -> RunSpec:
    return spec_from_json(objects["ConfigMap", "paceline-run"]["data"].pop("spec.json"), "spec.json")


@pytest.mark.parametrize("overlay", RUNS)
def test_what_is_rendered_is_what_kustomize_makes_of_the_overlay(overlay: str) -> None:
    by_hand = kustomize(f"overlays/{overlay}")
    spec = spec_in(by_hand)
    rendered = by_name(render(spec, "paceline"))
    assert spec_in(rendered) == spec
    assert rendered.keys() == by_hand.keys()
    for key, thing in by_hand.items():
        assert in_order(rendered[key]) == in_order(thing), key


@pytest.mark.parametrize(("overlay", "nodes", "qps"), [("n1", 1, 62.5), ("n8", 8, 500.0), ("n64", 64, 4000.0)])
def test_the_sizes_are_the_profile_of_the_server_run_with_another_number(overlay: str, nodes: int, qps: float) -> None:
    profile = load_spec("gpt-oss-120b-server", ["cluster.kind=kubernetes", f"fleet.nodes={nodes}", f"load.target_qps={qps}"])
    local = profile.cluster.model_copy(update={"nodes_per_worker": 1})  # of no meaning here
    assert spec_in(kustomize(f"overlays/{overlay}")) == profile.model_copy(update={"cluster": local})


@pytest.mark.parametrize("overlay", ["amd-mi355x", "nvidia"])
def test_the_gpu_overlays_are_the_profile_of_vllm_with_claims_and_images(overlay: str) -> None:
    spec = spec_in(kustomize(f"overlays/{overlay}"))
    paths = [f"model.path={spec.model.path}", f"dataset.path={spec.dataset.path}"]
    claims = [f"cluster.kubernetes.{name}_claim=paceline-{name}{'s' * (name == 'model')}" for name in ("model", "data")]
    profile = load_spec("gpt-oss-120b-vllm", ["cluster.kind=kubernetes", *paths, *claims])
    assert spec.model_copy(update={"cluster": profile.cluster}) == profile


def test_the_base_as_loaded_is_the_base_as_kustomize_reads_it() -> None:
    assert by_name(base_objects().values()) == kustomize("base")


@pytest.mark.parametrize("folder", [*INSTALLS, *(f"overlays/{overlay}" for overlay in RUNS)])
def test_every_object_has_known_fields_only_and_nothing_that_a_server_refuses(folder: str) -> None:
    for key, thing in kustomize(folder).items():
        check_schema(thing)
        assert refusals(thing) == [], key


@pytest.mark.parametrize(
    ("folder", "kind"), [("overlays/amd-mi355x", "Job"), ("overlays/cpu-smoke", "Job"), ("overlays/install-amd", "DaemonSet")]
)
def test_kubectl_loses_no_field_of_a_job(folder: str, kind: str) -> None:
    things = [thing for (found, _), thing in kustomize(folder).items() if found == kind]
    assert things
    for thing in things:
        assert without_nothing(as_kubectl_knows_it(thing)) == without_nothing(thing)


@pytest.mark.parametrize("component", ["rocm", "hostipc", "kueue", "nodes", "prepull", "privileged"])
def test_every_component_says_what_it_is_for_and_lists_files_that_are_there(component: str) -> None:
    folder = manifests_folder() / "components" / component
    text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    found = yaml.safe_load(text)
    assert found["kind"] == "Component"
    assert all((folder / name).is_file() for name in found.get("resources", []))
    assert f"`components/{component}`" in (readme := _readme()) or f"`{component}`" in readme


def test_components_of_a_run_change_the_workers_alone_and_the_queue_is_rendered_alike(tmp_path: Path) -> None:
    need_kustomize()
    above = os.path.relpath(manifests_folder(), tmp_path)
    wanted = {
        "resources": [f"{above}/overlays/n8"],
        "components": [f"{above}/components/{c}" for c in ("kueue", "hostipc", "rocm")],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    plain, changed = kustomize("overlays/n8"), kustomize(str(tmp_path))
    assert [key for key in plain if plain[key] != changed[key]] == [("Job", "paceline-worker")]
    job = changed["Job", "paceline-worker"]
    assert pod_of(job).pop("hostIPC") is True
    spec = spec_in(plain)
    kube = spec.cluster.kubernetes.model_copy(update={"queue": "paceline", "security": "rocm"})
    spec = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"kubernetes": kube})})
    assert in_order(by_name(render(spec, "paceline", features=Features(kueue=True)))["Job", "paceline-worker"]) == in_order(job)


# --- rights --------------------------------------------------------------------------------------------------


def rights(role: Object) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_head_may_watch_read_logs_and_evict_and_nothing_else() -> None:
    look = {("", "pods"), ("", "events"), ("batch", "jobs"), ("policy", "poddisruptionbudgets")}
    expected = {(group, resource, verb) for group, resource in look for verb in ("get", "list", "watch")}
    expected |= {("", "pods/log", "get"), ("", "pods/eviction", "create")}
    installed = kustomize("install")
    assert rights(installed["Role", "paceline-head"]) == expected
    bound = [thing for (kind, _), thing in installed.items() if kind.endswith("RoleBinding")]
    assert {b["roleRef"]["name"] for b in bound if b["subjects"][0].get("kind") == "ServiceAccount"} == {"paceline-head"}
    assert not [key for key in installed if key[0].startswith("Cluster")]


def test_nodes_are_read_and_cordoned_only_with_the_component() -> None:
    installed = kustomize("overlays/install-amd")
    of_head = ("get", "list", "watch", "patch")
    assert rights(installed["ClusterRole", "paceline-nodes"]) == {("", "nodes", verb) for verb in of_head}
    assert rights(installed["ClusterRole", "paceline-nodes-read"]) == {("", "nodes", verb) for verb in ("get", "list")}
    assert installed["ClusterRoleBinding", "paceline-nodes"]["subjects"][0]["name"] == "paceline-head"


def test_nobody_may_delete_pods() -> None:
    for folder in INSTALLS:
        for (kind, name), role in kustomize(folder).items():
            if kind.endswith("Role"):
                assert {verb for _, resource, verb in rights(role) if resource == "pods"} <= {"get", "list", "watch"}, name


def test_workers_get_no_token_and_hold_no_right() -> None:
    installed = kustomize("install")
    assert installed["ServiceAccount", "paceline-worker"]["automountServiceAccountToken"] is False
    bound = [subject for (kind, _), thing in installed.items() if kind.endswith("Binding") for subject in thing["subjects"]]
    assert "paceline-worker" not in {subject["name"] for subject in bound}


def test_claims_and_accounts_that_runs_name_are_installed() -> None:
    there = {name for kind, name in kustomize("install") if kind in ("PersistentVolumeClaim", "ServiceAccount")}
    for overlay in RUNS:
        for (kind, _), thing in kustomize(f"overlays/{overlay}").items():
            if kind == "Job":
                pod = pod_of(thing)
                claims = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
                assert claims | {pod["serviceAccountName"]} <= there


def test_pods_hold_to_the_restricted_standard_where_the_namespace_asks_for_it() -> None:
    enforced = "pod-security.kubernetes.io/enforce"
    assert kustomize("install")["Namespace", "paceline"]["metadata"]["labels"][enforced] == "restricted"
    assert kustomize("overlays/install-amd")["Namespace", "paceline"]["metadata"]["labels"][enforced] == "privileged"
    for overlay in set(RUNS) - {"amd-mi355x"}:
        jobs = [thing for (kind, _), thing in kustomize(f"overlays/{overlay}").items() if kind == "Job"]
        for pod in map(pod_of, jobs):
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            own = pod["containers"][0]["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}


# --- files ---------------------------------------------------------------------------------------------------


def test_no_file_holds_a_key_or_a_token() -> None:
    for path in manifests_folder().rglob("*.yaml"):
        assert [t for t in yaml.safe_load_all(path.read_text(encoding="utf-8")) if t.get("kind") == "Secret"] == [], path


def test_the_wheel_brings_the_manifests_to_where_they_are_looked_for() -> None:
    project = tomllib.loads((folder_of_repository() / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["manifests"] == "harness/cluster/kube/_manifests"
    assert names.__file__.rpartition("/")[0].endswith("harness/cluster/kube")
    assert manifests_folder() == folder_of_repository() / "manifests"
    assert "manifests" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


def test_the_readme_names_every_folder_and_every_overlay() -> None:
    told = _readme()
    for folder in manifests_folder().iterdir():
        assert folder.name == "README.md" or f"`{folder.name}/" in told, folder
    for overlay in (manifests_folder() / "overlays").iterdir():
        assert f"{overlay.name}`" in told, overlay


def test_containerfiles_copy_what_the_build_needs_and_run_as_the_pods_do() -> None:
    root = folder_of_repository()
    for which in ("head", "worker"):
        text = (manifests_folder() / "images" / f"Containerfile.{which}").read_text(encoding="utf-8")
        copied = {word for line in text.splitlines() if line.startswith("COPY ") for word in line.split()[1:-1]}
        assert all((root / name).exists() for name in copied)
        assert {"pyproject.toml", "README.md", "LICENSE", "console", "harness", "kernels", "themes", "manifests"} <= copied
        assert f"USER {pod_of(base_objects()['Job', which])['securityContext']['runAsUser']}" in text


def _readme() -> str:
    return (manifests_folder() / "README.md").read_text(encoding="utf-8")
