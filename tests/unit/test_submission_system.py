"""The system description: drafted from facts, empty where nothing is known, checked, and written as the submission's JSON."""

from __future__ import annotations

import json
import os
import platform
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from submission_kit import system_toml

from console.cli import main
from harness.mlperf.submission.describing import as_toml, draft
from harness.mlperf.submission.inventory import Inventory
from harness.mlperf.submission.system import (
    FIELDS,
    NEEDED,
    SystemFileError,
    measurement_problems,
    problems_of,
    read_system,
    system_json,
)
from harness.records.fleetfile import FleetFile, GpusOf, write_fleet
from harness.records.layout import RunFolder
from harness.records.runfile import RunFile, write_run
from harness.spec import RunSpec


def gpu_node(root: Path, gpus: int = 8) -> Path:
    """Files as the kernel and NVIDIA's driver have them on a node of two sockets, with InfiniBand and eight accelerators."""
    files = {
        "etc/hostname": "gpu-node-7\n",
        "etc/os-release": 'NAME="Example"\nPRETTY_NAME="Example Linux 24.04"\n',
        "proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Example  CPU 9654\n",
        "proc/meminfo": "MemTotal:       1585312428 kB\nMemFree: 1 kB\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n",
        "opt/rocm/.info/version": "",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3700000\n",
        "sys/block/nvme0n1/size": "3750748848\n",
        "sys/block/nvme0n1/device/model": "x\n",
        "sys/block/nvme1n1/size": "3750748848\n",
        "sys/block/nvme1n1/device/model": "x\n",
        "sys/block/loop0/size": "1234\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "sys/class/net/lo/speed": "",
        "sys/class/net/ens1/speed": "25000\n",
        "sys/class/net/ens2/speed": "25000\n",
    }
    for level, kind, size in (("1", "Data", "32K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K")):
        cache = f"sys/devices/system/cpu/cpu0/cache/index{len([name for name in files if name.endswith('level')])}"
        files |= {f"{cache}/level": level, f"{cache}/type": kind, f"{cache}/size": size, f"{cache}/shared_cpu_list": "0,8"}
    for cpu in range(16):  # two sockets of four cores of two threads
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files |= {f"{topology}/physical_package_id": str(cpu // 4 % 2), f"{topology}/core_id": str(cpu % 4)}
    for module in range(24):
        dimm = f"sys/devices/system/edac/mc/mc{module // 12}/dimm{module % 12}"
        files |= {f"{dimm}/size": "65536\n", f"{dimm}/dimm_mem_type": "Registered-DDR5\n"}
    for gpu in range(gpus):
        files[f"proc/driver/nvidia/gpus/0000:{gpu:02x}:00.0/information"] = "Model: \t\t NVIDIA H200\nIRQ: 1\n"
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    devices = {"infiniband/mlx5_0": "0000:18:00.0", "net/ens1": "0000:31:00.0", "net/ens2": "0000:31:00.1"}
    for port, address in devices.items():
        device = root / "sys/devices/pci0000:00" / address
        device.mkdir(parents=True)
        (root / "sys/class" / port / "device").symlink_to(device)
    return root


def test_a_gpu_node_is_described_by_what_its_kernel_and_driver_state(tmp_path: Path) -> None:
    inventory = Inventory(gpu_node(tmp_path))
    facts = inventory.facts()
    assert inventory.host == "gpu-node-7"
    assert facts == {
        "host_processor_model_name": "Example CPU 9654",
        "host_processors_per_node": "2",
        "host_processor_core_count": "4",
        "host_processor_frequency": "3.7 GHz (highest)",
        "host_processor_caches": "L1d 32K, L1i 32K, L2 1024K",
        "host_memory_capacity": "1511.9 GiB",
        "host_memory_configuration": "24 x 64 GiB Registered-DDR5",
        "host_storage_capacity": "2 x 1,920.4 GB",
        "host_storage_type": "NVMe SSD",
        "host_networking": "2 x 25 Gb/s Ethernet, 1 x 400 Gb/sec (4X NDR) InfiniBand",
        "host_network_card_count": "2",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA H200",
        "operating_system": "Example Linux 24.04, Linux 6.8.0-60-generic",
        "other_software_stack": "NVIDIA driver 570.86.15",
    }


def test_an_amd_node_names_its_cards_and_their_memory(tmp_path: Path) -> None:
    for card in range(8):
        device = tmp_path / f"sys/class/drm/card{card}/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1002\n")
        (device / "product_name").write_text("AMD Instinct MI355X\n")
        (device / "mem_info_vram_total").write_text(f"{288 * 2**30}\n")
    facts = Inventory(tmp_path).facts()
    names = ("accelerators_per_node", "accelerator_model_name", "accelerator_memory_capacity")
    assert [facts[name] for name in names] == ["8", "AMD Instinct MI355X", "288.0 GiB"]


def test_a_node_that_states_nothing_has_no_facts(tmp_path: Path) -> None:
    assert Inventory(tmp_path).facts() == {}


def test_this_machine_is_described_as_it_is() -> None:
    facts = Inventory().facts()
    assert platform.release() in facts["operating_system"]
    counted = int(facts["host_processors_per_node"]) * int(facts["host_processor_core_count"])
    assert 1 <= counted <= (os.cpu_count() or 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    folder = RunFolder(tmp_path / "runs" / "mine-1")
    folder.path.mkdir(parents=True)
    return folder


def make_run(folder: RunFolder, *, host: str, cluster: str = "local", synthetic: bool = False) -> None:
    spec = RunSpec.model_validate(
        {
            "cluster": {"kind": cluster},
            "model": {"name": "m", "mlperf_name": "deepseek-r1-interactive"},
            "fleet": {"engine": "synthetic" if synthetic else "vllm"},
        }
    )
    versions = {"python": "3.12.1", "mlcommons-loadgen": "6.0.17", "numpy": "2.0"}
    run = RunFile(
        run=folder.name, spec=spec.model_dump(mode="json"), phase="DONE", synthetic=synthetic, host=host, versions=versions
    )
    write_run(folder.path, run)
    fleet = FleetFile(1)
    facts = {"engine": "vllm", "versions.vllm": "0.32.0", "versions.torch": "2.9", "device_name": "NVIDIA H200"}
    for gpu in range(4):
        fleet.note(f"node{gpu // 2:03d}/gpu{gpu % 2}", GpusOf(1.0, [f"gpu-node-{gpu // 2}"]), {**facts, "rank": str(gpu)})
    write_fleet(folder.fleet_json, fleet)


def test_a_run_of_this_node_adds_what_its_record_says(tmp_path: Path, folder: RunFolder) -> None:
    make_run(folder, host="gpu-node-7")
    found = draft(Inventory(gpu_node(tmp_path / "node")), folder)
    assert found.facts["framework"].value == "vllm 0.32.0"
    assert found.facts["number_of_nodes"].value == "2"
    assert found.facts["host_processors_per_node"].source == "this node (gpu-node-7)"
    stack = found.facts["other_software_stack"].value
    assert stack == "NVIDIA driver 570.86.15, mlcommons-loadgen 6.0.17, python 3.12.1, torch 2.9"
    assert found.benchmark == "deepseek-r1"


@pytest.mark.parametrize(("host", "cluster"), [("gpu-node-7", "kubernetes"), ("elsewhere", "local")])
def test_of_a_run_that_was_served_elsewhere_nothing_of_this_node_is_told(
    tmp_path: Path, folder: RunFolder, host: str, cluster: str
) -> None:
    make_run(folder, host=host, cluster=cluster)
    found = draft(Inventory(gpu_node(tmp_path / "node")), folder)
    assert not [key for key in found.facts if key.startswith("host_")]
    assert found.facts["accelerator_model_name"].value == "NVIDIA H200"
    assert "did not serve that run" in " ".join(found.remarks)


def test_a_synthetic_run_names_no_framework_and_says_so(tmp_path: Path, folder: RunFolder) -> None:
    make_run(folder, host="gpu-node-7", synthetic=True)
    found = draft(Inventory(tmp_path / "nothing"), folder)
    assert "framework" not in found.facts
    assert "SYNTHETIC" in " ".join(found.remarks)


def test_a_draft_is_toml_with_every_key_and_says_what_is_to_be_filled_in(tmp_path: Path, folder: RunFolder) -> None:
    make_run(folder, host="gpu-node-7")
    node = gpu_node(tmp_path / "node")
    (node / "proc/cpuinfo").write_text('model name\t: A "quoted" \\ CPU\n')
    text = as_toml(draft(Inventory(node), folder))
    table = tomllib.loads(text)
    assert [key for key in table if key != "measurements"] == list(FIELDS)
    assert table["host_processor_model_name"] == 'A "quoted" \\ CPU'
    assert list(table["measurements"]) == ["deepseek-r1"]
    empty = [key for key in FIELDS if not table[key]]
    assert all(re.search(rf'^{re.escape(key)} = ""  # \S', text, re.MULTILINE) for key in empty)
    assert "cooling" in empty


def test_a_description_says_what_it_lacks_until_nothing_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "system.toml"
    path.write_text(system_toml())
    assert problems_of(read_system(path)) == []
    assert measurement_problems(read_system(path), "gpt-oss-120b") == []
    for key in NEEDED:
        if key not in ("division", "submitter"):
            path.write_text(system_toml(**{key: ""}))
            assert [problem.partition(" ")[0] for problem in problems_of(read_system(path))] == [key]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cooling = ", "is not TOML"),
        ('coolng = "air"', "there is no key 'coolng'; is cooling meant?"),
        ('paint = "red"', "further keys of the JSON go under [extra]"),
        ("number_of_nodes = true", "number_of_nodes is True; text or a number is wanted"),
        ("measurements = 1", "measurements and extra must be tables"),
        ("[measurements]\nweights = 1", "measurements has no key 'weights'"),
        ("\xff", "is not TOML"),
    ],
)
def test_a_file_that_is_no_description_is_told_with_its_key(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "system.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SystemFileError, match=re.escape(says)):
        read_system(path)


def test_the_json_has_the_checkers_keys_the_submitter_and_the_extra_ones(tmp_path: Path) -> None:
    path = tmp_path / "system.toml"
    path.write_text(system_toml() + '[measurements.deepseek-r1]\nretraining = "no"\n[extra]\nis_network = false\nboard = "B1"\n')
    described = read_system(path)
    said: dict[str, Any] = json.loads(system_json(described, "Example", "open"))
    assert list(said) == [*FIELDS, "board"]  # is_network = false is said by silence: its presence asks for a network's fields
    assert (said["submitter"], said["division"], said["board"], said["cooling"]) == ("Example", "open", "B1", "air")
    assert described.measurements_of("deepseek-r1")["retraining"] == "no"
    assert described.measurements_of("gpt-oss-120b")["retraining"] == "as made"


def test_the_commands_draft_check_and_never_write_over_a_file(
    tmp_path: Path, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(folder, host="elsewhere")
    out = str(tmp_path / "mine.toml")
    assert main(["system", "describe", "mine-1", "--out", out]) == 0
    assert main(["system", "describe", "--out", out]) == 2
    assert "it is there already" in capsys.readouterr().err
    assert main(["system", "check", out, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["complete"]
    assert any(problem.startswith("cooling is empty") for problem in said["missing"])
    Path(out).write_text(system_toml())
    assert main(["system", "check", out]) == 0
    assert "complete" in capsys.readouterr().out
    assert main(["system", "describe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["operating_system"]["source"].startswith("this node")
