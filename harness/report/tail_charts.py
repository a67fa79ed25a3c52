"""Charts of where a tail comes from: parts and groups of it, the fleet by robust z, one sample's life."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from harness.analysis.views import By, FleetRow, Life, PartShare, Tail, TailGroup
from harness.report.charts import NAMES, Scope, thousands
from harness.report.document import Chart, number, short
from harness.report.drawing import new_figure, only_grid
from harness.report.palette import Palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS: Final = 8
_ORDERED: Final[tuple[By, ...]] = ("time", "prompt length", "output length", "tries")
_COLUMNS: Final = 64  # nodes in a row of the heat map


# --- the tail ----------------------------------------------------------------------------------------------------------


def attribution(scope: Scope, tail: Tail) -> Chart | None:
    groups = [(by, rows) for by, rows in tail.groups.items() if by != "tries" and len(rows) > 1]
    parts = [part for part in tail.parts if part.share_of_excess is not None]
    panels: list[tuple[str, Any]] = [*([("parts", parts)] if parts else []), *groups]
    if not tail.tail_n or not panels:
        return None
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)

    def draw(palette: Palette) -> Figure:
        figure, axes = new_figure(0.2 + 2.15 * down, down, across)
        flat = list(axes.flat)
        for ax, (name, rows) in zip(flat, panels, strict=False):
            if name == "parts":
                _parts(ax, rows, palette)
            elif name == "time":
                _stretches(ax, rows, tail.n, palette)
            else:
                _bars(ax, f"by {name}", rows if name in _ORDERED else rows[:_BARS], tail.n, palette)
        for ax in flat[len(panels) :]:
            ax.axis("off")
        return figure

    what = f"Of the tail ({tail.rule}, {tail.tail_n:,d} samples)."
    what += " Bars: share of the tail; ticks: share of all samples. A bar well beyond its tick is where the tail comes from."
    if parts:
        what += " First panel: each part's share of what the tail takes longer than the mean sample."
    leading = [f"{by} {short(rows[0].key, 40)} has {number(100 * rows[0].share_of_tail)} % of the tail" for by, rows in groups
               if by not in _ORDERED]  # fmt: skip
    alt = f"Where the {NAMES[tail.metric]} tail comes from: " + "; ".join(leading or ["by " + ", ".join(by for by, _ in groups)])
    title = f"Where the {NAMES[tail.metric]} tail comes from"
    return Chart(scope.name(f"tail-{tail.metric}"), title, scope.caption(what, tail.n), alt, draw)


def _parts(ax: Axes, parts: Sequence[PartShare], palette: Palette) -> None:
    shares = [100.0 * (part.share_of_excess or 0.0) for part in parts]
    ax.barh(range(len(parts)), shares, height=0.6, color=palette.c2)
    _named(ax, [part.name for part in parts], "by part of the time")
    ax.axvline(0.0, color=palette.muted, linewidth=0.8)
    ax.set_xlabel("% of the excess")


def _bars(ax: Axes, title: str, rows: Sequence[TailGroup], n: int, palette: Palette) -> None:
    ax.barh(range(len(rows)), [100.0 * row.share_of_tail for row in rows], height=0.6, color=palette.c1)
    ticks = [100.0 * row.n / n if n else 0.0 for row in rows]
    ax.plot(ticks, range(len(rows)), linestyle="none", marker="|", markersize=9, markeredgewidth=1.8, color=palette.ink)
    _named(ax, [row.key for row in rows], title)
    ax.set_xlabel("%")


def _named(ax: Axes, names: Sequence[str], title: str) -> None:
    ax.set_yticks(range(len(names)), [short(name, 22) for name in names], fontsize=7.5)
    ax.invert_yaxis()
    ax.set_title(title)
    ax.locator_params(axis="x", nbins=5)
    only_grid(ax, "x")


def _stretches(ax: Axes, rows: Sequence[TailGroup], n: int, palette: Palette) -> None:
    starts = [row.where.from_s if row.where.from_s is not None else float(order) for order, row in enumerate(rows)]
    ends = [row.where.to_s for row in rows]
    widths = [
        (end - start) if end is not None else (starts[1] - starts[0])
        for start, end in zip(starts, ends, strict=True)
    ]  # fmt: skip
    ax.bar(starts, [100.0 * row.share_of_tail for row in rows], width=[0.86 * w for w in widths], align="edge", color=palette.c1)
    middles = [start + width * 0.43 for start, width in zip(starts, widths, strict=True)]
    ax.plot(middles, [100.0 * row.n / n if n else 0.0 for row in rows], linestyle="none", marker="_", markersize=5,
            markeredgewidth=1.6, color=palette.ink)  # fmt: skip
    ax.set_title("by time")
    ax.set_xlabel("s since time zero")
    ax.set_ylabel("%")
    only_grid(ax, "y")


# --- the fleet ---------------------------------------------------------------------------------------------------------

_EDGES: Final = (-5.0, -3.5, -2.0, 2.0, 3.5, 5.0)
_WORDS: Final = ("below -5", "-5 to -3.5", "-3.5 to -2", "-2 to 2, as the fleet", "2 to 3.5", "3.5 to 5", "above 5")


def fleet(scope: Scope, replicas: Sequence[FleetRow]) -> Chart | None:
    fields = [(field, name) for field, name in (("z_ttft", "TTFT p50"), ("z_tpot", "TPOT p50"), ("z_step", "engine step")) if any(
        getattr(row, field) is not None for row in replicas)]  # fmt: skip
    if len(replicas) < 3 or not fields:
        return None
    places, rows, columns = _grid(replicas)

    def draw(palette: Palette) -> Figure:
        each_in = min(1.5, max(0.32, 0.115 * rows))
        figure, axes = new_figure(0.75 + (each_in + 0.3) * len(fields), len(fields), 1)
        for ax, (field, name) in zip(axes[:, 0], fields, strict=True):
            _cells(ax, [getattr(row, field) for row in replicas], places, palette)
            ax.set_title(f"robust z of {name}")
            ax.set_xlim(0, max(columns, 24))
            ax.set_ylim(rows, 0)
            ax.grid(visible=False)
            ax.set_yticks([])
            ax.set_xticks([at + 0.5 for at in range(0, columns, 8)], [str(at) for at in range(0, columns, 8)])
            for side in ("left", "bottom"):
                ax.spines[side].set_visible(False)
        axes[-1, 0].set_xlabel("node, in the order of names; a column has its replicas")
        _legend(axes[-1, 0], palette)
        return figure

    worst = [
        f"{name}: {sum(1 for row in replicas if (getattr(row, field) or 0.0) > 3.5)} replicas above 3.5" for field, name in fields
    ]
    what = "A cell a replica; robust z (median and MAD over the fleet) of each replica's median. Empty cells: not known."
    if len({row.name.partition("/")[0] for row in replicas}) > _COLUMNS:
        what += f" Nodes continue in a new row after {_COLUMNS}."
    return Chart(
        scope.name("fleet"), f"{len(replicas)} replicas against each other", scope.caption(what),
        f"Heat map of {len(replicas)} replicas. " + "; ".join(worst), draw,
    )  # fmt: skip


def _grid(replicas: Sequence[FleetRow]) -> tuple[list[tuple[int, int]], int, int]:
    """(column, row) of each replica, and how many rows and columns there are: nodes side by side, wrapped."""
    order: dict[str, int] = {}
    within: dict[str, int] = {}
    raw = []
    for row in replicas:
        node = row.name.partition("/")[0]
        order.setdefault(node, len(order))
        raw.append((order[node], within.get(node, 0)))
        within[node] = within.get(node, 0) + 1
    each = max(within.values(), default=1)
    gap = 1 if len(order) > _COLUMNS else 0
    places = [(node % _COLUMNS, node // _COLUMNS * (each + gap) + at) for node, at in raw]
    return places, max(row for _, row in places) + 1, min(len(order), _COLUMNS)


def _cells(ax: Axes, values: Sequence[float | None], places: Sequence[tuple[int, int]], palette: Palette) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    kinds: dict[int | None, list[tuple[int, int]]] = {}
    for value, place in zip(values, places, strict=True):
        kind = None if value is None or math.isnan(value) else sum(value > edge for edge in _EDGES)
        kinds.setdefault(kind, []).append(place)
    for kind, cells in kinds.items():
        corners = [(0.06, 0.06), (0.94, 0.06), (0.94, 0.94), (0.06, 0.94), (0.06, 0.06)]
        vertices = [(column + x, row + y) for column, row in cells for x, y in corners]
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(cells)
        fill = palette.paper if kind is None else palette.heat[kind]
        ax.add_patch(
            PathPatch(Path(vertices, codes), facecolor=fill, edgecolor=palette.muted if kind is None else "none", linewidth=0.4)
        )


def _legend(ax: Axes, palette: Palette) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=words) for colour, words in zip(palette.heat, _WORDS, strict=True)]
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.75), ncols=7, fontsize=7, handlelength=1.0, columnspacing=1.0
    )


# --- one sample --------------------------------------------------------------------------------------------------------


def life(scope: Scope, found: Life) -> Chart | None:
    segments = [segment for segment in found.segments if segment.end_ms > segment.start_ms]
    if not segments:
        return None
    ends_ms = max(segment.end_ms for segment in segments)
    first_ms = found.sample.ttft_ms
    views = [("whole life", ends_ms)]
    if first_ms is not None and 0 < first_ms < 0.6 * ends_ms:
        views.append(("until its first token", first_ms))
    names = list(dict.fromkeys(segment.name for segment in segments))

    def draw(palette: Palette) -> Figure:
        figure, axes = new_figure(0.6 + 0.85 * len(views), len(views), 1)
        for row, (name, until) in enumerate(views):
            ax = axes[row, 0]
            for segment in segments:
                if segment.start_ms < until:
                    order = names.index(segment.name)
                    ax.barh(0, min(segment.end_ms, until) - segment.start_ms, left=segment.start_ms, height=0.6,
                            color=palette.series[order % 8], edgecolor=palette.paper, linewidth=0.6,
                            hatch=None if order < 8 else "//", label=segment.name if row == 0 else None)  # fmt: skip
            ax.set_xlim(0, until)
            ax.xaxis.set_major_formatter(thousands())
            ax.set_yticks([])
            ax.set_title(name)
            only_grid(ax, "x")
            ax.spines["left"].set_visible(False)
        axes[-1, 0].set_xlabel("ms since it was scheduled")
        axes[0, 0].legend(loc="upper left", bbox_to_anchor=(1.02, 1.1))
        return figure

    told = ", ".join(f"{segment.name} {number(segment.end_ms - segment.start_ms)} ms" for segment in segments)
    title = f"Life of sample {found.sample.seq:,d}"
    return Chart(scope.name("life"), title, scope.caption("From its scheduled time to its last token."), f"{title}: {told}", draw)
