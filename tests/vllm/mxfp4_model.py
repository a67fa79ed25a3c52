"""The tiny gpt-oss with MXFP4 experts, as the published checkpoints have them, and beside it the same model in bf16.

Its experts are the tiny model's, rounded to MXFP4. Every such value is one that bf16 holds, so both checkpoints are one model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from harness.engines import tinymodel
from kernels.reference.mxfp4 import decode, encode

PROJECTIONS = ("gate_up_proj", "down_proj")


def write_both(folder: Path) -> tuple[Path, Path]:
    """(MXFP4, bf16)"""
    packed_folder, plain_folder = folder / "mxfp4", folder / "bf16"
    with mock.patch.object(tinymodel, "KV_HEADS", tinymodel.HEADS):  # one alone is not to be split between two ranks
        tinymodel.write_tiny_model(plain_folder, "gpt-oss")
    shutil.copytree(plain_folder, packed_folder)
    plain = load_file(plain_folder / "model.safetensors")
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in list(plain.items()):
        if name.rpartition(".")[2] not in PROJECTIONS:
            packed[name] = tensor
            continue
        # Their axes are [E, K, N] in bf16 and [E, N, K] in MXFP4.
        rows = np.ascontiguousarray(tensor.transpose(1, 2).to(torch.float64).numpy())
        codes, scales = encode(rows)
        packed[f"{name}_blocks"] = torch.from_numpy(np.ascontiguousarray(codes).reshape(*scales.shape, 16))
        packed[f"{name}_scales"] = torch.from_numpy(np.ascontiguousarray(scales))
        values = np.ascontiguousarray(decode(codes, scales).swapaxes(1, 2))
        plain[name] = torch.from_numpy(values).to(torch.bfloat16)
        assert (plain[name].to(torch.float64).numpy() == values).all()
    save_file(packed, packed_folder / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, plain_folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((packed_folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (packed_folder / "config.json").write_text(json.dumps(config))
    return packed_folder, plain_folder
