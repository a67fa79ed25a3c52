"""Whose GPU is it: puts series of a source to the GPUs of replicas.

A GPU is found by its UUID, else by (host, PCI address), else by (host, number) where no UUID or PCI address says otherwise; an
engine's series by slot, by pod, or by its host, with the rank of the engine where several replicas share that. Hosts are
compared in lower case, in full and by their first part, after the spec's own map (metrics.gpu.hosts). What finds no partner is
counted on both sides.

Which place a series has is decided once for each key; a round of 512 GPUs x 16 roles is then numpy only (some 2 ms).
"""

from __future__ import annotations

import ipaddress
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.base import Reading, RoleReading, SeriesKey
from harness.metrics.gpu.roles import ROLES, Across
from harness.metrics.gpu.uuids import uuid_key

Column = NDArray[np.float32]
Times = NDArray[np.float64]
Indices = NDArray[np.intp]

_MOST_EXAMPLES: Final = 3  # of each side
_MOST_KNOWN: Final = 100_000  # keys: pods come and go
_PCI: Final = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """A GPU of a replica, as its worker registered it; "" where it did not say."""

    slot: str  # node003/gpu1
    index_in_slot: int
    hosts: tuple[str, ...]  # every name of the machine: node, host name, Kubernetes node
    gpu: str = ""  # its number on the host
    uuid: str = ""
    pci: str = ""
    pod: str = ""
    partition: str = ""  # "": all of the GPU


def places_of_replica(
    slot: str,
    position: int,
    devices: int,
    hosts: tuple[str, ...],
    gpus: Sequence[str],
    uuids: Sequence[str],
    pcis: Sequence[str],
    pod: str,
) -> list[GpuPlace]:
    """A place for each GPU of a replica that is the `position`th of its node. A number that is not known is counted."""

    def at(values: Sequence[str], device: int) -> str:
        return values[device] if device < len(values) else ""

    return [
        GpuPlace(slot, i, hosts, at(gpus, i) or str(position * devices + i), at(uuids, i), at(pcis, i), pod)
        for i in range(devices)
    ]


@dataclass(frozen=True)
class Joined:
    """Columns have a cell for each of `places`: slots in the order they were given, `devices` cells a slot."""

    columns: dict[str, Column]
    unix: dict[str, Times]  # when the newest sample in each cell was taken; NaN where there is none
    matched: int  # GPUs of the fleet that have a series
    gpus_unmatched: int
    series_unmatched: int  # GPUs of the source that are no replica's
    examples: tuple[str, ...]  # of both, in words
    joiner: Joiner = field(repr=False)

    @property
    def places(self) -> Sequence[GpuPlace]:
        return self.joiner.places

    def locate(self, key: SeriesKey) -> int | None:
        return self.joiner.locate(key)

    def same_host(self, host: str) -> int | None:
        return self.joiner.same_host(host)


@dataclass(frozen=True, slots=True)
class _Where:
    """Cells of one key; `part`: what of a GPU or replica it is, because parts are added up and doubles are not."""

    cells: tuple[int, ...]
    part: int = 0
    gpu: bool = True  # of one GPU, not of its node or of an engine


_NOWHERE: Final = _Where(())


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was made of one list of keys: entry `rows[i]` goes into cell `cells[i]`, as that part of it."""

    keys: Sequence[SeriesKey]
    rows: Indices
    cells: Indices
    parts: Indices
    doubled: bool  # some cell is given twice


class Joiner:
    """`slots`: all of them in roster order, where some have no place; without it those of `replicas`."""

    def __init__(
        self, replicas: Sequence[GpuPlace], hosts: Mapping[str, str] | None = None, *, slots: Sequence[str] | None = None,
        devices: int | None = None,
    ) -> None:  # fmt: skip
        order = {slot: i for i, slot in enumerate(dict.fromkeys(slots or [place.slot for place in replicas]))}
        self.devices = devices or max((place.index_in_slot + 1 for place in replicas), default=1)
        self.places = [GpuPlace(slot, i, ()) for slot in order for i in range(self.devices)]
        self._mine: list[int] = []  # cells that have a GPU
        for place in replicas:
            if place.slot in order and place.index_in_slot < self.devices:
                cell = order[place.slot] * self.devices + place.index_in_slot
                self.places[cell] = place
                self._mine.append(cell)
        self._first_cell = {slot: i * self.devices for slot, i in order.items()}
        self._map = {form: node for host, node in (hosts or {}).items() for form in host_forms(host)}
        self._index()
        self._where: dict[SeriesKey, _Where] = {}
        self._parts: dict[str, int] = {"": 0}
        self._plans: dict[str, _Plan] = {}
        self._counted: list[Sequence[SeriesKey]] = []
        self._counts: tuple[int, int, tuple[str, ...]] = (0, 0, ())

    def _index(self) -> None:
        self._by_host: dict[str, list[int]] = {}
        self._by_pod: dict[str, list[int]] = {}
        self._by_uuid: dict[str, list[int]] = {}
        self._by_pci: dict[tuple[str, str], list[int]] = {}
        self._by_number: dict[tuple[str, str], list[int]] = {}
        machines: dict[str, set[str]] = {}
        for cell in self._mine:
            for host in self.places[cell].hosts:
                for form in host_forms(host):
                    machines.setdefault(form, set()).add(self.places[cell].slot.partition("/")[0])
        for cell in self._mine:
            place = self.places[cell]
            # The first part of a name serves where it means one machine.
            given = {forms[0] for host in place.hosts if (forms := host_forms(host))}
            shorter = {form for host in place.hosts for form in host_forms(host) if len(machines[form]) == 1}
            names = given | shorter
            for name in names:
                self._by_host.setdefault(name, []).append(cell)
                if place.pci:
                    self._by_pci.setdefault((name, pci_form(place.pci)), []).append(cell)
                if place.gpu:
                    self._by_number.setdefault((name, number_form(place.gpu)), []).append(cell)
            if place.pod:
                self._by_pod.setdefault(place.pod, []).append(cell)
            if place.uuid:
                self._by_uuid.setdefault(uuid_key(place.uuid), []).append(cell)

    # --- one key ------------------------------------------------------------------------------------------------

    def locate(self, key: SeriesKey) -> int | None:
        """The cell of a series, of an engine's its replica's first; None for a whole node or somebody else's."""
        where = self._at(key)
        if key.gpu or key.uuid or key.pci:
            return where.cells[0] if where.cells else None
        slots = self._slots_of_engine(key) if key.slot or key.pod or key.engine else []
        return slots[0] if len(slots) == 1 else None

    def same_host(self, host: str) -> int | None:
        cells = self._on_host(host)
        return cells[0] if cells else None

    def _at(self, key: SeriesKey) -> _Where:
        where = self._where.get(key)
        if where is None:
            if len(self._where) > _MOST_KNOWN:
                self._where.clear()
            where = self._where[key] = self._found(key)
        return where

    def _found(self, key: SeriesKey) -> _Where:
        if not (key.gpu or key.uuid or key.pci):
            if key.slot or key.engine or not key.host:
                return _NOWHERE  # of an engine: where it belongs depends on its neighbours
            firsts = dict.fromkeys(self._first_cell[self.places[cell].slot] for cell in self._on_host(key.host))
            return _Where(tuple(firsts), gpu=False)
        for cells in self._candidates(key):
            fitting = [
                cell
                for cell in cells
                if self.places[cell].partition in ("", key.partition) and not _contradict(self.places[cell], key)
            ]
            exact = [cell for cell in fitting if self.places[cell].partition]
            if fitting:
                return _Where(tuple(exact or fitting), self._part(key.partition))  # several: replicas that share it
        return _NOWHERE

    def _candidates(self, key: SeriesKey) -> Iterable[Sequence[int]]:
        if key.uuid:
            yield self._by_uuid.get(uuid_key(key.uuid), ())
        for host in self._host_names(key.host):
            if key.pci:
                yield self._by_pci.get((host, pci_form(key.pci)), ())
        for host in self._host_names(key.host):
            if key.gpu:
                yield self._by_number.get((host, number_form(key.gpu)), ())

    def _host_names(self, host: str) -> tuple[str, ...]:
        forms = host_forms(host)
        mapped = next((self._map[form] for form in forms if form in self._map), None)
        return forms if mapped is None else host_forms(mapped)

    def _on_host(self, host: str) -> list[int]:
        return next((cells for name in self._host_names(host) if (cells := self._by_host.get(name))), [])

    def _slots_of_engine(self, key: SeriesKey) -> list[int]:
        """First cells of the replicas that it may be of, by the narrowest of slot, pod and host that is known here."""
        if key.slot:
            cell = self._first_cell.get(key.slot)
            return [] if cell is None else [cell]
        cells = self._by_pod.get(key.pod) or (self._on_host(key.host) if key.host else [])
        return sorted({self._first_cell[self.places[cell].slot] for cell in cells})

    def _part(self, name: str) -> int:
        return self._parts.setdefault(name, len(self._parts))

    # --- a round ------------------------------------------------------------------------------------------------

    def place(self, reading: Reading) -> Joined:
        columns: dict[str, Column] = {}
        sampled: dict[str, Times] = {}
        for role, of_role in reading.roles.items():
            plan = self._plan(role, of_role)
            if not len(plan.cells):
                continue
            columns[role] = self._column(plan, of_role, ROLES[role].across if role in ROLES else "max")
            sampled[role] = np.full(len(self.places), np.nan)
            np.fmax.at(sampled[role], plan.cells, of_role.unix[plan.rows])
        matched, strangers, examples = self._count(reading)
        return Joined(columns, sampled, matched, len(self._mine) - matched, strangers, examples, self)

    def _plan(self, role: str, reading: RoleReading) -> _Plan:
        plan = self._plans.get(role)
        if plan is not None and plan.keys is reading.keys:
            return plan
        engine = role in ROLES and ROLES[role].engine
        found = self._engines(reading.keys) if engine else [self._at(key) for key in reading.keys]
        entries = [(row, cell, where.part) for row, where in enumerate(found) for cell in where.cells]
        rows, cells, parts = np.array(entries, np.intp).reshape(-1, 3).T
        plan = self._plans[role] = _Plan(reading.keys, rows, cells, parts, len(np.unique(cells)) < len(cells))
        return plan

    def _engines(self, keys: Sequence[SeriesKey]) -> list[_Where]:
        """A pod (or host) with one replica owns all ranks there; with several each has its own, if ranks tell them apart."""
        ranks: dict[tuple[str, str], set[str]] = {}
        for key in keys:
            ranks.setdefault((key.pod, key.host), set()).add(key.engine)
        found = []
        for key in keys:
            slots = self._slots_of_engine(key)
            if len(slots) > 1:
                told_apart = len(ranks[key.pod, key.host]) == len(slots) and key.engine.isdigit()
                rank = int(key.engine) if told_apart else len(slots)
                slots = [slots[rank]] if rank < len(slots) else []
            found.append(_Where(tuple(slots), self._part(f"engine {key.engine}"), gpu=False))
        # What an engine says of itself comes before what our own page says of its slot: they would be added up.
        own_word = {cell for key, where in zip(keys, found, strict=True) if not key.slot for cell in where.cells}
        return [
            _NOWHERE if key.slot and own_word.intersection(where.cells) else where for key, where in zip(keys, found, strict=True)
        ]

    def _column(self, plan: _Plan, reading: RoleReading, across: Across) -> Column:
        made = np.full(len(self.places), np.nan, np.float32)
        values, cells = reading.values[plan.rows], plan.cells
        if not plan.doubled:
            made[cells] = values
            return made
        # The same part of the same GPU twice (an old and a new pod, two exporters): the newer one counts.
        one = cells * len(self._parts) + plan.parts
        order = np.argsort(reading.unix[plan.rows], kind="stable")
        newest = dict(zip(one[order].tolist(), values[order].tolist(), strict=True))
        cells = np.array(list(newest), np.intp) // len(self._parts)
        parts = np.array(list(newest.values()), np.float64)
        known = np.unique(cells)
        if across in ("sum", "mean"):
            sums = np.bincount(cells, parts, len(made))
            made[known] = (sums / np.maximum(np.bincount(cells, minlength=len(made)), 1) if across == "mean" else sums)[known]
            return made
        folded = np.full(len(made), np.nan)
        (np.fmax if across == "max" else np.fmin).at(folded, cells, parts)
        made[known] = folded[known]
        return made

    def _count(self, reading: Reading) -> tuple[int, int, tuple[str, ...]]:
        """Counted anew when some role's keys are others than in the last round."""
        lists = [of_role.keys for role, of_role in reading.roles.items() if not (role in ROLES and ROLES[role].engine)]
        if lists and len(lists) == len(self._counted) and all(map(operator.is_, lists, self._counted)):
            return self._counts
        hit: set[int] = set()
        strangers: dict[tuple[str, str, str], SeriesKey] = {}
        for keys in {id(keys): keys for keys in lists}.values():
            for key in keys:
                where = self._at(key)
                if where.cells and where.gpu:
                    hit.update(where.cells)
                elif not where.cells and (key.gpu or key.uuid or key.pci):
                    strangers.setdefault((key.host, key.gpu or key.uuid or key.pci, key.partition), key)
        examples = (*self._lonely(hit), *map(self._stranger, list(strangers.values())[:_MOST_EXAMPLES]))
        self._counted, self._counts = lists, (len(hit), len(strangers), examples)
        return self._counts

    def _lonely(self, hit: set[int]) -> list[str]:
        return [_without_series(self.places[cell]) for cell in self._mine if cell not in hit][:_MOST_EXAMPLES]

    def _stranger(self, key: SeriesKey) -> str:
        what = f"GPU {key.gpu or key.uuid or key.pci}"
        if not key.host:
            return f"{what} of an unnamed host is no replica's"
        if not self._on_host(key.host):
            return f"{what} on {key.host}: that host is not in the fleet (metrics.gpu.hosts can name its node)"
        return f"{what} on {key.host} is no replica's"


def _contradict(place: GpuPlace, key: SeriesKey) -> bool:
    """Both know the UUID (or the PCI address) in the same form, and it differs: where machines number their GPUs in another
    order than their exporters do, a number alone would bring the values of somebody else's GPU."""
    ours, theirs = uuid_key(place.uuid), uuid_key(key.uuid)
    if ours and theirs and len(ours) == len(theirs):
        return ours != theirs
    return bool(_PCI.fullmatch(pci_form(place.pci)) and _PCI.fullmatch(pci_form(key.pci))) and (
        pci_form(place.pci) != pci_form(key.pci)
    )


def _without_series(place: GpuPlace) -> str:
    known = [f"GPU {place.gpu}" if place.gpu else "", f"UUID {place.uuid}" if place.uuid else "", place.pci]
    named = ", ".join(part for part in known if part) or "a GPU that its worker could not identify"
    return f"{place.slot} ({named} on {' or '.join(dict.fromkeys(place.hosts)) or 'an unnamed host'}) has no series"


# --- names -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65_536)
def host_forms(host: str) -> tuple[str, ...]:
    """To compare: in full and by the first part; without port. The first part of an address means nothing."""
    name = host.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.rstrip(".")
    if not name:
        return ()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return tuple(dict.fromkeys((name, name.partition(".")[0])))
    return (name,)


@lru_cache(maxsize=65_536)
def pci_form(pci: str) -> str:
    """0000:c1:00.0 for 00000000:C1:00.0 and for c1:00.0."""
    name = pci.strip().lower()
    found = _PCI.fullmatch(name)
    if found is None:
        return name
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


def number_form(gpu: str) -> str:
    """3 for 3, 03, gpu3 and nvidia3."""
    digits = gpu.strip().lower().removeprefix("gpu").removeprefix("nvidia").strip()
    return str(int(digits)) if digits.isascii() and digits.isdigit() else gpu.strip().lower()
