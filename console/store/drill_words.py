"""What the record screen says of where one stands: titles, hints, which keys mean something, where esc leads."""

from __future__ import annotations

from typing import Final

from console.store.drill import FLEET_ORDERS, VIEWS, Choice, View
from harness.analysis.views import BYS, CALLED

#: What the line above a view says of its keys, where there is room.
HINTS: Final[dict[View, tuple[str, ...]]] = {
    "verdict": ("↵ follows a finding to what is behind it", "tab goes through the views"),
    "timeline": ("↵ logs around a mark", "R replays from it"),
    "distributions": ("↑ ↓ choose what is drawn", "↵ its tail"),
    "fleet": ("▲ z above 3.5", "↵ its slowest samples"),
    "slowest": ("↵ one sample's life",),
    "acts": ("95 % intervals", "↵ logs around it"),
    "config": ("↵ the replicas that have it",),
}
#: Keys that mean something in some views only.
_FITS: Final[dict[str, tuple[View, ...]]] = {
    "metric": ("distributions", "tail", "slowest"), "group": ("tail", "fleet"), "sort": ("fleet", "slowest"),
    "filter": ("timeline", "tail", "fleet", "slowest", "config"), "logs_around": ("timeline", "slowest", "acts"),
}  # fmt: skip


def why_not(action: str, view: View) -> str:
    """Why a key means nothing in that view; empty when it does."""
    return "" if view in _FITS.get(action, VIEWS) else f"not in the {view} view"


def title_of(choice: Choice, n: int) -> str:
    """Of the list of a view that has so many rows in all."""
    match choice.view:
        case "timeline":
            return f"What happened {n:,d}"
        case "distributions":
            return "Whole attempt, completed samples"
        case "tail":
            return f"By {groupings(choice)}"
        case "fleet":
            order = FLEET_ORDERS[choice.sort % len(FLEET_ORDERS)]
            rows = "Nodes" if choice.fleet_by == "node" else "Replicas"
            return f"{rows} {n:,d}, whole attempt · {'↑' if order.largest == choice.reverse else '↓'} {order.label}"
        case "slowest":
            return f"Slowest {n:,d} by {CALLED[choice.metric]}"
        case "acts":
            return f"Acts {n:,d}"
        case "config":
            return "Settings in which replicas differ"
    return ""


def groupings(choice: Choice) -> str:
    """`replica [node] time …`"""
    return " ".join(f"[{by}]" if by == choice.by else by for by in BYS)


def way_back(choice: Choice, trail: list[Choice], *, first: bool) -> str:
    """Where esc leads from there. `first`: the record was opened instead of the live screen."""
    if choice.text:
        return "clears the filter"
    if trail:
        before = trail[-1]
        return f"◂ {before.where.words if before.view == choice.view else before.view.capitalize()}"
    return "◂ Verdict" if choice.view != "verdict" else "◂ Runs" if first else "◂ Live"
