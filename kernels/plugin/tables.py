"""vLLM's own tuned tables (bf16, fp8, int4) in the store: pointing vLLM to the folder of this node's class.

It is done in every process before a model is made, and asks vLLM's platform for the device's name, which it has from NVML or
amdsmi: neither makes a context on the device, so that a parent which forks later still can. Counts of compute units are not to be
had without one; where they decide (two classes of one name) nothing is set, and that is said.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kernels.errors import KernelInputError
from kernels.store.lookup import STORE, table_files
from kernels.store.names import VLLM_DTYPES, file_device_name
from kernels.store.nodeclass import parse_slug
from kernels.store.vllm_tables import FOLDER as VLLM_FOLDER

log = logging.getLogger("vllm.paceline_moe")


def point_vllm_to_them() -> None:
    """$VLLM_TUNED_CONFIG_FOLDER, unless it is set or the store has none for this device."""
    store = os.environ.get(STORE, "")
    if not store or os.environ.get(VLLM_FOLDER):
        return
    folders = folders_with_tables(Path(store).expanduser())
    if not folders:
        return
    device = _device_name()
    fitting = [folder for folder, devices in folders.items() if device and device in devices]
    if len(fitting) > 1:
        named = ", ".join(folder.name for folder in fitting)
        log.warning("%s = %s: several classes of nodes are called %s (%s); set %s", STORE, store, device, named, VLLM_FOLDER)
    elif fitting:
        os.environ[VLLM_FOLDER] = str(fitting[0])
        log.info("vLLM's tables of fused_moe: %s", fitting[0])


def folders_with_tables(store: Path) -> dict[Path, set[str]]:
    """Folders of classes, or the store itself where it is flat, that have tables of vLLM's, and the devices that these name."""
    found: dict[Path, set[str]] = {}
    try:
        for folder in (store, *(each for each in sorted(store.iterdir()) if parse_slug(each.name) is not None and each.is_dir())):
            if devices := {name.device_name for _, name in table_files(folder) if name.dtype in VLLM_DTYPES}:
                found[folder] = devices
    except (OSError, KernelInputError) as error:
        log.warning("%s = %s cannot be read: %s", STORE, store, error)
    return found


def _device_name() -> str:
    from vllm.platforms import current_platform

    if type(current_platform).__name__ == "NonNvmlCudaPlatform":  # would ask torch, which makes a context
        return ""
    try:
        name = str(current_platform.get_device_name())
    except Exception as error:  # a driver's, of any class
        log.warning("the name of this device cannot be told: %s", error)
        return ""
    return file_device_name(name)
