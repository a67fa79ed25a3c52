"""A line for each role where prefill and decode are split: who is there, what waits for it, what it gives.

    prefill   5 of 5 ready   23 in flight    4 waiting   12.3/s  12.1 ktok/s in
    decode    4 of 4 ready  214 in flight    0 waiting   12.1/s  16.3 ktok/s out  KV transfer p50 2.8 ms p99 9.1 ms

The role that holds the other one up is the one whose queue grows: its waiting samples are in the colour of a warning once
they are more than a second's work.
"""

from __future__ import annotations

import math

from textual.strip import Strip

from console.store import roles
from console.store.fleet import FleetStore
from console.widgets import fmt
from console.widgets.paint import Painted, Run, fitting, strip_of
from harness.wire.control import RoleView


class RolesPane(Painted):
    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(2, id=id)
        self._store = store

    def draw(self, width: int, height: int) -> list[Strip]:
        return [strip_of(self._line(view, width), width) for view in roles.views(self._store)]

    def _line(self, view: RoleView, width: int) -> list[Run]:
        ink = self.inks
        short = ink.bad if not view.ready else ink.warn if view.ready < view.replicas else ink.good
        late = not math.isnan(view.samples_per_s) and view.waiting > max(view.samples_per_s, 1)
        waiting = fmt.UNKNOWN if view.waiting == roles.UNTOLD else fmt.count(view.waiting)
        number, _, unit = fmt.big(view.tokens_per_s).partition(" ")
        there, all_of = fmt.count(view.ready), fmt.count(view.replicas)
        groups: list[list[Run]] = [
            [(f"{view.role:<7}", ink.bold), (f"{there:>4}", short), (f" of {all_of} ready", ink.muted)],
        ]
        if self._store.at_barrier:
            return fitting(groups, width)
        groups += [
            [(f" {fmt.count(view.outstanding):>4}", ink.plain), (" in flight", ink.muted)],
            [(f" {waiting:>4}", ink.warn if late else ink.plain), (" waiting", ink.muted)],
            [(f"{fmt.rate(view.samples_per_s):>7}", ink.plain), ("/s", ink.muted)],
            [(f"{number:>6}", ink.plain), (f" {unit}tok/s {'in ' if view.role == 'prefill' else 'out'}", ink.muted)],
        ]
        if not math.isnan(view.transfer_p50_ms):
            groups.append([("  KV transfer p50 ", ink.muted), (fmt.millis(view.transfer_p50_ms), ink.plain)])
        if not math.isnan(view.transfer_p99_ms):
            groups.append([(" p99 ", ink.muted), (fmt.millis(view.transfer_p99_ms), ink.plain)])
        return fitting(groups, width)
