"""What is wrong with a spec, in sentences: pydantic's errors turned into field, value, complaint, nearest name and line.

A person reads these right after typing, so each says what to type instead where that can be known. Programs read
`SpecError.problems`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from harness.spec import RunSpec

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Problem:
    field: str  # dotted; "" when it concerns the whole
    what: str
    value: str = ""
    nearest: str = ""
    line: int | None = None

    def __str__(self) -> str:
        subject = f"{self.field}: " if self.field else ""
        value = f"{self.value} " if self.value else ""
        nearest = f"; did you mean {self.nearest}?" if self.nearest else ""
        line = f" (line {self.line})" if self.line else ""
        return f"{subject}{value}{self.what}{nearest}{line}"


class SpecError(Exception):
    """The spec cannot be used. `problems` for programs, the text for people."""

    def __init__(self, problems: Sequence[Problem], source: str) -> None:
        self.problems = list(problems)
        self.source = source
        lines = [str(problem) for problem in self.problems]
        if len(lines) == 1:
            text = f"{source}: {lines[0]}"
        else:
            text = f"{source} has {len(lines)} problems:\n" + "\n".join(f"  {line}" for line in lines)
        super().__init__(text)


_TYPE_WORDS = {
    "int_type": "is not a whole number",
    "int_parsing": "is not a whole number",
    "int_parsing_size": "is not a whole number that fits",
    "int_from_float": "is not a whole number",
    "float_type": "is not a number",
    "float_parsing": "is not a number",
    "string_type": "is not text (quote it)",
    "tuple_type": "is not a list",
    "list_type": "is not a list",
    "dict_type": "is not a table",
    "model_type": "is not a table",
    "model_attributes_type": "is not a table",
}
_BOUND_WORDS = {
    "greater_than": ("gt", "must be more than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be less than"),
    "less_than_equal": ("le", "must be at most"),
}


def sentences(error: ValidationError, raw: Mapping[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[tuple[str, str]] = set()
    for detail in error.errors(include_url=False):
        problem = _sentence(detail, raw)
        if problem is not None and (problem.field, problem.what) not in seen:
            seen.add((problem.field, problem.what))
            problems.append(problem)
    return problems


def _sentence(detail: Any, raw: Mapping[str, Any]) -> Problem | None:
    place, branch = _real_place(detail["loc"])
    dotted = ".".join(place)
    kind, context = detail["type"], detail.get("ctx", {})
    found = _value_at(raw, place)
    shown = "" if found is _MISSING else _short(found)
    if dotted == "load.seeds" and (not isinstance(found, dict) or branch == "literal"):
        if isinstance(found, dict):
            return None  # the other branch of the union says what is wrong inside the table
        return Problem(dotted, 'is neither "mlperf" nor a table { qsl = …, sample_index = …, schedule = … }', shown)
    if kind == "extra_forbidden":
        return Problem(dotted, "no such field", nearest=_nearest_field(place))
    if kind == "missing":
        return Problem(dotted, "is needed")
    if kind == "literal_error":
        allowed = _choices(place)
        return Problem(dotted, f"is not one of {', '.join(allowed)}", shown, nearest(str(found), allowed))
    if kind in _BOUND_WORDS:
        key, words = _BOUND_WORDS[kind]
        return Problem(dotted, f"is out of range: {words} {context[key]:g}", shown)
    if kind == "string_pattern_mismatch":
        return Problem(dotted, "cannot be a name: 1 to 64 letters, digits, '.', '_' or '-', first a letter or digit", shown)
    if kind in ("too_short", "string_too_short"):
        return None if found else Problem(dotted, "must not be empty")  # not empty: an entry of it has its own problem
    if kind == "value_error":
        return _combination(place, str(context.get("error", detail["msg"])))
    if kind in _TYPE_WORDS:
        return Problem(dotted, _TYPE_WORDS[kind], shown)
    return Problem(dotted, f"cannot be used: {detail['msg'][:1].lower()}{detail['msg'][1:]}", shown)


def _combination(place: Sequence[str], said: str) -> Problem:
    """A validator of a whole table spoke; its sentence begins with the field's name where there is one."""
    first, _, rest = said.partition(" ")
    dotted = ".".join([*place, first])
    if dotted in set(all_fields()):
        return Problem(dotted, rest.removeprefix("= "))
    return Problem(".".join(place), said)


def _real_place(loc: Sequence[int | str]) -> tuple[list[str], str]:
    """pydantic mixes the branches of a union into the place (`load.seeds.literal['mlperf']`): take them out."""
    place: list[str] = []
    branch = ""
    for part in loc:
        if isinstance(part, str) and part.startswith("literal["):
            branch = "literal"
        elif isinstance(part, str) and part == "SeedSpec":
            branch = part
        else:
            place.append(str(part))
    return place, branch


def all_fields(model: type[BaseModel] = RunSpec, prefix: str = "") -> Iterator[str]:
    """Dotted names of all tables and fields."""
    yield from (name for name, _ in _fields(model, prefix))


def flags() -> set[str]:
    """Dotted names of the fields that are true or false."""
    return {name for name, annotation in _fields(RunSpec, "") if annotation is bool}


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field.annotation
        inner = _table_of(field.annotation)
        if inner is not None:
            yield from _fields(inner, f"{prefix}{name}.")


def _table_of(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _choices(place: Sequence[str]) -> list[str]:
    model: type[BaseModel] = RunSpec
    annotation: Any = None
    for part in place:
        if part.isdigit():
            continue
        annotation = model.model_fields[part].annotation
        model = _table_of(annotation) or model
    while get_origin(annotation) is not Literal:
        annotation = get_args(annotation)[0]
    return [str(choice) for choice in get_args(annotation)]


def nearest(wrong: str, names: Sequence[str]) -> str:
    return next(iter(difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)), "")


def _nearest_field(place: Sequence[str]) -> str:
    """The same name in another table first (`fleet.target_qps`), then what looks alike in this table, then anywhere."""
    fields = list(all_fields())
    *table, wrong = place
    elsewhere = [f for f in fields if f.rpartition(".")[2] == wrong]
    if elsewhere:
        return elsewhere[0]
    prefix = ".".join([*table, ""])
    here = {f.removeprefix(prefix): f for f in fields if f.startswith(prefix) and "." not in f.removeprefix(prefix)}
    near = nearest(wrong, list(here))
    if near:
        return here[near]
    tails = {f.rpartition(".")[2]: f for f in reversed(fields)}
    near = nearest(wrong, list(tails))
    return tails.get(near, "")


def _value_at(raw: Any, place: Sequence[str]) -> Any:
    for part in place:
        if isinstance(raw, Mapping) and part in raw:
            raw = raw[part]
        elif isinstance(raw, list) and part.isdigit() and int(part) < len(raw):
            raw = raw[int(part)]
        else:
            return _MISSING
    return raw


def _short(value: Any) -> str:
    if value is None:
        return "none"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "…"


# --- lines ---------------------------------------------------------------------------------------------------


def with_lines(problems: Sequence[Problem], text: str, given: Mapping[str, str]) -> list[Problem]:
    """Add the line of the file, for what came from the file."""
    return [
        problem
        if not problem.field or any(_within(problem.field, dotted) for dotted in given)
        else Problem(problem.field, problem.what, problem.value, problem.nearest, line_of(text, problem.field))
        for problem in problems
    ]


def _within(field: str, dotted: str) -> bool:
    return field == dotted or field.startswith(dotted + ".") or dotted.startswith(field + ".")


def line_of(text: str, dotted: str) -> int | None:
    """Where a field stands in a TOML file: its own line, else that of the nearest table or key around it."""
    best: tuple[int, int] | None = None  # (how much of the name it covers, line)
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+\s*([\w.\"'-]+)\s*\]+", line)
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if header:
            table = name = header[1]
        elif key:
            name = f"{table}.{key[1]}" if table else key[1]
        else:
            continue
        if (dotted == name or dotted.startswith(name + ".")) and (best is None or len(name) > best[0]):
            best = (len(name), number)
    return best[1] if best else None
