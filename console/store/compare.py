"""In what a replica differs from its fleet: facts that should be the same everywhere, against what most replicas say.

Compared within a role (prefill and decode replicas are started differently on purpose), over slots that have registered:
one that has said nothing neither agrees nor differs. Kernels and their tables are compared within a node class besides, since
each class has its own. What names a place (host, process, ordinal, log) is no difference.
Cost: 2.5 ms at 512 replicas with 30 facts each, so callers ask when the roster changes, not when they draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.metrics.kernels import Replica, node_classes, of_kernels
from harness.records.labels import one_line
from harness.wire.control import SlotInfo


@dataclass(frozen=True, slots=True)
class Difference:
    """`own` is empty where this replica lacks the fact, `majority` where most do."""

    name: str
    own: str
    majority: str
    agree: int  # slots that say what the majority says
    of: int  # slots that were compared

    @property
    def against(self) -> str:
        """`majority: 512 in 511 of 512`"""
        word = "majority" if 2 * self.agree > self.of else "most often"
        return f"{word}: {self.majority or 'not set'} in {self.agree:,} of {self.of:,}"


def comparable(info: SlotInfo) -> dict[str, str]:
    """What must be equal in all replicas of a role, by name."""
    facts: dict[str, Any] = {
        "engine": f"{info.engine} (synthetic)" if info.synthetic else info.engine,
        "arguments": info.args_hash,
        "accelerator": info.accelerator.get("name", ""),
    }
    facts |= {f"version {name}": version for name, version in info.versions.items()}
    facts |= {name.removeprefix("arg.") if name.startswith("arg.") else name: value for name, value in info.facts.items()}
    return {name: told(value) for name, value in facts.items() if value not in ("", None)}


def told(value: object) -> str:
    """As people write it: no brackets and quotes of a program around lists and tables."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {told(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(told(each) for each in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.12g}"  # what was computed as 0.1 + 0.2 is 0.3
    text = "none" if value is None else str(value)
    return text if text.isprintable() else one_line(text)


def differences(slots: Sequence[SlotInfo], position: int) -> list[Difference]:
    """Sorted by name, the arguments' hash first: it says that there is more below."""
    own = slots[position]
    if not own.incarnation:
        return []
    of_role = [info for info in slots if info.incarnation and info.role == own.role]
    fellows = [comparable(info) for info in of_role]
    alike = _of_one_class(of_role, of_role.index(own))
    mine = comparable(own)
    found = []
    for name in {name for facts in fellows for name in facts}:
        among = [facts for facts, same in zip(fellows, alike, strict=True) if same] if of_kernels(name) else fellows
        values = Counter(facts.get(name, "") for facts in among)
        majority, agree = values.most_common(1)[0]
        said = mine.get(name, "")
        if said != majority and values[said] < agree:  # of two camps of one size neither differs from the other
            found.append(Difference(name, said, majority, agree, len(among)))
    return sorted(found, key=lambda difference: (difference.name != "arguments", difference.name))


def as_told(info: SlotInfo) -> Replica:
    """For `harness.metrics.kernels`: an engine that does not name its device may have an accelerator with a name."""
    device = {"device_name": info.accelerator["name"]} if info.accelerator.get("name") else {}
    return Replica(info.slot, info.role, {**device, **info.facts})


def _of_one_class(infos: Sequence[SlotInfo], position: int) -> list[bool]:
    classes = node_classes([as_told(info).facts for info in infos])
    return [name == classes[position] for name in classes]


def compared(slots: Sequence[SlotInfo], position: int) -> int:
    """How many slots `differences` looks at."""
    own = slots[position]
    return sum(1 for info in slots if info.incarnation and info.role == own.role) if own.incarnation else 0
