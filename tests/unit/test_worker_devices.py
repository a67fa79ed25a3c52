"""Which accelerators a node has, what variables leave of them, and which of these a replica sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.spec import RunSpec
from harness.worker.devices import Inventory, NoDevices, choose, mask, take_inventory

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


def machine(folder: Path, nvidia: int = 0, amd: int = 0, kfd: bool = True) -> dict[str, Path]:
    """Its /dev, and a topology whose first node is the processor, as the driver writes it."""
    dev, nodes = folder / "dev", folder / "nodes"
    dev.mkdir()
    for name in [*(f"nvidia{n}" for n in range(nvidia)), "nvidiactl", "nvidia-uvm", "null"]:
        (dev / name).touch()
    if amd:
        if kfd:
            (dev / "kfd").touch()
        for number in range(amd + 1):
            (nodes / str(number)).mkdir(parents=True)
            simds = 1216 if number else 0
            (nodes / str(number) / "properties").write_text(f"cpu_cores_count {0 if number else 96}\nsimd_count {simds}\n")
    return {"dev": dev, "kfd_nodes": nodes}


def test_a_machine_without_accelerators_has_none(tmp_path: Path) -> None:
    assert take_inventory({}, **machine(tmp_path)) == []
    assert take_inventory({}, tmp_path / "nothing", tmp_path / "nothing") == []


def test_nvidia_devices_are_counted_by_their_files(tmp_path: Path) -> None:
    (found,) = take_inventory({}, **machine(tmp_path, nvidia=8))
    assert (found.kind, found.ids) == ("cuda", tuple("01234567"))
    assert str(found) == "8 CUDA accelerators"


def test_amd_devices_are_the_topology_nodes_with_simd_units(tmp_path: Path) -> None:
    (found,) = take_inventory({}, **machine(tmp_path, amd=4))
    assert (found.kind, found.ids, str(found)) == ("rocm", tuple("0123"), "4 ROCm accelerators")


def test_a_topology_without_its_device_file_belongs_to_the_host_of_a_container(tmp_path: Path) -> None:
    assert take_inventory({}, **machine(tmp_path, amd=4, kfd=False)) == []


def test_an_amd_node_whose_properties_cannot_be_read_is_not_ours(tmp_path: Path) -> None:
    where = machine(tmp_path, amd=4)
    (where["kfd_nodes"] / "2" / "properties").unlink()
    (found,) = take_inventory({}, **where)
    assert len(found.ids) == 3


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("2,3", ("2", "3")),
        (" 5 , 1 ", ("5", "1")),
        ("", ()),
        ("-1", ()),
        ("0,9,1", ("0",)),
        ("1,1,2", ("1",)),
        ("GPU-8e3a,MIG-77", ("GPU-8e3a", "MIG-77")),
        ("nonsense,0", ()),
    ],
)
def test_cuda_visible_devices_narrows_as_the_driver_reads_it(tmp_path: Path, value: str, ids: tuple[str, ...]) -> None:
    (found,) = take_inventory({CUDA: value}, **machine(tmp_path, nvidia=8))
    assert found.ids == ids
    assert str(found).endswith(f"of 8 ({CUDA}={value})") or not ids


@pytest.mark.parametrize(
    ("environ", "ids"),
    [
        ({HIP: "6,7"}, ("6", "7")),
        ({ROCR: "4,5,6"}, ("0", "1", "2")),  # HIP counts from 0 in what ROCR leaves
        ({ROCR: "4,5,6", HIP: "2"}, ("2",)),
        ({ROCR: "GPU-a,GPU-b"}, ("0", "1")),
        ({CUDA: "3"}, ("3",)),  # an alias there
        ({CUDA: "3", HIP: ""}, ("3",)),
        ({HIP: "", ROCR: ""}, ()),
    ],
)
def test_rocm_variables_narrow_one_below_the_other(tmp_path: Path, environ: dict[str, str], ids: tuple[str, ...]) -> None:
    (found,) = take_inventory(environ, **machine(tmp_path, amd=8))
    assert found.ids == ids


def test_auto_takes_what_is_visible_and_a_named_kind_only_that(tmp_path: Path) -> None:
    both = take_inventory({CUDA: ""}, **machine(tmp_path, nvidia=1, amd=2))
    assert [choose(both, device).kind for device in ("auto", "cuda", "rocm", "cpu")] == ["rocm", "cuda", "rocm", "none"]


# --- masks -------------------------------------------------------------------------------------------------------


def spec_of(nodes: int = 1, replicas: int = 4, kind: str = "auto", **layout: Any) -> RunSpec:
    fleet = {"nodes": nodes, "replicas_per_node": replicas, "layout": {"device": kind, **layout}}
    return RunSpec.model_validate({"fleet": fleet})


def inventory(kind: str, count: int) -> list[Inventory]:
    return [Inventory(kind, tuple(str(n) for n in range(count)), installed=count)]  # type: ignore[arg-type]


def masks(spec: RunSpec, devices: int, found: list[Inventory]) -> list[dict[str, str | None]]:
    fleet = spec.fleet
    return [mask(spec, devices, n, g, found) for n in range(fleet.nodes) for g in range(fleet.replicas_per_node)]


def test_every_replica_of_a_node_sees_its_own_devices_through_one_variable() -> None:
    assert masks(spec_of(), 1, inventory("cuda", 8)) == [{CUDA: str(n), HIP: None} for n in range(4)]
    assert masks(spec_of(), 2, inventory("rocm", 8)) == [{HIP: f"{2 * n},{2 * n + 1}", CUDA: None} for n in range(4)]


def test_a_mask_names_devices_as_the_narrowing_variable_did() -> None:
    found = [Inventory("cuda", ("GPU-a", "GPU-b", "6", "7"), f"{CUDA}=GPU-a,GPU-b,6,7", 8)]
    assert [m[CUDA] for m in masks(spec_of(replicas=2), 2, found)] == ["GPU-a,GPU-b", "6,7"]


def test_without_accelerators_auto_and_cpu_set_no_mask() -> None:
    assert masks(spec_of(replicas=2), 1, []) == [{}, {}]
    assert masks(spec_of(replicas=2, kind="cpu"), 0, inventory("cuda", 1)) == [{}, {}]
    assert masks(spec_of(replicas=2), 1, [Inventory("cuda", (), f"{CUDA}=", 8)]) == [{}, {}], "hidden on purpose"


def test_nodes_of_one_machine_share_its_devices_as_the_layout_says() -> None:
    found = inventory("rocm", 8)
    shared = spec_of(nodes=2, replicas=2, tp=2, devices_per_node=4)
    assert [m[HIP] for m in masks(shared, 2, found)] == ["0,1", "2,3", "4,5", "6,7"]
    with pytest.raises(NoDevices, match=r"fleet.layout.devices_per_node: needed where 2 nodes share the 8 ROCm accelerators"):
        masks(spec_of(nodes=2, replicas=2), 1, found)


def refusal(spec: RunSpec, devices: int, found: list[Inventory]) -> str:
    with pytest.raises(NoDevices) as caught:
        mask(spec, devices, spec.fleet.nodes - 1, 0, found)
    return str(caught.value)


def test_too_few_devices_are_refused_with_the_numbers() -> None:
    said = refusal(spec_of(replicas=8), 1, inventory("rocm", 4))
    assert said.startswith("fleet.layout: node000 has 4 ROCm accelerators, 8 replicas x 1 need 8; lower fleet.replicas_per_node")
    narrowed = [Inventory("cuda", ("0",), f"{CUDA}=0", 8)]
    assert f"node000 has 1 CUDA accelerator, 8 replicas x 1 need 8 (narrowed by {CUDA}=0)" in refusal(
        spec_of(replicas=8), 1, narrowed
    )
    beyond = spec_of(nodes=3, replicas=2, tp=2, devices_per_node=4)
    assert "node002 has 0 CUDA accelerators, 2 replicas x 2 need 4" in refusal(beyond, 2, inventory("cuda", 8))


def test_a_device_that_the_node_does_not_have_is_refused_with_what_it_has() -> None:
    assert refusal(spec_of(kind="cuda"), 1, inventory("rocm", 4)).startswith(
        "fleet.layout.device = cuda: node000 has 4 ROCm accelerators;"
    )
    assert "fleet.layout.device = rocm: node000 has no accelerator (no /dev/nvidia0" in refusal(spec_of(kind="rocm"), 1, [])
    promised = spec_of(devices_per_node=8)
    assert refusal(promised, 1, []).startswith("fleet.layout.devices_per_node = 8: node000 has no accelerator")
