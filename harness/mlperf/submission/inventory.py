"""Facts of this node for a system description, by the description's keys: from /proc, /sys, and tools that are there anyway.

Only what the kernel or a driver states. What is not stated has no entry; nothing is concluded from a product's name.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_TOOL_S = 10.0
_GIB = 2**30
_SECTOR = 512


class Inventory:
    """`root` stands for /; tools are asked only where it is /."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self.host = platform.node() if self._live else _line(root / "etc/hostname")

    @property
    def _live(self) -> bool:
        return self._root == Path("/")

    def facts(self) -> dict[str, str]:
        """By key of the system description."""
        found = {
            **self._processor(), **self._memory(), **self._storage(), **self._network(), **self._accelerators(),
            "operating_system": self._system(), "other_software_stack": ", ".join(self._software()),
        }  # fmt: skip
        return {key: value for key, value in found.items() if value}

    # --- processor ---------------------------------------------------------------------------------------

    def _processor(self) -> dict[str, str]:
        cpus = self._root / "sys/devices/system/cpu"
        cores = {
            (_line(cpu / "topology/physical_package_id"), _line(cpu / "topology/core_id"))
            for cpu in _folders(cpus, r"cpu\d+")
            if (cpu / "topology/core_id").exists()
        }
        sockets = {package for package, _ in cores}
        per_socket = {sum(package == one for package, _ in cores) for one in sockets}
        khz = _line(cpus / "cpu0/cpufreq/cpuinfo_max_freq")
        return {
            "host_processor_model_name": self._model_name(),
            "host_processors_per_node": str(len(sockets)) if sockets else "",
            "host_processor_core_count": str(per_socket.pop()) if len(per_socket) == 1 else "",
            "host_processor_frequency": f"{int(khz) / 1e6:g} GHz (highest)" if khz.isdigit() else "",
            "host_processor_caches": ", ".join(_caches(cpus / "cpu0/cache")),
        }

    def _model_name(self) -> str:
        """/proc/cpuinfo does not say it on every architecture; lscpu then knows more."""
        said = re.search(r"^model name\s*:\s*(\S.*)$", _text(self._root / "proc/cpuinfo"), re.MULTILINE)
        if said is None and self._live:
            said = re.search(r"^Model name:\s*(\S.*)$", _asked("lscpu"), re.MULTILINE)
        return " ".join(said[1].split()) if said else ""

    # --- memory and disks --------------------------------------------------------------------------------

    def _memory(self) -> dict[str, str]:
        total = re.search(r"^MemTotal:\s*(\d+) kB", _text(self._root / "proc/meminfo"), re.MULTILINE)
        modules: Counter[str] = Counter()
        for module in _folders(self._root / "sys/devices/system/edac/mc", r"mc\d+", r"(dimm|rank)\d+"):
            size_mb, kind = _line(module / "size"), _line(module / "dimm_mem_type")
            if size_mb.isdigit() and int(size_mb):
                modules[f"{int(size_mb) / 1024:g} GiB {kind}".strip()] += 1
        return {
            "host_memory_capacity": f"{int(total[1]) * 1024 / _GIB:.1f} GiB" if total else "",
            "host_memory_configuration": _counted(modules),
        }

    def _storage(self) -> dict[str, str]:
        sizes: Counter[str] = Counter()
        kinds: set[str] = set()
        for disk in _folders(self._root / "sys/block", r".*"):
            sectors = _line(disk / "size")
            if not (disk / "device").exists() or not sectors.isdigit() or not int(sectors):
                continue
            sizes[f"{int(sectors) * _SECTOR / 1e9:,.1f} GB"] += 1
            if disk.name.startswith("nvme"):
                kinds.add("NVMe SSD")
            elif disk.name.startswith("sd"):
                kinds.add("HDD" if _line(disk / "queue/rotational") == "1" else "SSD")
        return {"host_storage_capacity": _counted(sizes), "host_storage_type": ", ".join(sorted(kinds))}

    # --- network -----------------------------------------------------------------------------------------

    def _network(self) -> dict[str, str]:
        """Ports of real devices; a card is what has a PCI address of its own, whatever number of ports."""
        ports: Counter[str] = Counter()
        cards: set[str] = set()
        fabric = {_device(port) for port in _folders(self._root / "sys/class/infiniband", r".*")}
        for port in _folders(self._root / "sys/class/infiniband", r".*"):
            rate, link = _line(port / "ports/1/rate"), _line(port / "ports/1/link_layer")
            ports[" ".join(filter(None, (rate, link, f"({driver})" if (driver := _driver(port)) else "")))] += 1
            cards.add(_card(port))
        for port in _folders(self._root / "sys/class/net", r".*"):
            if not (port / "device").exists() or _device(port) in fabric:
                continue
            speed = _line(port / "speed")
            said = f"{int(speed) / 1000:g} Gb/s" if speed.isdigit() and int(speed) else ""
            ports[" ".join(filter(None, (said, "Ethernet", f"({driver})" if (driver := _driver(port)) else "")))] += 1
            cards.add(_card(port))
        return {"host_networking": _counted(ports), "host_network_card_count": str(len(cards)) if cards else ""}

    # --- accelerators ------------------------------------------------------------------------------------

    def _accelerators(self) -> dict[str, str]:
        found = self._nvidia() or self._amd()
        names = {name for name, _ in found}
        sizes = {size for _, size in found}
        if not found:
            return {}
        return {
            "accelerators_per_node": str(len(found)),
            "accelerator_model_name": ", ".join(sorted(filter(None, names))),
            "accelerator_memory_capacity": sizes.pop() if len(sizes) == 1 else "",
        }

    def _nvidia(self) -> list[tuple[str, str]]:
        """The driver's files name the model; its tool, where it is, the memory too."""
        if self._live and shutil.which("nvidia-smi"):
            rows = _asked("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits").splitlines()
            parts = [row.rpartition(",") for row in rows]
            if parts and all(size.strip().isdigit() for _, _, size in parts):
                return [(name.strip(), f"{int(size) / 1024:.1f} GiB") for name, _, size in parts]
        gpus = _folders(self._root / "proc/driver/nvidia/gpus", r".*")
        said = (re.search(r"^Model:\s*(\S.*)$", _text(gpu / "information"), re.MULTILINE) for gpu in gpus)
        return [(model[1].strip() if model else "", "") for model in said]

    def _amd(self) -> list[tuple[str, str]]:
        found = []
        for card in _folders(self._root / "sys/class/drm", r"card\d+"):
            device = card / "device"
            if _line(device / "vendor") != "0x1002":
                continue
            size = _line(device / "mem_info_vram_total")
            found.append((_line(device / "product_name"), f"{int(size) / _GIB:.1f} GiB" if size.isdigit() else ""))
        return found

    # --- software ----------------------------------------------------------------------------------------

    def _system(self) -> str:
        named = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', _text(self._root / "etc/os-release"), re.MULTILINE)
        kernel = platform.release() if self._live else _line(self._root / "proc/sys/kernel/osrelease")
        return ", ".join(filter(None, (named[1] if named else "", f"Linux {kernel}" if kernel else "")))

    def _software(self) -> Iterator[str]:
        nvidia = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", _text(self._root / "proc/driver/nvidia/version"))
        if nvidia:
            yield f"NVIDIA driver {nvidia[1]}"
        if amdgpu := _line(self._root / "sys/module/amdgpu/version"):
            yield f"amdgpu driver {amdgpu}"
        if rocm := _line(self._root / "opt/rocm/.info/version"):
            yield f"ROCm {rocm}"


def _caches(folder: Path) -> Iterator[str]:
    """`L1d 32K, L1i 32K, L2 1024K, L3 32768K (shared by 16 CPUs)`, as one core sees them."""
    for cache in _folders(folder, r"index\d+"):
        level, size = _line(cache / "level"), _line(cache / "size")
        kind = {"Data": "d", "Instruction": "i"}.get(_line(cache / "type"), "")
        sharing = sum(_span(part) for part in _line(cache / "shared_cpu_list").split(",") if part)
        if level and size:
            yield f"L{level}{kind} {size}" + (f" (shared by {sharing} CPUs)" if sharing > 2 else "")


def _span(part: str) -> int:
    low, _, high = part.partition("-")
    return int(high) - int(low) + 1 if low.isdigit() and high.isdigit() else 1


def _counted(things: Counter[str]) -> str:
    return ", ".join(f"{n} x {thing}" for thing, n in sorted(things.items()))


def _device(port: Path) -> str:
    return os.path.realpath(port / "device")


def _card(port: Path) -> str:
    """Functions of one PCI device are ports of one card."""
    return re.sub(r"(/[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\.\d.*$", r"\1", _device(port))


def _driver(port: Path) -> str:
    driver = port / "device/driver"
    return os.path.basename(os.path.realpath(driver)) if driver.exists() else ""


def _folders(folder: Path, *patterns: str) -> list[Path]:
    """Entries that fit, by number where they have one; further patterns are for the folders within."""
    try:
        fitting = [entry for entry in folder.iterdir() if re.fullmatch(patterns[0], entry.name)]
    except OSError:
        return []
    ordered = sorted(
        fitting, key=lambda entry: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", entry.name)]
    )
    if len(patterns) == 1:
        return ordered
    return [inner for entry in ordered for inner in _folders(entry, *patterns[1:])]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _line(path: Path) -> str:
    return (_text(path).splitlines() or [""])[0].strip()


def _asked(*command: str) -> str:
    """What a tool prints; "" from one that is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_S, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
