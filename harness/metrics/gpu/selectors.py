"""Where metric names stand in a PromQL expression: to know what a rule needs, and to ask it of one source.

A scan of tokens, no parser: it takes expressions that Prometheus takes and need not notice the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
      | (?P<window>\[[^\]]*\])
      | (?P<number>(?:\d[\w.]*|\.\d\w*)(?:(?<=[eE])[+-]\d+)?)
      | (?P<name>[A-Za-z_:][\w:]*)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_GROUPING: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_AGGREGATORS: Final = frozenset(
    {"sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk", "quantile"}
)
_WORDS: Final = _GROUPING | _AGGREGATORS | frozenset({"and", "or", "unless", "offset", "bool", "atan2", "inf", "nan"})
#: AMD's exporter puts the prefix of its configuration before names that begin so.
_PREFIXED: Final = ("gpu_", "pcie_", "nic_", "rdma_")
_NAMED: Final = re.compile(r'__name__\s*=\s*["\']([^"\']*)["\']')
_NAMED_LIKE: Final = re.compile(r'__name__\s*=~\s*["\']([\w:|]*)["\']')


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric in an expression: its name (of a selector by `__name__` alone every name it lists), and where both parts stand."""

    names: tuple[str, ...]
    start: int
    name_end: int
    end: int  # after its matchers
    matchers: str | None  # between the braces; None: there are none


def selectors(expr: str) -> list[Selector]:
    tokens = [token for token in _TOKEN.finditer(expr) if token.lastgroup != "skip"]
    return list(_selectors(expr, tokens))


def metric_names(expr: str) -> frozenset[str]:
    return frozenset(name for found in selectors(expr) for name in found.names)


def asked_of(expr: str, *, prefix: str = "", matchers: str = "", numbers: dict[str, float] | None = None) -> str:
    """The expression for one source: its prefix before AMD's names, its matchers in every selector, numbers for some metrics."""
    parts, at = [], 0
    for found in selectors(expr):
        parts.append(expr[at : found.start])
        name = expr[found.start : found.name_end]
        if numbers is not None and name in numbers:
            parts.append(f"vector({numbers[name]:.12g})")
        else:
            own = (found.matchers or "").strip().rstrip(",")
            inner = ", ".join(part for part in (own, matchers.strip().rstrip(",")) if part)
            parts.append((prefix if name.startswith(_PREFIXED) else "") + name + (f"{{{inner}}}" if inner else ""))
        at = found.end
    return "".join([*parts, expr[at:]])


def _selectors(expr: str, tokens: list[re.Match[str]]) -> Iterator[Selector]:
    at = 0
    while at < len(tokens):
        token, kind = tokens[at], tokens[at].lastgroup
        following = tokens[at + 1].group() if at + 1 < len(tokens) else ""
        if kind == "name" and token.group().lower() in _GROUPING and following == "(":
            at = _closing(tokens, at + 1, ")") + 1
            continue
        plain_name = kind == "name" and following != "(" and token.group().lower() not in _WORDS
        if plain_name and following == "{":
            closed = _closing(tokens, at + 1, "}")
            inner = expr[tokens[at + 1].end() : tokens[closed].start()]
            yield Selector((token.group(),), token.start(), token.end(), tokens[closed].end(), inner)
            at = closed
        elif plain_name:
            yield Selector((token.group(),), token.start(), token.end(), token.end(), None)
        elif token.group() == "{":
            closed = _closing(tokens, at, "}")
            inner = expr[token.end() : tokens[closed].start()]
            listed = _NAMED.findall(inner) or [name for many in _NAMED_LIKE.findall(inner) for name in many.split("|")]
            yield Selector(tuple(listed), token.start(), token.start(), tokens[closed].end(), inner)
            at = closed
        at += 1


def _closing(tokens: list[re.Match[str]], at: int, sign: str) -> int:
    """The next such sign; the last token where an expression ends too early, which its server will tell."""
    while at < len(tokens) - 1 and tokens[at].group() != sign:
        at += 1
    return at
