"""The sidecar of a table: for which layer, kernel, compiler and class of node it is, and what each configuration reached."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, get_args

from kernels.accelerators import TARGETS
from kernels.errors import KernelInputError
from kernels.shapes import Activation, GateUp, MoeShape, Weights
from kernels.store.jsonfiles import JsonFile
from kernels.store.nodeclass import NodeClass, parse_slug

SCHEMA: Final = 1
MAX_M: Final = 1 << 20
Origin = Literal["measured", "untimed"]
_HASH = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Of one configuration. Times are those of one layer, both GEMMs; None where nothing was measured."""

    us: float | None = None  # median
    spread_us: float | None = None
    floor_us: float | None = None
    of_floor: float | None = None  # floor_us / us
    error: float | None = None  # relative, against the reference
    routing: Mapping[str, float] = field(default_factory=dict)  # uniform_us, zipf_us
    more: Mapping[str, Any] = field(default_factory=dict)  # what else its writer knows, such as the compiler's resources


@dataclass(frozen=True, slots=True)
class About:
    shape: MoeShape
    target: str
    compute_units: int
    memory_gb: int
    device_name: str
    origin: Origin
    kernel_hash: str  # kernels.identity's; empty for a table of vLLM's own kernels
    triton: str = ""
    torch: str = ""
    driver: str = ""
    engine: str = ""  # "vllm 0.33.0" where the table is of vLLM's own kernels
    clocks: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""  # ISO 8601
    keys: Mapping[int, KeyFacts] = field(default_factory=dict)
    table_hash: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return self.shape.model

    @property
    def node_class(self) -> NodeClass:
        return NodeClass(self.target, self.compute_units, self.memory_gb, self.device_name)

    def with_hash(self, table_hash: str) -> About:
        return replace(self, table_hash=table_hash)


_NUMBERS = ("us", "spread_us", "floor_us", "of_floor", "error")
_PLAIN = tuple(each.name for each in fields(About) if each.name not in ("shape", "keys", "more"))
_DERIVED = ("schema", "model", "node_class")


def about_json(about: About) -> dict[str, Any]:
    shape = asdict(about.shape)
    keys: dict[str, Any] = {}
    for m, facts in sorted(about.keys.items()):
        known = {name: getattr(facts, name) for name in _NUMBERS if getattr(facts, name) is not None}
        keys[str(m)] = known | ({"routing": dict(facts.routing)} if facts.routing else {}) | dict(facts.more)
    plain = {name: getattr(about, name) for name in _PLAIN}
    plain["clocks"] = dict(about.clocks)
    head = {"schema": SCHEMA, "model": shape.pop("model"), "shape": shape, "node_class": about.node_class.slug}
    return head | plain | dict(about.more) | {"keys": keys}


def about_of(file: JsonFile) -> About:
    """KernelInputError with file, line, field and value."""
    top = _Fields(file, file.table, ())
    if (schema := top.whole("schema")) != SCHEMA:
        raise KernelInputError(f"{file.at('schema')} = {schema} must be {SCHEMA}; a newer paceline wrote this, use that one")
    origin, target = top.text("origin"), top.text("target")
    if origin not in get_args(Origin):
        raise KernelInputError(f"{file.at('origin')} = {origin!r} must be one of {', '.join(get_args(Origin))}")
    if target not in TARGETS:
        raise KernelInputError(f"{file.at('target')} = {target!r} must be one of {', '.join(TARGETS)}")
    keys = {int(key): _facts(file, key, value) for key, value in _by_m(file).items()}
    about = About(
        _shape(file), target, top.whole("compute_units"), top.whole("memory_gb"), top.text("device_name"),
        "measured" if origin == "measured" else "untimed",
        top.hash("kernel_hash"), top.text("triton", ""), top.text("torch", ""), top.text("driver", ""), top.text("engine", ""),
        top.table("clocks", {}), top.text("date", ""), keys, top.hash("table_hash", ""),
        {name: value for name, value in file.table.items() if name not in (*_PLAIN, *_DERIVED, "shape", "keys")},
    )  # fmt: skip
    slug = top.text("node_class")
    if slug != about.node_class.slug or parse_slug(slug) is None:
        raise KernelInputError(f"{file.at('node_class')} = {slug!r} must be {about.node_class.slug}, as its other fields say")
    return about


def _shape(file: JsonFile) -> MoeShape:
    of = _Fields(file, _Fields(file, file.table, ()).table("shape"), ("shape",))
    weights, gate_up = of.text("weights"), of.text("gate_up", "concatenated")
    for name, value, allowed in (("weights", weights, get_args(Weights)), ("gate_up", gate_up, get_args(GateUp))):
        if value not in allowed:
            raise KernelInputError(f"{file.at('shape', name)} = {value!r} must be one of {', '.join(allowed)}")
    sizes = {name: of.whole(name) for name in ("experts", "top_k", "hidden", "intermediate")}
    several = {name: of.whole(name, 0, least=0) for name in ("global_experts", "layers")}
    table = of.table("activation", {})
    given = _Fields(file, table, ("shape", "activation"))
    activation = Activation(given.number("alpha", 1.0) or 0.0, given.number("limit", 0.0) or 0.0, given.true("plus_one"))
    shape = MoeShape(
        _Fields(file, file.table, ()).text("model"), **sizes, weights=weights, gate_up=gate_up,  # type: ignore[arg-type]
        bias=of.true("bias"), activation=activation, **several,
    )  # fmt: skip
    if shape.top_k > shape.routed_over or shape.experts > shape.routed_over:
        raise KernelInputError(f"{file.at('shape', 'top_k')} = {shape.top_k} must be at most the experts, {shape.routed_over}")
    return shape


def is_m(key: str) -> bool:
    """Whether it is a number of tokens as tables have them."""
    return key.isascii() and key.isdigit() and key == key.lstrip("0") and len(key) <= 7 and int(key) <= MAX_M


def _by_m(file: JsonFile) -> dict[str, Any]:
    keys = _Fields(file, file.table, ()).table("keys", {})
    for key in keys:
        if not is_m(key):
            raise KernelInputError(f"{file.at('keys', key)} must be a number of tokens, 1 to {MAX_M}")
    return keys


def _facts(file: JsonFile, key: str, value: Any) -> KeyFacts:
    if not isinstance(value, dict):
        raise KernelInputError(f"{file.at('keys', key)} = {str(value)[:40]!r} must be a table ({{…}})")
    of = _Fields(file, value, ("keys", key))
    routing = of.table("routing", {})
    inner = _Fields(file, routing, ("keys", key, "routing"))
    times = {name: number for name in routing if (number := inner.number(name)) is not None}
    more = {name: one for name, one in value.items() if name not in (*_NUMBERS, "routing")}
    us, floor_us, of_floor = (of.number(name, allow_zero=False) for name in ("us", "floor_us", "of_floor"))
    facts = KeyFacts(us, of.number("spread_us"), floor_us, of_floor, of.number("error"), times, more)
    if facts.us and facts.floor_us and facts.of_floor and abs(facts.of_floor * facts.us / facts.floor_us - 1) > 0.02:
        raise KernelInputError(
            f"{file.at('keys', key, 'of_floor')} = {facts.of_floor} must be floor_us / us = {facts.floor_us / facts.us:.3f}"
        )
    return facts


class _Fields:
    """Values of a table by kind; without a default a field must be there."""

    def __init__(self, file: JsonFile, table: Mapping[str, Any], where: tuple[str, ...]) -> None:
        self.file, self.of, self.where = file, table, where

    def _value(self, name: str, default: Any) -> Any:
        if name in self.of:
            return self.of[name]
        if default is _NEEDED:
            raise KernelInputError(f"{self.file.at(*self.where)}: {name} is missing")
        return default

    def _wrong(self, name: str, value: object, right: str) -> KernelInputError:
        return KernelInputError(f"{self.file.at(*self.where, name)} = {str(value)[:60]!r} must be {right}")

    def text(self, name: str, default: Any = None) -> str:
        value = self._value(name, _NEEDED if default is None else default)
        if not isinstance(value, str) or not value.isprintable() or len(value) > 300:
            raise self._wrong(name, value, "a text of one line")
        return value

    def hash(self, name: str, default: str | None = None) -> str:
        value = self.text(name, default)
        if value and not _HASH.fullmatch(value):
            raise self._wrong(name, value, "12 digits of a SHA-256, 0-9 and a-f")
        return value

    def whole(self, name: str, default: Any = None, least: int = 1) -> int:
        value = self._value(name, _NEEDED if default is None else default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 10**7:
            raise self._wrong(name, value, f"a whole number, {least} or more")
        return value

    def number(self, name: str, default: float | None = None, allow_zero: bool = True) -> float | None:
        value = self._value(name, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(float_of(value)):
            raise self._wrong(name, value, "a number")
        if value < 0 or (value == 0 and not allow_zero):
            raise self._wrong(name, value, "a number of 0 or more" if allow_zero else "a number over 0")
        return float(value)

    def true(self, name: str) -> bool:
        value = self._value(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def table(self, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        value = self._value(name, _NEEDED if default is None else default)
        if not isinstance(value, dict):
            raise self._wrong(name, value, "a table ({…})")
        return value


_NEEDED: Final = object()


def float_of(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond what a float holds
        return math.inf
