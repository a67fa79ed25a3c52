"""What a tuning found, as a table of the store with its sidecar. One that is there already for the same kernel, compiler and
class of node keeps its other keys."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels.errors import KernelInputError
from kernels.identity import kernel_hash
from kernels.store import About, KeyFacts, class_folder, read_table, read_vllm_table, table_name, write_table, write_vllm_table
from kernels.tile import LayerConfig
from kernels.tuner import vllm_moe
from kernels.tuner.plan import Chosen, Tuned


def write(found: Tuned) -> Path:
    """The table and its sidecar, with the keys of an earlier one that were measured with the same."""
    plan, probe, node_class = found.plan, found.probe, found.node_class
    if any(chosen.measured.rehearsal for chosen in found.chosen.values()):
        raise KernelInputError("a rehearsal's times are of no device: they cannot be written into a table")
    ours = plan.kernel == "paceline"
    keys = {m: _facts(chosen) for m, chosen in found.chosen.items()}
    configs: dict[int, dict[str, Any]] = {m: chosen.config for m, chosen in found.chosen.items()}
    about = About(
        plan.shape, node_class.target, node_class.compute_units, node_class.memory_gb, node_class.device_name, "measured",
        kernel_hash() if ours else "", probe.triton, probe.torch, probe.driver, "" if ours else f"vllm {probe.vllm}",
        {"max": probe.clocks} if probe.clocks else {}, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), keys,
        more={"activations": plan.dtype, "read_gb_s": round(found.read_gb_s, 1)},
    )  # fmt: skip
    folder = class_folder(plan.store, node_class)
    earlier = _earlier(found, folder, about)
    if earlier is not None:
        before, facts = earlier
        configs = {**before, **configs}
        about = replace(about, keys={**facts, **keys})
    if ours:
        return write_table(folder, {m: LayerConfig.of(config) for m, config in configs.items()}, about)
    return write_vllm_table(
        folder, plan.shape, probe.device_name, plan.table_dtype, configs,
        block_shape=vllm_moe.block_shape(plan.shape.weights), triton=probe.triton, about=about,
    )  # fmt: skip


def _facts(chosen: Chosen) -> KeyFacts:
    times = chosen.measured
    return KeyFacts(
        round(times.uniform_us, 2), round(times.spread_us, 2), round(chosen.floor_us, 2),
        round(chosen.floor_us, 2) / round(times.uniform_us, 2), float(f"{times.error:.3g}"),
        {"uniform_us": round(times.uniform_us, 2), "zipf_us": round(times.zipf_us, 2)},
        {"experts": round(times.experts, 1), "repetitions": times.repetitions, "complete": chosen.complete},
    )  # fmt: skip


def _earlier(found: Tuned, folder: Path, about: About) -> tuple[dict[int, dict[str, Any]], Mapping[int, KeyFacts]] | None:
    """Configurations and facts of the table that is there, if it was measured with the same kernel, compiler and shape."""
    plan = found.plan
    block_shape = vllm_moe.block_shape(plan.shape.weights) if plan.kernel == "vllm" else None
    device = found.probe.device_name if plan.kernel == "vllm" else about.device_name
    path = folder / table_name(plan.shape, device, plan.table_dtype, block_shape)
    if not path.is_file():
        return None
    before: dict[int, dict[str, Any]]
    try:
        if plan.kernel == "paceline":
            table = read_table(path)
            before, there = {m: config.json() for m, config in table.configs.items()}, table.about
        else:
            theirs = read_vllm_table(path)
            before = {m: dict(config) for m, config in theirs.configs.items()}
            if theirs.about is None:
                return None
            there = theirs.about
    except KernelInputError:  # damaged or half replaced: "tune again" is what is said of it, and this is that
        return None
    same = ("origin", "kernel_hash", "triton", "engine")
    if any(getattr(there, name) != getattr(about, name) for name in same) or there.shape != about.shape:
        return None
    if there.more.get("activations") != about.more["activations"]:
        return None
    return before, there.keys
