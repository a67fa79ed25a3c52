"""Profiles, overrides, paths, and that a spec survives being written and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.tinymodel import write_tiny_model
from harness.specerrors import SpecError, line_of
from harness.specfile import PROFILES, load_spec, parse_value, profiles, spec_from_json, to_toml

RULES = {  # MLPerf Inference v6.1: Server p99 TTFT and TPOT in ms, QSL performance count, published target QPS
    "gpt-oss-120b-server": (3000, 80, 6396, 4000, "Server", 512),
    "gpt-oss-120b-offline": (None, None, 6396, 5440, "Offline", 512),
    "deepseek-r1-server": (2000, 80, 4388, 688, "Server", 64),
    "deepseek-r1-offline": (None, None, 4388, 760, "Offline", 64),
}


REAL = {  # profiles of real engines: the kind of dataset, accelerators of a replica, replicas
    "gpt-oss-120b-vllm": ("gpt-oss-120b", "parquet", 1, 8),
    "deepseek-r1-vllm": ("deepseek-r1", "mlperf-pickle", 8, 1),
    "deepseek-r1-sglang": ("deepseek-r1", "mlperf-pickle", 8, 1),
}


@pytest.fixture
def real_paths(tmp_path: Path) -> list[str]:
    """Overrides for what a profile of a real engine leaves open."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss", "vocab_size": 201088}')
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "samples").write_text("")
    return [f"model.path={tmp_path}", f"dataset.path={tmp_path / 'samples'}"]


def test_the_shipped_profiles_each_say_what_they_are() -> None:
    found = profiles()
    assert set(found) == {"demo", "demo-vllm-cpu", *RULES, *REAL}
    assert all(len(description) > 20 for description in found.values())


@pytest.mark.parametrize("name", RULES)
def test_a_rules_profile_has_the_numbers_of_the_rules(name: str) -> None:
    ttft_ms, tpot_ms, samples, target_qps, scenario, replicas = RULES[name]
    spec = load_spec(name)
    assert (spec.limits.ttft_p99_ms, spec.limits.tpot_p99_ms) == (ttft_ms, tpot_ms)
    assert spec.load.performance_samples == spec.dataset.samples == samples
    assert (spec.load.target_qps, spec.load.scenario, spec.load.kind) == (target_qps, scenario, "performance")
    assert spec.load.duration_s == 600
    assert spec.load.seeds == "mlperf"
    assert spec.name == name
    assert name.startswith(str(spec.model.mlperf_name))
    assert spec.expected_replicas == replicas
    assert spec.dataset.output_tokens.max <= spec.load.max_output_tokens


@pytest.mark.parametrize(("name", "tokens"), [("gpt-oss-120b", 32768), ("deepseek-r1", 20000)])
def test_sampling_and_the_limit_of_accuracy_attempts_are_those_of_the_reference(name: str, tokens: int) -> None:
    for scenario in ("server", "offline"):
        spec = load_spec(f"{name}-{scenario}", ["load.kind=accuracy"])
        assert spec.load.output_limit == tokens
        assert spec.sampling.temperature == (1.0 if name == "gpt-oss-120b" else 0.0)
        assert (spec.sampling.top_p, spec.sampling.top_k, spec.sampling.ignore_eos) == (1.0, 0, False)


@pytest.mark.parametrize("name", REAL)
def test_a_profile_of_a_real_engine_says_what_it_needs_and_then_has_the_numbers_of_the_rules(
    name: str, real_paths: list[str]
) -> None:
    model, dataset, accelerators, replicas = REAL[name]
    with pytest.raises(SpecError, match=r"dataset.path: is needed by kind"):
        load_spec(name)
    with pytest.raises(SpecError, match=r"model.path"):
        load_spec(name, real_paths[1:])
    spec, rules = load_spec(name, real_paths), load_spec(f"{model}-server")
    assert (spec.dataset.kind, spec.fleet.layout.devices, spec.expected_replicas) == (dataset, accelerators, replicas)
    assert (spec.model.mlperf_name, spec.limits, spec.sampling) == (model, rules.limits, rules.sampling)
    assert spec.load.model_copy(update={"target_qps": rules.load.target_qps}) == rules.load
    assert spec.name == name
    assert "real engine" in profiles()[name]
    assert "READ, NOT RUN" in (PROFILES / f"{name}.toml").read_text()


def test_the_demo_with_a_real_engine_needs_a_model_and_says_that_it_is_random(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"model.path: the vllm engine loads a model"):
        load_spec("demo-vllm-cpu")
    write_tiny_model(tmp_path)
    spec = load_spec("demo-vllm-cpu", [f"model.path={tmp_path}"])
    assert "random weights" in spec.model.name
    assert spec.expected_replicas == 2
    assert spec.load.target_qps * spec.load.duration_s > 459, "from there on LoadGen judges a p99"
    assert spec.dataset.input_tokens.max + spec.load.max_output_tokens < spec.fleet.engine_args["max_model_len"]


@pytest.mark.parametrize("name", [*RULES, "demo"])
def test_a_profile_waits_longer_for_a_sample_than_its_longest_answer_takes(name: str) -> None:
    spec = load_spec(name)
    ms_per_token = {"gpt-oss-120b": 36.5, "deepseek-r1": 80.0, None: 40.0}[spec.model.mlperf_name]
    assert spec.load.sample_deadline_s > 1.4 * spec.load.max_output_tokens * ms_per_token / 1000


def test_the_demo_plants_one_straggler_in_its_own_fleet() -> None:
    spec = load_spec("demo")
    assert spec.expected_replicas == 64
    assert [(fault["slot"], fault["because"]) for fault in spec.fleet.engine_args["faults"]] == [("node000/gpu3", "power")]
    assert "node000/gpu3" in spec.slots()
    assert spec.load.duration_s == 120


def test_a_name_with_a_slash_may_be_quoted_in_an_override_as_toml_wants_it() -> None:
    told = ['fleet.engine_args.kernels."node001/gpu0".config=default', "fleet.engine_args.kernels.'node002/*'={config = \"x\"}"]
    spec = load_spec("demo", [*told, "fleet.engine_args.kernels.node001/gpu1={config = 'bare'}"])
    assert spec.fleet.engine_args["kernels"] == {
        "node001/gpu0": {"config": "default"}, "node002/*": {"config": "x"}, "node001/gpu1": {"config": "bare"},
    }  # fmt: skip
    with pytest.raises(SpecError, match=r"no such field; did you mean fleet.nodes\?"):
        load_spec("demo", ['"fleet"."node"=3'])


def test_overrides_reach_every_depth_and_the_last_one_counts() -> None:
    spec = load_spec(
        "demo",
        [
            "fleet.nodes=4",
            "fleet.nodes=6",
            "load.kind=explore",
            "load.duration_s=0",
            "fleet.barrier.min_ready=7",
            "fleet.engine_args.faults.0.percent=60",
            'fleet.roles=["prefill", "decode"]',
            "load.seeds={qsl=1, sample_index=2, schedule=3}",
            "limits.tpot_p99_ms=none",
        ],
    )
    assert spec.fleet.nodes == 6
    assert spec.load.kind == "explore"
    assert spec.fleet.barrier.min_ready == 7
    assert spec.fleet.barrier.deadline_s == 60, "the rest of the table stays"
    assert spec.fleet.engine_args["faults"][0]["percent"] == 60
    assert spec.fleet.role_at(0, 1) == "decode"
    assert spec.load.seeds != "mlperf"
    assert spec.load.seeds.schedule == 3
    assert spec.limits.tpot_p99_ms is None


def test_roles_may_be_given_short_and_spread_over_nodes_that_have_fewer_replicas() -> None:
    no_faults = "fleet.engine_args.faults=none"
    node = load_spec("demo", [no_faults, "fleet.nodes=1", "fleet.replicas_per_node=9", "fleet.roles=5P4D"]).fleet
    assert [node.role_at(0, gpu) for gpu in range(9)] == ["prefill"] * 5 + ["decode"] * 4
    nodes = load_spec("demo", [no_faults, "fleet.nodes=9", "fleet.replicas_per_node=1", "fleet.roles=5P4D"]).fleet
    assert [nodes.role_at(node, 0) for node in range(9)] == ["prefill"] * 5 + ["decode"] * 4
    assert node.split
    assert not load_spec("demo", ["fleet.roles=both"]).fleet.split


def test_the_output_limit_is_that_of_the_mode() -> None:
    limits = ["load.max_output_tokens=100", "load.max_output_tokens_accuracy=300"]
    assert load_spec("demo", limits).load.output_limit == 100
    assert load_spec("demo", [*limits, "load.kind=accuracy"]).load.output_limit == 300
    assert load_spec("demo", [limits[0], "load.kind=accuracy"]).load.output_limit == 100


def test_a_replica_owns_as_many_accelerators_as_its_layout_multiplies_to_and_none_on_the_cpu() -> None:
    layout = ["fleet.engine_args.faults=none", "fleet.replicas_per_node=1", "fleet.layout.dp=8", "fleet.layout.ep=true"]
    assert load_spec("demo", layout).fleet.layout.devices == 8
    assert load_spec("demo", [*layout, "fleet.layout.device=cpu"]).fleet.layout.devices == 0


@pytest.mark.parametrize("none", ["none", "[]"])
def test_an_engine_argument_is_taken_away_by_none_as_well_as_by_an_empty_list(none: str) -> None:
    assert not load_spec("demo", [f"fleet.engine_args.faults={none}"]).fleet.engine_args.get("faults")
    assert not load_spec("deepseek-r1-server", [f"fleet.engine_args.faults={none}"]).fleet.engine_args.get("faults")
    assert load_spec("demo", ["fleet.engine_args.faults=none"]).fleet.engine_args == {"preset": "demo"}


@pytest.mark.parametrize(("text", "value"), [("2026", "2026"), ('"quoted"', "quoted"), ("v1.2", "v1.2")])
def test_a_text_field_takes_what_was_typed(text: str, value: str) -> None:
    assert load_spec("demo", [f"name={text}"]).name == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("8.5", 8.5),
        ("fast", "fast"),
        ("[1, 2]", [1, 2]),
        ("{a=1}", {"a": 1}),
        ("none", None),
        ('"none"', "none"),
        ("", ""),
    ],
)
def test_override_values_are_toml_or_else_text(text: str, value: object) -> None:
    assert parse_value(text) == value


@given(st.text())
def test_any_override_value_is_read_as_something(text: str) -> None:
    parse_value(text)


def test_paths_in_a_file_mean_beside_the_file_and_in_an_override_beside_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs, here = tmp_path / "specs", tmp_path / "here"
    specs.mkdir()
    here.mkdir()
    (specs / "data.jsonl").write_text("{}\n")
    (here / "other.jsonl").write_text("{}\n")
    (specs / "mine.toml").write_text('[dataset]\nkind = "jsonl"\npath = "data.jsonl"\n')
    monkeypatch.chdir(here)
    assert load_spec(str(specs / "mine.toml")).dataset.path == str(specs / "data.jsonl")
    assert load_spec(str(specs / "mine.toml"), ["dataset.path=other.jsonl"]).dataset.path == str(here / "other.jsonl")


@pytest.mark.parametrize("name", [*RULES, "demo"])
def test_a_spec_written_as_toml_or_json_reads_the_same(name: str, tmp_path: Path) -> None:
    spec = load_spec(name, ['model.name=odd "name" \\ with\ttab'])
    path = tmp_path / "again.toml"
    path.write_text(to_toml(spec))
    assert load_spec(str(path)) == spec
    assert spec_from_json(spec.model_dump_json(), "here") == spec


def test_the_line_of_a_field_is_its_own_else_that_of_what_holds_it() -> None:
    text = "name = 'x'\n[fleet]\nnodes = 1\n[fleet.engine_args]\npreset = 'demo'\n"
    assert line_of(text, "name") == 1
    assert line_of(text, "fleet.nodes") == 3
    assert line_of(text, "fleet.engine_args.preset") == 5
    assert line_of(text, "fleet.engine_args.other") == 4
    assert line_of(text, "fleet.lease_s") == 2
    assert line_of(text, "load.target_qps") is None


def test_an_interpreter_is_a_path_only_with_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_spec("demo", ["fleet.python=python3.11"]).fleet.python == "python3.11"
    assert load_spec("demo", ["fleet.python=venv/bin/python"]).fleet.python == str(tmp_path / "venv/bin/python")
    (tmp_path / "spec.toml").write_text('[fleet]\npython = "other/bin/python"\n')
    assert load_spec("spec.toml").fleet.python == str(tmp_path / "other/bin/python")
