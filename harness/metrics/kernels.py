"""Which replicas run another MoE kernel, or another table of tiles, than most of their node class: a cause of stragglers that no
latency of their own explains.

By the facts that replicas register (`kernel`, `kernel.hash`, …). A node class is what a table is tuned for: compiler target,
compute units, memory, device. Replicas of two classes have other kernels and tables rightly. One that does not name its class
belongs to the class of its device, where that has but one. Roles count apart, as they are set up apart. Measured at 512
replicas: 0.8 ms, so callers ask when the roster has changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from harness.records.labels import one_line

NODE_CLASS: Final = "kernel.node_class"
#: What must be alike within a node class, by fact; and how it is called in a sentence.
ALIKE: Final = {
    "kernel": "kernel", "kernel.hash": "kernel source", "kernel.config": "table", "kernel.config_hash": "table",
}  # fmt: skip
_NONE: Final = "none told"
_PREFIX: Final = "kernel"
_CHARACTERS: Final = 400  # of a fact: the longest, why an engine fell back, has as many


def of_kernels(fact: str) -> bool:
    """Whether a fact is one that only replicas of a node class have in common."""
    return (fact == _PREFIX or fact.startswith(f"{_PREFIX}.")) and fact != NODE_CLASS


def node_classes(replicas: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each replica's facts; its device where it names no class, "" where neither is known."""
    of_device: dict[str, set[str]] = defaultdict(set)
    for facts in replicas:
        if (named := word(facts, NODE_CLASS)) and (device := _device(facts)):
            of_device[device].add(named)
    found = []
    for facts in replicas:
        device = _device(facts)
        classes = of_device.get(device, set())
        found.append(word(facts, NODE_CLASS) or (next(iter(classes)) if len(classes) == 1 else device))
    return found


@dataclass(frozen=True, slots=True)
class Replica:
    """As it has registered."""

    slot: str
    role: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Odd:
    """A replica with another kernel or table than most. `what`: which of ALIKE differs first."""

    slot: str
    role: str
    node_class: str
    what: str
    own: str
    usual: str
    agree: int  # replicas that have the usual
    of: int  # replicas of that class and role

    @property
    def cause(self) -> str:
        """Beside a straggler: `MoE table: default instead of tuned`, what it is first, for columns that are cut."""
        return f"MoE {self.what}: {self.own} instead of {self.usual}"

    @property
    def why(self) -> str:
        among = f" of {self.node_class}" if self.node_class else ""
        return f"runs another {self.cause}, as {self.agree:,d} of {self.of:,d} {_fellows(self.role)}{among} have"


def odd_ones(replicas: Sequence[Replica]) -> dict[str, Odd]:
    """By slot, in the order given. Of camps of one size neither is odd."""
    found: dict[str, Odd] = {}
    for (_, node_class), members in _camps(replicas).items():
        counts = Counter(said for _, said in members)
        usual, agree = counts.most_common(1)[0]
        for replica, said in members:
            if said != usual and counts[said] < agree:
                found[replica.slot] = _odd(replica, node_class, said, usual, agree, len(members))
    return {replica.slot: found[replica.slot] for replica in replicas if replica.slot in found}


def splits(replicas: Sequence[Replica]) -> list[str]:
    """Of each node class whose largest camps are of one size, so that nobody there is odd: `no usual MoE table: 4
    default, 4 tuned, of the replicas of gfx950-256cu-…`."""
    lines = []
    for (role, node_class), members in _camps(replicas).items():
        (first, agree), *others = Counter(said for _, said in members).most_common()
        for second, count in others[:1]:
            if count == agree:
                at, what = _first_difference(first, second)
                one, other = sorted((first[at] or _NONE, second[at] or _NONE))
                among = f" of {node_class}" if node_class else ""
                lines.append(f"no usual MoE {what}: {agree:,d} {one}, {agree:,d} {other}, of the {_fellows(role)}{among}")
    return lines


def _camps(replicas: Sequence[Replica]) -> dict[tuple[str, str], list[tuple[Replica, tuple[str, ...]]]]:
    """By role and node class: who there tells what."""
    classes = node_classes([replica.facts for replica in replicas])
    camps: dict[tuple[str, str], list[tuple[Replica, tuple[str, ...]]]] = defaultdict(list)
    for replica, node_class in zip(replicas, classes, strict=True):
        camps[replica.role, node_class].append((replica, tuple(word(replica.facts, name) for name in ALIKE)))
    return camps


@dataclass(frozen=True, slots=True)
class InUse:
    """A kernel and its table, and on how many replicas; empty texts where they do not say."""

    replicas: int
    kernel: str
    hash: str
    config: str
    config_hash: str
    of_floor: str
    node_class: str
    fallback: str  # why another kernel was asked for and does not run

    @property
    def words(self) -> str:
        """`512 replicas: paceline-mxfp4-a16w4 214f8e1ce58a, table tuned 0c1d…, of its floor M=64 71 %, on gfx950-256cu-…`"""
        parts = [f"{self.kernel} {self.hash}".strip() or _NONE]
        parts += [f"table {self.config} {self.config_hash}".rstrip()] if self.config else []
        parts += [f"of its floor {self.of_floor}"] if self.of_floor else []
        parts += [f"on {self.node_class}"] if self.node_class else []
        parts += [f"not Paceline's: {self.fallback}"] if self.fallback else []
        return f"{self.replicas:,d} replica{'s' if self.replicas != 1 else ''}: {', '.join(parts)}"


def in_use(replicas: Iterable[Mapping[str, Any]]) -> list[InUse]:
    """By facts; those that most run first. Empty where no replica has told of such a kernel."""
    names = ("kernel", "kernel.hash", "kernel.config", "kernel.config_hash", "kernel.of_floor", NODE_CLASS, "kernel.fallback")
    counts = Counter(tuple(word(facts, name) for name in names) for facts in replicas)
    if not any(any(said) for said in counts):
        return []
    return [InUse(count, *said) for said, count in counts.most_common()]


def summary(odd: Mapping[str, Odd]) -> dict[str, Odd]:
    """`3 replicas run another MoE kernel or table than most of gfx950-256cu-…`, a line a node class, with its first one."""
    counts = Counter(one.node_class for one in odd.values())
    firsts = {name: next(one for one in odd.values() if one.node_class == name) for name in counts}
    return {
        f"{f'{count:,d} replicas run' if count > 1 else '1 replica runs'} another MoE kernel or table than most"
        + (f" of {name}" if name else ""): firsts[name]
        for name, count in counts.items()
    }


def _odd(replica: Replica, node_class: str, said: tuple[str, ...], usual: tuple[str, ...], agree: int, of: int) -> Odd:
    at, what = _first_difference(said, usual)
    return Odd(replica.slot, replica.role, node_class, what, said[at] or _NONE, usual[at] or _NONE, agree, of)


def _first_difference(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[int, str]:
    """Its place in ALIKE, and how it is called."""
    at = next(place for place, (own, most) in enumerate(zip(one, other, strict=True)) if own != most)
    return at, list(ALIKE.values())[at]


def _fellows(role: str) -> str:
    return "replicas" if role in ("", "both") else f"{role} replicas"


def _device(facts: Mapping[str, Any]) -> str:
    return word(facts, "device_name")


def word(facts: Mapping[str, Any], name: str) -> str:
    """On one line and printable, whatever a replica tells."""
    value = facts.get(name)
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if len(text) > _CHARACTERS:
        text = f"{text[: _CHARACTERS - 1]}…"
    return text if text.isprintable() else one_line(text)
