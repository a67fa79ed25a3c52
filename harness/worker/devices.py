"""The accelerators of a node, and which of them a replica may see.

Inventory: NVIDIA's device files and the topology of AMD's kernel driver, narrowed by the variables that a scheduler or an
operator has set for this worker. No library is asked: that would start a GPU context in a process that only launches.

Mask: replica g of a node owns the k devices from g*k on (k = `registry.devices(spec)`) and sees exactly these, set before
it starts, through exactly ONE variable: ROCm builds of vLLM copy HIP_VISIBLE_DEVICES to CUDA_VISIBLE_DEVICES at import and
refuse two that differ. ROCR_VISIBLE_DEVICES works below HIP (HIP counts what it leaves), so it stays as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.spec import RunSpec, node_name

Kind = Literal["cuda", "rocm", "none"]

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
VARIABLE: dict[Kind, str] = {"cuda": CUDA, "rocm": HIP}
_WORD: dict[Kind, str] = {"cuda": "CUDA", "rocm": "ROCm", "none": ""}
_DEV = Path("/dev")
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_NVIDIA_FILE = re.compile(r"nvidia\d+")
_SIMDS = re.compile(r"^simd_count\s+(\d+)", re.MULTILINE)


class NoDevices(Exception):
    """The node cannot give a replica what its layout asks for; the text names field, value and what is there."""


@dataclass(frozen=True, slots=True)
class Inventory:
    kind: Kind
    ids: tuple[str, ...] = ()  # as the kind's variable takes them
    hidden_by: str = ""  # the variable, as it is set, that narrows what the machine has
    installed: int = 0  # in the machine, hidden ones included

    def __str__(self) -> str:
        if self.kind == "none":
            return "no accelerator"
        counted = counted_devices(len(self.ids), self.kind)
        return f"{counted} of {self.installed} ({self.hidden_by})" if self.hidden_by else counted


def counted_devices(count: int, kind: Kind) -> str:
    return f"{count} {_WORD[kind]} accelerator{'s' * (count != 1)}"


def take_inventory(environ: Mapping[str, str] = os.environ, dev: Path = _DEV, kfd_nodes: Path = _KFD_NODES) -> list[Inventory]:
    """What there is, CUDA first; empty without any accelerator. More than one only in a machine of both makers."""
    found = []
    nvidia = _nvidia_count(dev)
    if nvidia:
        ids, by = _narrowed([str(n) for n in range(nvidia)], CUDA, environ)
        found.append(Inventory("cuda", tuple(ids), by, nvidia))
    amd = _amd_count(dev, kfd_nodes)
    if amd:
        agents, by_rocr = _narrowed([str(n) for n in range(amd)], ROCR, environ)
        # HIP counts what ROCR leaves. An empty variable is an unset one here, and HIP heeds the CUDA one in its absence.
        name = HIP if environ.get(HIP) else CUDA
        ids = [str(n) for n in range(len(agents))]
        by_hip = ""
        if environ.get(name):
            ids, by_hip = _narrowed(ids, name, environ)
        found.append(Inventory("rocm", tuple(ids), ", ".join(filter(None, (by_rocr, by_hip))), amd))
    return found


def choose(found: list[Inventory], device: str) -> Inventory:
    """The inventory that `fleet.layout.device` means: auto takes the first of which anything is visible."""
    if device == "auto":
        return next((inventory for inventory in found if inventory.ids), Inventory("none"))
    return next((inventory for inventory in found if inventory.kind == device), Inventory("none"))


def mask(spec: RunSpec, devices: int, node: int, gpu: int, found: list[Inventory]) -> dict[str, str | None]:
    """Variables for the process of a replica that owns `devices` accelerators; None: take it out of the environment.

    Raises NoDevices.
    """
    layout, fleet = spec.fleet.layout, spec.fleet
    if devices == 0 or layout.device == "cpu":
        return {}
    inventory, name = choose(found, layout.device), node_name(node)
    if inventory.kind == "none":
        if layout.device == "auto" and layout.devices_per_node is None:
            return {}  # a build for the CPU serves here; any other says itself what it misses
        asked = f"device = {layout.device}" if layout.device != "auto" else f"devices_per_node = {layout.devices_per_node}"
        there = ", ".join(map(str, found)) or "no accelerator (no /dev/nvidia0, and no AMD GPU in /sys/class/kfd with /dev/kfd)"
        raise NoDevices(f'fleet.layout.{asked}: {name} has {there}; on the CPU engines run with device = "cpu"')
    ids = _share_of_node(spec, node, inventory)
    need = fleet.replicas_per_node * devices
    if need > len(ids):
        raise NoDevices(
            f"fleet.layout: {name} has {counted_devices(len(ids), inventory.kind)}, "
            f"{fleet.replicas_per_node} replicas x {devices} need {need}"
            + (f" (narrowed by {inventory.hidden_by})" if inventory.hidden_by else "")
            + '; lower fleet.replicas_per_node, or set fleet.layout.device = "cpu" for an engine built for it'
        )
    variables: dict[str, str | None] = dict.fromkeys((CUDA, HIP))
    variables[VARIABLE[inventory.kind]] = ",".join(ids[gpu * devices : (gpu + 1) * devices])
    return variables


def _share_of_node(spec: RunSpec, node: int, inventory: Inventory) -> tuple[str, ...]:
    """Of a local cluster all nodes are this machine, which they may share only by a number that says how."""
    per_node = spec.fleet.layout.devices_per_node
    if spec.cluster.kind != "local" or spec.fleet.nodes == 1:
        return inventory.ids if per_node is None else inventory.ids[:per_node]
    if per_node is None:
        raise NoDevices(
            f"fleet.layout.devices_per_node: needed where {spec.fleet.nodes} nodes share the "
            f"{counted_devices(len(inventory.ids), inventory.kind)} of one machine; or set fleet.nodes = 1"
        )
    return inventory.ids[node * per_node : (node + 1) * per_node]


def _narrowed(ids: list[str], variable: str, environ: Mapping[str, str]) -> tuple[list[str], str]:
    """What the variable leaves: entries count up to the first that names no device, as in the drivers."""
    value = environ.get(variable)
    if value is None:
        return ids, ""
    kept: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        named = entry in ids if entry.lstrip("-").isdigit() else entry.upper().startswith(("GPU-", "MIG-"))
        if not named or entry in kept:
            break
        kept.append(entry)
    return kept, f"{variable}={value}"


def _nvidia_count(dev: Path) -> int:
    """CUDA numbers the devices that it can open, whatever their files are called in a container."""
    try:
        return sum(1 for entry in os.listdir(dev) if _NVIDIA_FILE.fullmatch(entry))
    except OSError:
        return 0


def _amd_count(dev: Path, kfd_nodes: Path) -> int:
    """Nodes of the topology with SIMD units are GPUs; one whose properties cannot be read is not this container's."""
    if not (dev / "kfd").exists():
        return 0
    count = 0
    try:
        nodes = sorted(kfd_nodes.iterdir())
    except OSError:
        return 0
    for node in nodes:
        try:
            simds = _SIMDS.search((node / "properties").read_text())
        except OSError:
            continue
        count += simds is not None and int(simds[1]) > 0
    return count
