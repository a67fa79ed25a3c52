"""What the plugin tries before it takes a layer: each tile that it may choose later, since a compiler may fail at one of them.

Triton 3.6, say, compiles the kernel for gfx942 with BLOCK_SIZE_K = 128 and not with 64, which only prefill has.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.errors import NotHere
from kernels.plugin.loaded import this_process
from kernels.shapes import MoeShape
from kernels.store.lookup import DECODE_DEFAULT, PREFILL_DEFAULT
from kernels.store.nodeclass import NodeClass
from kernels.tile import LayerConfig

pytest.importorskip("torch", exc_type=ImportError)

SHAPE = MoeShape("of no table", 8, 2, 96, 64)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LayerConfig]]:
    from kernels.plugin import choice

    configs: list[LayerConfig] = []
    before, kernel_hash = this_process().config, this_process().kernel_hash
    monkeypatch.setattr(choice.proof, "of_kernel", lambda config, device: configs.append(config))
    monkeypatch.setattr(choice.device, "computing", lambda: "cuda")
    monkeypatch.setattr(choice.device, "node_class", lambda: NodeClass("gfx942", 304, 192, "AMD_Instinct_MI300X"))
    choice.choose.cache_clear()
    yield configs
    choice.choose.cache_clear()
    this_process().config, this_process().kernel_hash = before, kernel_hash


def test_every_tile_that_may_be_chosen_is_tried_before_a_layer_is_taken(tried: list[LayerConfig]) -> None:
    from kernels.plugin.choice import choose, gpt_oss_shape

    assert choose(SHAPE).how == "default"
    assert tried == [DECODE_DEFAULT, PREFILL_DEFAULT]
    tried.clear()
    found = choose(gpt_oss_shape(128, 4, 2880, 2880, True, 128))
    assert found.table is not None
    assert set(tried) == set(found.table.configs.values())
    assert len(tried) == len(set(tried))


def test_a_tile_of_prefill_that_fails_leaves_the_layer_to_the_engine(
    tried: list[LayerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.plugin import choice

    def failing(config: LayerConfig, device: object) -> None:
        if config == PREFILL_DEFAULT:
            raise NotHere("failed to translate module to LLVM IR")

    monkeypatch.setattr(choice.proof, "of_kernel", failing)
    with pytest.raises(NotHere, match="translate"):
        choice.choose(SHAPE)


@pytest.mark.filterwarnings("error")
def test_the_proof_logs_no_warning_of_torch() -> None:
    import torch

    from kernels.plugin import proof

    assert proof.of_kernel(DECODE_DEFAULT, torch.device("cpu")) < proof.ERROR_LIMIT
