"""What screens say of GPUs: figures in the unit of their role, the source in a few words, and the pane of a replica's GPUs."""

from __future__ import annotations

import math
import textwrap
from typing import Final

from rich.style import Style
from textual.strip import Strip

from console.store.fleet import FleetStore
from console.store.gpus import COLUMN_OF
from console.widgets import fmt
from console.widgets.gpu_figures import heading, written
from console.widgets.paint import Paint, Painted, Run, strip_of
from harness.metrics.gpu.roles import ROLES
from harness.wire.gpus import AlertRow

#: Columns of the pane, least needed last.
_PANE: Final = (
    "gpu_util", "power", "junction_temp", "clock", "throttle_power", "throttle_thermal", "hbm_used", "ecc_uncorrectable",
    "ecc_correctable", "health", "mem_bw", "memory_temp", "error_code", "pcie_replay", "link_down",
)  # fmt: skip
_EXPECTED: Final = _PANE[:8]  # said to be missing when they are
_WIDTH: Final = 8
_LABEL: Final = 5
_KINDS: Final = {"promql": "prom", "scrape": "scrape", "simulated": "simulated"}
SEVERITY_GLYPHS: Final = {"info": "·", "warn": "▲", "crit": "◆"}


def every(seconds: float) -> str:
    """How often the source's values can change."""
    return "" if math.isnan(seconds) or seconds <= 0 else f" {seconds:.0f} s"


def source_cell(store: FleetStore, *, short: bool = False) -> tuple[str, str]:
    """(text, how it stands: ok, warn or none) for the header: kind and resolution, when it is old its age instead. `short`:
    without the kind."""
    view = store.gpus.view
    if view is None:
        return "", "none"
    if view.state == "none":
        return "no GPU metrics", "none"
    age_s, kind = store.gpus.newest_age_s(store.unix), _KINDS.get(view.kind, view.kind or "source")
    if view.state == "starting":
        return f"GPU {kind} starting", "none"
    if view.state in ("down", "stale"):
        return f"GPU {view.state}" + ("" if math.isnan(age_s) else f" {fmt.age(age_s)}"), "warn"
    resolution_s = store.gpus.resolution_s
    if short:
        kind = ""
    if age_s > 3 * resolution_s + 1:
        return f"GPU {kind} {fmt.age(age_s)} old".replace("  ", " "), "warn"
    return f"GPU {kind}{every(resolution_s)}".replace("  ", " ") + (" partial" if view.state == "partial" else ""), (
        "warn" if view.state == "partial" else "ok"
    )


def proposal(row: AlertRow) -> str:
    """`node003/gpu1: uncorrectable ECC errors`, without the figures when they are missing."""
    return f"{row.subject}: {row.text or row.cause or row.rule}"


def alert_runs(row: AlertRow, unix: float, ink: Paint, width: int) -> list[Run]:
    style = ink.bad if row.severity == "crit" else ink.warn if row.severity == "warn" else ink.muted
    since = "" if math.isnan(unix) else f" for {fmt.age(unix - row.since_unix)}"
    head: list[Run] = [
        (f"{SEVERITY_GLYPHS.get(row.severity, '▲')} ", style),
        (row.rule, style + Style(bold=True)),
        (since, ink.muted),
    ]
    room = width - sum(len(text) for text, _ in head) - 2
    return [*head, (f"  {fmt.clause(row.text or row.cause, room)}", ink.plain)] if room > 10 else head


class GpuPane(Painted):
    """A line for each GPU of the replica; how old the values are, what the source does not collect, and the alerts about it."""

    def __init__(self, store: FleetStore, slot: str, *, id: str | None = None) -> None:
        super().__init__(3, id=id)
        self._store, self._slot = store, slot

    def draw(self, width: int, height: int) -> list[Strip]:
        store, ink, gpus = self._store, self.inks, self._store.gpus
        at, unix = store.index.get(self._slot), store.unix
        if at is None or gpus.view is None:
            return []
        age_s = gpus.newest_age_s(unix)
        old = "" if math.isnan(age_s) else f" · {fmt.age(age_s)} old"
        self.entitle(f"GPUs · {gpus.view.source or 'no source'}{every(gpus.resolution_s)}{old}".replace("[", r"\["))
        known, fits = [name for name in _PANE if gpus.has(name)], max(1, (width - _LABEL) // _WIDTH)
        lines = []
        for first in range(0, len(known), fits):  # what has no room beside stands below
            shown = known[first : first + fits]
            lines.append(strip_of([("GPU".ljust(_LABEL), ink.muted), *self._headings(shown, unix)], width))
            lines += [strip_of(self._gpu(at, device, shown, unix), width) for device in range(gpus.devices)]
        info = store.slots[at]
        lines += [strip_of(alert_runs(row, unix, ink, width), width) for row in gpus.alerts_of(info.slot, info.node)]
        for text in self._missing(unix):
            lines += [strip_of([(part, ink.muted)], width) for part in textwrap.wrap(text, max(20, width))]
        self.set_lines(max(1, len(lines)))
        return lines

    def _headings(self, shown: list[str], unix: float) -> list[Run]:
        gpus, ink = self._store.gpus, self.inks
        return [(f"{heading(ROLES[name]):>{_WIDTH}}", ink.warn if gpus.old(name, unix) else ink.muted) for name in shown]

    def _gpu(self, at: int, device: int, shown: list[str], unix: float) -> list[Run]:
        gpus, ink = self._store.gpus, self.inks
        runs: list[Run] = [(str(self._number(at, device)).ljust(_LABEL), ink.bold)]
        for name in shown:
            value = float(gpus.of_replica(name, at, unix)[device])
            style = ink.faint if math.isnan(value) or gpus.old(name, unix) else _judged(name, value, ink)
            runs.append((f"{written(value, ROLES[name]):>{_WIDTH}}", style))
        return runs

    def _number(self, at: int, device: int) -> str:
        """As its node counts, where the worker has said; else its place among the replica's."""
        told = self._store.slots[at].accelerator.get("gpus", "").split(",")
        own = told[device].strip() if device < len(told) else ""
        return own or str(self._store.slots[at].gpu * self._store.gpus.devices + device)

    def _missing(self, unix: float) -> list[str]:
        gpus = self._store.gpus
        view = gpus.view
        if view is None:
            return []
        said = [view.problem] if view.problem and view.state != "ok" else []
        if not gpus.roles() and not said:
            said.append("nothing has been measured yet" if gpus.there else "there is no source of GPU metrics")
        stale = [role.name for role in gpus.gpu_roles() if gpus.stale(role.name, unix)]
        if stale:
            said.append(
                "too old to show: " + ", ".join(f"{COLUMN_OF[name]} ({fmt.age(gpus.age_s(name, unix))})" for name in stale)
            )
        gone = [name for name in _EXPECTED if name in view.not_collected]
        if gone:
            said.append("not collected: " + "; ".join(f"{COLUMN_OF[name]} ({view.not_collected[name]})" for name in gone))
        others = [name for name in view.not_collected if name in ROLES and name not in _EXPECTED and not ROLES[name].engine]
        if others:
            said.append("nor " + ", ".join(COLUMN_OF[name] for name in others) if gone else
                        "not collected: " + ", ".join(COLUMN_OF[name] for name in others))  # fmt: skip
        return said


def _judged(name: str, value: float, ink: Paint) -> Style:
    """What is wrong by itself, whatever the fleet does."""
    if name in ("ecc_uncorrectable", "link_down") and value > 0:
        return ink.bad
    if name == "health" and value < 1:
        return ink.bad
    if name in ("throttle_power", "throttle_thermal") and value >= 0.5:
        return ink.warn
    return ink.plain
