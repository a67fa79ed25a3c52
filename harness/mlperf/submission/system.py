"""The system description: SYSTEM.toml, as a submitter fills it in, and the JSON that a submission has of it.

SYSTEM.toml has the checker's keys at its top, a table `[measurements]` (or `[measurements.MODEL]`) with what measurements.json
says of each scenario, and `[extra]` for further keys that go into the JSON as they stand.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness.records.files import read_plain

#: Every key of the JSON, in its order, and what it wants. Those of NEEDED may not be empty.
FIELDS: Final[Mapping[str, str]] = {
    "division": "closed or open; left empty, export fills it in",
    "submitter": "the organisation; left empty, export fills it in",
    "status": "available, preview or rdi (research, development or internal)",
    "system_type": "datacenter, or datacenter,edge",
    "system_type_detail": "may stay empty",
    "system_name": "the name as it should be published; the files of the system are named after it",
    "number_of_nodes": "nodes that served; a head without accelerators is not one of them, say so in hw_notes",
    "host_processor_model_name": "model of the processor of a node",
    "host_processors_per_node": "processors (sockets) of a node",
    "host_processor_core_count": "cores of one processor",
    "host_processor_frequency": "may stay empty",
    "host_processor_caches": "may stay empty",
    "host_processor_interconnect": "between sockets; may stay empty",
    "host_memory_capacity": "installed in a node",
    "host_memory_configuration": "modules of a node: how many, of what size and kind (dmidecode -t memory)",
    "host_storage_capacity": "of a node",
    "host_storage_type": "for example NVMe SSD",
    "host_networking": "kind and speed of the network between nodes",
    "host_networking_topology": "for example rail-optimized fat tree; N/A for a single node",
    "host_network_card_count": "cards of a node, with their kind",
    "accelerators_per_node": "accelerators of a node",
    "accelerator_model_name": "as the vendor names it",
    "accelerator_memory_capacity": "of one accelerator",
    "accelerator_frequency": "may stay empty",
    "accelerator_host_interconnect": "for example PCIe Gen5 x16",
    "accelerator_interconnect": "between the accelerators of a node, with its speed",
    "accelerator_interconnect_topology": "may stay empty",
    "accelerator_memory_configuration": "kind of its memory, for example HBM3E",
    "accelerator_on-chip_memories": "may stay empty",
    "framework": "the engine and its version",
    "operating_system": "of a node",
    "other_software_stack": "drivers, CUDA or ROCm, Python, LoadGen: whatever else took part",
    "cooling": "air, liquid or both",
    "hw_notes": "may stay empty",
    "sw_notes": "may stay empty",
}
NEEDED: Final = (
    "division", "submitter", "system_type", "status", "system_name", "number_of_nodes", "host_processor_model_name",
    "host_processors_per_node", "host_processor_core_count", "host_memory_capacity", "host_memory_configuration",
    "host_storage_capacity", "host_storage_type", "host_networking", "host_network_card_count", "host_networking_topology",
    "accelerators_per_node", "accelerator_model_name", "accelerator_memory_capacity", "accelerator_host_interconnect",
    "accelerator_memory_configuration", "accelerator_interconnect", "cooling", "framework", "operating_system",
    "other_software_stack",
)  # fmt: skip
#: Keys of measurements.json, all needed.
MEASUREMENTS: Final[Mapping[str, str]] = {
    "input_data_types": "for example int32 (token ids)",
    "retraining": "yes or no",
    "starting_weights_filename": "the weights that were started from",
    "weight_data_types": "for example fp4, fp8, bf16",
    "weight_transformations": "for example quantized with …; or none",
}
_STATUS = ("available", "preview", "rdi")
_SYSTEM_TYPES = ("datacenter", "datacenter,edge", "edge,datacenter")
_FILLED_IN = ("division", "submitter")
_MOST_BYTES: Final = 4 << 20


class SystemFileError(Exception):
    """SYSTEM.toml cannot be used as it stands; the text names file, key and what would be right."""


@dataclass(frozen=True)
class SystemDescription:
    """Values as text. `measurements` by benchmark, "" for all that have no table of their own."""

    path: Path
    values: Mapping[str, str]
    measurements: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """For folder and file names."""
        return re.sub(r"[^\w.-]+", "_", self.values.get("system_name", ""), flags=re.ASCII).strip("._")

    def measurements_of(self, benchmark: str) -> dict[str, str]:
        """A benchmark's own entries over those for all."""
        own, common = self.measurements.get(benchmark, {}), self.measurements.get("", {})
        return {key: own.get(key) or common.get(key, "") for key in MEASUREMENTS}


def read_system(path: Path) -> SystemDescription:
    """Raises SystemFileError."""
    try:
        table = tomllib.loads(read_plain(path, _MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise SystemFileError(
            f"{path}: {error.strerror}; `paceline system describe --out {path.name}` drafts such a file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SystemFileError(f"{path}: is not TOML: {error}") from None
    measurements, extra = table.pop("measurements", {}), table.pop("extra", {})
    if not isinstance(measurements, dict) or not isinstance(extra, dict):
        raise SystemFileError(f"{path}: measurements and extra must be tables, [measurements] and [extra]")
    for key in table:
        if key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, n=1)
            meant = f"; is {near[0]} meant?" if near else "; further keys of the JSON go under [extra]"
            raise SystemFileError(f"{path}: there is no key {key!r}{meant}")
    values = {key: _text(path, key, value) for key, value in table.items()}
    return SystemDescription(path, values, _measurements(path, measurements), extra)


def problems_of(system: SystemDescription, submitter: str = "", division: str = "") -> list[str]:
    """What is missing or wrong, for export as `submitter` in `division` (empty: not known yet)."""
    said = {**system.values, **_given(system, submitter, division)}
    found = []
    for key in NEEDED:
        if not said.get(key, "").strip() and not (key in _FILLED_IN and not submitter):
            found.append(f"{key} is empty: {FIELDS[key]}")
    if said.get("status") and said["status"].lower() not in _STATUS:
        found.append(f"status is {said['status']!r}; it must be one of {', '.join(_STATUS)}")
    if said.get("system_type") and said["system_type"] not in _SYSTEM_TYPES:
        found.append(f"system_type is {said['system_type']!r}; of a datacenter submission it is datacenter or datacenter,edge")
    if said.get("system_name") and not system.id:
        found.append(f"system_name is {said['system_name']!r}; its files need at least one letter or digit of ASCII")
    for key, given in (("submitter", submitter), ("division", division)):
        if given and said.get(key) and said[key].lower() != given.lower():
            found.append(f"{key} is {said[key]!r}, the export is for {given!r}: they must agree (or leave {key} empty)")
    for key in ("number_of_nodes", "accelerators_per_node"):  # the official checker multiplies them: no "N/A"
        if said.get(key) and not said[key].strip().isdigit():
            found.append(f"{key} is {said[key]!r}; a whole number is wanted")
    if str(system.extra.get("is_network", "false")).lower() == "true":
        found.append("extra.is_network is true; this export knows the closed and open divisions, not the network division")
    return found


def measurement_problems(system: SystemDescription, benchmark: str) -> list[str]:
    return [
        f"measurements.{key} of {benchmark} is empty: {MEASUREMENTS[key]}"
        for key, value in system.measurements_of(benchmark).items()
        if not value.strip()
    ]


def system_json(system: SystemDescription, submitter: str, division: str) -> bytes:
    """All keys of FIELDS, empty where nothing is said, then the extra ones; but no is_network, whatever it says (see
    `problems_of`): where it is present the official checker wants all that a network submission tells."""
    said = {**system.values, **_given(system, submitter, division)}
    whole: dict[str, Any] = {key: said.get(key, "") for key in FIELDS}
    whole |= {
        key: str(value) if isinstance(value, bool) else value
        for key, value in system.extra.items()
        if key not in (*whole, "is_network")
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, default=str).encode() + b"\n"


def _given(system: SystemDescription, submitter: str, division: str) -> dict[str, str]:
    """What export fills in where the file is silent."""
    given = {"submitter": submitter, "division": division}
    return {key: value for key, value in given.items() if value and not system.values.get(key, "").strip()}


def _measurements(path: Path, table: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"": {}}
    for key, value in table.items():
        inner = value if isinstance(value, dict) else {key: value}
        for name, said in inner.items():
            if name not in MEASUREMENTS:
                raise SystemFileError(f"{path}: measurements has no key {name!r}; it has {', '.join(MEASUREMENTS)}")
            found.setdefault(key if isinstance(value, dict) else "", {})[name] = _text(path, f"measurements.{name}", said)
    return found


def _text(path: Path, key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SystemFileError(f"{path}: {key} is {value!r}; text or a number is wanted")
    return str(value)
