"""The measuring child in a rehearsal: tiny layers on the CPU in triton's interpreter. NO GPU IS HERE: what is judged is the gate,
and that a child that is killed costs one question; the times are the interpreter's and are marked as such.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.bench_file import read_bench
from kernels.errors import KernelInputError, NotHere
from kernels.shapes import GPT_OSS_SWIGLU, MoeShape
from kernels.tile import LayerConfig, Tile
from kernels.tuner.halving import Failed, Measured
from kernels.tuner.journal import Journal
from kernels.tuner.node import Node
from kernels.tuner.worker import shape_json, shape_of

torch = pytest.importorskip("torch", exc_type=ImportError)

PAIRED = MoeShape("tiny", 4, 2, 64, 64, gate_up="interleaved", bias=True, activation=GPT_OSS_SWIGLU)
PART = MoeShape("tiny part", 2, 2, 64, 32, global_experts=4)
TILE = Tile(16, 32, 64)
LAYER = LayerConfig(TILE, TILE).json()
SET_UP = {"kernel": "paceline", "shape": shape_json(PAIRED), "dtype": "bf16", "rehearse": True, "cache_bytes": 0, "seed": 3}


def bench_of(shape: MoeShape, dtype: str = "bf16") -> Any:
    from kernels.tuner.measure import DTYPES, Bench, device_of
    from kernels.tuner.ours import Mxfp4Subject

    device = device_of(rehearse=True)
    subject = Mxfp4Subject.made(shape, DTYPES[dtype], device, 5, rehearse=True)
    return Bench(subject, device, DTYPES[dtype], 0, 5, rehearse=True)


@pytest.mark.parametrize(("shape", "dtype"), [(PAIRED, "bf16"), (PART, "fp16")])
def test_what_the_gate_expects_is_what_the_reference_says(shape: MoeShape, dtype: str) -> None:
    from kernels.reference.moe import moe, relative_error

    bench = bench_of(shape, dtype)
    call = bench.calls(3, "zipf")[0]
    right = bench.calls(3, "uniform")[0]
    tokens, found = bench.right(3)
    weights = bench.subject.weights[right.weight_set]
    mapped = None if shape.routed_over == shape.experts else np.array([0, 1, -1, -1], np.int32)
    reference = moe(
        right.x.double().numpy(), weights.w13.numpy(), weights.s13.numpy(), weights.w2.numpy(), weights.s2.numpy(),
        right.ids.numpy(), right.weights.numpy(), b13=None if weights.b13 is None else weights.b13.numpy(),
        b2=None if weights.b2 is None else weights.b2.numpy(), activation=shape.activation,
        interleaved=shape.gate_up == "interleaved", expert_map=mapped,
    )  # fmt: skip
    assert tokens == [0, 1, 2]
    assert relative_error(found.double().numpy(), reference) < 1e-5
    assert not torch.equal(call.ids, right.ids) or not torch.equal(call.x, right.x)
    assert bench.error_of(3, LAYER) < 1e-2


def test_both_gemms_and_the_layer_are_measured_and_marked_as_rehearsed() -> None:
    bench = bench_of(PAIRED)
    for what, config in (("gate_up", TILE.json()), ("down", TILE.json()), ("layer", LAYER)):
        found = bench.measure(2, what, config, 2)
        assert isinstance(found, Measured), found
        assert found.rehearsal
        assert found.repetitions == 2
        assert 0.0 < found.error < 1e-2
        assert 1 <= found.experts <= 4
        assert found.uniform_us > 0.0


def test_a_wrong_result_is_refused_before_it_is_timed() -> None:
    bench = bench_of(PAIRED)
    bench.right(2)
    first = bench.calls(2, "uniform")[0]
    expert = int(first.ids[0, 0])
    bench.subject.weights[first.weight_set].s2[expert] += 1  # the kernel's weights are twice what the gate saw
    found = bench.measure(2, "layer", LAYER, 1)
    assert isinstance(found, Failed)
    assert "relative error" in found.why
    assert "above 0.01" in found.why


def test_what_is_left_unwritten_is_refused() -> None:
    bench = bench_of(PAIRED)
    launched = bench.subject.run
    bench.subject.run = lambda call, what, config, out: out  # launches nothing: the result is the poison
    found = bench.measure(2, "layer", LAYER, 1)
    assert found == Failed("relative error inf is above 0.01")
    bench.subject.run = launched
    assert isinstance(bench.measure(2, "layer", LAYER, 1), Measured)


def test_skewed_routing_touches_fewer_experts_and_calls_rotate_over_the_weights() -> None:
    from kernels.tuner.measure import Bench, route, touched

    wide = replace(PAIRED, experts=64, top_k=4)
    generator = torch.Generator().manual_seed(1)
    uniform, zipf = (
        sum(len(touched(wide, route(wide, 16, how, generator)[0])) for _ in range(20)) / 20 for how in ("uniform", "zipf")
    )
    assert 38 < uniform < 44  # 64 (1 - (1 - 4/64)^16) = 41
    assert zipf < 0.85 * uniform
    ids, weights = route(wide, 16, "zipf", generator)
    assert all(len(set(row)) == 4 for row in ids.tolist())
    assert torch.allclose(weights.sum(1), torch.ones(16))
    small = bench_of(PAIRED)
    cached = Bench(small.subject, small.device, small.dtype, 10**12, 5, rehearse=True)
    assert [call.weight_set for call in cached.calls(1, "uniform")] == [0, 1]


def test_calls_go_on_until_different_weights_for_twice_the_cache_are_read() -> None:
    from kernels.tuner.measure import CALLS_AT_MOST, Bench, touched

    shape = replace(PAIRED, experts=32, top_k=2)
    small = bench_of(shape)
    cache_bytes = int(15 * shape.parameters / 2)
    calls = Bench(small.subject, small.device, small.dtype, cache_bytes, 5, rehearse=False).calls(1, "uniform")
    read = [{(call.weight_set, expert) for expert in touched(shape, call.ids)} for call in calls]
    assert len(set().union(*read[:-1])) < 30 <= len(set().union(*read)) < sum(map(len, read))
    endless = Bench(small.subject, small.device, small.dtype, 10**12, 5, rehearse=False)
    assert len(endless.calls(1, "zipf")) == CALLS_AT_MOST


def test_replays_are_queued_behind_one_that_runs_ahead_before_any_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.tuner.measure import GraphOf

    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.ms = 0.0

        def record(self) -> None:
            done.append("record")
            self.ms = 3.0 * done.count("replay")

        def synchronize(self) -> None:
            done.append("wait")

        def elapsed_time(self, end: Event) -> float:
            return end.ms - self.ms

    class Graph:
        def replay(self) -> None:
            done.append("replay")

    graph = GraphOf([lambda: None] * 10, torch.device("cpu"))
    graph._graph = Graph()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert graph.times_us(2) == [300.0, 300.0]
    assert done == ["replay", "record"] * 3 + ["wait"]


# --- the child ----------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(sys.executable, tmp_path / "cache", config_deadline_s=100.0, rehearse=True) as made:
        yield made


def test_a_child_that_is_killed_costs_one_question_and_the_next_one_has_another(node: Node, tmp_path: Path) -> None:
    node.use(SET_UP)
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.use({"rehearsal": True})
        first = node.measure(journal, 1, "down", TILE.json(), 1)
        assert isinstance(first, Measured)
        assert first.rehearsal
        assert node.pid is not None
        killed = node.pid
        os.kill(killed, signal.SIGKILL)
        lost = node.measure(journal, 1, "gate_up", TILE.json(), 1)
        assert isinstance(lost, Failed)
        assert "the measuring process was lost" in lost.why
        assert "SIGKILL" in lost.why
        # Tiles of the interpreter are not checked by a compiler; what no Tile is, is an answer and costs no child.
        refused = node.measure(journal, 1, "down", {**TILE.json(), "BLOCK_SIZE_K": 48}, 1)
        assert isinstance(refused, Failed)
        assert "BLOCK_SIZE_K = 48 must be one of" in refused.why
        assert node.pid not in (None, killed)
        assert (node.measured, node.reused) == (3, 0)
    with Journal(path) as journal:
        journal.use({"rehearsal": True})
        assert node.measure(journal, 1, "down", TILE.json(), 1) == first
        assert node.measure(journal, 1, "gate_up", TILE.json(), 1) == lost
        assert (node.measured, node.reused) == (3, 2)
    survivor = node.pid
    node.close()
    assert survivor is not None
    with pytest.raises(ProcessLookupError):
        os.kill(survivor, 0)


def test_a_probe_here_finds_no_gpu_and_the_tuning_is_refused(node: Node) -> None:
    from kernels.tuner.tune import gpu_of

    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    found = node.probe("paceline")
    assert not found.gpu
    assert found.torch == torch.__version__
    assert found.triton
    with pytest.raises(NotHere, match=r"torch\.cuda\.is_available\(\) is false"):
        gpu_of(sys.executable, "paceline", None, node)


def test_a_shape_comes_through_as_it_went_in() -> None:
    assert shape_of(json.loads(json.dumps(shape_json(PAIRED)))) == PAIRED


# --- the GPU bench ------------------------------------------------------------------------------------------


@pytest.mark.timeout(420)
def test_the_gpu_bench_goes_through_all_its_steps_in_a_rehearsal_and_marks_its_file(tmp_path: Path) -> None:
    out = tmp_path / "gpu_moe.json"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu_moe", "--rehearse", "--out", str(out)],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("REHEARSAL, its times mean nothing")
    result = json.loads(out.read_text())
    assert result["rehearsal"] is True
    assert [step["step"] for step in result["steps"]] == ["ceilings", "compile", "numerics", "times", "tuning", "peers"]
    assert all("s" in step for step in result["steps"])
    assert len(result["numerics"]) == 3
    assert all(one["ok"] and one["error"] < 1e-2 for one in result["numerics"])
    assert {row["shape"] for row in result["rows"]} == {"gpt-oss-120b", "DeepSeek-V4-Flash tp8", "DeepSeek-R1-MXFP4 ep8"}
    assert all(row["rehearsal"] and math.isfinite(row["us"]) for row in result["rows"])
    assert {row["routing"] for row in result["rows"]} == {"uniform", "zipf"}
    assert any(row.get("origin") == "tuned here" for row in result["rows"])
    assert all(goal["ok"] is None for goal in result["goals"])
    strange = [one for one in result["errors"] if not one["step"].startswith("a peer on")]
    assert strange == []
    with pytest.raises(KernelInputError, match="is of a rehearsal, whose times mean nothing"):
        read_bench(out)


@pytest.fixture
def bench_run(tmp_path: Path) -> Any:
    from tests.bench.gpu_moe import Run

    return Run(100.0, tmp_path / "gpu_moe.json", tmp_path, rehearse=True)


def test_a_peer_that_spoils_the_device_ends_the_bench_with_what_was_found_before(
    bench_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernels.tuner import worker

    def spoil() -> None:
        monkeypatch.setattr(worker, "device_lives", lambda: False)
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nlines that nobody needs")

    for step in ("ceilings", "compile", "numerics", "tuning"):
        monkeypatch.setattr(bench_run, step, lambda: None)
    monkeypatch.setattr(bench_run, "times", lambda: bench_run.ours("gpt-oss-120b", 1, LayerConfig(TILE, TILE), "shipped"))
    monkeypatch.setattr(bench_run, "beside_peers", spoil)
    bench_run.all()
    result = json.loads(bench_run.out.read_text())
    assert [row["origin"] for row in result["rows"]] == ["shipped"]
    assert [error["step"] for error in result["errors"]] == ["peers", "device"]
    assert result["goals"]
    said = "the device was lost by peers: RuntimeError: CUDA error: an illegal memory access was encountered"
    assert result["errors"][-1]["error"] == said
    assert f"STOPPED: {said}; what was found before holds" in capsys.readouterr().out


def test_a_shipped_tile_that_does_not_compile_costs_the_bench_that_tile_only(
    bench_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.tuner.measure import Bench

    monkeypatch.setattr(bench_run, "shipped", lambda name: {1: LayerConfig(TILE, TILE), 4: LayerConfig(TILE, TILE)})

    def failing_at_one(self: Bench, m: int, config: object) -> float:
        if m == 1:
            raise RuntimeError("failed to translate module to LLVM IR")
        return 0.003

    monkeypatch.setattr(Bench, "error_of", failing_at_one)
    bench_run.step("numerics", bench_run.numerics)
    assert [one["m"] for one in bench_run.result["numerics"]] == [4, 4, 4]
    assert all("failed to translate" in error["error"] for error in bench_run.result["errors"])
    assert len(bench_run.result["errors"]) == 3


def test_the_bench_refuses_a_gpu_that_the_kernel_is_not_made_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.tuner import measure, worker
    from tests.bench.gpu_moe import Run

    of_b200 = {"gpu": True, "torch": "2.11.0", "triton": "3.6.0", "device_name": "NVIDIA B200", "arch": "10.0"}
    monkeypatch.setattr(measure, "device_of", lambda rehearse: torch.device("cpu"))
    monkeypatch.setattr(worker, "probe", lambda question: of_b200 | {"compute_units": 148, "memory_bytes": 190 * 2**30})
    with pytest.raises(NotHere, match="NVIDIA B200 is sm_100; the kernel is made for gfx942, gfx950, sm_90"):
        Run(100.0, tmp_path / "gpu_moe.json", tmp_path, rehearse=False)


def test_the_report_does_not_take_times_of_a_cpu(tmp_path: Path) -> None:
    path = tmp_path / "gpu_moe.json"
    path.write_text(json.dumps({"bench": "gpu_moe", "device": {"target": "cpu"}, "rows": []}))
    with pytest.raises(KernelInputError, match="must be one of gfx942, gfx950, sm_90"):
        read_bench(path)


def test_the_gpu_bench_without_a_gpu_says_so_in_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu_moe"], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert "--rehearse" in ran.stderr
