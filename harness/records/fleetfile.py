"""fleet.json: which GPUs each replica owned, and from when on, and what it was made of, as it registered. Replaced whole, never
edited.

By it GPU metrics of the run's time find their replicas when no head is left to ask, and replicas that were set up differently are
found. A replica that came back on the same GPUs with the same set-up has one entry; one whose successor got others has two.
Replicas that are alike share one set of facts, told by its number: 512 of them cost little more than one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from harness.records.errors import RecordError
from harness.records.files import write_atomically

#: A replica's facts, and how long the name and the value of one may be.
MOST_FACTS: Final = 200
NAME_CHARACTERS: Final = 80
CHARACTERS: Final = 200


class GpusOf(msgspec.Struct, omit_defaults=True, frozen=True):
    """Of one life of a slot. Lists have an entry for each GPU, or none where the worker could not tell."""

    since_unix: float
    hosts: list[str] = []  # every name of the machine
    pod: str = ""
    gpus: list[str] = []  # numbers on the host
    uuids: list[str] = []
    pcis: list[str] = []
    facts: int | None = None  # position in FleetFile.facts; None: a record from before they were kept


class FleetFile(msgspec.Struct):
    devices: int  # a replica
    slots: dict[str, list[GpusOf]] = {}  # oldest first
    facts: list[dict[str, str]] = []  # distinct ones: engine, role, args_hash, versions.*, and what the engine tells

    def note(self, slot: str, now: GpusOf, facts: Mapping[str, str] | None = None) -> bool:
        """True if that is news."""
        if facts is not None:
            now = msgspec.structs.replace(now, facts=self._number(facts))
        lives = self.slots.setdefault(slot, [])
        if lives and msgspec.structs.replace(lives[-1], since_unix=now.since_unix) == now:
            return False
        lives.append(now)
        return True

    def _number(self, facts: Mapping[str, str]) -> int:
        for number, known in enumerate(self.facts):
            if known == facts:
                return number
        self.facts.append(dict(facts))
        return len(self.facts) - 1


def flat_facts(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Comparable between replicas: tables by dotted names, everything as text, cut where it is long."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found |= flat_facts(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
            found[f"{prefix}{name}"[:NAME_CHARACTERS]] = text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
    return dict(list(found.items())[:MOST_FACTS])


_decoder = msgspec.json.Decoder(FleetFile)


def write_fleet(path: Path, fleet: FleetFile) -> None:
    """Raises RecordError."""
    write_atomically(path, msgspec.json.encode(fleet))


def read_fleet(path: Path) -> FleetFile | None:
    """None where there is none. Raises RecordError for one that cannot be read."""
    try:
        return _decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError.from_os(path, "read", error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(path, f"is not a fleet's file: {error}") from error
