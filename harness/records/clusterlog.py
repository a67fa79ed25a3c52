"""cluster.jsonl: what a head saw of its cluster, second by second; only what changed, one line a change.

The rows of a ClusterView that differ from the line before, and all of them when a head begins to tell. A reason is a
sentence with an age in it, made anew every ten seconds: a row of which only the digits of that sentence changed waits for
half a minute. The file is bounded: beyond the first megabyte it grows by 500 bytes a second at most, and what does not fit
is told a little later, as it is by then.

Measured (tests/unit/test_records_clusterlog.py) with 64 nodes: 23 KB for the first line; a quiet minute 0.1 KB, one in which
37 pods stay pending 27 KB, one of an eviction and its replacement 0.8 KB.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from harness.records.errors import RecordError
from harness.records.lines import LineFile, read_lines
from harness.wire.clusterview import ClusterView, HostRow, PodRow

EVERY_S: Final = 1.0
AGES_EVERY_S: Final = 30.0
SEEN_EVERY_S: Final = 30.0  # an API server that is heard and tells nothing new
FREE_BYTES: Final = 1 << 20
BYTES_PER_S: Final = 500.0
_DIGITS: Final = re.compile(r"\d+")

Row = TypeVar("Row", PodRow, HostRow)
Key = TypeVar("Key", bound=Hashable)


class Change(msgspec.Struct, omit_defaults=True, frozen=True):
    unix: float
    whole: bool = False  # a head begins: nothing of the lines before it holds
    seen_unix: float = 0.0  # 0: as before
    about: ClusterView | None = None  # all but rows and `seen_unix`, if something of it changed
    pods: list[PodRow] = []
    hosts: list[HostRow] = []
    pods_gone: list[int] = []  # by node of the fleet
    hosts_gone: list[str] = []


@dataclass(slots=True)
class _Told:
    """As the file has it."""

    about: ClusterView | None = None
    seen_unix: float = 0.0
    pods: dict[int, PodRow] = field(default_factory=dict)
    hosts: dict[str, HostRow] = field(default_factory=dict)

    def take(self, change: Change) -> None:
        if change.whole:
            self.pods, self.hosts = {}, {}
        self.seen_unix = change.seen_unix or self.seen_unix
        self.about = change.about or self.about
        self.pods |= {row.node: row for row in change.pods}
        self.hosts |= {row.name: row for row in change.hosts}
        for node in change.pods_gone:
            self.pods.pop(node, None)
        for name in change.hosts_gone:
            self.hosts.pop(name, None)

    def view(self) -> ClusterView | None:
        if self.about is None:
            return None
        pods, hosts = sorted(self.pods.items()), sorted(self.hosts.items())
        return msgspec.structs.replace(
            self.about, seen_unix=self.seen_unix, pods=[row for _, row in pods], hosts=[row for _, row in hosts]
        )


class ClusterWriter:
    """One a head. The file is made with the first view, so that a run of processes has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: LineFile | None = None
        self._told = _Told()
        self._pod_unix: dict[int, float] = {}  # when the file was told of that row
        self._last: ClusterView | None = None  # all of it is in the file
        self._last_unix = 0.0
        self._room, self._room_unix = float(FREE_BYTES), 0.0

    def take(self, view: ClusterView, unix: float, *, final: bool = False) -> None:
        """As often as one likes; `final`: there is no later. Raises RecordError; the change is then written with a later one."""
        if view is self._last or (unix - self._last_unix < EVERY_S and not final):
            return
        if self._file is None:
            self._file = LineFile(self._path)
        self._file.flush()  # what waited
        change, complete = self._change(view, unix, final)
        line = msgspec.json.encode(change) if change is not None else b""
        if not self._fits(len(line), unix) and not (final or self._told.about is None):
            return
        if change is not None:
            self._room -= len(line)
            self._told.take(change)
            self._pod_unix |= {row.node: unix for row in change.pods}
            self._last_unix = unix
            self._file.add(line)
        self._last = view if complete else None
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _change(self, view: ClusterView, unix: float, final: bool) -> tuple[Change | None, bool]:
        """None: nothing to tell now. And whether all of the view is told then."""
        told, whole = self._told, self._told.about is None
        about = msgspec.structs.replace(view, seen_unix=0.0, pods=[], hosts=[])
        seen = view.seen_unix if final or view.seen_unix - told.seen_unix >= SEEN_EVERY_S else 0.0
        pods, hosts = {row.node: row for row in view.pods}, {row.name: row for row in view.hosts}
        changed = _changed(told.pods, pods)
        now = [row for row in changed if final or self._worth(told.pods.get(row.node), row, unix)]
        change = Change(
            round(unix, 3), whole, seen if seen != told.seen_unix else 0.0, about if about != told.about else None, now,
            _changed(told.hosts, hosts), sorted(told.pods.keys() - pods.keys()), sorted(told.hosts.keys() - hosts.keys()),
        )  # fmt: skip
        complete = len(now) == len(changed)
        empty = msgspec.structs.replace(change, unix=0.0) == Change(0.0)
        return (None if empty else change), complete

    def _worth(self, before: PodRow | None, row: PodRow, unix: float) -> bool:
        if before is None or unix - self._pod_unix.get(row.node, 0.0) >= AGES_EVERY_S:
            return True
        without = {"reason": _DIGITS.sub("", row.reason), "pod": row.pod}
        was = {"reason": _DIGITS.sub("", before.reason), "pod": before.pod}
        return msgspec.structs.replace(row, **without) != msgspec.structs.replace(before, **was)

    def _fits(self, size: int, unix: float) -> bool:
        if self._room_unix:
            self._room = min(float(FREE_BYTES), self._room + max(0.0, unix - self._room_unix) * BYTES_PER_S)
        self._room_unix = unix
        return size <= self._room


def _changed(before: Mapping[Key, Row], now: Mapping[Key, Row]) -> list[Row]:
    return [row for key, row in now.items() if before.get(key) != row]


class ClusterTape:
    """Every view that was told, by time. Views share their rows: one costs a pointer a row."""

    def __init__(self, changes: list[Change]) -> None:
        self._unix: list[float] = []
        self._views: list[ClusterView] = []
        told = _Told()
        for change in changes:
            told.take(change)
            view = told.view()
            if view is not None:
                self._unix.append(change.unix)
                self._views.append(view)

    def __len__(self) -> int:
        return len(self._unix)

    def at(self, unix: float) -> ClusterView | None:
        """The newest by then; None before the first."""
        last = bisect.bisect_right(self._unix, unix) - 1
        return self._views[last] if last >= 0 else None


_decoder = msgspec.json.Decoder(Change)


def read_cluster(path: Path) -> ClusterTape:
    """Lines that cannot be read are left out: their rows stay as they were. No file: nothing is in it. Raises RecordError."""
    lines, last = read_lines(path)
    return ClusterTape([change for line in [*lines, last] if (change := _decoded(line)) is not None])


def last_view(path: Path) -> ClusterView | None:
    """As the cluster was seen last; None for a run of processes, or where it cannot be read."""
    try:
        lines, last = read_lines(path)
    except RecordError:
        return None
    told = _Told()
    for line in [*lines, last]:
        if (change := _decoded(line)) is not None:
            told.take(change)
    return told.view()


def _decoded(line: bytes) -> Change | None:
    if not line.strip():
        return None
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
