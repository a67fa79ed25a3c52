"""The store of tuned configurations: names, classes of nodes, tables with their sidecars, which one holds, and damaged files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.accelerators import accelerators
from kernels.errors import KernelInputError
from kernels.identity import kernel_hash
from kernels.roofline import active_experts
from kernels.shapes import MoeShape, model, models
from kernels.store import (
    About,
    KernelMismatch,
    KeyFacts,
    NodeClass,
    about_path,
    class_folder,
    default_config,
    find_vllm_tables,
    lookup,
    nearest,
    of_accelerator,
    of_torch_properties,
    parse_slug,
    read_table,
    read_vllm_table,
    store_roots,
    table_name,
    vllm_tables,
    write_table,
    write_vllm_table,
)
from kernels.store.checking import check
from kernels.store.jsonfiles import read_object, write_together
from kernels.store.lookup import SHIPPED
from kernels.store.names import class_device_name, file_device_name, parse_name
from kernels.tile import LayerConfig, Tile

GPT = model("gpt-oss-120b")
MI300X = NodeClass("gfx942", 304, 192, "AMD_Instinct_MI300X")
MI325X = NodeClass("gfx942", 304, 256, "AMD_Instinct_MI325X")
MI355X = NodeClass("gfx950", 256, 288, "AMD_Instinct_MI355X")
SMALL, LARGE = LayerConfig(), LayerConfig(Tile(32, 128, 256), Tile(32, 64, 256, warps=8))


def about(shape: MoeShape = GPT, of: NodeClass = MI300X, origin: str = "measured", **more: Any) -> About:
    keys = {m: KeyFacts(200.0 + m, 3.0, 100.0, 100.0 / (200.0 + m), 2e-3, {"uniform_us": 200.0 + m}) for m in (1, 16)}
    if origin == "untimed":
        keys = {m: KeyFacts(floor_us=10.0, more={"vgpr": 93}) for m in keys}
    fields: dict[str, Any] = {
        "kernel_hash": kernel_hash(),
        "triton": "3.9.0",
        "date": "2026-11-20T10:00:00Z",
        "keys": keys,
    } | more
    return About(shape, of.target, of.compute_units, of.memory_gb, of.device_name, origin, **fields)  # type: ignore[arg-type]


def written(root: Path, of: NodeClass = MI300X, origin: str = "measured", shape: MoeShape = GPT, **more: Any) -> Path:
    return write_table(class_folder(root, of), {16: LARGE, 1: SMALL}, about(shape, of, origin, **more))


# --- names and classes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "block", "name"),
    [
        ("mxfp4_w4a16", None, "E=128,N=2880,device_name=AMD_Instinct_MI300X,dtype=mxfp4_w4a16,H=2880.json"),
        ("bf16", None, "E=128,N=2880,device_name=AMD_Instinct_MI300X.json"),
        ("fp8_w8a8", None, "E=128,N=2880,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8.json"),
        ("fp8_w8a8", (128, 128), "E=128,N=2880,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"),
        ("int4_w4a16", None, "E=128,N=2880,device_name=AMD_Instinct_MI300X,dtype=int4_w4a16.json"),
    ],
)
def test_files_are_named_as_vllm_names_them(dtype: str, block: tuple[int, int] | None, name: str) -> None:
    assert table_name(GPT, "AMD Instinct MI300X", dtype, block) == name
    read = parse_name(name)
    assert read is not None
    assert str(read) == name


def test_layers_that_agree_in_all_that_vllm_names_have_tables_of_their_own(tmp_path: Path) -> None:
    r1, flash = model("DeepSeek-R1-MXFP4"), model("DeepSeek-V4-Flash")
    assert (r1.experts, r1.intermediate) == (flash.experts, flash.intermediate)
    written(tmp_path, shape=r1)
    assert lookup(r1, MI300X, [tmp_path]).how == "tuned"
    assert lookup(flash, MI300X, [tmp_path]).how == "default"


def test_a_name_without_the_hidden_size_is_read_and_its_sidecar_says_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    for one in (path, about_path(path)):
        one.rename(one.with_name(one.name.replace(",H=2880", "")))
    assert lookup(GPT, MI300X, [tmp_path]).how == "tuned"
    other = dataclasses.replace(GPT, hidden=4096)
    assert lookup(other, MI300X, [tmp_path]).how == "default"


@pytest.mark.parametrize(
    "name", ["E=0,N=1,device_name=x.json", "E=1,N=2.json", "E=1,N=2,device_name=a,dtype=odd.json", "x.json", ""]
)
def test_what_is_no_table_has_no_table_name(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize(
    ("said", "pci", "vllms", "ours"),
    [
        ("NVIDIA H200", "", "NVIDIA_H200", "NVIDIA_H200"),
        ("NVIDIA H200 NVL", "", "NVIDIA_H200", "NVIDIA_H200"),
        ("NVIDIA H20", "", "NVIDIA_H20", "NVIDIA_H20"),
        ("AMD Radeon Graphics", "0x74A1", "AMD_Instinct_MI300X", "AMD_Instinct_MI300X"),
        ("anything", "0x74b9", "AMD_Instinct_MI325X", "AMD_Instinct_MI325X"),
        ("AMD Instinct MI355 OAM", "", "AMD_Instinct_MI355_OAM", "AMD_Instinct_MI355X"),
        ("AMD Instinct MI355X VF", "", "AMD_Instinct_MI355X_VF", "AMD_Instinct_MI355X"),
        ("A/B  C", "", "A_B_C", "A_B_C"),
    ],
)
def test_devices_are_named_for_files_as_vllm_does_and_for_classes_by_accelerator(
    said: str, pci: str, vllms: str, ours: str
) -> None:
    assert file_device_name(said, pci) == vllms
    assert class_device_name(said, pci) == ours


@pytest.mark.parametrize(
    ("properties", "slug"),
    [
        (("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 206_141_652_992), "gfx942-304cu-192gb-AMD_Instinct_MI300X"),
        (("AMD Radeon Graphics", "gfx942:sramecc+:xnack-", 304, 274_877_906_944), "gfx942-304cu-256gb-AMD_Instinct_MI325X"),
        (("AMD Instinct MI355X VF", "gfx950", 256, 309_220_868_096), "gfx950-256cu-288gb-AMD_Instinct_MI355X"),
        (("AMD Instinct MI300X", "gfx942", 38, 206_141_652_992 // 8), "gfx942-38cu-24gb-AMD_Instinct_MI300X"),
        (("NVIDIA H200", "9.0", 132, 150_109_880_320), "sm_90-132cu-141gb-NVIDIA_H200"),
        (("NVIDIA GeForce RTX 4090", "sm_89", 128, 25_386_352_640), "sm_89-128cu-24gb-NVIDIA_GeForce_RTX_4090"),
    ],
)
def test_a_class_is_made_of_what_torch_says_of_a_device(properties: tuple[str, str, int, int], slug: str) -> None:
    found = of_torch_properties(*properties)
    assert found.slug == slug
    assert parse_slug(slug) == found


def test_classes_of_known_accelerators_are_what_their_devices_say() -> None:
    for each in accelerators().values():
        arch = each.target if each.is_amd else "9.0"
        assert of_torch_properties(each.device_names[0], arch, each.compute_units, each.memory_gb * 2**30) == of_accelerator(each)


@pytest.mark.parametrize("arch", ["", "gfx", "volta", "900.1", "sm_"])
def test_an_architecture_that_is_none_is_refused(arch: str) -> None:
    with pytest.raises(KernelInputError, match="arch = "):
        of_torch_properties("x", arch, 1, 2**30)


# --- tables --------------------------------------------------------------------------------------------------


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    facts = about(clocks={"sclk_mhz": 2100}, driver="6.14", torch="2.13.0", more={"budget_s": 60})
    path = write_table(tmp_path, {16: LARGE, 1: SMALL}, facts)
    table = read_table(path)
    assert table.configs == {1: SMALL, 16: LARGE}
    assert list(table.configs) == [1, 16]
    assert dataclasses.replace(table.about, table_hash="") == facts
    assert table.about.table_hash == table.hash
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, about_path(path).name])
    plain = json.loads(path.read_text())
    assert plain["triton_version"] == "3.9.0"
    assert plain["16"]["down"]["num_warps"] == 8


def test_an_untimed_table_has_no_times_and_a_measured_one_has_all(tmp_path: Path) -> None:
    with pytest.raises(KernelInputError, match='must not be there; origin "untimed" has no times'):
        write_table(tmp_path, {1: SMALL}, about(origin="untimed", keys={1: KeyFacts(us=3.0)}))
    with pytest.raises(KernelInputError, match="keys: 16: us is missing"):
        write_table(tmp_path, {1: SMALL, 16: LARGE}, about(keys={1: KeyFacts(us=3.0)}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tamper", ["edited", "sidecar of another", "no sidecar"])
def test_a_table_that_is_not_what_was_measured_is_refused(tmp_path: Path, tamper: str) -> None:
    path = written(tmp_path)
    if tamper == "edited":
        path.write_text(path.read_text().replace('"num_warps": 8', '"num_warps": 4'))
    elif tamper == "sidecar of another":
        other = written(tmp_path / "other", keys={1: KeyFacts(us=1.0), 16: KeyFacts(us=2.0)}, triton="3.8.0")
        about_path(path).write_bytes(about_path(other).read_bytes())
    else:
        about_path(path).unlink()
    with pytest.raises(KernelInputError, match="tune again"):
        read_table(path)


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(prefix: str, dir: Path) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied", f"{dir}/{prefix}made-up")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    with pytest.raises(KernelInputError, match=r"/floors\.svg: cannot be written: Permission denied; name another folder"):
        write_together({tmp_path / "floors.svg": b"<svg/>"})


def test_a_disk_that_fails_midway_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    before = path.read_bytes(), about_path(path).read_bytes()
    real, calls = os.replace, 0

    def full(source: str, target: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the sidecar is in its place, the table is not
            raise OSError(28, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(KernelInputError, match="No space left on device; name another folder"):
        written(tmp_path, triton="3.8.0")
    assert (path.read_bytes(), about_path(path).read_bytes()) == before
    assert len(list(path.parent.iterdir())) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: no JSON"),
        ("{", ":1: no JSON"),
        ('{\n "16": {},\n 7}', ":3: no JSON"),
        ("[]", ":1: must be a JSON object ({…}), is a list"),
        ("{}", ":1: has no configuration"),
        ('{"triton_version": "3.9.0"}', ":1: has no configuration"),
        ('{"triton_version": 3, "16": {}}', "triton_version = 3 must be a text"),
        ('{\n"16": {},\n"16": {}}', "16 is there twice"),
        ('{"016": {}}', "must be a number of tokens"),
        ('{"-1": {}}', "must be a number of tokens"),
        ('{"1e3": {}}', "must be a number of tokens"),
        ('{"9999999": {}}', "must be a number of tokens"),
        ('{\n\n"16": 3}', ":3: 16 = '3' must be a table"),
        ('{\n"16": {}}', ":2: 16: BLOCK_SIZE_M is missing"),
        ('{"16": {"BLOCK_SIZE_M": NaN}}', "NaN is no number"),
        ('{"16": {"BLOCK_SIZE_M": 48, "BLOCK_SIZE_N": 64}}', "BLOCK_SIZE_M = 48 must be one of 16, 32"),
        ('{"16": ' + "[" * 100_000 + "]" * 100_000 + "}", "nesting too deep"),
        ('{"16": ' + "9" * 10_000 + "}", "a number is too long"),
    ],
)
def test_what_is_wrong_in_a_table_is_told_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path)
    path.write_text(text)
    with pytest.raises(KernelInputError) as caught:
        read_table(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema') = 2 must be 1"),
        ({"origin": "guessed"}, "origin = 'guessed' must be one of measured, untimed"),
        ({"target": "gfx90a"}, "target = 'gfx90a' must be one of gfx942"),
        ({"compute_units": 0}, "compute_units = '0' must be a whole number"),
        ({"compute_units": 228}, "node_class = 'gfx942-304cu-192gb-AMD_Instinct_MI300X' must be gfx942-228cu"),
        ({"kernel_hash": "xyz"}, "kernel_hash = 'xyz' must be 12 digits"),
        ({"shape": 3}, "shape = '3' must be a table"),
        ({"keys": {"2": {}}}, "keys: 2 is no key of the table, which has 1, 16"),
        ({"keys": {"x": {}}}, "keys: x must be a number of tokens"),
        ({"keys": {"1": {"us": -1}}}, "us = '-1' must be a number"),
        ({"keys": {"1": {"us": 10**400}}}, "must be a number"),
        ({"keys": {"1": {"us": 10.0, "floor_us": 5.0, "of_floor": 0.9}}}, "of_floor = 0.9 must be floor_us / us = 0.500"),
        ({"date": "x\ny"}, "must be a text of one line"),
    ],
)
def test_what_is_wrong_in_a_sidecar_is_told_with_its_field(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = written(tmp_path)
    beside = about_path(path)
    beside.write_text(json.dumps(json.loads(beside.read_text()) | change, indent=1))
    with pytest.raises(KernelInputError) as caught:
        read_table(path)
    assert said.replace("')", "") in str(caught.value)


def test_a_folder_a_pipe_and_a_huge_file_are_no_tables(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(KernelInputError, match="is no file"):
        read_table(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(KernelInputError, match="is no file"):
        read_table(path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(5_000_000)
    with pytest.raises(KernelInputError, match="more than 4,000,000 bytes"):
        read_table(path)


def test_damaged_files_are_told_and_never_a_traceback(tmp_path: Path) -> None:
    table = written(tmp_path)
    chance = random.Random(8)
    for path in (table, about_path(table)):
        whole = path.read_bytes()
        for _ in range(150):
            damaged = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                place = chance.randrange(len(damaged))
                damaged[place : place + chance.randint(0, 3)] = bytes(
                    chance.choices(b'"{}[]:,0189.eE-x\xff\n', k=chance.randint(0, 3))
                )
            path.write_bytes(damaged)
            with contextlib.suppress(KernelInputError):
                read_table(table)
            assert all(problem.text.startswith(str(tmp_path)) for problem in check([tmp_path]).problems)
        path.write_bytes(whole)
    assert check([tmp_path]).problems == []


# --- which table holds ---------------------------------------------------------------------------------------


def test_a_measured_table_of_the_class_comes_before_one_chosen_offline(tmp_path: Path) -> None:
    shipped, mine = tmp_path / "shipped", tmp_path / "mine"
    written(shipped, origin="untimed")
    found = lookup(GPT, MI300X, [mine, shipped])
    assert (found.how, found.config(16).how, found.config(16).key) == ("untimed", "untimed", 16)
    written(mine)
    found = lookup(GPT, MI300X, [mine, shipped], triton="3.9.0")
    assert (found.how, found.note) == ("tuned", "")
    assert [found.config(m).how for m in (1, 2, 16, 4096)] == ["tuned", "nearest", "tuned", "nearest"]
    assert found.config(4096).config == LARGE


def test_an_offline_table_holds_for_other_classes_of_its_target_and_a_measured_one_does_not(tmp_path: Path) -> None:
    written(tmp_path)
    found = lookup(GPT, MI325X, [tmp_path])
    assert found.how == "default"
    assert "was measured on gfx942-304cu-192gb-AMD_Instinct_MI300X, another class" in found.note
    written(tmp_path, origin="untimed")
    found = lookup(GPT, MI325X, [tmp_path])
    assert found.how == "untimed"
    assert "chosen offline for gfx942-304cu-192gb" in found.note
    assert lookup(GPT, MI355X, [tmp_path]).how == "default"


def test_the_folder_of_one_class_is_a_store_too_and_on_another_target_it_is_refused(tmp_path: Path) -> None:
    flat = written(tmp_path).parent
    assert lookup(GPT, MI300X, [flat]).how == "tuned"
    with pytest.raises(KernelInputError, match=r"is for gfx942 .* and this node is gfx950-256cu-288gb"):
        lookup(GPT, MI355X, [flat])


def test_a_table_in_the_folder_of_another_class_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, MI325X)
    path.parent.rename(class_folder(tmp_path, MI300X))
    with pytest.raises(KernelInputError, match="lies in the folder of gfx942-304cu-192gb-AMD_Instinct_MI300X"):
        lookup(GPT, MI300X, [tmp_path])


def test_a_table_of_another_kernel_is_refused_with_both_hashes(tmp_path: Path) -> None:
    written(tmp_path, kernel_hash="0123456789ab")
    with pytest.raises(KernelMismatch, match=rf"is for kernel 0123456789ab and this kernel is {kernel_hash()}.*tune again"):
        lookup(GPT, MI300X, [tmp_path])


def test_another_triton_and_another_routing_are_remarks(tmp_path: Path) -> None:
    written(tmp_path)
    other = dataclasses.replace(GPT, top_k=8)
    found = lookup(other, MI300X, [tmp_path], triton="3.8.0")
    assert found.how == "tuned"
    assert "of triton 3.9.0 and this is 3.8.0" in found.note
    assert "for 4 experts a token, not 8" in found.note


def test_a_damaged_table_of_another_class_does_not_stop_this_one(tmp_path: Path) -> None:
    written(tmp_path, MI325X).write_text("{")
    written(tmp_path)
    assert lookup(GPT, MI300X, [tmp_path]).how == "tuned"
    with pytest.raises(KernelInputError, match="no JSON"):
        lookup(GPT, MI325X, [tmp_path])


def test_stores_are_the_persons_and_then_the_shipped_one(tmp_path: Path) -> None:
    assert store_roots({}) == (SHIPPED,)
    assert store_roots({"PACELINE_KERNEL_STORE": str(tmp_path)}) == (tmp_path, SHIPPED)
    with pytest.raises(KernelInputError, match=r"PACELINE_KERNEL_STORE = .*gone: is not there"):
        store_roots({"PACELINE_KERNEL_STORE": str(tmp_path / "gone")})


KEYS = st.lists(st.integers(1, 1 << 20), min_size=1, max_size=12, unique=True).map(sorted)


@given(keys=KEYS, m=st.integers(1, 1 << 20))
def test_the_nearest_key_is_nearest_in_log_m(keys: list[int], m: int) -> None:
    found = nearest(keys, m)
    assert found in keys
    assert all(abs(math.log(found / m)) <= abs(math.log(key / m)) + 1e-12 for key in keys)
    if m in keys:
        assert found == m


@given(low=st.integers(1, 1000), ratio=st.integers(2, 100))
def test_of_two_keys_as_near_it_is_the_larger(low: int, ratio: int) -> None:
    assert nearest([low, low * ratio * ratio], low * ratio) == low * ratio * ratio
    assert nearest([low, low * ratio * ratio], low * ratio - 1) == low


@pytest.mark.parametrize("m", [0, -4])
def test_no_tokens_have_no_configuration(m: int) -> None:
    with pytest.raises(KernelInputError, match="must be 1 or more"):
        nearest([1], m)
    with pytest.raises(KernelInputError, match="must be 1 or more"):
        default_config(GPT, m)


def test_without_a_table_decode_has_small_tiles_and_prefill_large_ones() -> None:
    assert default_config(GPT, 512).gate_up.block_m == 16
    assert default_config(GPT, 8192).gate_up.block_m == 64
    assert default_config(GPT.split(ep=8), 512).gate_up.block_m == 16


# --- vLLM's own ----------------------------------------------------------------------------------------------

VLLM = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}


def test_vllms_tables_are_written_and_read_and_are_no_tables_of_ours(tmp_path: Path) -> None:
    r1 = model("DeepSeek-R1").split(ep=8)
    folder = class_folder(tmp_path, MI300X)
    path = write_vllm_table(
        folder,
        r1,
        "AMD Instinct MI300X",
        "fp8_w8a8",
        {16: VLLM, 1: VLLM | {"waves_per_eu": 2}},
        block_shape=(128, 128),
        triton="3.9.0",
    )
    assert path.name == "E=32,N=2048,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"
    table = read_vllm_table(path)
    assert list(table.configs) == [1, 16]
    assert (table.triton, table.about) == ("3.9.0", None)
    assert table.config(8) == (1, table.configs[1])  # |M - key|, of two as near the first
    assert vllm_tables(folder) == [path]
    assert lookup(r1, MI300X, [tmp_path]).how == "default"
    assert [one.path for one in find_vllm_tables(r1, MI300X, [tmp_path])] == [path]
    assert check([tmp_path]).problems == []


def test_vllms_tables_may_have_a_sidecar(tmp_path: Path) -> None:
    r1 = model("DeepSeek-R1")
    facts = about(r1, MI300X, kernel_hash="", engine="vllm 0.33.0", keys={16: KeyFacts(us=900.0)})
    path = write_vllm_table(tmp_path, r1, "AMD_Instinct_MI300X", "fp8_w8a8", {16: VLLM}, about=facts)
    read = read_vllm_table(path).about
    assert read is not None
    assert (read.engine, read.keys[16].us) == ("vllm 0.33.0", 900.0)
    path.write_text(path.read_text().replace("64", "32"))
    with pytest.raises(KernelInputError, match="restore both files, or tune again"):
        read_vllm_table(path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "BLOCK_SIZE_M is missing"),
        (VLLM | {"BLOCK_SIZE_N": 96}, "BLOCK_SIZE_N = '96' must be one of"),
        (VLLM | {"num_warps": True}, "num_warps = 'True' must be one of"),
        (VLLM | {"down": dict(VLLM)}, "down is no field of vLLM's"),
    ],
)
def test_what_vllm_would_choke_on_is_not_written(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelInputError) as caught:
        write_vllm_table(tmp_path, GPT, "NVIDIA_H200", "bf16", {16: config})
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_dtype_and_a_block_shape_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelInputError, match="dtype = 'mxfp4_w4a16' must be one of bf16"):
        write_vllm_table(tmp_path, GPT, "NVIDIA_H200", "mxfp4_w4a16", {16: VLLM})
    with pytest.raises(KernelInputError, match=r"block_shape = \[128, 128\]"):
        table_name(GPT, "NVIDIA_H200", "bf16", (128, 128))
    with pytest.raises(KernelInputError, match="cannot stand in the name of a file"):
        table_name(GPT, "a,b", "bf16")


# --- floors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", models().values(), ids=str)
def test_one_token_touches_as_many_experts_as_the_router_gives_it(shape: MoeShape) -> None:
    assert active_experts(shape, 1) == pytest.approx(shape.top_k)


def test_what_floods_a_file_is_told_at_once_and_on_a_line(tmp_path: Path) -> None:
    many = tmp_path / "many.json"
    many.write_text("{" + ",".join(f'"{number}": 1' for number in range(60_000)) + ', "59999": 2}')
    began_s = time.monotonic()
    with pytest.raises(KernelInputError, match="59999 is there twice"):
        read_object(many)
    assert time.monotonic() - began_s < 10
    table = tmp_path / "E=8,N=64,device_name=NVIDIA_H200,dtype=mxfp4_w4a16.json"
    table.write_text(json.dumps({str(number): {} for number in range(1, 2000)}))
    with pytest.raises(KernelInputError, match="1,999 configurations; a table has at most 1,000"):
        read_table(table)
    table.write_text(json.dumps({"1": {"BLOCK_SIZE_M": "x" * 100_000}, "2": {"\x1b[31m\n": 1}}))
    with pytest.raises(KernelInputError) as caught:
        read_table(table)
    assert len(str(caught.value)) < 600
    table.write_text(json.dumps({"\x1b[31m\n": 1}))
    with pytest.raises(KernelInputError) as caught:
        read_table(table)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_class_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "store")
    shut = sorted((tmp_path / "store").iterdir())[0]
    shut.chmod(0)
    found = check([tmp_path / "store"])
    shut.chmod(0o755)
    assert [problem.path for problem in found.problems] == [shut]
    assert found.tables
