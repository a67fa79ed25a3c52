"""Which physical GPUs a replica owns: number on the node, UUID and PCI address, by which its metrics are found.

Read from the drivers' files; no library is asked, because that would start a GPU context. NVIDIA: /proc/driver/nvidia/gpus,
which a container has for its own devices only. AMD: the topology of the kernel driver, in whose order HIP counts; nodes that
a container may not read are devices of others. What cannot be known is "" and never guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.engines import registry
from harness.spec import RunSpec
from harness.worker.devices import CUDA, HIP, ROCR

_PROC = Path("/proc/driver/nvidia/gpus")
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_DEV = Path("/dev")


@dataclass(frozen=True, slots=True)
class Gpu:
    """`uuid` as the driver's tools name it: NVIDIA's GPU-8e3a…, of AMD ROCm's GPU- and 16 hex digits (see `rocminfo`)."""

    number: int  # on the node, as exporters count; of all that this process may know of
    uuid: str = ""
    pci: str = ""  # 0000:c1:00.0


def nvidia_gpus(proc: Path = _PROC, dev: Path = _DEV) -> list[Gpu]:
    """By PCI address, as CUDA counts equal devices; numbered by their device files where some of the node's are hidden."""
    found = []
    for folder in _folders(proc):
        about = dict(_pairs(folder / "information", ":"))
        minor = about.get("Device Minor", "")
        if minor.isdigit() and (dev / f"nvidia{minor}").exists():
            found.append((about.get("Bus Location", folder.name).lower(), int(minor), about.get("GPU UUID", "")))
    found.sort()
    all_there = {minor for _, minor, _ in found} == set(range(len(found)))
    return [
        Gpu(place if all_there else minor, uuid if uuid.startswith("GPU-") else "", pci)
        for place, (pci, minor, uuid) in enumerate(found)
    ]


def amd_gpus(kfd_nodes: Path = _KFD_NODES) -> list[Gpu]:
    """In the order of the topology. Its other nodes are processors, which everybody may read."""
    found, number = [], 0
    for folder in sorted(_folders(kfd_nodes), key=lambda node: int(node.name) if node.name.isdigit() else 0):
        about = dict(_pairs(folder / "properties", " "))
        if about and not _number(about, "simd_count"):
            continue
        if about:
            found.append(Gpu(number, _amd_uuid(about), _amd_pci(about)))
        number += 1
    return found


def owned(devices: int, environ: Mapping[str, str] = os.environ, *, proc: Path = _PROC, kfd_nodes: Path = _KFD_NODES,
          dev: Path = _DEV) -> list[Gpu]:  # fmt: skip
    """The GPUs of a process that was given `devices` of them by its mask; empty where it is not known which."""
    if nvidia := nvidia_gpus(proc, dev):
        visible = _narrowed(nvidia, environ.get(CUDA))
    else:
        visible = _narrowed(amd_gpus(kfd_nodes), environ.get(ROCR) or None)
        visible = _narrowed(visible, environ.get(HIP) or environ.get(CUDA) or None)
    return visible if len(visible) == devices else []


def identity(spec: RunSpec, node: int, gpu: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For REGISTER: numbers, UUIDs and PCI addresses, each joined by commas, of as many GPUs as the replica owns."""
    if registry.is_synthetic(spec):
        from harness.engines.synthetic import gpus as synthetic  # an engine's package is for those who run it

        return synthetic.identity(spec, node, gpu)
    devices = 0 if spec.fleet.layout.device == "cpu" else registry.devices(spec)
    mine = owned(devices, environ) if devices else []
    said = {
        "gpus": [str(one.number) for one in mine],
        "uuids": [one.uuid for one in mine],
        "pcis": [one.pci for one in mine],
    }
    return {name: ",".join(values) for name, values in said.items() if any(values)}


def _narrowed(gpus: Sequence[Gpu], value: str | None) -> list[Gpu]:
    """What the variable leaves, in its order: entries are places, or beginnings of UUIDs; the first unknown one ends it."""
    if value is None:
        return list(gpus)
    kept: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdigit():
            named = list(gpus[int(entry) : int(entry) + 1])
        else:
            named = [one for one in gpus if entry.startswith("GPU-") and one.uuid.lower().startswith(entry.lower())]
        if len(named) != 1 or named[0] in kept:
            break
        kept += named
    return kept


def _amd_uuid(about: Mapping[str, str]) -> str:
    unique = _number(about, "unique_id")
    return f"GPU-{unique:016x}" if unique else ""


def _amd_pci(about: Mapping[str, str]) -> str:
    """`location_id` is bus, device and function in 8, 5 and 3 bits."""
    where = _number(about, "location_id")
    if not where:
        return ""
    return f"{_number(about, 'domain'):04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"


def _number(about: Mapping[str, str], name: str) -> int:
    value = about.get(name, "")
    return int(value) if value.isdigit() else 0


def _folders(where: Path) -> list[Path]:
    try:
        return list(where.iterdir())
    except OSError:
        return []


def _pairs(file: Path, between: str) -> list[tuple[str, str]]:
    """Lines of name and value; none of a file that cannot be read."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    split = (re.split(rf"{between}\s*", line, maxsplit=1) for line in lines)
    return [(pair[0].strip(), pair[1].strip()) for pair in split if len(pair) == 2]
