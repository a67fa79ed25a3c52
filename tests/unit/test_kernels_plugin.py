"""The plugin's own logic where there is no vLLM, which stubs stand for here. The real one: tests/vllm/test_moe_plugin.py."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernels.plugin import loaded, tables
from kernels.plugin.versions import EXPECTED, Expected, differences, refusal
from kernels.store.lookup import STORE
from kernels.store.vllm_tables import FOLDER

ROOT = Path(__file__).parents[2]
MI300X, CUT_MI300X = "gfx942-304cu-192gb-AMD_Instinct_MI300X", "gfx942-228cu-192gb-AMD_Instinct_MI300X"


# --- versions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1rc1.dev12+gabc123", "0.32.0+cpu"])
def test_releases_of_the_known_are_served(version: str) -> None:
    assert refusal(version) == ""


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.31.9", "is older"), ("0.34.0", "is newer"), ("1.0", "is newer"), ("dev", "'dev', which says no release")],
)
def test_other_releases_are_refused_by_name_with_what_is_known(version: str, said: str) -> None:
    text = refusal(version)
    assert said in text
    assert version in text
    assert "0.32, 0.33" in text


class Internals:
    """Stands for a class of vLLM's."""

    def apply(self, output: Any, tokens: Any) -> None: ...

    def chosen(self, output: Any, tokens: Any, newly: Any, often: Any = None) -> None: ...

    def any_more(self, output: Any, **attributes: Any) -> None: ...


def looked_at(name: str, how: Any, *parameters: str) -> tuple[str, ...]:
    stub = ModuleType("vllm.model_executor.layers.stub")
    stub.Internals = Internals  # type: ignore[attr-defined]
    return differences([Expected(stub.__name__, name, how, parameters)], load=lambda _: stub)


def test_what_vllm_calls_on_us_must_have_exactly_our_parameters() -> None:
    assert looked_at("Internals.apply", "overridden", "output", "tokens") == ()
    assert "parameters that the plugin does not know: tokens" in looked_at("Internals.apply", "overridden", "output")[0]
    assert "has no parameter map" in looked_at("Internals.apply", "overridden", "output", "tokens", "map")[0]


def test_what_we_call_may_only_have_more_parameters_that_have_defaults() -> None:
    assert looked_at("Internals.apply", "called", "output", "tokens") == ()
    assert looked_at("Internals.chosen", "called", "output", "tokens", "newly") == ()
    assert "does not know: newly" in looked_at("Internals.chosen", "called", "output", "tokens")[0]


def test_what_we_inherit_may_have_more_parameters() -> None:
    assert looked_at("Internals.chosen", "inherited", "output") == ()
    assert "has no parameter attributes" in looked_at("Internals.any_more", "inherited", "output", "attributes")[0]


def test_a_name_that_is_gone_is_told_without_the_packages_path() -> None:
    assert looked_at("Internals.gone", "there")[0].startswith("stub.Internals.gone is not there")


def test_a_module_that_cannot_be_imported_is_a_difference_and_no_error() -> None:
    def gone(name: str) -> ModuleType:
        raise ImportError(f"no {name}")

    assert len(differences(EXPECTED, load=gone)) == len(EXPECTED)


# --- what was loaded -----------------------------------------------------------------------------------------


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(loaded.FOLDER, str(tmp_path / "reports"))
    monkeypatch.delenv("VLLM_TUNED_CONFIG_FOLDER", raising=False)
    return tmp_path / "reports"


def written(reports: Path) -> dict[str, Any]:
    (path,) = reports.iterdir()  # and nothing aside
    assert path.name == f"{os.getpid()}.json"
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def test_the_report_is_written_when_the_last_layer_has_its_weights(reports: Path) -> None:
    of_process = loaded.Loaded(
        rank=3, kernel_hash="0123456789ab", config=loaded.Config("tuned", "/f.json", "ab", [1, 16], {"16": 0.7})
    )
    of_process.layer_made()
    of_process.layer_made()
    of_process.layer_ready()
    assert not reports.exists()
    of_process.layer_ready()
    report = written(reports)
    assert report["pid"] == os.getpid()
    assert (report["rank"], report["kernel"], report["kernel_hash"]) == (3, "paceline-mxfp4-a16w4", "0123456789ab")
    assert (report["layers"], report["fallback"]) == (2, "")
    assert report["config"] == {"how": "tuned", "file": "/f.json", "hash": "ab", "keys": [1, 16], "of_floor": {"16": 0.7}}


def test_a_process_with_a_layer_of_vllms_reports_no_kernel_of_ours_and_the_first_reason(reports: Path) -> None:
    of_process = loaded.Loaded(kernel_hash="0123456789ab", config=loaded.Config("tuned", "/f.json"))
    of_process.layer_made()
    of_process.layer_fell_back("LoRA is on")
    of_process.layer_fell_back("something else")
    report = written(reports)
    assert (report["kernel"], report["kernel_hash"], report["config"]["how"]) == ("", "", "")
    assert (report["layers"], report["fallback"]) == (2, "LoRA is on")


def test_a_report_that_cannot_be_written_costs_no_more_than_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(loaded.FOLDER, str(tmp_path / "file"))
    loaded.Loaded().layer_fell_back("LoRA is on")
    assert "cannot be written" in caplog.text


def test_nothing_is_written_where_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(loaded.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    loaded.Loaded().layer_fell_back("LoRA is on")
    assert list(tmp_path.iterdir()) == []


# --- vLLM's own tables ---------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of one class with a table of vLLM's, on a device of that name; vllm.platforms is a stub."""
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(get_device_name=lambda: "AMD_Instinct_MI300X")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setenv(STORE, str(tmp_path))
    monkeypatch.setenv(FOLDER, "")  # so that what is set here is taken back
    give_table(tmp_path / MI300X)
    return tmp_path


def give_table(folder: Path, name: str = "E=256,N=256,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8.json") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("{}")


def test_vllm_is_pointed_to_the_tables_of_this_devices_class(store: Path) -> None:
    give_table(store / "sm_90-132cu-141gb-NVIDIA_H200", "E=8,N=7168,device_name=NVIDIA_H200.json")
    tables.point_vllm_to_them()
    assert os.environ[FOLDER] == str(store / MI300X)


def test_a_flat_store_is_the_folder_of_its_class(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE, str(store / MI300X))
    tables.point_vllm_to_them()
    assert os.environ[FOLDER] == str(store / MI300X)


def test_where_two_classes_have_this_name_nothing_is_set_and_that_is_said(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    give_table(store / CUT_MI300X)
    tables.point_vllm_to_them()
    assert os.environ[FOLDER] == ""
    assert "set VLLM_TUNED_CONFIG_FOLDER" in caplog.text


def test_a_folder_that_was_chosen_by_hand_stays(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "/mine")
    tables.point_vllm_to_them()
    assert os.environ[FOLDER] == "/mine"


def test_tables_of_our_kernel_and_sidecars_are_none_of_vllms(store: Path) -> None:
    for path in (store / MI300X).iterdir():
        path.unlink()
    give_table(store / MI300X, "E=128,N=2880,device_name=AMD_Instinct_MI300X,dtype=mxfp4_w4a16,H=2880.json")
    give_table(store / MI300X, "E=256,N=256,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8.about.json")
    assert tables.folders_with_tables(store) == {}


# --- register ------------------------------------------------------------------------------------------------


def registered(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Twice, as vLLM may, in a process of its own; then which packages that has imported."""
    code = (
        "import sys, kernels.plugin as plugin; plugin.register(); plugin.register(); "
        "print(sorted({'vllm', 'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PACELINE_", "VLLM_"))}
    ours = {"PYTHONPATH": str(ROOT), loaded.FOLDER: str(folder / "reports")}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**inherited, **ours, **environment}, capture_output=True, text=True, timeout=60, check=True
    )


@pytest.mark.parametrize("switch", [{}, {"PACELINE_MOE": "engine"}, {"PACELINE_MOE": ""}])
def test_a_plugin_that_is_not_asked_for_imports_nothing_and_reports_nothing(tmp_path: Path, switch: dict[str, str]) -> None:
    done = registered(tmp_path, **switch)
    assert done.stdout == "[]\n"
    assert done.stderr == ""
    assert not (tmp_path / "reports").exists()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed here")
def test_a_python_without_vllm_is_told_and_survives(tmp_path: Path) -> None:
    done = registered(tmp_path, PACELINE_MOE="paceline")
    assert "vLLM's own MoE kernel runs, not Paceline's: ModuleNotFoundError: No module named 'vllm'" in done.stderr
    (report,) = (tmp_path / "reports").glob("*.json")
    assert "No module named 'vllm'" in json.loads(report.read_text())["fallback"]
