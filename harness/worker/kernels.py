"""What a replica's process needs to run our kernels in vLLM: the plugin where its interpreter finds it, and its variables.

vLLM finds plugins by the metadata of installed packages. An environment without Paceline has none of ours, so that a folder on
PYTHONPATH brings them: a link to the package `kernels`, and a dist-info that names the plugin. Only for who asks for it: the
package has the name of one of Hugging Face's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp

import harness
from harness.engines.vllm.kernelfacts import REPORT
from harness.spec import KernelsSpec
from harness.worker.slots import Slot

#: Variables that kernels/plugin reads, besides REPORT. It is on for one value of the first alone.
MOE, STORE = "PACELINE_MOE", "PACELINE_KERNEL_STORE"
PLUGIN, ENTRY = "paceline_moe", "kernels.plugin:register"
GROUP = "vllm.general_plugins"
_ALLOWED = "VLLM_PLUGINS"


def variables(kernels: KernelsSpec, logs: Path, slot: Slot) -> dict[str, str]:
    """The spec decides which kernel, whatever the worker's own environment says: the record would tell otherwise. Each process
    gets a new folder for its reports, so that none is read of a life before."""
    told = {MOE: kernels.moe} | ({STORE: kernels.store} if kernels.store is not None else {})
    if kernels.moe == "engine":
        return told
    folder = logs.absolute() / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return told | {REPORT: mkdtemp(prefix=f"{slot.name.replace('/', '-')}-", dir=folder)}


def why_left_out(environ: Mapping[str, str]) -> str:
    """Why vLLM would not load the plugin; "" if it would. Its list of plugins leaves out what it does not name."""
    listed = environ.get(_ALLOWED)
    if listed is None or PLUGIN in [name.strip() for name in listed.split(",")]:
        return ""
    longer = ",".join([*filter(None, (name.strip() for name in listed.split(","))), PLUGIN])
    return (
        f'fleet.kernels needs the plugin {PLUGIN}, and {_ALLOWED} = "{listed}" in the worker\'s environment lets vLLM load others'
        f" alone; unset it, or set {_ALLOWED}={longer}"
    )


def plugin_folder(aside: Path) -> Path:
    """For PYTHONPATH; made once under `aside`. Raises OSError."""
    folder = aside / "plugin"
    about = folder / f"{PLUGIN}-{_version()}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    _write(about / "METADATA", f"Metadata-Version: 2.1\nName: {PLUGIN.replace('_', '-')}\nVersion: {_version()}\n")
    _write(about / "entry_points.txt", f"[{GROUP}]\n{PLUGIN} = {ENTRY}\n")
    package = Path(harness.__file__).resolve().parent.with_name("kernels")
    with suppress(FileExistsError):  # another worker, or an earlier life of this one, has made it
        (folder / package.name).symlink_to(package, target_is_directory=True)
    return folder


def _write(file: Path, text: str) -> None:
    """Several workers may be at it at once."""
    aside = file.with_name(f".{file.name}-{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


def _version() -> str:
    try:
        return version("paceline")
    except PackageNotFoundError:  # run from a source tree
        return "0"
