"""Which kernels a vLLM really loaded for its mixture-of-experts layers, as facts `kernel…` of its replica.

Two witnesses. Our plugin (kernels/plugin) writes one JSON file for each engine process into a folder that the worker made for
this life of the replica. vLLM's own choice is only in its log: which backend, and which table of tiles or none. Of a model
without such layers neither says anything, and there are no facts. Processes of one replica that differ are told as "a | b".

Files and log are taken as input from outside: what cannot be read, is too long or of another type is left out, and said where
somebody had asked for our kernel.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.records.labels import one_line
from harness.spec import KernelsSpec

REPORT = "PACELINE_KERNELS_REPORT"
_SCHEMA = 1
_MOST_REPORTS, _MOST_BYTES = 256, 256 * 1024
_MOST_TABLE_BYTES = 4 * 1024 * 1024
_CHARACTERS = 120  # as of other facts
_OF_REASON = 400  # of a refusal, which begins with the path of a table and ends with what is wrong there
_MOST_M = 12  # of a table, by M
_HOW = ("tuned", "nearest", "untimed", "default")

#: As vLLM 0.22 to 0.33 log them; quotes and "out of potential backends" are there or not, by kind of weights.
_BACKEND = re.compile(r"Using '?(?P<backend>[\w ]+?)'? (?P<kind>[A-Z]\w*(?: Int8)?) MoE backend(?= out of potential|\.| \(user)")
_TABLE = re.compile(r"Using configuration from (?P<path>\S.*?) for MoE layer\.")
_NO_TABLE = "Using default MoE config. Performance might be sub-optimal!"


@dataclass(slots=True)
class KernelFacts:
    """`facts` for REGISTER; `fallback`: why another kernel runs than was asked for, "" where none was or ours does."""

    facts: dict[str, str] = field(default_factory=dict)
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class _Report:
    """Of one process; empty texts where it does not say."""

    kernel: str
    kernel_hash: str
    node_class: str
    layers: int
    how: str
    config_hash: str
    of_floor: str
    fallback: str


def cannot_load(kernels: KernelsSpec) -> str:
    """Why our package cannot be in this interpreter; "" if it can. Imports nothing."""
    if not kernels.asked:
        return ""
    try:
        theirs = version("kernels")
    except PackageNotFoundError:
        return ""
    return (
        f"fleet.kernels: this environment has kernels {theirs} of Hugging Face, which transformers imports and ours of the "
        "same name hides; uninstall it there (vLLM does without), or use another environment (fleet.python)"
    )


def loaded(kernels: KernelsSpec, folder: Path | None, log: Iterable[str]) -> KernelFacts:
    """After the engine has started. `folder`: of the plugin's reports; `log`: the lines that this engine has written."""
    reports, unread = _reports(folder) if kernels.moe == "paceline" and folder is not None else ([], 0)
    ours = [report for report in reports if report.layers and report.kernel]
    if ours:
        found = KernelFacts(_ours(ours), _reason(reports))
        if found.fallback:  # a rank of it has vLLM's
            found.facts["kernel"] = _joined([found.facts["kernel"], _vllms(log).get("kernel", "")])
    else:
        found = KernelFacts(_vllms(log))
        node_class = _joined([report.node_class for report in reports])
        if node_class:
            found.facts["kernel.node_class"] = node_class
        if kernels.moe == "paceline":
            found.fallback = _reason(reports) or _why_not(0 if reports else unread)
    if found.fallback:
        found.facts["kernel.fallback"] = _cut(found.fallback)
    return found


def left_out(kernels: KernelsSpec, folder: Path | None) -> str:
    """Of an engine that did not start: why our kernel was not to be in it, by what its processes had reported; "" if none had."""
    reports = _reports(folder)[0] if kernels.moe == "paceline" and folder is not None else []
    return _reason(reports)


def _reason(reports: list[_Report]) -> str:
    return _joined([report.fallback for report in reports], _OF_REASON)


def _why_not(unread: int) -> str:
    if unread:
        return f"none of the plugin's {unread} reports can be read"
    return "the plugin tells of no layer: the model has no MXFP4 experts of gpt-oss, or vLLM did not load it"


def _ours(reports: list[_Report]) -> dict[str, str]:
    def of(name: str) -> str:
        return _joined([getattr(report, name) for report in reports])

    facts = {
        "kernel": of("kernel"),
        "kernel.hash": of("kernel_hash"),
        "kernel.config": of("how"),
        "kernel.config_hash": of("config_hash"),
        "kernel.node_class": of("node_class"),
        "kernel.of_floor": of("of_floor"),
    }
    return {name: value for name, value in facts.items() if value}


def _vllms(log: Iterable[str]) -> dict[str, str]:
    backends, tables, paths, default = [], [], [], False
    for line in log:
        if (found := _BACKEND.search(line)) is not None:
            backends.append(f"vLLM {found['backend']} ({found['kind']})")
        elif (found := _TABLE.search(line)) is not None:
            paths.append(found["path"])
            tables.append(found["path"].rpartition("/")[2])
        elif _NO_TABLE in line:
            default = True
    if default:
        tables.append("default")
    facts = {
        "kernel": _joined(backends),
        "kernel.config": _joined(tables),
        "kernel.config_hash": _joined([_hash_of(path) for path in dict.fromkeys(paths)]),
    }
    return {name: value for name, value in facts.items() if value}


def _joined(texts: Iterable[str], most: int = _CHARACTERS) -> str:
    """Each once; `a | b` where they differ."""
    return _cut(" | ".join(sorted({text for text in texts if text})), most)


def _cut(text: str, most: int = _CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _content(path: str | Path, most: int) -> bytes:
    """At most a byte more than `most`. OSError for what is no file: a pipe would be waited for."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no file")
        return file.read(most + 1)


def _hash_of(path: str) -> str:
    """As of our own tables: the first 12 hex digits of SHA-256 of the file; "" of one that cannot be read."""
    try:
        content = _content(path, _MOST_TABLE_BYTES)
    except (OSError, ValueError):  # ValueError: no path at all
        return ""
    return hashlib.sha256(content).hexdigest()[:12] if len(content) <= _MOST_TABLE_BYTES else ""


# --- the plugin's reports -------------------------------------------------------------------------------------------------


def _reports(folder: Path) -> tuple[list[_Report], int]:
    """Those that can be read, by name, and how many cannot."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json"))[:_MOST_REPORTS]
    except OSError:
        return [], 0
    found = [_report(folder / name) for name in names]
    read = [report for report in found if report is not None]
    return read, len(found) - len(read)


def _report(file: Path) -> _Report | None:
    try:
        content = _content(file, _MOST_BYTES)
        told = json.loads(content) if len(content) <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("schema") != _SCHEMA:
        return None
    config = told.get("config")
    if not isinstance(config, dict):
        config = {}
    layers, how = told.get("layers"), _text(config, "how")
    return _Report(
        kernel=_text(told, "kernel"),
        kernel_hash=_text(told, "kernel_hash"),
        node_class=_text(told, "node_class"),
        layers=layers if isinstance(layers, int) and not isinstance(layers, bool) and layers > 0 else 0,
        how=how if how in _HOW else "",
        config_hash=_text(config, "hash"),
        of_floor=_of_floor(config.get("of_floor")),
        fallback=_text(told, "fallback", _OF_REASON),
    )


def _text(table: Mapping[str, Any], name: str, most: int = _CHARACTERS) -> str:
    """On one line, printable."""
    value = table.get(name)
    if not isinstance(value, str):
        return ""
    return _cut(one_line(value[:1000]), most)


def _of_floor(told: Any) -> str:
    """`M=16 71 %, M=64 66 %`; a table that was not timed has none."""
    if not isinstance(told, dict):
        return ""
    shares = sorted(
        (int(m), float(share))
        for m, share in told.items()
        if isinstance(m, str) and m.isascii() and m.isdigit() and len(m) < 8
        and isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 10
    )  # fmt: skip
    return _cut(", ".join(f"M={m} {share:.0%}".replace("%", " %") for m, share in shares[:_MOST_M]))
