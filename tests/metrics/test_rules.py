"""The alert rules: promtool takes them and its unit tests of them pass; every rule is tested, and names metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_kit import promtool
from rules_cases import Case, all_cases, amd_cases, cluster_cases, engine_cases, nvidia_cases, own_cases, quiet_cases, unit_tests

from harness.metrics.gpu.profiles import built_in
from harness.metrics.gpu.rules import GROUP_PROFILES, OWN_FILE, RulesError, load_rules, read_rules
from harness.metrics.gpu.selectors import asked_of, metric_names
from harness.metrics.gpu.twins import TWINS

#: Of node_exporter, kube-state-metrics, the kubelet and Prometheus itself; of DCGM what no role is read from.
ELSEWHERE = {
    "up", "node_network_carrier_changes_total", "node_filesystem_avail_bytes", "node_filesystem_size_bytes",
    "kube_pod_container_status_restarts_total", "kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes",
    "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
}  # fmt: skip


def test_promtool_takes_the_rules() -> None:
    checked = promtool("check", "rules", OWN_FILE)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(load_rules())} rules found" in checked.stdout


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(quiet_cases(), id="quiet"),
        pytest.param(amd_cases(), id="amd"),
        pytest.param(nvidia_cases(), id="nvidia"),
        pytest.param([*engine_cases(), *cluster_cases(), *own_cases()], id="others"),
    ],
)
def test_rules_fire_when_they_must_and_never_in_a_healthy_benchmark(cases: list[Case], tmp_path: Path) -> None:
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump(unit_tests(OWN_FILE, cases)), encoding="utf-8")
    tested = promtool("test", "rules", file, within_s=110)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_rule_has_a_case_in_which_it_fires() -> None:
    fired = {one if isinstance(one, str) else one[0] for case in all_cases() for one in case.fires}
    assert {rule.id for rule in load_rules()} == fired


def test_rules_name_metrics_of_profiles_and_of_our_own_pages() -> None:
    known = {name for profile in built_in().values() for recipe in profile.recipes.values() for name in recipe.metrics()}
    for rule in load_rules():
        of_others = {name for name in rule.metrics if not name.startswith("paceline_")}
        assert of_others <= known | ELSEWHERE, rule.id


def test_groups_are_bound_to_profiles_that_exist() -> None:
    assert {profile for profiles in GROUP_PROFILES.values() for profile in profiles} <= set(built_in())
    assert {rule.group for rule in load_rules()} == {*GROUP_PROFILES, "cluster"}


def test_only_errors_of_the_hardware_propose_an_eviction() -> None:
    evicting = {rule.id for rule in load_rules() if rule.act}
    assert evicting == {"ecc_uncorrectable", "gpu_unhealthy", "afid", "row_remap_failed", "xid_critical"}
    assert all(rule.severity == "crit" and rule.for_s == 0 for rule in load_rules() if rule.act)


def test_every_twin_is_of_a_rule() -> None:
    rules = load_rules()
    assert TWINS.keys() <= {rule.id for rule in rules} | {f"{rule.group}/{rule.id}" for rule in rules}


def test_causes_are_a_few_words() -> None:
    assert all(len(rule.cause.split()) <= 3 for rule in load_rules())


# --- files of one's own --------------------------------------------------------------------------------------

RULE = """
groups:
  - name: mine
    rules:
      - alert: Hot
        expr: gpu_junction_temperature > 90
        for: 1m30s
        labels: {id: hot, severity: warn}
"""


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    (file := tmp_path / "mine.yaml").write_text(RULE)
    (rule,) = load_rules(str(file))
    assert (rule.id, rule.group, rule.for_s, rule.summary) == ("hot", "mine", 90.0, "Hot")
    assert rule.metrics == {"gpu_junction_temperature"}
    assert rule.suits(["dcgm"])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("severity: warn", "severity: bad", "rule 1 (Hot): labels.severity 'bad': is not one of info, warn, crit"),
        ("id: hot, ", "", "rule 1 (Hot): labels.id '': use lower-case letters"),
        ("for: 1m30s", "for: soon", "rule 1 (Hot): for: 'soon' is no duration"),
        ("> 90", "> > 90", "rule 1 (Hot): expr: is not PromQL"),
        ("for: 1m30s", "four: 1m30s", "rule 1 (Hot): four: is no field of an alert rule"),
        ("severity: warn", "severity: warn, act: reboot", "labels.act 'reboot': is not evict"),
        ("severity: warn", "severity: 3", "labels.severity: is 3; give a text"),
        ("- alert: Hot", "- alert: ''", "group mine, rule 1: alert: is missing"),
        ("groups:", "group:", "groups: is missing"),
        ("groups:", "groups: [", "is not YAML"),
        ("90\n", "90\n        annotations: {text: 'at {degrees}'}\n", "annotations.text: {degrees} stands for nothing"),
        ("90\n", "90\n        annotations: {role: heat}\n", "annotations.role 'heat': is none of gpu_util"),
    ],
)
def test_a_wrong_file_is_refused_by_file_rule_and_field(old: str, new: str, told: str) -> None:
    with pytest.raises(RulesError, match=re.escape(told)) as caught:
        read_rules(RULE.replace(old, new, 1), "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="cannot be read"):
        load_rules(str(tmp_path / "none.yaml"))


def test_one_id_is_one_alert_in_all_groups() -> None:
    both = RULE + RULE.replace("groups:\n", "").replace("name: mine", "name: other").replace("warn", "crit")
    with pytest.raises(RulesError, match="severity: 'crit', but the same id 'hot' has 'warn' in group mine"):
        read_rules(both, "mine.yaml")


# --- expressions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "names"),
    [
        ("sum by (a, b) (rate(x_total{le=\"1\", k!='y'}[5m:30s] offset 1m)) / 1e3", {"x_total"}),
        ("vllm:waiting > bool 2 and on (instance) group_left (job) up == 0", {"vllm:waiting", "up"}),
        ('{__name__=~"a|b", c="d"} or {__name__="e"}', {"a", "b", "e"}),
        ("quantile without (x) (0.5, time() - timestamp(m)) # up\n", {"m"}),
        ('label_replace(m, "a", "$1", "b", "up(.*)")', {"m"}),
    ],
)
def test_metrics_of_an_expression_are_found(expr: str, names: set[str]) -> None:
    assert metric_names(expr) == names


def test_an_expression_is_asked_with_prefix_matchers_and_the_expected_number() -> None:
    asked = asked_of(
        'sum(paceline_gpus_expected) - count(gpu_x{a="b"}) + vllm:y',
        prefix="amd_",
        matchers='c="d"',
        numbers={"paceline_gpus_expected": 512},
    )
    assert asked == 'sum(vector(512)) - count(amd_gpu_x{a="b", c="d"}) + vllm:y{c="d"}'


def test_every_rule_stays_promql_when_it_is_asked_of_a_source() -> None:
    promql_parser = pytest.importorskip("promql_parser")
    for rule in load_rules():
        promql_parser.parse(asked_of(rule.expr, prefix="amd_", matchers='c="d"', numbers={"paceline_gpus_expected": 8}))
