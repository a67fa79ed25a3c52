"""Charts of one attempt as a whole: how far from its limits, how it went over time, how its times are distributed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from harness.analysis.scaling import ScaleGroup
from harness.analysis.views import Distribution, Margin, Mark, Metric, Tick, Timeline
from harness.report.document import Chart, number, slug
from harness.report.drawing import new_figure, only_grid
from harness.report.palette import Palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES: Final[dict[Metric, str]] = {"ttft": "TTFT", "tpot": "TPOT", "latency": "Latency"}
_MARKS_DRAWN: Final = 24


@dataclass(frozen=True)
class Scope:
    """What all charts of an attempt say in their captions."""

    prefix: str  # of their names; "" where the report has one attempt only
    run: str
    attempt: int
    window: str
    stamps: tuple[str, ...]  # SYNTHETIC, IMPORTED

    def name(self, chart: str) -> str:
        return f"{self.prefix}-{chart}" if self.prefix else chart

    def caption(self, what: str, n: int | None = None, window: str = "") -> str:
        counted = f" n = {n:,d} samples." if n is not None else ""
        return f"{what} Window: {window or self.window}.{counted}{''.join(f' {stamp}.' for stamp in self.stamps)}"

    @property
    def footer(self) -> str:
        return " · ".join([self.run, f"attempt {self.attempt}", self.window, *self.stamps])


# --- margins -----------------------------------------------------------------------------------------------------------


def margins(scope: Scope, found: Sequence[Margin]) -> Chart | None:
    known = [one for one in found if one.p99_ms is not None and one.limit_ms > 0]
    if not known:
        return None

    def draw(palette: Palette) -> Figure:
        figure, axes = new_figure(0.55 + 0.42 * len(known), 1, 1)
        ax = axes[0, 0]
        for row, one in enumerate(known):
            share = 100.0 * (one.p99_ms or 0.0) / one.limit_ms
            broken = share > 100.0
            ax.barh(row, share, height=0.52, color=palette.limit if broken else palette.c1)
            if one.p99_interval_ms is not None:
                low, high = (100.0 * end / one.limit_ms for end in one.p99_interval_ms)
                ax.plot([low, high], [row, row], color=palette.ink, linewidth=1.2, marker="|", markersize=7)
            text = f" {number(share)} %{' broken' if broken else ''}"
            ax.annotate(text, (max(share, 100.0 * (one.p99_interval_ms or (0, 0))[1] / one.limit_ms), row), xytext=(5, 0),
                        textcoords="offset points", va="center", color=palette.ink, fontsize=8)  # fmt: skip
        ax.axvline(100.0, color=palette.limit, linewidth=1.4, linestyle=(0, (4, 2)))
        ax.set_yticks(range(len(known)), [f"{NAMES[one.metric]} p99" for one in known])
        ax.invert_yaxis()
        ax.set_xlim(0, 1.18 * max(100.0, *(100.0 * (one.p99_ms or 0.0) / one.limit_ms for one in known)))
        ax.set_xlabel("% of its limit")
        only_grid(ax, "x")
        return figure

    told = "; ".join(
        f"{NAMES[one.metric]} p99 {number(one.p99_ms)} ms is {number(100.0 * (one.p99_ms or 0.0) / one.limit_ms)} % of "
        f"its limit of {number(one.limit_ms, 0)} ms"
        for one in known
    )
    return Chart(
        scope.name("margins"), "How far from the limits", scope.caption("p99 as a share of its limit; whiskers: 95 % interval."),
        told, draw,
    )  # fmt: skip


# --- over time ---------------------------------------------------------------------------------------------------------


def numbered(marks: Sequence[Mark]) -> list[Mark]:
    """Acts and alerts that a chart draws and numbers, in the order of time."""
    acts = [mark for mark in marks if mark.kind == "act"]
    alerts = [mark for mark in marks if mark.kind == "alert"]
    return sorted([*acts, *alerts][:_MARKS_DRAWN], key=lambda mark: mark.at_s)


def timeline(scope: Scope, found: Timeline, limits_ms: dict[Metric, float]) -> Chart | None:
    if not found.ticks:
        return None
    ticks, marks = found.ticks, numbered(found.marks)
    flagged = [mark.at_s for mark in found.marks if mark.kind == "straggler"]
    has_ready = any(tick.ready is not None for tick in ticks)
    panels: list[Callable[[Axes, Palette], None]] = [
        lambda ax, p: _lines(ax, ticks, p, "QPS", ("scheduled_qps", "scheduled"), ("completed_qps", "completed")),
        lambda ax, p: _lines(ax, ticks, p, "output tokens/s", ("tokens_per_s", "")),
        lambda ax, p: _lines(
            ax, ticks, p, "TTFT ms", ("ttft_p50_ms", "p50"), ("ttft_p99_ms", "p99"), limit=limits_ms.get("ttft")
        ),
        lambda ax, p: _lines(
            ax, ticks, p, "TPOT ms", ("tpot_p50_ms", "p50"), ("tpot_p99_ms", "p99"), limit=limits_ms.get("tpot")
        ),
        lambda ax, p: _lines(ax, ticks, p, "in flight", ("in_flight", "")),
    ]
    if has_ready:
        panels.append(lambda ax, p: _lines(ax, ticks, p, "ready replicas", ("ready", "")))
    heights = [1.25, 1.0, 1.25, 1.25, 0.9, 0.75][: len(panels)]

    def draw(palette: Palette) -> Figure:
        figure, axes = new_figure(1.12 * sum(heights) + 0.4, len(panels), 1, sharex=True, height_ratios=heights)
        for panel, ax in zip(panels, axes[:, 0], strict=True):
            panel(ax, palette)
            ax.margins(x=0.01)
        _draw_marks(axes[:, 0], marks, palette, ticks[-1].to_s)
        if flagged:  # a line without points that is not clipped has no place, and takes the layout with it
            axes[0, 0].plot(flagged, [0.0] * len(flagged), "^", markersize=5, color=palette.c2, clip_on=False, zorder=5)
        axes[-1, 0].set_xlabel("seconds since time zero")
        figure.align_ylabels()
        return figure

    what = "Rates and percentiles of each stretch by the time of the event itself; a p99 of too few is left out."
    if any(mark.kind == "act" for mark in marks):
        what += " Lines: acts, numbered as in the table of marks."
    if any(mark.kind == "alert" for mark in marks):
        what += " Shaded: alerts."
    if flagged:
        what += " Triangles: replicas flagged as stragglers."
    first, last = ticks[0].from_s, ticks[-1].to_s
    peak = max((tick.completed_qps for tick in ticks), default=0.0)
    alt = (
        f"Course over {number(last - first, 0)} s in {len(panels)} panels: {', '.join(_PANELS[: len(panels)])}. "
        f"Completed QPS is at most {number(peak)}; acts and alerts drawn: {len(marks)}."
    )
    window = f"{number(first, 0)} to {number(last, 0)} s in steps of {found.step_s:g} s"
    return Chart(scope.name("timeline"), "Over time", scope.caption(what, window=window), alt, draw)


_PANELS: Final = ("QPS", "output tokens/s", "TTFT", "TPOT", "samples in flight", "ready replicas")


def _lines(
    ax: Axes, ticks: Sequence[Tick], palette: Palette, label: str, *fields: tuple[str, str], limit: float | None = None
) -> None:
    top = 0.0
    for order, (field, name) in enumerate(fields):
        told = [((tick.from_s + tick.to_s) / 2, _or_gap(getattr(tick, field))) for tick in ticks]
        if field == "ready":  # told once a second, which may be less often than a stretch is long
            told = [(at, value) for at, value in told if math.isfinite(value)]
        at_s, values = [at for at, _ in told], [value for _, value in told]
        top = max([top, *(value for value in values if math.isfinite(value))])
        ax.plot(at_s, values, color=palette.series[order], label=name, linestyle="-" if order == 0 else (0, (5, 1.2)))
    if limit is not None and limit <= 4 * top:
        ax.axhline(limit, color=palette.limit, linewidth=1.2, linestyle=(0, (2, 2)), label=f"limit {number(limit, 0)}")
        top = max(top, limit)
    ax.set_ylim(0, 1.12 * top or 1.0)
    ax.set_ylabel(label)
    ax.yaxis.set_major_formatter(thousands())
    ax.locator_params(axis="y", nbins=4)
    if any(name for _, name in fields):
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.6)


def _draw_marks(axes: Sequence[Axes], marks: Sequence[Mark], palette: Palette, last_s: float) -> None:
    for order, mark in enumerate(marks, 1):
        for ax in axes:
            if mark.kind == "alert":
                ax.axvspan(
                    mark.at_s, mark.until_s if mark.until_s is not None else last_s, color=palette.c2, alpha=0.14, linewidth=0
                )
            else:
                ax.axvline(mark.at_s, color=palette.ink, linewidth=0.9, linestyle=(0, (1, 1.5)))
        axes[0].annotate(str(order), (mark.at_s, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2),
                         textcoords="offset points", ha="center", va="bottom", fontsize=7.5, color=palette.ink)  # fmt: skip


def _or_gap(value: float | None) -> float:
    return math.nan if value is None else float(value)


def thousands() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:g}")


# --- distributions -----------------------------------------------------------------------------------------------------


def distribution(scope: Scope, found: Distribution) -> Chart | None:
    if not found.n or not found.counts or not found.cdf:
        return None
    name = NAMES[found.metric]
    wide = _grows(found.edges_ms)

    def draw(palette: Palette) -> Figure:
        figure, axes = new_figure(2.45, 1, 2)
        left, right = axes[0]
        left.stairs(found.counts, found.edges_ms, fill=True, color=palette.c1, alpha=0.85)
        left.set_title("histogram")
        left.set_ylabel("samples")
        left.set_ylim(0, 1.1 * max(found.counts))
        left.yaxis.set_major_formatter(thousands())
        right.plot([at for at, _ in found.cdf], [stretched(share) for _, share in found.cdf], color=palette.c1)
        right.set_title("share at or below, upper end stretched")
        stretch_axis(right, found.n)
        p99 = found.figures.get("p99")
        for ax in (left, right):
            if wide:
                log_axis(ax)
            ax.xaxis.set_major_formatter(thousands())
            ax.set_xlabel("ms")
            _limit(ax, found, palette)
            if p99 is not None:
                ax.axvline(p99, color=palette.ink, linewidth=1.0, linestyle=(0, (1, 1.5)), label=f"p99 {number(p99)}")
        handles, labels = left.get_legend_handles_labels()
        if handles:
            right.legend(handles, labels, loc="upper left")
        return figure

    figures = found.figures
    alt = (
        f"{name} of {found.n:,d} samples: p50 {number(figures.get('p50'))} ms, p99 {number(figures.get('p99'))} ms, "
        f"maximum {number(figures.get('max'))} ms"
    )
    if found.limit_ms is not None:
        alt += f"; limit {number(found.limit_ms, 0)} ms, {found.over:,d} samples over it"
    what = "Dotted: p99." + (" Dashed: the limit." if found.limit_ms is not None else "")
    if found.limit_ms is not None and not _limit_in_sight(found):
        what = f"Dotted: p99. The limit of {number(found.limit_ms, 0)} ms lies far to the right of the picture."
    return Chart(scope.name(f"distribution-{found.metric}"), f"{name} distribution", scope.caption(what, found.n), alt, draw)


def _grows(edges_ms: Sequence[float]) -> bool:
    """Whether bins grow with their place, so that only a logarithmic axis gives each the same room."""
    first, last = edges_ms[1] - edges_ms[0], edges_ms[-1] - edges_ms[-2]
    return edges_ms[0] > 0 and edges_ms[-1] > 3 * edges_ms[0] and last > 1.5 * first > 0


def log_axis(ax: Axes) -> None:
    from matplotlib.ticker import LogLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.minorticks_off()


def _limit_in_sight(found: Distribution) -> bool:
    return found.limit_ms is not None and found.limit_ms <= 3 * found.edges_ms[-1]


def _limit(ax: Axes, found: Distribution, palette: Palette) -> None:
    if found.limit_ms is not None and _limit_in_sight(found):
        text = f"limit {number(found.limit_ms, 0)}"
        ax.axvline(found.limit_ms, color=palette.limit, linewidth=1.4, linestyle=(0, (4, 2)), label=text)


def stretched(share: float) -> float:
    """0 at 0 %, 1 at 90 %, 2 at 99 %, 3 at 99.9 %: every nine of a share takes the same room."""
    return min(6.0, -math.log10(max(1.0 - share, 1e-6)))


def stretch_axis(ax: Axes, n: int) -> None:
    shown = [share for share in (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999) if n * (1.0 - share) >= 1.0]
    ax.set_yticks([stretched(share) for share in shown], [f"{100 * share:.6g} %" for share in shown])
    ax.set_ylim(0, stretched(1.0 - 1.0 / max(n, 2)) * 1.02)


def overlaid(name: str, title: str, caption: str, curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], n: int) -> Chart:
    """CDFs of several attempts over each other."""
    styles: Sequence[Any] = ("-", (0, (5, 1.2)), (0, (1, 1.2)), (0, (6, 1.2, 1, 1.2)))

    def draw(palette: Palette) -> Figure:
        figure, axes = new_figure(2.9, 1, 1)
        ax = axes[0, 0]
        for order, (label, points) in enumerate(curves):
            ax.plot([at for at, _ in points], [stretched(share) for _, share in points], label=label,
                    color=palette.series[order % 8], linestyle=styles[order % 4])  # fmt: skip
        every = [at for _, points in curves for at, _ in points if at > 0]
        if every and max(every) / min(every) > 3:
            log_axis(ax)
        ax.xaxis.set_major_formatter(thousands())
        ax.set_xlabel("ms")
        stretch_axis(ax, n)
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure

    return Chart(slug(name), title, caption, f"{title}: {len(curves)} curves, {', '.join(label for label, _ in curves)}", draw)


def scaling(group: ScaleGroup, stamp: str) -> Chart:
    """Output tokens/s over nodes, beside linear from the smallest N that counts."""
    points = group.points
    start = next((point for point in points if point.counts), points[0])
    each = start.best.tokens_per_s / start.nodes

    def draw(palette: Palette) -> Figure:
        from matplotlib.ticker import LogLocator

        figure, axes = new_figure(2.7, 1, 1)
        ax = axes[0, 0]
        nodes = [point.nodes for point in points]
        ax.plot(nodes, [each * at for at in nodes], color=palette.muted, linestyle=(0, (4, 2)), label="linear")
        ax.plot(nodes, [point.best.tokens_per_s for point in points], color=palette.c1, label="measured")
        for point in points:
            face = palette.c1 if point.counts else palette.paper
            ax.plot([point.nodes], [point.best.tokens_per_s], "o", markersize=6, color=palette.c1, markerfacecolor=face)
            if point.efficiency is not None:
                ax.annotate(f"{number(point.efficiency)} %", (point.nodes, point.best.tokens_per_s), xytext=(6, -10),
                            textcoords="offset points", fontsize=8, color=palette.ink)  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(nodes, [str(at) for at in nodes])
        ax.minorticks_off()
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(thousands())
        ax.margins(0.08)
        ax.set_xlabel("nodes")
        ax.set_ylabel("output tokens/s")
        ax.legend(loc="upper left")
        return figure

    title = f"Scaling of {group.model}, {group.scenario}"
    told = ", ".join(f"{point.nodes} nodes {number(point.best.tokens_per_s, 0)} tokens/s" for point in points)
    caption = f"Per cent: efficiency against linear. Hollow: not VALID. Window: each attempt whole.{stamp}"
    name = slug(f"scaling-{group.model}-{group.scenario}{'-synthetic' if group.synthetic else ''}")
    return Chart(name, title, caption, told, draw)
