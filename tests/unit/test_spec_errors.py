"""Every way to write a spec wrongly ends in a sentence that names the field, and the nearest right one where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.specfile import SpecError, load_spec

SAID = [
    (["fleet.nodez=3"], "fleet.nodez: no such field; did you mean fleet.nodes?"),
    (["fleets.nodes=3"], "fleets: no such field; did you mean fleet?"),
    (["fleet.target_qps=3"], "fleet.target_qps: no such field; did you mean load.target_qps?"),
    (["utterly.wrong=1"], "utterly: no such field"),
    (["load.target_qps=fast"], "load.target_qps: 'fast' is not a number"),
    (["fleet.nodes=2.5"], "fleet.nodes: 2.5 is not a whole number"),
    (["fleet.nodes=none"], "fleet.nodes: none is not a whole number"),
    (["fleet.nodes=true"], "fleet.nodes: true is not a value of this field"),
    (["fleet.nodes=0"], "fleet.nodes: 0 is out of range: must be at least 1"),
    (["load.target_qps=0"], "load.target_qps: 0 is out of range: must be at least 0.001"),
    (["load.target_qps=inf"], "load.target_qps: inf is not a finite number"),
    (["load.duration_s=nan"], "load.duration_s: nan is not a finite number"),
    (["load.kind=explor"], "load.kind: 'explor' is not one of performance, accuracy, explore, compliance; did you mean explore?"),
    (["load.scenario=server"], "load.scenario: 'server' is not one of Server, Offline; did you mean Server?"),
    (["load.seeds=3"], 'load.seeds: 3 is neither "mlperf" nor a table'),
    (["load.seeds={qsl=1, schedule=2}"], "load.seeds.sample_index: is needed"),
    (["fleet=3"], "fleet: 3 is not a table"),
    (["fleet.roles=[]"], "fleet.roles: must not be empty"),
    (["fleet.roles=5P"], "fleet.roles: '5P' is neither a list of both, prefill and decode nor like \"5P4D\""),
    (['fleet.roles=["prefill"]'], "fleet.roles: make every replica prefill; prefill and decode need each other"),
    (['fleet.roles=["both", "decode"]'], 'fleet.roles: mix "both" with prefill or decode'),
    (["fleet.layout.device=gpu"], "fleet.layout.device: 'gpu' is not one of auto, cuda, rocm, cpu"),
    (
        ["fleet.layout.tp=2", "fleet.layout.devices_per_node=8"],
        "fleet.replicas_per_node: 8 x 2 accelerators each (tp 2 x pp 1 x dp 1) do not fit into layout.devices_per_node 8",
    ),
    (["fleet.layout.ep=1.5"], "fleet.layout.ep: 1.5"),
    (["sampling.temperature=3"], "sampling.temperature: 3 is out of range"),
    (['fleet.roles=["bth"]'], "fleet.roles.0: 'bth' is not one of both, prefill, decode; did you mean both?"),
    (["name=a b"], "name: 'a b' cannot be a name: 1 to 64 letters"),
    (["model.name=none"], "model.name: none is not text"),
    (["fleet.lease_s=1"], "fleet.lease_s: 1 must be at least twice heartbeat_s 1.5"),
    (["fleet.barrier.min_ready=65"], "fleet.barrier.min_ready: 65 is more than the fleet has (8 nodes x 8 replicas = 64)"),
    (["stragglers.windows_slow=5"], "stragglers.windows_slow: 5 is more than windows 4"),
    (["dataset.output_tokens.mean=5000"], "dataset.output_tokens.mean: 5000 must lie between min 8 and max 240"),
    (["dataset.kind=jsonl"], "dataset.path: is needed by kind = jsonl"),
    (["dataset.kind=jsonl", "dataset.path=/nowhere/x.jsonl"], "dataset.path: '/nowhere/x.jsonl' is not a file here"),
    (["load.duration_s=0"], "load.duration_s: 0 (no end) is only for load.kind = explore"),
    (["load.kind=explore", "load.scenario=Offline"], "load.kind: explore paces a rate and needs load.scenario = Server"),
    (["load.kind=accuracy", "load.min_queries=5"], "load.kind: accuracy sends every sample once"),
    (["cluster.kubernetes.start_nodes=99"], "cluster.kubernetes.start_nodes: 99 is more than fleet.nodes 8"),
    (["cluster.kubernetes.namespace=Bad_Name"], "cluster.kubernetes.namespace: 'Bad_Name' is not a namespace"),
    (["cluster.kubernetes.shm=16GB"], "cluster.kubernetes.shm: '16GB' is not an amount of memory; write it as 16Gi or 512Mi"),
    (
        ["cluster.kubernetes.control_port=5556"],
        "cluster.kubernetes.control_port: 5556 is telemetry_port as well; they must differ",
    ),
    (["cluster.kubernetes.model_mount=models"], "cluster.kubernetes.model_mount: 'models' is not a folder of a pod"),
    (["cluster.kubernetes.worker_imag=x"], "did you mean cluster.kubernetes.worker_image?"),
    (
        ["cluster.kind=kubernetes", "dataset.kind=jsonl", "dataset.path=/home/me/x.jsonl"],
        "dataset.path: '/home/me/x.jsonl' is not where the head's pod can read it",
    ),
    (["fleet.engine=vlm"], "fleet.engine: 'vlm': no such engine"),
    (["fleet.engine_args.pre=1"], 'did you mean "preset"?'),
    (["fleet.engine_args.fauls=none"], "fleet.engine_args.fauls: none: not an argument"),
    (["model.mlperf_name=gpt-oss"], "model.mlperf_name: 'gpt-oss' has no rules here"),
    (
        ["fleet.engine_args.faults.0.slot=node009/gpu0"],
        "fleet.engine_args.faults.0.slot: 'node009/gpu0': no such slot in this fleet",
    ),
    (["junk"], "'junk' is not of the form table.field=value"),
    (["a..b=1"], "'a..b=1' is not of the form table.field=value"),
    (["fleet.nodes.x=1"], "fleet.nodes.x: cannot be set: fleet.nodes is not a table"),
    (
        ["fleet.engine_args.faults.7=1"],
        "fleet.engine_args.faults.7: cannot be set: fleet.engine_args.faults is a list of 1 entries",
    ),
]


@pytest.mark.parametrize(("overrides", "said"), SAID, ids=[" ".join(overrides) for overrides, _ in SAID])
def test_a_wrong_field_is_named_with_what_is_wrong(overrides: list[str], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec("demo", overrides)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1, "one mistake, one sentence"


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        load_spec("demo", ["fleet.nodez=2", "load.target_qps=fast", "fleet.nodes=9999"])
    assert {problem.field for problem in caught.value.problems} == {"fleet.nodez", "load.target_qps", "fleet.nodes"}
    assert str(caught.value).startswith("profile demo has 3 problems:\n")


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("dem", "did you mean demo?"),
        ("gpt-oss-120b-servr", "did you mean gpt-oss-120b-server?"),
        ("no/such.toml", "no such file"),
        ("", "neither a profile"),
        ("/", "is a folder"),
    ],
)
def test_a_spec_that_is_not_there_is_told_with_the_nearest_profile(which: str, said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("?", r"\?")):
        load_spec(which)


def test_a_wrong_field_in_a_file_comes_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n\n[fleet]\nnodes = 2\nnodez = 3\nbarrier = { min_redy = 1 }\n\n[load]\ntarget_qps = "x"\n')
    with pytest.raises(SpecError) as caught:
        load_spec(str(path))
    assert {problem.field: problem.line for problem in caught.value.problems} == {
        "fleet.nodez": 5,
        "fleet.barrier.min_redy": 6,
        "load.target_qps": 9,
    }
    assert str(path) in str(caught.value)


def test_an_override_is_not_blamed_on_a_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[fleet]\nnodes = 2\n")
    with pytest.raises(SpecError) as caught:
        load_spec(str(path), ["fleet.nodes=0"])
    assert caught.value.problems[0].line is None


@pytest.mark.parametrize(("text", "line"), [("[fleet]\nnodes = = 2\n", 2), ("[fleet\n", 1), ("a = 1\nb = [1,\n", 3)])
def test_broken_toml_is_told_with_path_and_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match="is not valid TOML") as caught:
        load_spec(str(path))
    assert str(path) in str(caught.value)
    assert caught.value.problems[0].line == line


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"name = '\xff\xfe'\n")
    with pytest.raises(SpecError, match="is not UTF-8 text"):
        load_spec(str(path))
