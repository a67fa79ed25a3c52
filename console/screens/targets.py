"""Whom an act is about, settled when the key is pressed; and the lines of a dialog. No Textual, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from console.store.fleet import FleetStore

Fact = tuple[str, str]


class Grave(str):
    """A fact's text that must not be read over."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Target:
    """One life of one slot. The incarnation travels with the command: the head refuses a later one."""

    slot: str
    incarnation: str
    state: str


def target_of(store: FleetStore, slot: str | None) -> Target | None:
    at = store.index.get(slot) if slot is not None else None
    if at is None:
        return None
    return Target(store.slots[at].slot, store.slots[at].incarnation, store.state_name(at))
