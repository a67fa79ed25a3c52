"""What a layer runs with: the table of configurations for its shape on this class of nodes. And proof that the kernel works."""

from __future__ import annotations

from functools import lru_cache

import triton

from kernels.identity import kernel_hash
from kernels.plugin import device, proof
from kernels.plugin.loaded import Config, this_process
from kernels.shapes import GPT_OSS_SWIGLU, MoeShape, models
from kernels.store.lookup import Found, lookup


def gpt_oss_shape(experts: int, top_k: int, hidden: int, intermediate: int, bias: bool, global_experts: int) -> MoeShape:
    """With the name of the known model of these sizes; `experts` and `intermediate` may be a rank's part."""
    named = [each.model for each in models().values() if (each.hidden, each.experts, each.bias) == (hidden, global_experts, True)]
    return MoeShape(
        named[0] if named else "gpt-oss", experts, top_k, hidden, intermediate,
        gate_up="interleaved", bias=bias, activation=GPT_OSS_SWIGLU, global_experts=global_experts,
    )  # fmt: skip


@lru_cache(maxsize=8)
def choose(shape: MoeShape) -> Found:
    """Told to the report. NotHere where the kernel cannot run, KernelInputError where the store is at fault."""
    computing = device.computing()
    found = lookup(shape, device.node_class(), triton=triton.__version__)
    for config in found.configs:  # a compiler that manages one tile may fail at another, and then in the midst of serving
        proof.of_kernel(config, computing)
    loaded = this_process()
    loaded.kernel_hash = kernel_hash()
    loaded.config = Config(found.how)
    if (table := found.table) is not None:
        of_floor = {str(m): facts.of_floor for m, facts in table.about.keys.items() if facts.of_floor is not None}
        loaded.config = Config(found.how, str(table.path), table.hash, sorted(table.configs), of_floor)
    return found
