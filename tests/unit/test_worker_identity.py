"""Which physical GPUs a replica registers, read from files as drivers write them; and spellings of one UUID."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.metrics.gpu.uuids import uuid_key
from harness.spec import RunSpec
from harness.worker import identity as module
from harness.worker.identity import Gpu, amd_gpus, identity, nvidia_gpus, owned
from harness.worker.versions import accelerator

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
INFORMATION = """Model: \t\t NVIDIA H200
IRQ:   \t\t 164
GPU UUID: \t GPU-{uuid}
Video BIOS: \t 96.00.be.00.05
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {pci}
Device Minor: \t {minor}
GPU Firmware: \t 570.86.15
GPU Excluded:\t No
"""
PROPERTIES = """cpu_cores_count 0
simd_count {simds}
mem_banks_count 1
vendor_id 4098
device_id 30112
location_id {location}
domain {domain}
drm_render_minor 128
unique_id {unique}
"""


def nvidia(folder: Path, gpus: list[tuple[str, int, str]], files: list[int] | None = None) -> dict[str, Path]:
    """PCI address, minor number and UUID of each; `files`: the device files there are, all without it."""
    proc, dev = folder / "proc", folder / "dev"
    dev.mkdir()
    for pci, minor, uuid in gpus:
        (proc / pci).mkdir(parents=True)
        (proc / pci / "information").write_text(INFORMATION.format(uuid=uuid, pci=pci, minor=minor))
    for minor in files if files is not None else [minor for _, minor, _ in gpus]:
        (dev / f"nvidia{minor}").touch()
    return {"proc": proc, "dev": dev}


def amd(folder: Path, gpus: int = 8, hidden: tuple[int, ...] = ()) -> Path:
    """Two processors, then GPUs; those `hidden` are there and may not be read, as in a container."""
    nodes = folder / "nodes"
    for node in range(gpus + 2):
        (nodes / str(node)).mkdir(parents=True)
        if node - 2 in hidden:
            continue
        text = PROPERTIES.format(simds=1024, location=(0x05 + 0x20 * (node - 2)) << 8, domain=0, unique=0x724C3B58BF670500 + node)
        (nodes / str(node) / "properties").write_text("cpu_cores_count 96\nsimd_count 0\n" if node < 2 else text)
    return nodes


# --- drivers' files ----------------------------------------------------------------------------------------------


def test_nvidia_gpus_are_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    where = nvidia(tmp_path, [("0000:c1:00.0", 0, "b"), ("0000:19:00.0", 1, "a")])
    assert nvidia_gpus(**where) == [Gpu(0, "GPU-a", "0000:19:00.0"), Gpu(1, "GPU-b", "0000:c1:00.0")]


def test_of_a_container_that_has_some_the_device_files_tell_the_number(tmp_path: Path) -> None:
    where = nvidia(tmp_path, [("0000:19:00.0", 4, "a"), ("0000:1b:00.0", 5, "b"), ("0000:c1:00.0", 6, "c")], files=[4, 6])
    assert [(one.number, one.uuid) for one in nvidia_gpus(**where)] == [(4, "GPU-a"), (6, "GPU-c")]


def test_amd_gpus_have_their_address_from_the_location_and_the_runtimes_uuid(tmp_path: Path) -> None:
    found = amd_gpus(amd(tmp_path, gpus=2))
    assert found == [Gpu(0, "GPU-724c3b58bf670502", "0000:05:00.0"), Gpu(1, "GPU-724c3b58bf670503", "0000:25:00.0")]


def test_amd_gpus_of_other_containers_count_and_are_not_ours(tmp_path: Path) -> None:
    found = amd_gpus(amd(tmp_path, gpus=12, hidden=(0, 1, 2, 9)))
    assert [one.number for one in found] == [3, 4, 5, 6, 7, 8, 10, 11], "node 10 comes after node 9, not after node 1"


def test_an_address_has_domain_device_and_function(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "0"
    node.mkdir(parents=True)
    (node / "properties").write_text(PROPERTIES.format(simds=4, location=0xC1 << 8 | 3 << 3 | 2, domain=1, unique=0))
    assert amd_gpus(tmp_path / "nodes") == [Gpu(0, "", "0001:c1:03.2")], "a virtual machine tells no unique id"


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    assert nvidia_gpus(tmp_path / "none", tmp_path) == []
    assert amd_gpus(tmp_path / "none") == []


# --- what a mask leaves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "devices", "numbers"),
    [
        ({HIP: "2,3"}, 2, [2, 3]),
        ({HIP: "3,2"}, 2, [3, 2]),
        ({ROCR: "4,5,6,7", HIP: "1"}, 1, [5]),
        ({ROCR: "GPU-724c3b58bf670505,GPU-724C3B58BF670502"}, 2, [3, 0]),
        ({CUDA: "6"}, 1, [6]),
        ({}, 8, list(range(8))),
        ({}, 1, []),  # eight to be seen and one owned: which one is not known
        ({HIP: "2,9"}, 2, []),
    ],
)
def test_a_replica_owns_what_its_mask_leaves(tmp_path: Path, environ: dict[str, str], devices: int, numbers: list[int]) -> None:
    mine = owned(devices, environ, proc=tmp_path, kfd_nodes=amd(tmp_path), dev=tmp_path)
    assert [one.number for one in mine] == numbers


@pytest.mark.parametrize(("value", "numbers"), [("1", [1]), ("GPU-b", [1]), ("GPU-", []), ("MIG-77", []), ("", []), ("0", [0])])
def test_cuda_takes_places_and_beginnings_of_uuids(tmp_path: Path, value: str, numbers: list[int]) -> None:
    where = nvidia(tmp_path, [("0000:19:00.0", 0, "a1"), ("0000:c1:00.0", 1, "b2")])
    assert [one.number for one in owned(1, {CUDA: value}, kfd_nodes=tmp_path, **where)] == numbers


# --- in REGISTER -------------------------------------------------------------------------------------------------


def spec_of(engine: str, **layout: Any) -> RunSpec:
    return RunSpec.model_validate({"fleet": {"engine": engine, "replicas_per_node": 2, "layout": layout}})


def test_a_replica_registers_numbers_uuids_and_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = amd(tmp_path)
    monkeypatch.setattr(module, "owned", lambda devices, environ: owned(devices, environ, proc=tmp_path, kfd_nodes=nodes))
    said = identity(spec_of("vllm", tp=2), 0, 1, {HIP: "2,3"})
    assert said == {
        "gpus": "2,3",
        "uuids": "GPU-724c3b58bf670504,GPU-724c3b58bf670505",
        "pcis": "0000:45:00.0,0000:65:00.0",
    }
    assert identity(spec_of("vllm", device="cpu"), 0, 0, {}) == {}
    assert identity(spec_of("openai", tp=2), 0, 0, {HIP: "2,3"}) == {}, "a server elsewhere owns none of ours"


def test_a_synthetic_replica_registers_names_that_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (CUDA, HIP, ROCR):
        monkeypatch.delenv(name, raising=False)
    said = accelerator(spec_of("synthetic"), 3, 1)
    assert said == {"name": "MI355X (simulated)", "gpus": "1", "uuids": "synthetic-node003-1"}
    monkeypatch.setenv(HIP, "5")
    assert accelerator(spec_of("synthetic"), 3, 1) == {HIP: "5", "ordinal": "1", **said}


# --- spellings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("GPU-724c3b58bf67050e", "72ff740f-0000-1000-804c-3b58bf67050e"),
        ("gpu-724C3B58BF67050E", "7200740f-0000-1000-804c-3b58bf67050e"),  # newer: partition 0
        ("GPU-c3ff88426fc31c9e", "c3ff74a1-0000-0000-80ff-88426fc31c9e"),  # an exporter without the version digit
        ("GPU-8e3a1f00-1b2c-4d5e-8f90-0123456789ab", "gpu-8E3A1F00-1B2C-4D5E-8F90-0123456789AB"),
        ("synthetic-node000-3", "synthetic-node000-3"),
    ],
)
def test_spellings_of_one_uuid_are_equal(one: str, other: str) -> None:
    assert uuid_key(one) == uuid_key(other) != ""


def test_other_gpus_are_not_equal_and_none_is_none() -> None:
    assert uuid_key("GPU-724c3b58bf67050f") != uuid_key("72ff740f-0000-1000-804c-3b58bf67050e")
    assert uuid_key("8e3a1f00-1b2c-4d5e-8f90-0123456789ab") != uuid_key("8e3a1f00-1b2c-4d5e-8f91-0123456789ab")
    assert uuid_key("") == ""
