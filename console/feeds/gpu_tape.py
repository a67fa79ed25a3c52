"""GPU metrics of a recorded run at any of its moments, as its head told them: values from the record, the rest from the journal.

The record has a value once for each time that it was sampled, so what was known at a moment is the newest value of every GPU
that was not too old by then. Which alerts fired, and what the source was, is what the journal said last. 32 bytes a value.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.roles import ROLES
from harness.metricspec import GpuSourceSpec
from harness.wire.control import JournalEntry
from harness.wire.gpus import AlertRow, GpuView, RoleColumn

if TYPE_CHECKING:
    from harness.records.reader import Record

_NEVER: Final = -math.inf


@dataclass(frozen=True, slots=True)
class _RoleTape:
    """Values in the order in which the head asked for them. `place`: slot x devices + device."""

    unix: NDArray[np.float64]
    sampled_unix: NDArray[np.float64]
    place: NDArray[np.int32]
    values: NDArray[np.float32]


class GpuTape:
    def __init__(self, roles: dict[str, _RoleTape], entries: Sequence[JournalEntry], slots: int, devices: int,
                 spec: GpuSourceSpec) -> None:  # fmt: skip
        self._roles, self._slots, self._devices, self._spec = roles, slots, devices, spec
        times = [tape.unix for tape in roles.values()]
        self.rounds: NDArray[np.float64] = np.unique(np.concatenate(times)) if times else np.zeros(0)
        told = [entry for entry in entries if entry.what in ("alert.start", "alert.end", "metrics.source")]
        self._told = sorted(told, key=lambda entry: entry.unix)
        self._told_unix = [entry.unix for entry in self._told]
        self._last: tuple[tuple[int, int], GpuView | None] = ((-1, -1), None)

    def moment(self, unix: float) -> tuple[int, int]:
        """How many rounds and how many entries of the journal there were by then: between equal moments nothing was told."""
        return int(np.searchsorted(self.rounds, unix, side="right")), bisect.bisect_right(self._told_unix, unix)

    def past(self, unix: float, rounds: int, roles: Collection[str]) -> Iterator[GpuView]:
        """The last rounds before then, of these roles alone: for charts."""
        last, told = self.moment(unix)
        for number in range(max(1, last - rounds), last):
            yield self._view(number, told, roles)

    def at(self, unix: float) -> GpuView | None:
        """The same object until something has changed; None: nobody had looked for a source by then."""
        key = self.moment(unix)
        if key == (0, 0):
            return None
        if key != self._last[0]:
            self._last = (key, self._view(*key))
        return self._last[1]

    def _view(self, rounds: int, told: int, wanted: Collection[str] | None = None) -> GpuView:
        unix = float(self.rounds[rounds - 1]) if rounds else _NEVER
        if wanted is None:
            unix = max(unix, self._told_unix[told - 1] if told else _NEVER)
        source = next((entry for entry in reversed(self._told[:told]) if entry.what == "metrics.source"), None)
        data: dict[str, Any] = source.data if source is not None else {}
        chosen = {role: tape for role, tape in self._roles.items() if wanted is None or role in wanted}
        roles = [column for role, tape in chosen.items() if (column := self._column(role, tape, unix)) is not None]
        return GpuView(
            unix=unix, state=source.after if source is not None and source.after else "ok", kind=str(data.get("kind") or ""),
            source=source.subject if source is not None else "", profiles=[str(name) for name in data.get("profiles") or ()],
            interval_s=_number(data.get("interval_s"), self._spec.interval_s), resolution_s=_number(data.get("resolution_s")),
            devices=self._devices, roles=roles, not_collected=_texts(data.get("not_collected")),
            problem=source.why if source is not None else "", matched=int(_number(data.get("matched"), 0.0)),
            gpus_unmatched=int(_number(data.get("gpus_unmatched"), 0.0)), alerts=self._alerts(told),
        )  # fmt: skip

    def _column(self, role: str, tape: _RoleTape, unix: float) -> RoleColumn | None:
        """Of each GPU the newest value by then, unless it was too old."""
        last = int(np.searchsorted(tape.unix, unix, side="right"))
        slow_s = 2 * self._spec.slow_interval_s if ROLES[role].slow else 0.0
        oldest = unix - max(self._spec.stale_after_s, slow_s)
        first = int(np.searchsorted(tape.unix, oldest, side="left"))
        part = slice(first, last)
        fresh = tape.sampled_unix[part] >= oldest
        if not fresh.any():
            return None
        values = np.full(self._slots * self._devices, np.nan, dtype="<f4")
        sampled = np.full(len(values), np.nan)
        place = tape.place[part][fresh]
        values[place], sampled[place] = tape.values[part][fresh], tape.sampled_unix[part][fresh]  # of several the last one stays
        known = sampled[~np.isnan(sampled)]
        return RoleColumn(role, values.tobytes(), "", float(known.max()), float(known.min()))

    def _alerts(self, told: int) -> list[AlertRow]:
        firing: dict[tuple[str, str], AlertRow] = {}
        for entry in self._told[:told]:
            rule = str(entry.data.get("rule") or "")
            if entry.what == "alert.end":
                firing.pop((rule, entry.subject), None)
            elif entry.what == "alert.start":
                firing[rule, entry.subject] = AlertRow(
                    rule, entry.subject, str(entry.data.get("severity") or "warn"), entry.unix, _number(entry.data.get("value")),
                    entry.why.partition("; evict it:")[0], str(entry.data.get("cause") or ""), str(entry.data.get("act") or ""),
                )  # fmt: skip
        return list(firing.values())


def read_gpus(
    record: Record, slots: Sequence[str], entries: Sequence[JournalEntry], devices: int, spec: GpuSourceSpec
) -> GpuTape:
    """Blocking. A record without GPU metrics gives an empty tape. Raises polars' errors and RecordError."""
    import polars as pl

    place = pl.col("slot").cast(pl.Enum(slots), strict=False).to_physical().cast(pl.Int32)
    frame = (
        record.gpus()
        .with_columns(place=place * devices + pl.col("device").cast(pl.Int32))
        .filter(pl.col("place").is_not_null() & (pl.col("device") < devices) & pl.col("role").is_in(list(ROLES)))
        .select("role", "unix", "sampled_unix", "place", pl.col("value").cast(pl.Float32))
        .sort("unix", maintain_order=True)
        .collect()
    )
    roles = {}
    for name in ROLES:
        mine = frame.filter(pl.col("role") == name)
        if mine.height:
            roles[name] = _RoleTape(*(mine[column].to_numpy() for column in ("unix", "sampled_unix", "place", "value")))
    return GpuTape(roles, entries, len(slots), devices, spec)


def _number(value: object, otherwise: float = math.nan) -> float:
    return float(value) if isinstance(value, int | float) else otherwise


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(why) for name, why in value.items()} if isinstance(value, dict) else {}
