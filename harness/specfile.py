"""From a profile or a TOML file, and `-s key=value` overrides, to a RunSpec, or to sentences a person can act on.

Nothing starts before this has passed. Every complaint names the field as it is written (`fleet.nodes`), the value
found there, what is wrong with it, the nearest valid name, and the line when it came from a file; all complaints are
collected, not only the first. Relative paths in a file mean "beside that file", in an override "beside where I am":
the head runs elsewhere, so they are made absolute here.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.records.layout import at_home
from harness.spec import RunSpec, node_name
from harness.specerrors import Problem, SpecError, all_fields, flags, nearest, sentences, with_lines

__all__ = ["PROFILES", "Problem", "SpecError", "load_spec", "parse_value", "profiles", "spec_from_json", "to_toml"]

PROFILES = Path(__file__).parent / "profiles"
#: Fields that hold a path on this machine.
PATH_FIELDS = (
    "model.path", "dataset.path", "dataset.tokenizer", "record.dir", "fleet.python", "metrics.rules",
    "fleet.kernels.store",
    *(f"metrics.gpu.{name}" for name in ("password_file", "bearer_file", "ca_file", "cert_file", "key_file")),
)  # fmt: skip
#: Fields that hold a list of them.
PATHS_FIELDS = ("metrics.gpu.profile_files",)
#: Whose fields the engine checks; absent ones have the engine's defaults, and `none` means absent.
ENGINE_ARGS = "fleet.engine_args."
_MISSING = object()
#: A name as TOML writes one with a slash or a star in it. In an override the quotes are not needed.
_QUOTED = re.compile(r"""(?<![^.])["']([^"'.]+)["'](?![^.])""")


def profiles() -> dict[str, str]:
    """Shipped profiles and their description (the first comment line of each file)."""
    found = {}
    for path in sorted(PROFILES.glob("*.toml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found[path.stem] = first.lstrip("# ").strip()
    return found


def load_spec(which: str, overrides: Sequence[str] = ()) -> RunSpec:
    """The spec of a profile name or a TOML path, with overrides applied in order. Raises SpecError."""
    path = _locate(which)
    source = str(path) if path.parent != PROFILES else f"profile {path.stem}"
    text, raw = _read(path, source)
    _absolute(raw, path.parent)
    given, problems = _apply(raw, overrides)
    if problems:
        raise SpecError(problems, "-s")
    problems = [*_never_a_value(raw, "")]
    if problems:
        raise SpecError(with_lines(problems, text, given), source)
    spec = _validate(raw, text, given, source)
    problems = [*_missing_files(spec), *_rules_problems(spec), *_metrics_problems(spec), *_engine_problems(spec)]
    if problems:
        raise SpecError(with_lines(problems, text, given), source)
    return _with_engine_args(spec, _given_engine_args(spec))


def spec_from_json(data: str | bytes, source: str) -> RunSpec:
    """A spec as `spec.model_dump_json()` wrote it (the wire, spec.json, run.json)."""
    try:
        return RunSpec.model_validate_json(data)
    except ValidationError as error:
        raise SpecError(sentences(error, {}), source) from error


def to_toml(spec: RunSpec) -> str:
    """The whole spec as TOML that loads again; fields that are None (not limited) are left out."""
    plain = spec.model_dump(mode="json", exclude_none=True)
    top = [f"{key} = {_toml_value(value)}" for key, value in plain.items() if not isinstance(value, dict)]
    tables = [
        f"[{name}]\n" + "\n".join(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items())
        for name, table in plain.items()
        if isinstance(table, dict) and table
    ]
    return "\n\n".join(["\n".join(top), *tables]) + "\n"


# --- reading -------------------------------------------------------------------------------------------------


def _locate(which: str) -> Path:
    shipped = PROFILES / f"{which}.toml"
    if "/" not in which and os.path.isfile(shipped):
        return shipped
    path = at_home(which or "(nothing)")
    if os.path.isfile(path):
        return path.resolve()
    names = list(profiles())
    if os.path.isdir(path):
        what = "is a folder; a TOML file or the name of a profile is needed"
    elif "/" in which or which.endswith(".toml"):
        what = "no such file"
    else:
        what = f"neither a profile ({', '.join(names)}) nor a file"
    raise SpecError([Problem("", what, nearest=nearest(which, names))], which)


def _read(path: Path, source: str) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError([Problem("", f"is not UTF-8 text (byte {error.start})")], source) from error
    except OSError as error:
        raise SpecError([Problem("", f"cannot be read: {error.strerror}")], source) from error
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        place = re.search(r" \(at line (\d+), column \d+\)| \(at end of document\)", said)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        what = said[: place.start()] if place else said
        raise SpecError([Problem("", f"is not valid TOML: {what[:1].lower()}{what[1:]}", line=line)], source) from error


def _absolute(raw: dict[str, Any], base: Path) -> None:
    for dotted in (*PATH_FIELDS, *PATHS_FIELDS):
        *way, key = dotted.split(".")
        holder: Any = raw
        for table in way:
            holder = holder.get(table) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and key in holder:
            holder[key] = _from(base, dotted, holder[key])


def _from(base: Path, dotted: str, value: Any) -> Any:
    """The value of a field with a path, or with several, from this folder; any other value as it is."""
    if dotted in PATHS_FIELDS and isinstance(value, list):
        return [str(base / at_home(one)) if isinstance(one, str) and one else one for one in value]
    return str(base / at_home(value)) if dotted in PATH_FIELDS and _is_path(dotted, value) else value


# --- overrides -----------------------------------------------------------------------------------------------


def _apply(raw: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, str], list[Problem]]:
    """Write the overrides into `raw`; what was given, as text, by dotted path."""
    given: dict[str, str] = {}
    problems: list[Problem] = []
    for override in overrides:
        dotted, equals, text = override.partition("=")
        dotted, text = _QUOTED.sub(r"\1", dotted.strip()), text.strip()
        if not equals or not all(dotted.split(".")):
            problems.append(Problem("", "is not of the form table.field=value", f"{override!r}"))
            continue
        value = parse_value(text)
        if value is None and dotted.startswith(ENGINE_ARGS) and _take_out(raw, dotted):
            continue
        problem = _put(raw, dotted, _from(Path.cwd(), dotted, value))
        if problem is not None:
            problems.append(problem)
        given[dotted] = text
    return given, problems


def _take_out(raw: dict[str, Any], dotted: str) -> bool:
    """An engine's argument that the file gives and `none` takes away again. What the file does not give stays to be
    checked by name: `none` for an argument that does not exist is a mistake too."""
    *way, last = dotted.split(".")
    at: Any = raw
    for part in way:
        at = at.get(part) if isinstance(at, dict) else None
    if not (isinstance(at, dict) and last in at):
        return False
    del at[last]
    return True


def parse_value(text: str) -> Any:
    """A TOML value, or `none`, or else the text itself (so that `-s load.kind=explore` needs no quotes)."""
    if text == "none":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}\n")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _put(raw: dict[str, Any], dotted: str, value: Any) -> Problem | None:
    """Set one place; tables on the way are made, list entries are reached by their number."""
    *way, last = dotted.split(".")
    at: Any = raw
    walked: list[str] = []
    for part in way:
        walked.append(part)
        if isinstance(at, dict):
            at = at.setdefault(part, {})
        else:
            at = at[int(part)] if part.isdigit() and int(part) < len(at) else _MISSING
        if not isinstance(at, dict | list):
            return Problem(dotted, f"cannot be set: {'.'.join(walked)} is not a table")
    if isinstance(at, dict):
        at[last] = value
    elif last.isdigit() and int(last) < len(at):
        at[int(last)] = value
    else:
        return Problem(dotted, f"cannot be set: {'.'.join(way)} is a list of {len(at)} entries")
    return None


# --- validation ----------------------------------------------------------------------------------------------


def _validate(raw: dict[str, Any], text: str, given: Mapping[str, str], source: str) -> RunSpec:
    try:
        return RunSpec.model_validate(raw)
    except ValidationError as error:
        failure = error
    # `-s name=2026` reads as a number, but the field wants text: take what was typed. Of words that a field may have, `none`
    # can be one.
    typed = {".".join(map(str, e["loc"])): e["type"] for e in failure.errors() if e["type"] in ("string_type", "literal_error")}
    words = {dotted for dotted, kind in typed.items() if kind == "literal_error"}
    retry = [dotted for dotted in typed if dotted in given and (given[dotted] == "none") == (dotted in words)]
    if retry:
        for dotted in retry:
            _put(raw, dotted, given[dotted])
        try:
            return RunSpec.model_validate(raw)
        except ValidationError as error:
            failure = error
    raise SpecError(with_lines(sentences(failure, raw), text, given), source) from failure


def _engine_problems(spec: RunSpec) -> Iterator[Problem]:
    given = _given_engine_args(spec)
    yield from _engine_refuses(_with_engine_args(spec, given))
    for name in sorted(spec.fleet.engine_args.keys() - given.keys()):
        # taken away though never given: fine for an argument that the engine has, whatever it thinks of such a value
        for problem in _engine_refuses(_with_engine_args(spec, {name: None})):
            if "not an argument" in problem.what:
                yield Problem(problem.field, problem.what.replace("None", "none", 1))


def _engine_refuses(spec: RunSpec) -> Iterator[Problem]:
    from harness.engines.base import EngineError
    from harness.engines.registry import check_args

    try:
        check_args(spec)
    except EngineError as error:
        said = re.fullmatch(r"((?:fleet|model|sampling)\.[\w.\[\]]+)(?: = (.+?))?: (.+)", str(error), re.DOTALL)
        if said is None:
            yield Problem("fleet.engine_args", str(error))
        else:
            yield Problem(re.sub(r"\[(\d+)\]", r".\1", said[1]), f"{said[2]}: {said[3]}" if said[2] else said[3])


def _given_engine_args(spec: RunSpec) -> dict[str, Any]:
    return {name: value for name, value in spec.fleet.engine_args.items() if value is not None}


def _with_engine_args(spec: RunSpec, args: dict[str, Any]) -> RunSpec:
    return spec.model_copy(update={"fleet": spec.fleet.model_copy(update={"engine_args": args})})


def _rules_problems(spec: RunSpec) -> Iterator[Problem]:
    """The driver refuses an unknown name as well, but only once the fleet is warm."""
    from harness.mlperf.rules import MODELS

    name = spec.model.mlperf_name
    if name is not None and name not in MODELS:
        known = f"has no rules here; known are {', '.join(sorted(MODELS))}"
        yield Problem("model.mlperf_name", known, repr(name), nearest(name, list(MODELS)))


def _metrics_problems(spec: RunSpec) -> Iterator[Problem]:
    """Rules and profiles are the operator's own work, and the head reads them only once the run has begun."""
    metrics, gpu = spec.metrics, spec.metrics.gpu
    for node in gpu.hosts.values():
        number = re.fullmatch(r"node(\d+)", node)
        if number is not None and int(number[1]) >= spec.fleet.nodes:
            last = f" to {node_name(spec.fleet.nodes - 1)}" if spec.fleet.nodes > 1 else ""
            yield Problem("metrics.gpu.hosts", f"is no node of this fleet, which has {node_name(0)}{last}", repr(node))
    if spec.cluster.kind == "kubernetes":
        yield from _files_left_here(spec)
        return
    if metrics.rules is not None:
        from harness.metrics.gpu.rules import RulesError, load_rules

        try:
            load_rules(metrics.rules)
        except RulesError as error:
            yield Problem("metrics.rules", str(error).removeprefix("metrics.rules "))
    if gpu.profile_files or gpu.profiles:
        from harness.metrics.gpu.profiles import load

        try:
            load(gpu)
        except ValueError as error:
            for said in str(error).splitlines():
                field, colon, what = said.partition(": ")
                named = bool(colon) and field.startswith("metrics.gpu.")
                yield Problem(field if named else "metrics.gpu.profile_files", what if named else said)


def _files_left_here(spec: RunSpec) -> Iterator[Problem]:
    rules, secret = spec.metrics.rules, "/etc/paceline-metrics"
    named = [("metrics.gpu.profile_files", file) for file in spec.metrics.gpu.profile_files]
    for dotted, file in [*named, *([("metrics.rules", rules)] if rules is not None else [])]:
        if Path(file).is_file() and not Path(file).is_relative_to(secret):
            why = (
                f"the head reads it in its pod: put it into the Secret of cluster.kubernetes.metrics_secret, which is at {secret}"
            )
            yield Problem(dotted, f"is a file of this machine, and {why}", repr(file))


def _missing_files(spec: RunSpec) -> Iterator[Problem]:
    data = spec.dataset
    if spec.cluster.kind == "kubernetes":
        yield from _out_of_the_pods_reach(spec)
        return
    if data.kind != "lengths" and data.path and not Path(data.path).is_file():
        yield Problem("dataset.path", "is not a file here", repr(data.path))
    if data.kind != "lengths" and data.tokenizer and not Path(data.tokenizer).exists():
        yield Problem("dataset.tokenizer", "is neither a folder nor a file here", repr(data.tokenizer))
    store = spec.fleet.kernels.store
    if store is not None and not Path(store).is_dir():
        yield Problem("fleet.kernels.store", "is no folder here; give the one that `paceline kernels tune` wrote", repr(store))


def _out_of_the_pods_reach(spec: RunSpec) -> Iterator[Problem]:
    """Files are read in pods: only what lies on one of their volumes can be there."""
    kube, data = spec.cluster.kubernetes, spec.dataset
    mounts = [mount for claim, mount in ((kube.data_claim, kube.data_mount), (kube.model_claim, kube.model_mount)) if claim]
    asked = {"dataset.path": data.path, "dataset.tokenizer": data.tokenizer} if data.kind != "lengths" else {}
    for dotted, path in asked.items():
        if path and not any(Path(path).is_relative_to(mount) for mount in mounts):
            once = f"{kube.data_mount}, once cluster.kubernetes.data_claim names its volume (paceline-data)"
            where = " or ".join(mounts) or once
            yield Problem(dotted, f"is not where the head's pod can read it: it must be below {where}", repr(path))


def _is_path(dotted: str, value: Any) -> bool:
    """An interpreter without a slash is looked for on PATH, where the replica starts."""
    return isinstance(value, str) and value != "" and (dotted != "fleet.python" or "/" in value)


def _never_a_value(value: Any, dotted: str) -> Iterator[Problem]:
    """What TOML allows and no field means: inf and nan (null in JSON), and true or false, which pydantic reads as 1 and 0.

    Engines may take true and false among their arguments.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _never_a_value(inner, f"{dotted}.{key}" if dotted else key)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _never_a_value(inner, f"{dotted}.{place}")
    elif isinstance(value, bool) and not dotted.startswith("fleet.engine_args."):
        if dotted in set(all_fields()) - flags():
            yield Problem(dotted, "is not a value of this field", str(value).lower())
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(dotted, "is not a finite number", str(value))


# --- writing -------------------------------------------------------------------------------------------------


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    escaped = re.sub(r"[\x00-\x1f\x7f]", lambda hit: f"\\u{ord(hit[0]):04x}", escaped)
    return f'"{escaped}"'
