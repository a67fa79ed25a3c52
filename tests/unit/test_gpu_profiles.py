"""Profiles: the ones that come along are whole, one's own are read or refused in words, and recipes write sound PromQL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import promql_parser
import pytest

from harness.head import exposition
from harness.metrics.gpu.base import SeriesKey
from harness.metrics.gpu.profiles import Profile, built_in, in_use, load, read_profile, why_missing, window_s
from harness.metrics.gpu.recipes import Leaf, Step, fold_by_key, growth_a_second, mean_of_window
from harness.metrics.gpu.roles import GPU_ROLES, ROLES
from harness.metricspec import GpuSourceSpec

OWN = """
name = "mine"
title = "Mine"
probe = "my_util"
[labels]
host = "box"
gpu = "card"
[roles.gpu_util]
metric = "my_util"
scale = 100
"""


@pytest.mark.parametrize("name", ["amd-dme", "crusoe-managed", "dcgm", "paceline", "sglang", "vllm"])
def test_every_role_of_its_kind_has_a_recipe_or_a_reason(name: str) -> None:
    profile = built_in()[name]
    kind = {role for role in ROLES if ROLES[role].engine == profile.engine}
    assert kind == set(profile.recipes) | set(profile.not_collected)
    assert all(profile.not_collected.values())


@pytest.mark.parametrize("matchers", ["", 'cluster="a", env=~"bench.*"'])
@pytest.mark.parametrize("profile", built_in().values(), ids=lambda profile: profile.name)
def test_every_recipe_is_promql_of_one_vector(profile: Profile, matchers: str) -> None:
    promql_parser.parse(profile.probe_promql(matchers, "amd_"))
    for recipe in profile.recipes.values():
        promql_parser.parse(text := recipe.promql(matchers, "amd_", 90.5))
        for name in recipe.metrics("amd_"):
            assert name in text
            assert name.startswith("amd_") == profile.prefixed
        if matchers:
            assert text.count('cluster="a"') >= len(recipe.steps)


def test_the_prefix_stands_before_amd_names_only() -> None:
    assert built_in()["amd-dme"].recipes["power"].metrics("amd_")[0] == "amd_gpu_package_power"
    assert built_in()["dcgm"].recipes["power"].metrics("amd_") == ("DCGM_FI_DEV_POWER_USAGE",)


def test_our_own_profile_names_what_the_head_shows() -> None:
    shown = Path(exposition.__file__).read_text()
    for recipe in built_in()["paceline"].recipes.values():
        for name in recipe.metrics():
            assert f'"{name.removeprefix("paceline_")}"' in shown


def test_a_key_takes_the_first_label_that_says_something() -> None:
    dcgm = built_in()["dcgm"]
    assert dcgm.key_of({"Hostname": "a", "gpu": "3", "UUID": "GPU-1"}) == SeriesKey(host="a", gpu="3", uuid="GPU-1")
    assert dcgm.key_of({"hostname": "b", "gpu": "3", "pod": ""}, "page") == SeriesKey(host="b", gpu="3")
    assert dcgm.key_of({"pod": "exporter-x", "exported_pod": "worker-1", "Hostname": "a"}).pod == "worker-1"
    assert dcgm.key_of({"instance": "10.0.0.7:9400", "gpu": "0"}).host == "10.0.0.7"
    assert dcgm.key_of({"gpu": "0"}, "page").host == "page"


def test_ones_own_file_adds_a_profile_and_may_replace_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OWN)
    (tmp_path / "dcgm.toml").write_text(OWN.replace('"mine"', '"dcgm"'))
    found = load(GpuSourceSpec(profile_files=(str(tmp_path / "mine.toml"), str(tmp_path / "dcgm.toml"))))
    by_name = {profile.name: profile for profile in found}
    assert set(by_name) == {*built_in(), "mine"}
    assert by_name["dcgm"].title == "Mine"
    assert [profile.name for profile in load(GpuSourceSpec(profiles=("vllm", "dcgm")))] == ["vllm", "dcgm"]


def test_an_unknown_profile_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"metrics\.gpu\.profiles: there is no profile 'rocm'; there are amd-dme, "):
        load(GpuSourceSpec(profiles=("rocm",)))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"profile_files: .*nowhere\.toml cannot be read: No such file"):
        load(GpuSourceSpec(profile_files=(str(tmp_path / "nowhere.toml"),)))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not a text file"):
        load(GpuSourceSpec(profile_files=(str(tmp_path / "binary.toml"),)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[labels]", "[labels"), r"mine\.toml: not TOML: "),
        (('title = "Mine"', ""), r"mine\.toml: title: has to be given"),
        (("scale = 100", "scal = 100"), r"mine\.toml: roles\.gpu_util\.0\.scal: there is no such field"),
        (("scale = 100", "scale = -1"), r"roles\.gpu_util\.0\.scale: Input should be greater than 0 \(it is -1\)"),
        (("scale = 100", 'how = "often"'), r"how: Input should be 'value', 'counter', 'mean' or 'growth' \(it is 'often'\)"),
        (("roles.gpu_util", "roles.gpu_use"), r"roles: 'gpu_use' is not a role; roles are gpu_util, mem_bw"),
        (('metric = "my_util"', 'metric = "my util"'), r"'my util' is not the name of a metric"),
        (('metric = "my_util"', ""), r"give metric \(in order of preference\) or worst_of"),
        (('metric = "my_util"', 'metric = "a"\nworst_of = ["b"]'), r"one of the two"),
        (('host = "box"', 'host = "my-box"'), r"labels\.host: 'my-box' is not the name of a label"),
        (('host = "box"', 'machine = "box"'), r"labels\.machine: there is no such field"),
        (('name = "mine"', 'name = "My Own"'), r"name: .*\(it is 'My Own'\)"),
        (("scale = 100", '[not_collected]\ngpu_util = "no"'), r"gpu_util: stands in roles and in not_collected"),
        (("scale = 100", '[absent]\npower = "no"'), r"power: stands in absent"),
    ],
)
def test_a_wrong_file_is_refused_with_file_field_and_value(change: tuple[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_profile(OWN.replace(*change), "mine.toml")


def test_a_special_profile_stands_in_for_the_general_one() -> None:
    everything = list(built_in().values())
    found = in_use(everything, lambda profile: profile.name in ("amd-dme", "crusoe-managed", "vllm"))
    assert [profile.name for profile in found] == ["crusoe-managed", "vllm"]


def test_a_missing_role_says_why() -> None:
    amd, crusoe, vllm = (built_in()[name] for name in ("amd-dme", "crusoe-managed", "vllm"))
    assert why_missing("throttle_power", [crusoe]) == "Crusoe managed metrics: does not collect throttling"
    assert why_missing("link_down", [amd], "amd_") == (
        "AMD Device Metrics Exporter shows no amd_nic_port_status_link_down_count (it is of nodes with AMD's AI NIC)"
    )
    assert why_missing("kv_use", [amd]) == "no metrics of engines are there, only those of AMD Device Metrics Exporter"
    assert why_missing("power", [vllm]) == "no metrics of GPUs are there, only those of vLLM"
    assert why_missing("power", []) == "no known exporter's metrics are there"


def test_a_window_holds_four_samples() -> None:
    assert [window_s(s) for s in (float("nan"), 0, 5, 15, 30, 60)] == [60, 60, 60, 60, 120, 240]


def test_roles_of_gpus_are_the_ones_the_profiles_speak_of() -> None:
    spoken = {role for profile in built_in().values() for role in profile.recipes if not ROLES[role].engine}
    assert spoken == set(GPU_ROLES)


def test_a_step_takes_the_largest_adds_and_divides() -> None:
    columns = {"a": np.array([1.0, np.nan, 4.0]), "b": np.array([2.0, 3.0, 1.0]), "c": np.array([4.0, 0.0, 8.0])}
    leaves = {name: Leaf(name) for name in columns}
    worst = Step((leaves["a"], leaves["b"]), (), leaves["c"], 10.0)
    np.testing.assert_equal(worst.evaluate(lambda leaf: columns[leaf.metric]), [5.0, np.nan, 5.0])
    total = Step((leaves["a"],), (leaves["b"],))
    np.testing.assert_equal(total.evaluate(lambda leaf: columns[leaf.metric]), [3.0, np.nan, 5.0])
    assert not worst.plain
    assert not total.plain
    assert Step((leaves["a"],), scale=2.0).plain


def test_folding_leaves_out_what_is_not_there() -> None:
    values, keys = np.array([1.0, np.nan, 3.0, np.nan]), np.array([0, 0, 0, 1])
    expected = {"max": 3.0, "min": 1.0, "sum": 4.0, "avg": 2.0}
    for fold, value in expected.items():
        np.testing.assert_equal(fold_by_key(fold, values, keys, 3), [value, np.nan, np.nan])  # type: ignore[arg-type]


def test_growth_needs_two_samples_and_takes_a_fall_for_a_restart() -> None:
    times = np.array([[0.0], [10.0], [20.0], [30.0]]).repeat(3, axis=1)
    values = np.array([[100.0, np.nan, 5.0], [110.0, 7.0, np.nan], [5.0, np.nan, np.nan], [15.0, np.nan, 25.0]])
    grown = growth_a_second(times, values, 0.0, 30.0)
    np.testing.assert_allclose(grown, [25 / 30, np.nan, 20 / 30])
    np.testing.assert_allclose(mean_of_window(times, values, 5.0, 30.0), [130 / 3, 7.0, 25.0])


def test_shares_never_leave_0_to_1() -> None:
    recipe = built_in()["dcgm"].recipes["throttle_power"]
    assert recipe.steps[0].evaluate(lambda leaf: np.array([1.2e9, 5e8])).tolist() == [1.0, 0.5]
    assert recipe.promql().startswith("clamp(")
