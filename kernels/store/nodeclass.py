"""Classes of nodes: what must be the same for a configuration that was measured on one node to hold on another.

Nodes of one name may differ in compute units (304 and 228, whole and partitioned) and then want other grids. So the class is
target, compute units, memory and name: `gfx942-304cu-192gb-AMD_Instinct_MI300X`, in the store the name of a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.accelerators import Accelerator, accelerators
from kernels.errors import KernelInputError
from kernels.store.names import class_device_name

_SLUG = re.compile(r"([a-z][a-z0-9_]*)-([1-9]\d{0,4})cu-([1-9]\d{0,4})gb-([^/\\\s,]+)", re.ASCII)
#: Drivers keep some of an accelerator's memory back; so much less than its data sheet says is still that accelerator's memory.
_KEPT_BACK = 0.03
_GENERIC = re.compile(r"(AMD_Radeon_Graphics|AMD_Instinct|AMD)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class NodeClass:
    target: str  # gfx942, gfx950, sm_90
    compute_units: int
    memory_gb: int
    device_name: str  # class_device_name's

    @property
    def slug(self) -> str:
        return f"{self.target}-{self.compute_units}cu-{self.memory_gb}gb-{self.device_name}"

    def __str__(self) -> str:
        return self.slug


def parse_slug(slug: str) -> NodeClass | None:
    found = _SLUG.fullmatch(slug)
    return NodeClass(found[1], int(found[2]), int(found[3]), found[4]) if found else None


def of_accelerator(accelerator: Accelerator) -> NodeClass:
    """Whole, as its data sheet has it."""
    return NodeClass(accelerator.target, accelerator.compute_units, accelerator.memory_gb, accelerator.device_names[0])


def of_torch_properties(name: str, arch: str, compute_units: int, memory_bytes: int, pci_id: str = "") -> NodeClass:
    """From what torch.cuda.get_device_properties has: name, gcnArchName (AMD) or "9.0", multi_processor_count, total_memory."""
    target = _target(arch)
    if compute_units < 1 or memory_bytes < 1:
        raise KernelInputError(
            f"{name}: {compute_units} compute units and {memory_bytes} bytes of memory: both must be more than 0"
        )
    device = class_device_name(name, pci_id)
    alike = [each for each in accelerators().values() if each.target == target and _holds(each, memory_bytes)]
    if _GENERIC.fullmatch(device):  # some drivers know no name; the hardware says which it is, if only one is like it
        exact = [each for each in alike if each.compute_units == compute_units]
        device = exact[0].device_names[0] if len(exact) == 1 else device or target
    named = [each for each in alike if device in each.device_names]
    memory_gb = named[0].memory_gb if named else max(1, round(memory_bytes / 2**30))
    found = NodeClass(target, compute_units, memory_gb, re.sub(r"[^\w.()+-]", "_", device, flags=re.ASCII))
    assert parse_slug(found.slug) == found
    return found


def _holds(accelerator: Accelerator, memory_bytes: int) -> bool:
    """AMD's sheets count in GiB, NVIDIA's in something between that and GB, so that H200's 141 are 140 GiB."""
    return abs(memory_bytes / 2**30 / accelerator.memory_gb - 1.0) <= _KEPT_BACK


def _target(arch: str) -> str:
    """`gfx942:sramecc+:xnack-` → gfx942; 9.0, 90 and sm_90a → sm_90."""
    plain = arch.strip().lower().partition(":")[0]
    if re.fullmatch(r"gfx[0-9a-f]{3,5}", plain):
        return plain
    found = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)[af]?", plain)
    if found is None:
        raise KernelInputError(f"arch = {arch!r} is none of an accelerator; as in gfx942, sm_90 or 9.0")
    return f"sm_{found[1]}{found[2]}"
