"""manifests/monitoring: made by its scripts, built by kustomize, valid, no more rights than said, and metrics that exist."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml  # type: ignore[import-untyped]
from exposition_kit import ShownHead
from kube_kit import Object, check_schema, container_of, kustomize, need_kustomize, pod_of, refusals
from prometheus_client.parser import text_string_to_metric_families

from harness.cluster.kube.render import manifests_folder
from harness.cluster.kube.render_base import base_objects
from harness.metrics.gpu.profiles import built_in
from harness.metrics.gpu.rules import OWN_FILE, load_rules
from harness.metrics.gpu.selectors import metric_names
from harness.worker.exposition import SlotLine, WorkerMetrics
from tests.metrics.prometheus_kit import promtool

FOLDER = manifests_folder() / "monitoring"
#: Kinds of the Prometheus operator, whose schemas the client does not have.
OPERATORS = {"PodMonitor", "PrometheusRule"}


def script(name: str) -> ModuleType:
    about = importlib.util.spec_from_file_location(Path(name).stem, FOLDER / name)
    assert about is not None
    assert about.loader is not None
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


# --- rules ---------------------------------------------------------------------------------------------------


def test_the_rules_of_both_folders_are_made_of_the_file_that_the_head_reads() -> None:
    for file, text in script("make_rules.py").files().items():
        assert file.read_text(encoding="utf-8") == text, f"{file}: out of date; `make dashboards`"
    groups = yaml.safe_load(OWN_FILE.read_text(encoding="utf-8"))["groups"]
    operator = kustomize("monitoring/operator")["PrometheusRule", "paceline-rules"]
    assert operator["spec"]["groups"] == groups
    own = kustomize("monitoring/prometheus")["ConfigMap", "paceline-rules"]["data"]["paceline.rules.yaml"]
    assert yaml.safe_load(own)["groups"] == groups


# --- objects -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["operator", "prometheus", "grafana", "gpu-exporters", "reach"])
def test_kustomize_builds_it_and_a_server_would_take_it(folder: str) -> None:
    made = _objects(folder)
    assert made
    for thing in made:
        assert thing["metadata"]["labels"]["app.kubernetes.io/name"] == "paceline"
        if thing["kind"] not in OPERATORS:
            check_schema(thing)
            assert refusals(thing) == []


def test_every_folder_is_in_the_readme_and_says_what_it_is_for() -> None:
    told = (manifests_folder() / "README.md").read_text(encoding="utf-8")
    for file in FOLDER.glob("*/kustomization.yaml"):
        assert f"| `{file.parent.name}` |" in told
        assert file.read_text(encoding="utf-8").startswith("# ")


def test_pods_are_found_by_labels_and_a_port_that_runs_have() -> None:
    monitor = kustomize("monitoring/operator")["PodMonitor", "paceline"]["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for component in ("head", "worker"):
        job = base_objects()["Job", component]
        labels = job["spec"]["template"]["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        assert labels["app.kubernetes.io/component"] in monitor["selector"]["matchExpressions"][0]["values"]
        assert endpoint["port"] in [port["name"] for port in container_of(job)["ports"]]


def test_the_policy_opens_the_page_of_heads_and_nothing_else() -> None:
    policy = kustomize("monitoring/reach")["NetworkPolicy", "paceline-metrics"]["spec"]
    labels = base_objects()["Job", "head"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ["metrics"]


def test_the_small_prometheus_lists_pods_and_holds_no_other_right() -> None:
    for folder in ("prometheus", "gpu-exporters"):
        roles = [thing for thing in _objects(folder) if thing["kind"].endswith("Role")]
        assert roles
        for role in roles:
            assert role["kind"] == "Role"
            assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]


def test_the_small_prometheus_holds_to_the_restricted_standard_and_is_small() -> None:
    server = next(thing for thing in _objects("prometheus") if thing["kind"] == "Deployment")
    pod, container = pod_of(server), container_of(server)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["requests"] == {"cpu": "200m", "memory": "512Mi"}
    assert "--storage.tsdb.retention.time=2h" in container["args"]


def test_promtool_takes_the_config_of_the_small_prometheus(tmp_path: Path) -> None:
    """But for the discovery of pods, which Debian's build of it does not know."""
    config = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    server = next(thing for thing in _objects("prometheus") if thing["kind"] == "Deployment")
    mounts = {mount["name"]: mount["mountPath"] for mount in container_of(server)["volumeMounts"]}
    assert config["rule_files"] == [f"{mounts['rules']}/paceline.rules.yaml"]
    config["rule_files"] = [str(OWN_FILE)]
    for job in config["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs")
        job["static_configs"] = [{"targets": ["127.0.0.1:1"]}]
    (file := tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    checked = promtool("check", "config", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr


# --- dashboard -----------------------------------------------------------------------------------------------


def test_the_dashboard_is_what_its_script_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk")
    module = script("grafana/make_dashboard.py")
    text = module.as_text(module.build())
    assert (FOLDER / "grafana" / "dashboard.json").read_text(encoding="utf-8") == text, "out of date; `make dashboards`"


def test_the_dashboard_has_one_uid_and_takes_its_source_from_a_variable() -> None:
    board = _dashboard()
    assert board["uid"] == "paceline-run"
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "run", "node", "prefix"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["expr"]


def test_the_config_map_is_what_grafanas_sidecar_looks_for() -> None:
    (thing,) = _objects("grafana")
    assert thing["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(thing["data"]["paceline-run.json"]) == _dashboard()


def test_expressions_of_the_dashboard_are_promql_and_name_metrics_that_exist() -> None:
    promql_parser = pytest.importorskip("promql_parser")
    known = _known_metrics() | {"ALERTS"}
    asked = list(_expressions(_dashboard()))
    assert len(asked) > 40
    for expr in asked:
        promql_parser.parse(expr)
        assert metric_names(expr), expr
        assert metric_names(expr) <= known, expr


def test_rules_name_metrics_of_our_own_pages_as_they_are() -> None:
    known = _known_metrics()
    for rule in load_rules():
        assert {name for name in rule.metrics if name.startswith("paceline_")} <= known, rule.id


def _dashboard() -> Object:
    board: Object = json.loads((FOLDER / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    return board


def _expressions(board: Object) -> Iterator[str]:
    """With variables as Grafana would put them."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"].replace("${prefix}", "").replace("$__rate_interval", "1m")
            yield re.sub(r"\$(run|node)", ".*", expr)
    for variable in board["templating"]["list"]:
        if (found := re.fullmatch(r"label_values\((.*), \w+\)", str(variable.get("query", "")))) is not None:
            yield found.group(1).replace("${prefix}", "")


def _known_metrics() -> set[str]:
    """Of all profiles, and of the pages of a head and a worker as they are rendered."""
    names = {name for profile in built_in().values() for recipe in profile.recipes.values() for name in recipe.metrics()}
    head = ShownHead()
    head.load([100.0] * 8)
    head.look()
    worker = WorkerMetrics("w", lambda: [SlotLine("node000/gpu0", "READY", 1)], list, lambda: 0.5)
    for page in (head.metrics.render("")[0], worker.render("")[0]):
        for family in text_string_to_metric_families(page.decode()):
            ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
            names |= {family.name + end for end in ends} | {sample.name for sample in family.samples}
    return names


def _objects(folder: str) -> list[Object]:
    """Some have the same kind and name in two namespaces, so they are not asked for by name."""
    need_kustomize()
    told = subprocess.run(["kubectl", "kustomize", FOLDER / folder], capture_output=True, text=True, timeout=60, check=True)
    return list(yaml.safe_load_all(told.stdout))
