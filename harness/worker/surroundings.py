"""What a replica process starts with: its interpreter, its environment, its accelerators.

Environment = the worker's, what the engine asks for, the mask of accelerators; with `fleet.python` also the folder of our
packages, and the interpreter's own folder first on PATH (engines call tools that are installed beside them); for vLLM also
which kernels it is to use (kernels.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import harness
from harness.engines import registry
from harness.spec import RunSpec
from harness.worker import devices, kernels
from harness.worker.slots import Slot


class CannotLaunch(Exception):
    """These slots can not be started on this node; the reason is final and shown to the operator."""


class Surroundings(NamedTuple):
    command: list[str]
    environ: dict[str, str]
    guarded: bool


class Maker:
    """Looks at the machine once, when the first replica is to start."""

    def __init__(self, command: Sequence[str], logs: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._command, self._logs, self._environ = list(command), logs, environ
        self._found: list[devices.Inventory] | None = None

    def of(self, spec: RunSpec, slots: Sequence[Slot]) -> Surroundings:
        """For a process that carries these slots. Raises CannotLaunch, and EngineError for an engine that is not there."""
        environ = {**self._environ, "PYTHONUNBUFFERED": "1"}
        command = self._command
        if spec.fleet.python is not None:
            command = [_interpreter(spec.fleet.python, environ), *command[1:]]
            self._lead_to_our_packages(command[0], environ)
        if spec.fleet.engine == "vllm":
            self._set_kernels(spec, slots[0], environ)
        environ.update(registry.environment(spec, slots[0].gpu))
        for name, value in self._mask(spec, slots).items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value
        return Surroundings(command, environ, guarded=not registry.is_synthetic(spec))

    def _mask(self, spec: RunSpec, slots: Sequence[Slot]) -> dict[str, str | None]:
        owned = registry.devices(spec)
        if owned == 0:
            return {}
        if len(slots) > 1:
            raise CannotLaunch(
                f"fleet.slots_per_process = {spec.fleet.slots_per_process}: replicas of engine {spec.fleet.engine} own "
                "accelerators, each needs a process of its own; set it to 1"
            )
        if self._found is None:
            self._found = devices.take_inventory(self._environ)
        try:
            return devices.mask(spec, owned, slots[0].node, slots[0].gpu, self._found)
        except devices.NoDevices as error:
            raise CannotLaunch(str(error)) from None

    def _set_kernels(self, spec: RunSpec, slot: Slot, environ: dict[str, str]) -> None:
        environ.update(kernels.variables(spec.fleet.kernels, self._logs, slot))
        if not spec.fleet.kernels.asked:
            return
        if why := kernels.why_left_out(environ):
            raise CannotLaunch(why)
        _lead(kernels.plugin_folder(self._logs), environ)

    def _lead_to_our_packages(self, interpreter: str, environ: dict[str, str]) -> None:
        environ.pop("PYTHONHOME", None)  # it would give the other interpreter our standard library
        _lead(package_folder(self._logs), environ)
        environ["PATH"] = os.pathsep.join([str(Path(interpreter).parent), environ.get("PATH", os.defpath)])


def _lead(folder: Path, environ: dict[str, str]) -> None:
    """First on PYTHONPATH."""
    before = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environ["PYTHONPATH"] = os.pathsep.join([str(folder), *before])


def package_folder(aside: Path) -> Path:
    """A folder for PYTHONPATH with our package and nothing else: a link in a folder under `aside`.

    What lies beside the package would hide what the other interpreter has: in site-packages libraries built for another Python,
    in a source tree `kernels`, which is also the name of a library of Hugging Face.
    """
    package = Path(harness.__file__).resolve().parent
    folder = aside / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another worker, or an earlier life of this one, has made it
        (folder / package.name).symlink_to(package, target_is_directory=True)
    return folder


def _interpreter(python: str, environ: Mapping[str, str]) -> str:
    """Its path, not followed through links: a virtual environment's interpreter is one."""
    found = shutil.which(os.path.expanduser(python), path=environ.get("PATH"))
    if found is not None:
        return os.path.abspath(found)
    named = os.path.expanduser(python)
    if os.path.isdir(named):
        why = "is a folder"
    elif os.path.exists(named):
        why = "is not executable"
    else:
        why = "no such file" if os.sep in named else "not found on PATH"
    raise CannotLaunch(f"fleet.python = {python}: {why}; give the path of a Python 3.11 or newer that has the engine's library")
