"""`paceline kernels tune` from end to end with a scripted measuring process: NO GPU IS HERE, every time in this file is made up.

Nor is triton: the compiler is a stand-in too, that finds every tile fit. What is real is all between them: candidates, halvings,
the journal, lost children, the table and its sidecar, and what is said.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_gpu import PROBE, made_up_us

import kernels.tuner.node
import kernels.tuner.tune
from console.cli import main
from kernels.compiling.job import Job
from kernels.compiling.pool import Compiled
from kernels.compiling.resources import Resources
from kernels.errors import KernelInputError, NotHere
from kernels.identity import kernel_hash
from kernels.shapes import model
from kernels.store import NodeClass, lookup, read_table, read_vllm_table
from kernels.tuner.found_table import write
from kernels.tuner.halving import Measured
from kernels.tuner.journal import Journal
from kernels.tuner.node import Node
from kernels.tuner.plan import Chosen, Plan, Tuned
from kernels.tuner.tune import gpu_of, offline, tune_on

SCRIPTED = Path(__file__).with_name("scripted_gpu.py")
H200 = NodeClass("sm_90", 132, 141, "NVIDIA_H200")
Told = tuple[int, str, str]


class FitsAll:
    """Stands for the compilers: every tile takes the same."""

    def __init__(self, cache: Path, *, python: str) -> None:
        pass

    def compile(self, jobs: Iterable[Job], progress: Callable[[int, int], None] | None = None) -> Iterator[Compiled]:
        wanted = list(jobs)
        for done, job in enumerate(wanted, 1):
            if progress is not None:
                progress(done, len(wanted))
            yield Compiled(job, Resources(job.target, 4, 16384, 100, 0, 0, 0, 0, 5000, 4, 4, 16, 16, 1, 8))


class Rig:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store, self._script, self.log, self._capsys = folder / "store", folder / "script.json", folder / "log", capsys
        self.script()

    def script(self, **changes: Any) -> None:
        self._script.write_text(json.dumps({"gpu": True, "log": str(self.log), **changes}))

    def command(self, python: str) -> list[str]:
        return [sys.executable, str(SCRIPTED), str(self._script)]

    def run(self, *words: str) -> Told:
        most = () if "--candidates" in words else ("--candidates", "12")
        code = main(["kernels", "tune", "--store", str(self.store), *most, *words])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    @property
    def questions(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    made = Rig(tmp_path, capsys)
    monkeypatch.setattr(kernels.tuner.node, "worker_command", made.command)
    monkeypatch.setattr(kernels.tuner.tune, "Pool", FitsAll)
    monkeypatch.setattr(kernels.tuner.tune, "triton_version", lambda python: "3.9.0")
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    return made


GPT_OSS = ("--model", "gpt-oss-120b", "--m", "1,16")


def test_a_tuning_writes_a_table_that_the_store_then_finds(rig: Rig) -> None:
    code, out, err = rig.run(*GPT_OSS)
    assert (code, err) == (0, "")
    found = lookup(model("gpt-oss-120b"), H200, [rig.store])
    assert (found.how, found.table is not None) == ("tuned", True)
    assert found.table is not None
    assert list(found.table.configs) == [1, 16]
    best = found.config(16).config
    asked = [one for one in map(json.loads, rig.log.read_text().splitlines()) if (one["m"], one["what"]) == (16, "gate_up")]
    assert len(asked) > 12
    assert made_up_us(best.gate_up.json(), 16) <= 1.002 * min(made_up_us(one["config"], 16) for one in asked)
    about = found.table.about
    assert (about.origin, about.kernel_hash, about.triton, about.driver) == ("measured", kernel_hash(), "3.9.0", "580.1")
    facts = about.keys[16]
    assert facts.us is not None
    assert facts.of_floor == pytest.approx(140.4 / facts.us, rel=2e-2)  # the floor of 4.8 TB/s
    assert set(facts.routing) == {"uniform_us", "zipf_us"}
    assert about.more["read_gb_s"] == 4321.0
    assert str(found.table.path) in out
    assert f"16x{best.gate_up.block_n}x{best.gate_up.block_k}/" in out


def test_a_store_that_the_environment_names_is_the_one_that_is_written(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KERNEL_STORE", str(rig.store / "named"))
    code = main(["kernels", "tune", "--model", "gpt-oss-120b", "--m", "16", "--candidates", "3"])
    assert code == 0
    assert list((rig.store / "named" / H200.slug).glob("*.about.json"))


def test_json_is_one_object(rig: Rig) -> None:
    code, out, _ = rig.run(*GPT_OSS, "--json")
    told = json.loads(out)
    assert (code, told["node_class"], sorted(told["keys"])) == (0, H200.slug, ["1", "16"])
    assert told["keys"]["16"]["complete"] is True
    assert Path(told["table"]).is_file()
    assert told["measured"] == rig.questions


def test_a_second_start_measures_nothing_again_and_new_numbers_of_tokens_join_the_table(rig: Rig) -> None:
    rig.run(*GPT_OSS)
    asked = rig.questions
    code, out, _ = rig.run(*GPT_OSS)
    assert (code, rig.questions) == (0, asked)
    assert re.search(r"0 measurements, \d+ kept from before", out)
    rig.run("--model", "gpt-oss-120b", "--m", "64")
    (path,) = [one for one in (rig.store / H200.slug).glob("*.json") if not one.name.endswith(".about.json")]
    table = read_table(path)
    assert list(table.configs) == [1, 16, 64]
    assert table.about.keys[1].us is not None


def test_children_that_crash_or_hang_and_results_that_are_wrong_cost_one_configuration_each(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.script(crash=['"BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 256'], hang=['"num_stages": 5'], wrong=['"BLOCK_SIZE_K": 512'])
    plan = Plan(model("gpt-oss-120b"), "sm_90", (16,), rig.store, sys.executable, candidates=16)
    with Node(sys.executable, plan.cache, config_deadline_s=0.5) as node:
        probe = gpu_of(plan.python, "paceline", None, node)
        found = tune_on(plan, node, probe, lambda _: None)
    assert found.table is not None
    assert sum(found.failed.values()) >= 3
    kinds = " ".join(found.failed)
    assert "the measuring process was lost" in kinds
    assert "relative error" in kinds
    chosen = json.dumps(found.chosen[16].config)
    assert '"BLOCK_SIZE_K": 512' not in chosen
    assert '"num_stages": 5' not in chosen
    asked = rig.questions
    with Node(sys.executable, plan.cache, config_deadline_s=0.5) as node:
        again = tune_on(plan, node, probe, lambda _: None)
    assert (rig.questions, again.chosen[16].config) == (asked, found.chosen[16].config)


def test_a_node_that_loses_every_child_is_given_up_and_keeps_what_it_has(rig: Rig) -> None:
    rig.script(crash=["BLOCK_SIZE_M"])
    code, out, err = rig.run(*GPT_OSS)
    assert (code, out) == (2, "")
    assert "5 measuring processes were lost one after the other" in err
    assert "illegal memory access" in err
    assert not (rig.store / H200.slug).exists()
    assert rig.questions == 5


def test_where_nothing_passes_no_table_is_written_and_the_exit_code_tells(rig: Rig) -> None:
    rig.script(wrong=["BLOCK_SIZE_M"])
    code, out, _ = rig.run(*GPT_OSS)
    assert code == 1
    assert "M 16 got no configuration: no configuration passed: relative error 0.31 is above 0.01" in out
    assert not (rig.store / H200.slug).exists()


def test_offline_candidates_are_kept_and_taken_up_on_the_node(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = rig.run(*GPT_OSS, "--offline", "--target", "h200")
    assert "rejected: grid: too few programs for the compute units" in out
    assert code == 0
    assert "Nothing was timed" in out
    assert rig.questions == 0
    code, out, _ = rig.run(*GPT_OSS, "--offline", "--target", "sm_90", "--json")
    told = json.loads(out)
    assert told["candidates"]["16"]["gate_up"] == 12
    assert told["candidates"]["16"]["enumerated"] > 24
    assert told["next"].startswith("kernels tune --model gpt-oss-120b --target sm_90")

    def none_is_needed(cache: Path, *, python: str) -> FitsAll:
        raise AssertionError("compiled again")

    monkeypatch.setattr(kernels.tuner.tune, "Pool", none_is_needed)
    code, _, err = rig.run(*GPT_OSS)
    assert (code, err) == (0, "")


def test_a_budget_leaves_out_what_it_does_not_reach(rig: Rig) -> None:
    rig.script(takes_s=0.05)
    code, out, _ = rig.run("--model", "gpt-oss-120b", "--m", "1,16", "--budget", "1s")
    assert code == 1
    assert "got no configuration: the time was up before a layer was measured" in out


def test_without_a_gpu_it_is_refused_before_anything_is_compiled(rig: Rig) -> None:
    rig.script(gpu=False)
    code, out, err = rig.run(*GPT_OSS)
    assert (code, out) == (2, "")
    assert "no GPU here" in err
    assert "torch.cuda.is_available() is false" in err
    assert "--offline" in err
    assert not rig.store.exists()


@pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0, reason="torch is installed here"
)
def test_a_python_without_torch_is_refused_with_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "tune", "--model", "gpt-oss-120b", "--store", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "has no torch" in said
    assert "--python" in said
    assert "--offline" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "gfx942"), "--target is gfx942, the device here is NVIDIA H200 (sm_90)"),
        (("--offline",), "--offline needs --target"),
        (("--m", "1,0"), "'0' must be a number of tokens"),
        (("--m", "1,,2"), "'' must be a number of tokens"),
        (("--m", "99999"), "1 to 16384"),
        (("--budget", "soon"), "must be a time, as in 90s, 30m or 2h"),
        (("--budget", "0m"), "must be a time"),
        (("--candidates", "0"), "must be 1 to 2000"),
        (("--tp", "7"), "tp = 7: must divide 2880"),
        (("--weights", "fp8"), "--weights goes with --kernel vllm"),
        (("--kernel", "vllm"), "needs --weights"),
        (("--kernel", "vllm", "--weights", "int4"), "must be multiples of 128"),
        (("--kernel", "vllm", "--weights", "bf16", "--offline", "--target", "h200"), "leave it out"),
        (("--python", "/nowhere/python"), "PYTHON"),
    ],
)
def test_what_cannot_be_done_is_told_with_what_can(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    if "--python" in words:
        monkeypatch.setattr(kernels.tuner.node, "worker_command", lambda python: [python])
        said = "cannot be run as a Python"
    code, out, err = rig.run("--model", "gpt-oss-120b", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert rig.questions == 0


def test_models_of_other_weights_are_told_which_way_to_go(rig: Rig) -> None:
    code, _, err = rig.run("--model", "DeepSeek-R1")
    assert code == 2
    assert "--kernel vllm --weights fp8" in err
    code, _, err = rig.run("--model", "gpt-os-120b")
    assert code == 2
    assert "did you mean gpt-oss-120b" in err


@pytest.mark.parametrize(
    ("weights", "name"), [("fp8", ",dtype=fp8_w8a8,block_shape=[128,128]"), ("bf16", ""), ("int4", ",dtype=int4_w4a16")]
)
def test_tables_of_vllms_own_kernel_have_its_names_and_fields(rig: Rig, weights: str, name: str) -> None:
    code, out, err = rig.run("--model", "DeepSeek-R1", "--m", "16", "--kernel", "vllm", "--weights", weights)
    assert (code, err) == (0, ""), err
    path = rig.store / H200.slug / f"E=256,N=2048,device_name=NVIDIA_H200{name}.json"
    table = read_vllm_table(path)
    config = table.configs[16]
    assert {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"} <= set(config)
    assert ("SPLIT_K" in config) == (weights == "int4")
    assert table.about is not None
    assert table.about.engine == "vllm 0.32.0"
    assert "µs" in out


def test_a_rehearsals_times_never_get_into_a_table(rig: Rig) -> None:
    rig.script(rehearsal=True)
    code, out, err = rig.run(*GPT_OSS)
    assert (code, out) == (2, "")
    assert "a rehearsal's times are of no device" in err
    assert not (rig.store / H200.slug).exists()


def test_nor_does_the_store_take_the_class_of_a_cpu(tmp_path: Path) -> None:
    shape = model("gpt-oss-120b")
    plan = Plan(shape, "cpu", (16,), tmp_path, sys.executable)
    probe = kernels.tuner.node.Probe(True, "2.13.0", "3.9.0")
    found = Tuned(plan, NodeClass("cpu", 1, 1, "CPU"), probe, 1.0)
    found.chosen[16] = Chosen(read_default(), Measured(1.0, 1.0, 0.1, 5), 1.0, complete=True)
    with pytest.raises(KernelInputError, match="must be one of gfx942, gfx950, sm_90"):
        write(found)
    assert not list(tmp_path.rglob("*.json"))


def read_default() -> dict[str, Any]:
    from kernels.tile import LayerConfig

    return LayerConfig().json()


def test_two_tunings_of_one_layer_at_once_are_refused(rig: Rig) -> None:
    plan = Plan(model("gpt-oss-120b"), "sm_90", (16,), rig.store, sys.executable)
    with Journal(plan.folder / "journal.jsonl"):
        code, _, err = rig.run(*GPT_OSS)
    assert code == 2
    assert "another process is tuning this" in err


def test_the_probe_without_a_gpu_names_what_was_looked_for(rig: Rig) -> None:
    rig.script(gpu=False)
    with Node("python-of-the-engine", rig.store) as node, pytest.raises(NotHere, match="python-of-the-engine"):
        gpu_of("python-of-the-engine", "vllm", None, node)


def test_ctrl_c_keeps_the_journal_and_prints_how_to_go_on(rig: Rig, tmp_path: Path) -> None:
    rig.script(answers=5)
    starter = tmp_path / "start.py"
    starter.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_kernels_tuner_tune import FitsAll\n"
        "import kernels.tuner.node, kernels.tuner.tune\n"
        f"kernels.tuner.node.worker_command = lambda python: {rig.command('')!r}\n"
        "kernels.tuner.tune.Pool = FitsAll\n"
        "from console.cli import main\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    words = ["kernels", "tune", "--model", "gpt-oss-120b", "--m", "16", "--store", str(rig.store), "--candidates", "12"]
    process = subprocess.Popen(
        [sys.executable, str(starter), str(Path(__file__).parent), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until_s = time.monotonic() + 60
    while rig.questions < 6:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until_s
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "kernels tune --model gpt-oss-120b --m 16 --candidates 12 --store" in err
    asked = rig.questions
    assert asked == 6
    rig.script()  # at once
    code, out, _ = rig.run("--model", "gpt-oss-120b", "--m", "16")
    assert code == 0
    kept = re.search(r"(\d+) kept from before", out)
    assert kept is not None
    assert int(kept[1]) >= asked - 1
    assert not _alive(rig.command("")[-1])


def _alive(words: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words in entry.read_bytes().decode(errors="replace") and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_the_offline_part_says_how_far_it_is(rig: Rig) -> None:
    told: list[str] = []
    from console.cli.tuning import progress_words

    plan = Plan(model("gpt-oss-120b"), "gfx942", (16,), rig.store, sys.executable, candidates=8)
    version, found = offline(plan, lambda at: told.append(progress_words(at)))
    assert version == "3.9.0"
    assert len(found[16].gate_up) == 8
    assert re.fullmatch(r"M 16, down, compiled \d+ of \d+", told[-1])
    assert told[0].startswith("M 16, gate/up, compiled ")
    assert PROBE["gpu"]


@pytest.mark.parametrize("damage", ["about", "table", "hash"])
def test_a_damaged_table_is_replaced_by_tuning_again_as_its_error_says(rig: Rig, damage: str) -> None:
    rig.run(*GPT_OSS)
    (about,) = (rig.store / H200.slug).glob("*.about.json")
    path = about.with_name(about.name.replace(".about.json", ".json"))
    if damage == "about":
        about.unlink()
    elif damage == "table":
        path.write_text(path.read_text()[:200])
    else:
        path.write_text(path.read_text() + " ")
    with pytest.raises(KernelInputError):
        read_table(path)
    code, _, err = rig.run(*GPT_OSS)
    assert (code, err) == (0, "")
    assert list(read_table(path).configs) == [1, 16]
