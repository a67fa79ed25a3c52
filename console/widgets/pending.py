"""The board of what pods wait for: many wait for the same thing, so there is a line for each reason, not for each pod."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from textual.strip import Strip

from console.store.cluster import Waiting
from console.store.fleet import FleetStore
from console.widgets import fmt, pods
from console.widgets.paint import Paint, Run, fitting, size_of, spread, strip_of

_LEAD: Final = 15  # mark and number
_NAMED: Final = 3


def lines_of(groups: Sequence[Waiting], width: int) -> int:
    """That the board would like to have: two for a reason that is long."""
    return 1 + sum(_lines(group, width) for group in groups)


def board(store: FleetStore, groups: Sequence[Waiting], ink: Paint, width: int, rows: int) -> list[Strip]:
    """How all pods stand and how old that is; then the reasons, most frequent first. What has no room is counted."""
    now: list[list[Run]] = [[(pods.pods_now(store), ink.plain)], [(f"  {pods.as_of(store)}", ink.muted)]]
    lines = [strip_of(fitting(now, width), width)]
    most = 2 if lines_of(groups, width) <= rows else 1
    for number, group in enumerate(groups):
        fresh, left = _group(group, ink, width, most), len(groups) - number
        if len(lines) + len(fresh) + (left > 1) > rows:
            lines.append(strip_of([(f"… and {fmt.plural(left, 'other reason')}", ink.muted)], width))
            break
        lines += fresh
    return lines[:rows]


def _lines(group: Waiting, width: int) -> int:
    return 1 if len(group.why) <= _room(group, width) else 2


def _room(group: Waiting, width: int) -> int:
    return max(20, width - _LEAD - len(pods.group_words(group)[1]) - 2)


def _group(group: Waiting, ink: Paint, width: int, most: int) -> list[Strip]:
    """`▲ 37 pods   Pending: 0/64 nodes are available …  node027, node028, node029 and 34 more   oldest 4m`"""
    number, oldest = pods.group_words(group)
    room = _room(group, width)
    first, *rest = textwrap.wrap(group.why, room, break_on_hyphens=False) if most > 1 else [group.why]
    runs: list[Run] = [(f"▲ {number}".ljust(_LEAD), ink.warn), (fmt.clause(first, room), ink.plain)]
    who = f"  {some_names(group.names)}"
    if not rest and len(first) + len(who) <= room:
        runs.append((who, ink.muted))
    lines = [strip_of(spread(runs, [(oldest, ink.muted)] if oldest else [], width), width)]
    if rest:
        more: list[Run] = [(" " * _LEAD, ink.muted), (fmt.clause(" ".join(rest), width - _LEAD), ink.plain)]
        if size_of(more) + len(who) <= width:
            more.append((who, ink.muted))
        lines.append(strip_of(more, width))
    return lines


def some_names(names: Sequence[str]) -> str:
    """`node003, node004, node009 and 34 more`"""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {fmt.count(more)} more" if more > 0 else "")
