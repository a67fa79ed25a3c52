"""Exporters' pages for tests: text as AMD's Device Metrics Exporter and NVIDIA's dcgm-exporter write it, for a made-up fleet.

Values differ by GPU and do not change until `advance`; accumulated ones then grow by each GPU's own share of the time. A few
GPUs show what real ones do: blank sentinels, a metric that one GPU lacks, partitions of which only the first has power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BLANK = 9223372036854775794  # as DCGM writes it

LOOKS_A_SECOND = 1000.0


@dataclass
class Fleet:
    """`nodes` x `each` GPUs, node by node."""

    nodes: int = 64
    each: int = 8
    seed: int = 7
    elapsed_s: float = 0.0
    busy: Floats = field(init=False)
    capped: Floats = field(init=False)  # shares of time
    hot: Floats = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.busy = rng.uniform(60, 99, self.count).round(1)
        self.capped = rng.uniform(0, 0.9, self.count).round(3)
        self.hot = rng.uniform(0, 0.2, self.count).round(3)

    @property
    def count(self) -> int:
        return self.nodes * self.each

    def host(self, gpu: int) -> str:
        return f"gpu-node-{gpu // self.each:03d}.example.net"

    def uuid(self, gpu: int) -> str:
        return f"{gpu:08x}-0000-2000-8000-00000000abcd"

    def pci(self, gpu: int) -> str:
        return f"0000:{0x10 + gpu % self.each:02x}:00.0"

    def advance(self, seconds: float) -> None:
        self.elapsed_s += seconds


Value = Callable[[Fleet, int], object]


def _looks(share: Callable[[Fleet], Floats] | None) -> Value:
    """Accumulated residencies count looks, on top of what was there before."""

    def value(fleet: Fleet, gpu: int) -> object:
        of_time = 1.0 if share is None else float(share(fleet)[gpu])
        return f"{5e6 + gpu + of_time * LOOKS_A_SECOND * fleet.elapsed_s:.12g}"

    return value


#: Metric, labels beside the GPU's own, value (None: this GPU does not show it).
AMD: Sequence[tuple[str, str, Value]] = (
    ("gpu_gfx_activity", "", lambda fleet, gpu: fleet.busy[gpu]),
    ("gpu_umc_activity", "", lambda fleet, gpu: 30 + gpu % 50),
    ("gpu_package_power", "", lambda fleet, gpu: None if gpu % 100 == 3 else 900 + gpu),
    ("gpu_power_usage", "", lambda fleet, gpu: 800 + gpu),
    ("gpu_energy_consumed", "", lambda fleet, gpu: f"{2e15 + gpu * 1e9:.15g}"),
    ("gpu_used_vram", "", lambda fleet, gpu: 270_000 + gpu),
    ("gpu_total_vram", "", lambda fleet, gpu: 294_896),
    ("gpu_junction_temperature", "", lambda fleet, gpu: "NaN" if gpu % 100 == 5 else 70 + gpu % 25),
    ("gpu_memory_temperature", "", lambda fleet, gpu: BLANK if gpu % 100 == 6 else 60 + gpu % 25),
    ("gpu_clock", 'clock_index="0",clock_type="system",', lambda fleet, gpu: 2000 + gpu % 300),
    ("gpu_clock", 'clock_index="1",clock_type="system",', lambda fleet, gpu: 1990 + gpu % 310),
    ("gpu_clock", 'clock_index="8",clock_type="memory",', lambda fleet, gpu: 9999),
    ("gpu_max_clock", 'clock_index="0",clock_type="system",', lambda fleet, gpu: 2400),
    ("gpu_violation_current_accumulated_counter", "", _looks(None)),
    ("gpu_violation_ppt_residency_accumulated", "", _looks(lambda fleet: fleet.capped)),
    ("gpu_violation_socket_thermal_residency_accumulated", "", _looks(lambda fleet: fleet.hot)),
    ("gpu_violation_hbm_thermal_residency_accumulated", "", _looks(lambda fleet: 0.5 * fleet.hot[::-1])),
    ("gpu_ecc_correct_total", "", lambda fleet, gpu: gpu % 4),
    ("gpu_ecc_uncorrect_total", "", lambda fleet, gpu: int(gpu == 17)),
    ("gpu_health", "", lambda fleet, gpu: int(gpu != 17)),
    ("gpu_afid_errors", "", lambda fleet, gpu: 24 if gpu == 17 else None),
    ("pcie_replay_count", "", lambda fleet, gpu: gpu % 3),
    ("gpu_edge_temperature", "", lambda fleet, gpu: 40),  # of no role
)

DCGM: Sequence[tuple[str, str, Value]] = (
    ("DCGM_FI_DEV_GPU_UTIL", "", lambda fleet, gpu: fleet.busy[gpu]),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "", lambda fleet, gpu: 0.25 + gpu % 50 / 100),
    ("DCGM_FI_DEV_POWER_USAGE", "", lambda fleet, gpu: f"{500 + gpu}.25"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "", lambda fleet, gpu: 1_000_000_000 + gpu),
    ("DCGM_FI_DEV_GPU_TEMP", "", lambda fleet, gpu: 50 + gpu % 30),
    ("DCGM_FI_DEV_MEMORY_TEMP", "", lambda fleet, gpu: BLANK if gpu % 100 == 4 else 55 + gpu % 30),
    ("DCGM_FI_DEV_FB_USED", "", lambda fleet, gpu: 70_000 + gpu),
    ("DCGM_FI_DEV_FB_FREE", "", lambda fleet, gpu: 11_000),
    ("DCGM_FI_DEV_SM_CLOCK", "", lambda fleet, gpu: 1600 + gpu % 300),
    ("DCGM_FI_DEV_MAX_SM_CLOCK", "", lambda fleet, gpu: 1980),
    ("DCGM_FI_DEV_POWER_VIOLATION", "", lambda fleet, gpu: f"{4e12 + fleet.capped[gpu] * 1e9 * fleet.elapsed_s:.15g}"),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", "", lambda fleet, gpu: f"{4e12 + fleet.hot[gpu] * 1e9 * fleet.elapsed_s:.15g}"),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "", lambda fleet, gpu: gpu % 4),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "", lambda fleet, gpu: int(gpu == 17)),
    ("DCGM_FI_DEV_XID_ERRORS", 'err_code="48",err_msg="double bit",', lambda fleet, gpu: 48 if gpu == 17 else None),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "", lambda fleet, gpu: gpu % 3),
)


def amd_page(fleet: Fleet, *, prefix: str = "", pod: str = "", node: int | None = None) -> str:
    """`node`: only its GPUs, as its own exporter shows them."""
    gpus = range(fleet.count) if node is None else range(node * fleet.each, (node + 1) * fleet.each)
    labels = {
        gpu: (
            'card_model="102-G30213-00",card_series="AMD Instinct MI355X",container="",deployment_mode="baremetal",'
            f'driver_version="6.14.14",gpu_compute_partition_type="spx",gpu_id="{gpu % fleet.each}",'
            f'gpu_memory_partition_type="nps1",gpu_partition_id="0",gpu_uuid="{fleet.uuid(gpu)}",hostname="{fleet.host(gpu)}",'
            f'job_id="",job_partition="",job_user="",namespace="",pod="{pod}",serial_number="PCB0{gpu:08d}"'
        )
        for gpu in gpus
    }
    return _page(fleet, AMD, labels, prefix)


def dcgm_page(fleet: Fleet, *, host_label: str = "Hostname", node: int | None = None) -> str:
    gpus = range(fleet.count) if node is None else range(node * fleet.each, (node + 1) * fleet.each)
    labels = {
        gpu: (
            f'gpu="{gpu % fleet.each}",UUID="GPU-{fleet.uuid(gpu)}",pci_bus_id="0000{fleet.pci(gpu).upper()}",'
            f'device="nvidia{gpu % fleet.each}",modelName="NVIDIA H200",{host_label}="{fleet.host(gpu)}",'
            'DCGM_FI_DRIVER_VERSION="570.86"'
        )
        for gpu in gpus
    }
    return _page(fleet, DCGM, labels, "")


def _page(fleet: Fleet, metrics: Sequence[tuple[str, str, Value]], labels: dict[int, str], prefix: str) -> str:
    lines: list[str] = []
    told = ""
    for name, more, value in metrics:
        if name != told:
            lines.append(f"# HELP {prefix}{name} Of a made-up GPU\n# TYPE {prefix}{name} gauge")
            told = name
        for gpu, of_gpu in labels.items():
            if (shown := value(fleet, gpu)) is not None:
                lines.append(f"{prefix}{name}{{{more}{of_gpu}}} {shown}")
    return "\n".join(lines) + "\n"
