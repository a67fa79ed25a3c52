"""Accelerators from a person's TOML, in the form of accelerators.toml: figures measured on a node instead of a data sheet's.

[MI300X]                    known: what is given replaces what is known
bandwidth_tb_s = 4.3
[MI400]                     new: needs target, bandwidth_tb_s, bf16_tflops, compute_units, shared_kib, memory_gb
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from kernels.accelerators import TARGETS, Accelerator
from kernels.errors import KernelInputError

_MOST_BYTES = 1_000_000
_FIELDS = tuple(each.name for each in fields(Accelerator) if each.name != "name")
#: With the most that is believed: more was meant in other units, as in GB/s.
_REALS = {"bandwidth_tb_s": 100.0, "bf16_tflops": 100_000.0}


def read_accelerators(path: Path, known: Mapping[str, Accelerator]) -> dict[str, Accelerator]:
    """The known ones as the file changes them, and its own. KernelInputError with field, value and what would be right."""
    found = dict(known)
    for name, table in _tables(path).items():
        where = f"{path}: [{name}]"
        if not isinstance(table, dict):
            raise KernelInputError(f"{path}: {name} = {table!r:.60} must be a table, as in [MI300X]")
        same = [each for each in known if each.lower() == name.lower()]
        base = asdict(known[same[0]]) if same else {"name": name, "cache_mib": 256, "device_names": (name,)}
        values = base | {field: _checked(where, field, value) for field, value in table.items()}
        if missing := [field for field in _FIELDS if field not in values]:
            raise KernelInputError(
                f"{where}: {', '.join(missing)}: missing; an accelerator that is not known needs them; known: {', '.join(known)}"
            )
        found[values["name"]] = Accelerator(**values)
    if not found.keys() - known.keys() and all(found[name] == known[name] for name in known):
        raise KernelInputError(f"{path}: changes nothing; as in [MI300X] and bandwidth_tb_s = 4.3")
    return found


def _tables(path: Path) -> dict[str, Any]:
    try:
        found = path.is_file()
    except OSError as error:
        raise KernelInputError(f"{path}: cannot be read: {error.strerror}") from None
    if not found:
        raise KernelInputError(f"{path}: is no file; give a TOML as in [MI300X] and bandwidth_tb_s = 4.3")
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) <= _MOST_BYTES:
            return tomllib.loads(data.decode("utf-8").replace("\r\n", "\n"))
    except OSError as error:
        raise KernelInputError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise KernelInputError(f"{path}: no TOML that can be read: the nesting is too deep") from None
    except ValueError as error:  # no UTF-8, no TOML
        raise KernelInputError(f"{path}: no TOML: {error}") from None
    raise KernelInputError(f"{path}: more than {_MOST_BYTES:,d} bytes: no TOML of accelerators")


def _checked(where: str, field: str, value: Any) -> Any:
    if field not in _FIELDS:
        raise KernelInputError(f"{where}: {field} is not known; known: {', '.join(_FIELDS)}")
    if field == "target":
        if value not in TARGETS:
            raise KernelInputError(f"{where}: target = {value!r:.60} must be one of {', '.join(TARGETS)}")
        return value
    if field == "device_names":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise KernelInputError(f"{where}: device_names = {value!r:.60} must be a list of names")
        return tuple(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if field in _REALS:
        if not is_number or not 0 < value <= _REALS[field]:  # which NaN is not either
            unit = "terabytes a second" if field == "bandwidth_tb_s" else "teraflops"
            right = f"a number over 0, at most {_REALS[field]:g}, in {unit}"
            raise KernelInputError(f"{where}: {field} = {value!r:.60} must be {right}")
        return float(value)
    if not is_number or not isinstance(value, int) or not 0 < value < 10**6:
        raise KernelInputError(f"{where}: {field} = {value!r:.60} must be a whole number over 0")
    return value
