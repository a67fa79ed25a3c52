"""What a replica process starts with: interpreter, environment, accelerators."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import harness
from harness.engines import registry
from harness.spec import RunSpec
from harness.worker import devices
from harness.worker.slots import Slot
from harness.worker.surroundings import CannotLaunch, Maker, package_folder

COMMAND = [sys.executable, "-m", "harness.worker.replica"]
NODE = [devices.Inventory("cuda", tuple("01234567"), installed=8)]


class Owning:
    """An engine that owns as many accelerators as the layout says."""

    synthetic = False
    many_per_process = False


@pytest.fixture(autouse=True)
def owning(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("owning_engine")
    module.factory = Owning
    module.devices = lambda spec: spec.fleet.layout.devices
    module.environment = lambda spec, gpu: {"ENGINE_PLACE": str(gpu)}
    monkeypatch.setitem(sys.modules, "owning_engine", module)
    monkeypatch.setitem(registry._MODULES, "owning", "owning_engine")
    monkeypatch.setattr(devices, "take_inventory", lambda environ: NODE)
    return


def spec_of(engine: str = "owning", **fleet: Any) -> RunSpec:
    return RunSpec.model_validate({"fleet": {"engine": engine, "nodes": 1, "replicas_per_node": 4, **fleet}})


def slot(gpu: int) -> Slot:
    return Slot(f"node000/gpu{gpu}", 0, gpu, gpu)


def test_a_replica_gets_our_environment_its_engines_and_its_devices(tmp_path: Path) -> None:
    given = {"HOME": "/home/x", "HIP_VISIBLE_DEVICES": "5", "ENGINE_PLACE": "overruled"}
    command, environ, guarded = Maker(COMMAND, tmp_path, given).of(spec_of(layout={"tp": 2}), [slot(3)])
    assert command == COMMAND
    assert environ == {"HOME": "/home/x", "PYTHONUNBUFFERED": "1", "ENGINE_PLACE": "3", "CUDA_VISIBLE_DEVICES": "6,7"}
    assert guarded


def test_synthetic_replicas_need_neither_a_guard_nor_devices(tmp_path: Path) -> None:
    _, environ, guarded = Maker(COMMAND, tmp_path, {"A": "b"}).of(spec_of("synthetic"), [slot(0), slot(1)])
    assert (environ, guarded) == ({"A": "b", "PYTHONUNBUFFERED": "1"}, False)


def test_replicas_that_own_devices_do_not_share_a_process(tmp_path: Path) -> None:
    with pytest.raises(CannotLaunch, match=r"fleet.slots_per_process = 2: replicas of engine owning own accelerators"):
        Maker(COMMAND, tmp_path, {}).of(spec_of(slots_per_process=2), [slot(0), slot(1)])


def test_another_interpreter_finds_our_packages_and_its_own_tools_first(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    given = {"PATH": "/usr/bin", "PYTHONPATH": "/theirs", "PYTHONHOME": "/ours"}
    command, environ, _ = Maker(COMMAND, tmp_path, given).of(spec_of("synthetic", python=str(python)), [slot(0)])
    assert command == [str(python), *COMMAND[1:]], "the link itself: it is the environment"
    assert environ["PATH"] == f"{python.parent}{os.pathsep}/usr/bin"
    ours, theirs = environ["PYTHONPATH"].split(os.pathsep)
    assert (Path(ours) / "harness" / "spec.py").exists()
    assert theirs == "/theirs"
    assert "PYTHONHOME" not in environ


def test_beside_other_libraries_our_package_is_linked_into_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    (installed / "harness").mkdir(parents=True)
    (installed / "numpy").mkdir()
    monkeypatch.setattr(harness, "__file__", str(installed / "harness" / "__init__.py"))
    for _ in range(2):
        folder = package_folder(tmp_path / "logs")
        assert [entry.name for entry in folder.iterdir()] == ["harness"]
        assert (folder / "harness").resolve() == installed / "harness"


@pytest.mark.parametrize(
    ("python", "why"),
    [
        *(("/nowhere/python", "no such file"), ("python-of-nobody", "not found on PATH"), ("{file}", "is not executable")),
        *(("/tmp", "is a folder"), ("~/nowhere/python", "no such file")),
    ],
)
def test_an_interpreter_that_cannot_be_started_is_refused_with_what_would_be_right(tmp_path: Path, python: str, why: str) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    named = python.format(file=plain)
    with pytest.raises(CannotLaunch, match=why) as caught:
        Maker(COMMAND, tmp_path).of(spec_of("synthetic", python=named), [slot(0)])
    assert str(caught.value).startswith(f"fleet.python = {named}: ")
    assert "give the path of a Python 3.11 or newer that has the engine's library" in str(caught.value)
