"""Names of tables of configurations, as vLLM has them, and of devices in those names.

    E=128,N=2880,device_name=AMD_Instinct_MI300X,dtype=mxfp4_w4a16,H=2880.json      ours
    E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json   vLLM's

E is the experts on this accelerator. N is the intermediate size: vLLM takes it from the last dimension of w2, doubled for int4,
which packs two values into a byte. Weights of 16 bits have no dtype in the name. The hidden size H is in ours alone: DeepSeek-R1
and V4-Flash agree in E and N and not in H, and vLLM never reads tables of this dtype, so it cannot miss one for its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.accelerators import accelerators
from kernels.errors import KernelInputError
from kernels.shapes import MoeShape

MXFP4 = "mxfp4_w4a16"
BF16 = "bf16"
#: Of vLLM's own fused_moe, with the names that it gives them.
VLLM_DTYPES = (BF16, "fp8_w8a8", "int4_w4a16", "int8_w8a16", "int8_w8a8")
DTYPES = (MXFP4, *VLLM_DTYPES)
ABOUT = ".about.json"

#: vLLM's, for AMD's accelerators: what a driver calls them varies, their PCI device does not.
_PCI_NAMES = {
    "0x74a0": "AMD_Instinct_MI300A",
    "0x74a1": "AMD_Instinct_MI300X",
    "0x74b5": "AMD_Instinct_MI300X",
    "0x74a2": "AMD_Instinct_MI308X",
    "0x74a5": "AMD_Instinct_MI325X",
    "0x74b9": "AMD_Instinct_MI325X",
    "0x74a9": "AMD_Instinct_MI300X_HF",
    "0x74bd": "AMD_Instinct_MI300X_HF",
}
_NAME = re.compile(
    r"E=([1-9]\d{0,5}),N=([1-9]\d{0,6}),device_name=([^,/\\\s]+?)(?:,dtype=(\w+))?(?:,H=([1-9]\d{0,6}))?"
    r"(?:,block_shape=\[([1-9]\d{0,4}),([1-9]\d{0,4})\])?\.json",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TableName:
    experts: int
    intermediate: int
    device_name: str
    dtype: str = MXFP4
    hidden: int = 0  # 0: not in the name
    block_shape: tuple[int, int] | None = None

    def __str__(self) -> str:
        dtype = "" if self.dtype == BF16 else f",dtype={self.dtype}"
        hidden = f",H={self.hidden}" if self.hidden else ""
        block = "" if self.block_shape is None else f",block_shape=[{self.block_shape[0]},{self.block_shape[1]}]"
        return f"E={self.experts},N={self.intermediate},device_name={self.device_name}{dtype}{hidden}{block}.json"

    def fits(self, shape: MoeShape, dtype: str) -> bool:
        same = (self.experts, self.intermediate, self.dtype) == (shape.experts, shape.intermediate, dtype)
        return same and self.hidden in (0, shape.hidden)


def name_of(shape: MoeShape, device_name: str, dtype: str = MXFP4, block_shape: tuple[int, int] | None = None) -> TableName:
    """KernelInputError where such a table cannot be."""
    if dtype not in DTYPES:
        raise KernelInputError(f"dtype = {dtype!r} must be one of {', '.join(DTYPES)}")
    if block_shape is not None and dtype not in ("fp8_w8a8", "int8_w8a8"):
        raise KernelInputError(f"block_shape = {list(block_shape)}: weights of {dtype} have none in the names of their tables")
    name = TableName(
        shape.experts,
        shape.intermediate,
        file_device_name(device_name),
        dtype,
        shape.hidden if dtype == MXFP4 else 0,
        block_shape,
    )
    if parse_name(str(name)) != name:
        raise KernelInputError(f"device_name = {device_name!r} cannot stand in the name of a file ({name})")
    return name


def table_name(shape: MoeShape, device_name: str, dtype: str = MXFP4, block_shape: tuple[int, int] | None = None) -> str:
    """Name of the file."""
    return str(name_of(shape, device_name, dtype, block_shape))


def parse_name(file_name: str) -> TableName | None:
    """None: no table of a kind that is known here."""
    found = _NAME.fullmatch(file_name)
    if found is None:
        return None
    experts, intermediate, device, dtype, hidden, block_n, block_k = found.groups()
    if (dtype or BF16) not in DTYPES:
        return None
    block = (int(block_n), int(block_k)) if block_n else None
    return TableName(int(experts), int(intermediate), device, dtype or BF16, int(hidden or 0), block)


def file_device_name(name: str, pci_id: str = "") -> str:
    """Exactly as vLLM writes it into the names of its files."""
    known = _PCI_NAMES.get(pci_id.lower())
    if known is not None:
        return known
    written = re.sub(r"[\s/]+", "_", name)
    return "NVIDIA_H200" if "H200" in written.split("_") else written


def class_device_name(name: str, pci_id: str = "") -> str:
    """One name for an accelerator that drivers call by several: MI355_OAM and MI355X_VF are MI355X."""
    written = file_device_name(name.strip(), pci_id)
    for candidate in (written, re.sub(r"_(OAM|VF)$", "", written)):
        for each in accelerators().values():
            if candidate in each.device_names:
                return each.device_names[0]
    return written
