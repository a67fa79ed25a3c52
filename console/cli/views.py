"""The views of a record as `paceline show --view` prints them: each as data, as rows, and as a page for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from console.cli.output import clock, number, plural, say, table, when
from console.cli.sample_views import slowest, tail
from console.cli.view_words import (
    Shown,
    at,
    finding_lines,
    flat,
    interval,
    margin_lines,
    ms,
    plain,
    say_definitions,
)
from console.widgets import fmt
from harness.analysis.definitions import NoSuchDefinition, define
from harness.analysis.views import CALLED

if TYPE_CHECKING:
    from console.cli.showing import Asked
    from harness.analysis.drill import Drill
    from harness.analysis.views import (
        Change,
        Distribution,
        Effect,
        Overview,
    )  # fmt: skip

FIGURES_OF: Final = ("min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max")
_BAR: Final = 40


# --- printing ------------------------------------------------------------------------------------------------


def say_view(drill: Drill, shown: Shown, definitions: list[dict[str, Any]]) -> None:
    attempt, fake = drill.attempt, "  SYNTHETIC" if drill.run.synthetic else ""
    what = ""
    if attempt is not None:
        rate = f" {attempt.target_qps:g} QPS" if attempt.target_qps else ""
        what = f"  attempt {attempt.number} {attempt.kind} {attempt.scenario}{rate}  {attempt.verdict or attempt.state}"
    say(f"{drill.run.run}{what}{fake}\n")
    say(shown.page)
    say_definitions(definitions)


# --- overview ------------------------------------------------------------------------------------------------


def overview(drill: Drill, asked: Asked) -> Shown:
    found = drill.overview()
    data = plain(found)
    page = "\n".join(
        [
            f"verdict {found.verdict or '-'}" + (f"  ACTS {found.acts}" if found.acts else ""),
            *(f"  {reason}" for reason in [*found.reasons, *found.notes]),
            *([f"imported from {found.imported}"] if found.imported else []),
            *([f"began {when(found.started_unix)}"] if found.started_unix else []),
            "",
            "samples   " + "  ".join(f"{name} {number(n)}" for name, n in found.totals.items()),
            *_rates(found),
            *margin_lines(found.margins),
            *finding_lines(found.findings, drill.run.run),
        ]
    )
    return Shown(data, flat(data), page, [*found.rates, *(f"{m.metric}_ms" for m in found.margins), "head_room", "allowed_over"])


def _rates(found: Overview) -> list[str]:
    known = {name: value for name, value in found.rates.items() if value is not None}
    return [f"{_called(name):<28}{number(value, 2):>14}" for name, value in known.items()]


def _called(figure: str) -> str:
    try:
        what = define(figure)
    except NoSuchDefinition:  # an imported file's own
        return figure
    return what.title if what.title.endswith(what.unit) else f"{what.title} {what.unit}"


# --- timeline ------------------------------------------------------------------------------------------------


def timeline(drill: Drill, asked: Asked) -> Shown:
    found = drill.timeline(asked.ticks)
    most = max((tick.completed_qps for tick in found.ticks), default=0.0)
    rows = [
        [
            _begin(tick.from_s, found.step_s),
            number(tick.scheduled_qps),
            number(tick.completed_qps),
            number(tick.tokens_per_s, 0),
            number(tick.in_flight),
            ms(tick.ttft_p50_ms),
            ms(tick.ttft_p99_ms),
            ms(tick.tpot_p50_ms),
            ms(tick.tpot_p99_ms),
            number(tick.ready),
            fmt.bar(tick.completed_qps / most, 16).rstrip() if most else "",
        ]
        for tick in found.ticks
    ]
    titles = [
        "at",
        "scheduled/s",
        "completed/s",
        "tokens/s",
        "in flight",
        "TTFT p50",
        "p99 ms",
        "TPOT p50",
        "p99 ms",
        "ready",
        "",
    ]
    page = (
        [f"stretches of {found.step_s:g} s; bars are of completed/s", table(titles, rows, right=range(10))]
        if rows
        else ["no samples"]
    )
    if found.marks:
        page += ["", "what happened"]
        for mark in found.marks:
            until = f" until {at(mark.until_s)}" if mark.until_s is not None else ""
            page.append(f"  {at(mark.at_s):>8}{until}  {mark.kind:<9} {mark.text}")
        page += [f"  {plural(found.cut, 'mark')} more"] if found.cut else []
    figures = ("scheduled_qps", "issued_qps", "completed_qps", "tokens_per_s", "ttft_p99_ms", "tpot_p99_ms")
    return Shown(plain(found), plain(found.ticks), "\n".join(page), figures)


def _begin(from_s: float, step_s: float) -> str:
    """`1:23`; of stretches that do not begin with a second `1:23.4`, or rows would have one name."""
    decimals = len(f"{step_s:.6g}".partition(".")[2])
    if not decimals:
        return clock(from_s)
    minutes, seconds = divmod(round(from_s, decimals), 60)
    return f"{minutes:.0f}:{seconds:0{3 + decimals}.{decimals}f}"


# --- distributions -------------------------------------------------------------------------------------------


def distributions(drill: Drill, asked: Asked) -> Shown:
    """With a metric: its bins."""
    found = [one for one in drill.distributions() if asked.metric in (None, one.metric)]
    figures = [name for one in found for name in (f"{one.metric}_ms", f"{one.metric}_p99_ms")] + ["allowed_over"]
    if asked.metric is not None:
        rows = [
            {"from_ms": low, "to_ms": high, "samples": count}
            for one in found
            for low, high, count in zip(one.edges_ms, one.edges_ms[1:], one.counts, strict=False)
        ]
    else:
        rows = [_distribution_row(one) for one in found]
    if not found:
        return Shown(plain(found), [], "no samples", figures)
    cells = [[CALLED[one.metric], number(one.n), *(ms(one.figures.get(key)) for key in FIGURES_OF)] for one in found]
    titles = ["ms", "samples", *(name.replace("_", ".") for name in FIGURES_OF)]
    page = [table(titles, cells, right=range(1, 10)), ""]
    page += [_limit_line(one) for one in found]
    for one in found if asked.metric is not None else []:
        page += ["", *_histogram(one)]
    return Shown(plain(found), rows, "\n".join(page), figures)


def _distribution_row(one: Distribution) -> dict[str, Any]:
    low, high = one.p99_interval_ms or (None, None)
    figures = {f"{key}_ms": one.figures.get(key) for key in FIGURES_OF}
    limits = {"limit_ms": one.limit_ms, "over": one.over, "allowed_over": one.allowed_over}
    row: dict[str, Any] = {"metric": one.metric, "n": one.n} | figures
    return row | {"p99_low_ms": low, "p99_high_ms": high} | limits


def _limit_line(one: Distribution) -> str:
    said = f"{CALLED[one.metric]}: p99 is {interval(one.p99_interval_ms)} ms (95% interval)"
    if one.limit_ms is None:
        return f"{said}; no limit"
    allowed = "too few samples for any" if one.allowed_over is None else f"{number(one.allowed_over)} allowed"
    return f"{said}; {number(one.over)} over the limit of {one.limit_ms:g} ms, {allowed}"


def _histogram(one: Distribution) -> list[str]:
    most, lines, limit_told = max(one.counts, default=0), [], one.limit_ms is None
    for low, high, count in zip(one.edges_ms, one.edges_ms[1:], one.counts, strict=False):
        if not limit_told and one.limit_ms is not None and low >= one.limit_ms:
            lines.append(f"{'limit':>12} {'-' * _BAR} {one.limit_ms:g} ms")
            limit_told = True
        lines.append(f"{ms(low):>12} {fmt.bar(count / most if most else 0.0, _BAR)} {number(count)}")
        if high == one.edges_ms[-1]:
            lines.append(f"{ms(high):>12}")
    return [f"{CALLED[one.metric]}: samples from so many ms on", *lines]


# --- fleet ---------------------------------------------------------------------------------------


def fleet(drill: Drill, asked: Asked) -> Shown:
    by = "node" if asked.by == "node" else "replica"
    found = drill.fleet(by)  # type: ignore[arg-type]
    most = asked.first(32)
    shown = found[:most]
    rows = [
        [
            one.name,
            one.host or "-",
            number(one.samples),
            number(one.failed),
            number(one.tokens_per_s, 0),
            ms(one.ttft_p50_ms),
            ms(one.ttft_p99_ms),
            ms(one.tpot_p50_ms),
            ms(one.tpot_p99_ms),
            ms(one.step_ms),
            number(one.over_ttft),
            number(one.over_tpot),
            number(one.redispatched),
            *(number(z) for z in (one.z_ttft, one.z_tpot, one.z_step)),
        ]
        for one in shown
    ]
    titles = [by, "host", "samples", "failed", "tokens/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "step ms"]
    titles += ["over TTFT", "over TPOT", "again", "z TTFT", "z TPOT", "z step"]
    page = [plural(len(found), by), table(titles, rows, right=range(2, 16))] if found else ["no samples"]
    page += [f"and {len(found) - len(shown)} more (--top {len(found)})"] if len(shown) < len(found) else []
    figures = ("tokens_per_s", "ttft_p99_ms", "tpot_p99_ms", "step_ms", "z")
    return Shown(plain(found[: asked.first(None)]), plain(shown), "\n".join(page), figures)


# --- acts, config, logs --------------------------------------------------------------------------------------


def acts(drill: Drill, asked: Asked) -> Shown:
    found = drill.effects(asked.window_s)
    rows = [
        {"at_s": one.at_s, "act": one.act, "subject": one.subject, "who": one.who} | _change_row(change)
        for one in found
        for change in one.changes
    ]
    page: list[str] = []
    for one in found:
        page += [*_effect_lines(one), ""]
    if any(one.changes for one in found):
        page += ["before and after, not because of: whatever else changed in those windows is in the differences too", ""]
    figures = ("window_qps", "tokens_per_s", "ttft_ms", "tpot_ms", "percentile_interval", "rate_interval", "difference_interval")
    return Shown(plain(found), rows, "\n".join(page[:-1]) or "no act of an operator or a policy touched this attempt", figures)


def _change_row(one: Change) -> dict[str, Any]:
    row: dict[str, Any] = {"figure": one.figure, "unit": one.unit, "before": one.before, "after": one.after, "told": one.told}
    for name in ("before", "after", "difference"):
        row[f"{name}_low"], row[f"{name}_high"] = getattr(one, f"{name}_interval") or (None, None)
    return row


def _effect_lines(one: Effect) -> list[str]:
    why = f": {one.why}" if one.why else ""
    lines = [f"{at(one.at_s)}  {one.act} {one.subject} by {one.who.removeprefix('operator:')}{why}"]
    if one.remark:
        lines.append(f"  {one.remark}")
    if one.changes:
        windows = f"  windows of {one.window_s:.1f} s before and after, {one.settle_s:.1f} s between left out"
        lines.append(f"{windows}; {number(one.before_n)} and {number(one.after_n)} samples")
        rows = [
            [
                f"  {_called(change.figure)}",
                ms(change.before),
                interval(change.before_interval),
                ms(change.after),
                interval(change.after_interval),
                interval(change.difference_interval),
                change.told,
            ]
            for change in one.changes
        ]
        titles = ["  figure", "before", "95% interval", "after", "95% interval", "difference, 95% interval", "told"]
        lines.append(table(titles, rows, right=range(1, 6)))
    return lines


def config(drill: Drill, asked: Asked, slots_shown: int = 6) -> Shown:
    found = drill.config()
    rows = [
        {"field": one.field, "value": variant.value, "replicas": len(variant.slots), "slots": " ".join(variant.slots)}
        for one in found
        for variant in one.variants
    ]
    page: list[str] = []
    for one in found:
        page.append(one.field)
        for variant in one.variants:
            named = ", ".join(variant.slots[:slots_shown])
            more = f" and {len(variant.slots) - slots_shown} more" if len(variant.slots) > slots_shown else ""
            page.append(f"  {variant.value}: {plural(len(variant.slots), 'replica')} ({named}{more})")
    return Shown(plain(found), rows, "\n".join(page) or "no setting is known in which the replicas differ")


def logs(drill: Drill, asked: Asked) -> Shown:
    found = drill.logs(asked.at_unix, span_s=asked.span_s, process=asked.process, most=asked.first(200) or 500)
    width = max((len(one.process) for one in found), default=0)
    lines = [f"{when(one.unix)}  {one.process:<{width}}  {one.text}" for one in found]
    page = [f"{asked.span_s:g} s before and after {when(asked.at_unix)}", *(lines or ["no process has logged anything then"])]
    return Shown(plain(found), plain(found), "\n".join(page))


VIEWS: Final[dict[str, Callable[[Drill, Asked], Shown]]] = {
    "overview": overview,
    "timeline": timeline,
    "distributions": distributions,
    "tail": tail,
    "fleet": fleet,
    "slowest": slowest,
    "acts": acts,
    "config": config,
    "logs": logs,
}
