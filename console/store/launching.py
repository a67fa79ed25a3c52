"""A run that is not yet one: the chosen spec, its fields as a form, what was changed, and what a start would start.

The form has no rules of its own. It is made of RunSpec's fields, a change is a `-s field=value` like on the command line,
and whether it holds is asked of `load_spec` with all changes together, so that the console and `paceline run` refuse the
same things in the same words. A change that does not hold is not taken: what is here can always be started as it stands.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import platformdirs
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harness.mlperf.compliance.audits import AUDITS
from harness.records.layout import at_home, runs_root
from harness.spec import RunSpec
from harness.specfile import SpecError, load_spec, parse_value, profiles

RECENT_FILE: Final = "specs.txt"
RECENT_KEPT: Final = 20
#: Of a record on disk, measured: 2.4 million samples and 330,000 slot-seconds take 67 MB. Rounded up.
BYTES_A_SAMPLE: Final = 32
BYTES_A_SLOT_SECOND: Final = 32


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a spec. Texts are as they are typed after `-s field=`."""

    dotted: str
    table: str  # "" for those of the run itself
    name: str
    value: str
    in_file: str
    default: str
    allowed: str
    about: str
    choices: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return self.value != self.in_file

    @property
    def is_default(self) -> bool:
        return self.value == self.default


class Draft:
    """One profile or file with the changes made to it here."""

    def __init__(self, which: str) -> None:
        """Raises SpecError when the file itself cannot be used."""
        self.which = which
        self.changes: dict[str, str] = {}
        self._base = load_spec(which)
        self.spec = self._base

    def set(self, dotted: str, text: str) -> str:
        """Take the change; else what is wrong with it, in words. Empty text: back to what the file says."""
        text = text.strip()
        wanted = {name: value for name, value in self.changes.items() if name != dotted}
        if text and text != typed_value(value_at(self._base, dotted)):
            wanted[dotted] = text
        try:
            spec = load_spec(self.which, [f"{name}={value}" for name, value in wanted.items()])
        except SpecError as error:
            return "; ".join(str(problem) for problem in error.problems)
        self.changes, self.spec = wanted, spec
        return ""

    def fields(self) -> list[FormField]:
        return list(_walk(RunSpec, self.spec, self._base, _DEFAULTS, ""))

    def command(self) -> str:
        """Without the program's name."""
        changes = [part for name, value in self.changes.items() for part in ("-s", f"{name}={value}")]
        return shlex.join(["run", self.which, *changes])


_DEFAULTS: Final = RunSpec()


def value_at(spec: BaseModel, dotted: str) -> Any:
    at: Any = spec
    for part in dotted.split("."):
        at = getattr(at, part)
    return at


def _walk(model: type[BaseModel], spec: Any, base: Any, default: Any, prefix: str) -> Iterator[FormField]:
    """Fields of the run itself first, then table by table."""
    nested = []
    for name, info in model.model_fields.items():
        inner = info.annotation if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel) else None
        values = (getattr(spec, name), getattr(base, name), getattr(default, name))
        if inner is not None:
            nested.append((inner, values, f"{prefix}{name}."))
            continue
        table, _, rest = f"{prefix}{name}".partition(".")
        if not rest:
            table, rest = "", name
        now, in_file, default_text = (typed_value(value) for value in values)
        choices = _choices(info.annotation)
        yield FormField(
            f"{prefix}{name}", table, rest, now, in_file, default_text, _allowed(info, choices), info.description or "", choices
        )
    for inner, values, deeper in nested:
        yield from _walk(inner, *values, deeper)


def _choices(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(str(choice) for choice in get_args(annotation))
    return tuple(choice for part in get_args(annotation) if get_origin(part) is Literal for choice in _choices(part))


def _allowed(info: FieldInfo, choices: tuple[str, ...]) -> str:
    """`1 … 4,096`, `> 0`, `Server | Offline`, `text or none`."""
    parts = get_args(info.annotation) or (info.annotation,)
    if choices and get_origin(info.annotation) is Literal:
        return " | ".join(choices)
    bounds = {
        name: _figure(bound)
        for name in ("ge", "gt", "le", "lt")
        for one in info.metadata
        if (bound := getattr(one, name, None)) is not None
    }
    if get_origin(info.annotation) is tuple:
        said = f"list of {', '.join(choices)}" if choices else "list"
    elif choices:
        said = f"{' | '.join(choices)} | table"
    elif get_origin(info.annotation) is dict:
        said = "{ name = value, … }"
    elif bounds:
        low = bounds.get("ge") or (f"> {bounds['gt']}" if "gt" in bounds else "")
        high = bounds.get("le") or (f"< {bounds['lt']}" if "lt" in bounds else "")
        said = f"{low} … {high}" if low and high else low if low.startswith(">") else f"≥ {low}" if low else f"≤ {high}"
    else:
        said = next((word for kind, word in ((int, "integer"), (float, "number"), (str, "text")) if kind in parts), "")
    return f"{said} or none" if type(None) in parts else said


def _figure(bound: float) -> str:
    return f"{bound:,.0f}" if abs(bound) >= 1000 else f"{bound:g}"


def typed_value(value: Any) -> str:
    """As it is typed: `none`, `4000`, `Server`; text that would be read as something else is quoted."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return value if value and parse_value(value) == value and value.strip() == value else json.dumps(value)
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {_inline(one)}" for key, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, BaseModel):
        return typed_value(value.model_dump(exclude_none=True))
    return f"[{', '.join(_inline(one) for one in value)}]"


def _inline(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else typed_value(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


# --- what would be started -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """In figures; `words` are for people."""

    replicas: int
    workers: int
    queries: float  # NaN: no end
    load_s: float  # NaN: no end
    record_bytes: float
    folder: Path
    words: list[tuple[str, str]] = field(default_factory=list)
    short: str = ""  # the same in one line


def plan_of(spec: RunSpec) -> Plan:
    fleet, load = spec.fleet, spec.load
    workers = -(-fleet.nodes // spec.cluster.nodes_per_worker)
    endless = load.kind == "explore" and load.duration_s == 0
    audit = AUDITS.get(load.test or "")
    duration_s = 0.0 if audit is not None else load.duration_s
    least = audit.min_queries if audit is not None else load.min_queries or 0
    queries = math.nan if endless else max(load.target_qps * duration_s, least)
    load_s = math.nan if endless else max(duration_s, queries / load.target_qps)
    size = math.nan if endless else queries * BYTES_A_SAMPLE + load_s * spec.expected_replicas * BYTES_A_SLOT_SECOND
    folder = runs_root(spec.record.dir) / f"{spec.name}-DATE-TIME"
    share = spec.fleet.slots_per_process
    engines = f", {share} to a process" if share else ""
    long = "until it is stopped" if endless else f"{_span(load_s)} of load"
    asked = f"{load.what}, {load.scenario} at {load.target_qps:,g} QPS"
    replicas = spec.expected_replicas
    what = "" if load.kind == "performance" else f"{load.what} "
    short = f"{replicas:,d} replicas, {what}{load.scenario} {load.target_qps:,g} QPS, {long.removesuffix(' of load')}"
    plan = Plan(replicas, workers, queries, load_s, size, folder, short=short)
    counted = "" if endless or load.kind == "accuracy" else f", about {queries:,.0f} queries"
    plan.words.extend(
        [
            ("fleet", f"{fleet.nodes} x {fleet.replicas_per_node} = {plan.replicas:,d} replicas of {fleet.engine}{engines}"),
            ("processes", f"head, driver, {workers:,d} worker{'s' * (workers != 1)} on this machine"),
            ("attempt", f"{asked}{counted}"),
            ("time", f"warm-up (≤ {_span(fleet.barrier.deadline_s)}), then {long}"),
            ("record", f"{folder}" + ("" if math.isnan(size) else f"  (about {max(1, size / 1e6):,.0f} MB)")),
        ]
    )
    return plan


def _span(seconds: float) -> str:
    """`90 s`, `10 min`, `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


# --- what can be chosen --------------------------------------------------------------------------------------


def shipped() -> dict[str, str]:
    """Profiles with what they are."""
    return profiles()


def spec_files(folder: Path | None = None) -> list[Path]:
    """Started from here before, newest first; then what lies in the working directory and has a table of a spec."""
    remembered = [path for path in _remembered() if os.path.isfile(path)]  # Path.is_file raises in a closed folder
    tables = set(RunSpec.model_fields)
    beside = []
    with contextlib.suppress(FileNotFoundError):  # the working directory has been removed meanwhile
        found = sorted((folder or Path.cwd()).glob("*.toml"))
        beside = [path.resolve() for path in found if path.is_file() and _tables_of(path) & tables]
    return list(dict.fromkeys([*remembered, *beside]))


def _tables_of(path: Path) -> set[str]:
    """Names of its tables that are tables; a spec has `[load]` or `[fleet]`, a project file may have a name too."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    return {name for name, value in raw.items() if isinstance(value, dict)}


def remember(which: str) -> None:
    """A file that was used, for the next time; a state folder that cannot be written costs only the memory."""
    path = at_home(which)
    if not os.path.isfile(path):
        return
    kept = list(dict.fromkeys([path.resolve(), *_remembered()]))[:RECENT_KEPT]
    try:
        folder = platformdirs.user_state_path("paceline", ensure_exists=True)
        (folder / RECENT_FILE).write_text("".join(f"{one}\n" for one in kept), encoding="utf-8")
    except OSError:
        return


def _remembered() -> list[Path]:
    try:
        text = (platformdirs.user_state_path("paceline") / RECENT_FILE).read_text(encoding="utf-8")
    except OSError:
        return []
    return [Path(line) for line in text.splitlines() if line.strip()]
