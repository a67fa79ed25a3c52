"""fleet.json: which GPUs each replica owned, and from when on, as it registered them. Replaced whole, never edited.

By it GPU metrics of the run's time find their replicas when no head is left to ask. A replica that came back on the same GPUs
has one entry; one whose successor got others has two.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.records.errors import RecordError
from harness.records.files import write_atomically


class GpusOf(msgspec.Struct, omit_defaults=True, frozen=True):
    """Of one life of a slot. Lists have an entry for each GPU, or none where the worker could not tell."""

    since_unix: float
    hosts: list[str] = []  # every name of the machine
    pod: str = ""
    gpus: list[str] = []  # numbers on the host
    uuids: list[str] = []
    pcis: list[str] = []


class FleetFile(msgspec.Struct):
    devices: int  # a replica
    slots: dict[str, list[GpusOf]] = {}  # oldest first

    def note(self, slot: str, now: GpusOf) -> bool:
        """True if that is news."""
        lives = self.slots.setdefault(slot, [])
        if lives and msgspec.structs.replace(lives[-1], since_unix=now.since_unix) == now:
            return False
        lives.append(now)
        return True


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
