"""[fleet.kernels]: what is refused, what a replica's process is given for it, and what the doctor says before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import doctor
from harness.engines import registry
from harness.engines.vllm import args as vllm_args
from harness.engines.vllm import kernelfacts
from harness.spec import KernelsSpec, RunSpec
from harness.specfile import SpecError, load_spec, to_toml
from harness.worker import kernels as of_worker
from harness.worker.slots import Slot
from harness.worker.surroundings import CannotLaunch, Maker
from kernels import plugin
from kernels.plugin import loaded

COMMAND = [sys.executable, "-m", "harness.worker.replica"]
LOADS_PLUGINS = """
from importlib.metadata import entry_points
for entry in entry_points(group="vllm.general_plugins"):
    print(entry.name, entry.value)
import kernels.tile
print(kernels.__file__)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss", "vocab_size": 512}')
    return tmp_path


def spec_of(model: Path, **kernels: Any) -> RunSpec:
    fleet = {"replicas_per_node": 2, "engine": "vllm", "layout": {"device": "cpu"}, "kernels": kernels}
    return RunSpec.model_validate({"model": {"path": str(model), "vocab_size": 512}, "fleet": fleet})


def environment(spec: RunSpec, logs: Path, **given: str) -> dict[str, str]:
    return Maker(COMMAND, logs, {"PATH": os.defpath, **given}).of(spec, [Slot("node000/gpu1", 0, 1, 1)]).environ


# --- the spec ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["fleet.kernels.moe=paceline"],
            'fleet.kernels.moe: "paceline" goes with engine = vllm; the synthetic engine computes nothing',
        ),
        (
            ["fleet.kernels.store=/tmp"],
            "fleet.kernels.store: /tmp goes with engine = vllm; the synthetic engine computes nothing",
        ),
        (["fleet.kernels.moe=paceline", "fleet.engine=openai"], "set PACELINE_MOE and PACELINE_KERNEL_STORE in the servers'"),
        (["fleet.kernels.required=true"], 'fleet.kernels.required: true goes with moe = "paceline"'),
        (["fleet.kernels.moe=triton"], "fleet.kernels.moe"),
        (["fleet.kernels.mode=paceline"], "did you mean fleet.kernels.moe?"),
        (["fleet.kernels.required=maybe"], "fleet.kernels.required"),
        (['fleet.kernels.store=""'], "fleet.kernels.store: must not be empty"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_be_right(overrides: list[str], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec("demo", overrides)
    assert told in str(caught.value)


def test_a_store_is_a_folder_and_lies_beside_the_file_that_names_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "spec.toml").write_text(
        f'[model]\npath = "{model}"\nvocab_size = 512\n[fleet]\nengine = "vllm"\n[fleet.engine_args]\nload_format = "dummy"\n'
        '[fleet.kernels]\nmoe = "paceline"\nstore = "tables"\n'
    )
    monkeypatch.chdir("/")
    with pytest.raises(SpecError, match=r"fleet.kernels.store: '.*/tables' is no folder here"):
        load_spec(str(model / "spec.toml"))
    (model / "tables").mkdir()
    spec = load_spec(str(model / "spec.toml"))
    assert spec.fleet.kernels == KernelsSpec(moe="paceline", store=str(model / "tables"))
    (model / "again.toml").write_text(to_toml(spec))
    assert load_spec(str(model / "again.toml")) == spec


def test_our_kernel_makes_another_generator_of_results_and_a_table_does_not(model: Path) -> None:
    plain, ours = spec_of(model), spec_of(model, moe="paceline")
    assert "moe" not in vllm_args.identity(plain), "results of before there was a choice stay comparable"
    assert registry.args_hash(plain) != registry.args_hash(ours)
    assert registry.args_hash(ours) == registry.args_hash(spec_of(model, moe="paceline", store="/x", required=True))


# --- a replica's process -----------------------------------------------------------------------------------


def test_nobody_who_does_not_ask_gets_the_plugin_and_a_variable_of_the_worker_does_not_turn_it_on(
    tmp_path: Path, model: Path
) -> None:
    environ = environment(spec_of(model), tmp_path, PACELINE_MOE="paceline", VLLM_PLUGINS="others")
    assert environ["PACELINE_MOE"] == "engine"
    assert "PYTHONPATH" not in environ
    assert not list(tmp_path.glob("kernels")) + list(tmp_path.glob("plugin"))


def test_each_process_has_a_new_folder_for_its_reports_and_the_store(tmp_path: Path, model: Path) -> None:
    spec = spec_of(model, moe="paceline", store="/tables")
    first, second = environment(spec, tmp_path), environment(spec, tmp_path)
    assert (first["PACELINE_MOE"], first["PACELINE_KERNEL_STORE"]) == ("paceline", "/tables")
    folders = {Path(each["PACELINE_KERNELS_REPORT"]) for each in (first, second)}
    assert len(folders) == 2
    assert all(folder.is_dir() and not list(folder.iterdir()) for folder in folders)
    assert all(folder.parent == tmp_path / "kernels" and folder.name.startswith("node000-gpu1-") for folder in folders)
    tables = environment(spec_of(model, store="/tables"), tmp_path)
    assert (tables["PACELINE_MOE"], tables["PACELINE_KERNEL_STORE"]) == ("engine", "/tables")
    assert "PACELINE_KERNELS_REPORT" not in tables


def test_harness_and_plugin_mean_the_same_variables_and_the_same_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither imports the other."""
    assert (of_worker.MOE, of_worker.STORE) == (plugin.SWITCH, plugin.STORE)
    assert f"{plugin.register.__module__}:{plugin.register.__name__}" == of_worker.ENTRY
    asked = KernelsSpec(moe=plugin.ON)
    monkeypatch.setenv(kernelfacts.REPORT, str(tmp_path))
    of_process = loaded.Loaded(
        kernel_hash="0123456789ab",
        device=loaded.Device("gfx950-256cu-288gb-X"),
        config=loaded.Config("tuned", "/f", "ab", [16], {"16": 0.7}),
    )
    of_process.layer_made()
    of_process.layer_ready()
    assert kernelfacts.loaded(asked, tmp_path, []) == kernelfacts.KernelFacts({
        "kernel": "paceline-mxfp4-a16w4", "kernel.hash": "0123456789ab", "kernel.config": "tuned", "kernel.config_hash": "ab",
        "kernel.node_class": "gfx950-256cu-288gb-X", "kernel.of_floor": "M=16 70 %",
    })  # fmt: skip
    of_process.layer_fell_back("LoRA is on")
    assert kernelfacts.loaded(asked, tmp_path, []).fallback == "LoRA is on"


def test_an_interpreter_without_paceline_finds_the_plugin_and_its_package(tmp_path: Path, model: Path) -> None:
    environ = environment(spec_of(model, moe="paceline"), tmp_path, PYTHONPATH="/theirs")
    folder, theirs = environ["PYTHONPATH"].split(os.pathsep)
    assert theirs == "/theirs"
    told = subprocess.run(
        [sys.executable, "-S", "-c", LOADS_PLUGINS],
        env={"PYTHONPATH": folder},
        capture_output=True,
        text=True,
        timeout=30,
        cwd="/",
    )
    assert told.stdout.splitlines() == [
        "paceline_moe kernels.plugin:register",
        str(Path(folder) / "kernels" / "__init__.py"),
    ], told.stderr
    again = environment(spec_of(model, moe="paceline"), tmp_path, PYTHONPATH="/theirs")
    assert again["PYTHONPATH"] == environ["PYTHONPATH"]


def test_a_list_of_plugins_that_leaves_ours_out_is_final(tmp_path: Path, model: Path) -> None:
    spec = spec_of(model, moe="paceline")
    with pytest.raises(CannotLaunch, match=r'VLLM_PLUGINS = "lora,".* set VLLM_PLUGINS=lora,paceline_moe'):
        environment(spec, tmp_path, VLLM_PLUGINS="lora,")
    assert environment(spec, tmp_path, VLLM_PLUGINS="lora, paceline_moe")["PACELINE_MOE"] == "paceline"


# --- the doctor --------------------------------------------------------------------------------------------


def test_the_doctor_says_which_tables_there_are_and_what_is_missing(tmp_path: Path) -> None:
    assert doctor.kernels(KernelsSpec()) is None
    empty = doctor.kernels(KernelsSpec(store=str(tmp_path)))
    assert empty is not None
    assert (empty.ok, empty.detail) == (None, f'fleet.kernels.moe = "engine": no table in {tmp_path}')
    for name in ("E=8,N=64,device_name=X.json", "E=8,N=64,device_name=X.about.json", "notes.json"):
        (tmp_path / "gfx950-256cu-288gb-X").mkdir(exist_ok=True)
        (tmp_path / "gfx950-256cu-288gb-X" / name).touch()
    found = doctor.kernels(KernelsSpec(store=str(tmp_path)))
    assert found is not None
    assert (found.ok, found.detail) == (True, f'fleet.kernels.moe = "engine", 1 table in {tmp_path}')


@pytest.mark.parametrize(
    ("required", "ok", "so"),
    [(True, False, "replicas are refused (required = true)"), (False, None, "vLLM's own kernel runs")],
)
def test_an_interpreter_without_triton_fails_only_where_our_kernel_is_required(
    tmp_path: Path, required: bool, ok: bool, so: str
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    check = doctor.kernels(KernelsSpec(moe="paceline", required=required), str(bare))
    assert check is not None
    assert check.ok is ok
    assert f"no torch and no triton in {bare}, so {so}" in check.detail
    gone = doctor.kernels(KernelsSpec(moe="paceline"), str(tmp_path / "none"))
    assert gone is not None
    assert gone.ok is False
    assert "no such program" in gone.detail
