"""The device that this process computes on, as a class of nodes, and the process's place among its engine's.

Asked for only while a layer is made: the device is in use there already, and no other process is made from this one by forking.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache

import torch

from kernels.accelerators import TARGETS
from kernels.errors import NotHere
from kernels.plugin.loaded import Device, Loaded
from kernels.store.nodeclass import NodeClass, of_torch_properties

INTERPRETER = "TRITON_INTERPRET"

log = logging.getLogger("vllm.paceline_moe")


@lru_cache(maxsize=1)
def node_class() -> NodeClass:
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        arch = properties.gcnArchName if torch.version.hip else f"{properties.major}.{properties.minor}"
        return of_torch_properties(properties.name, arch, properties.multi_processor_count, properties.total_memory)
    memory_gb = max(1, round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30))
    return NodeClass("cpu", os.cpu_count() or 1, memory_gb, "cpu")


def computing() -> torch.device:
    """NotHere: none that the kernel is made for."""
    node = node_class()
    if node.target in TARGETS:
        return torch.device("cuda", torch.cuda.current_device())
    if node.target != "cpu":
        raise NotHere(f"{node.device_name} is {node.target}; the kernel is made for {', '.join(TARGETS)}")
    if os.environ.get(INTERPRETER) != "1":
        raise NotHere(f"no GPU here, and {INTERPRETER}=1, which runs the kernel on a CPU for tests, is not set")
    return torch.device("cpu")


def tell(loaded: Loaded) -> None:
    """What can be told of the device; that it cannot be known is no reason to fail."""
    try:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        loaded.rank = torch.distributed.get_rank() if distributed else 0
        node = node_class()
        loaded.device = Device(node.slug, node.device_name, node.target)
    except Exception as error:
        log.warning("this device's class cannot be told: %s", error)
