"""The views of a record as `paceline show --view` prints them: each as data, as rows, and as a page for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from console.cli.output import clock, number, plural, say, table, typed, when
from console.cli.view_words import (
    NAMES,
    Shown,
    at,
    finding_lines,
    flat,
    interval,
    margin_lines,
    ms,
    plain,
    say_definitions,
    share,
)
from console.widgets import fmt

if TYPE_CHECKING:
    from console.cli.showing import Asked
    from harness.analysis.drill import Drill
    from harness.analysis.views import (
        Change,
        Distribution,
        Effect,
        Life,
        Overview,
        PartShare,
        Tail,
        TailGroup,
    )  # fmt: skip

FIGURES_OF: Final = ("min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max")
_BAR: Final = 40
_LATENCIES: Final = ("ttft_ms", "tpot_ms", "latency_ms")


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
    return [f"{name:<28}{number(value, 2):>14}" for name, value in known.items()]


# --- timeline ------------------------------------------------------------------------------------------------


def timeline(drill: Drill, asked: Asked) -> Shown:
    found = drill.timeline(asked.ticks)
    most = max((tick.completed_qps for tick in found.ticks), default=0.0)
    rows = [
        [
            f"{clock(tick.from_s)}",
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
    page = [f"stretches of {found.step_s:g} s", table(titles, rows, right=range(10))] if rows else ["no samples"]
    if found.marks:
        page += ["", "what happened"]
        for mark in found.marks:
            until = f" until {at(mark.until_s)}" if mark.until_s is not None else ""
            page.append(f"  {at(mark.at_s):>8}{until}  {mark.kind:<9} {mark.text}")
        page += [f"  {plural(found.cut, 'mark')} more"] if found.cut else []
    figures = ("scheduled_qps", "issued_qps", "completed_qps", "tokens_per_s", "ttft_p99_ms", "tpot_p99_ms")
    return Shown(plain(found), plain(found.ticks), "\n".join(page), figures)


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
    cells = [[NAMES[one.metric], number(one.n), *(ms(one.figures.get(key)) for key in FIGURES_OF)] for one in found]
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
    said = f"{NAMES[one.metric]}: p99 is {interval(one.p99_interval_ms)} ms (95% interval)"
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
    return [f"{NAMES[one.metric]}: samples from so many ms on", *lines]


# --- tail ----------------------------------------------------------------------------------------------------


def tail(drill: Drill, asked: Asked) -> Shown:
    found = drill.tail(asked.metric or "ttft", over_limit=asked.over_limit, where=asked.where)  # type: ignore[arg-type]
    groups = {by: rows for by, rows in found.groups.items() if asked.by is None or by == asked.grouping}
    if asked.by not in (None, "part"):
        found = msgspec.structs.replace(found, groups=groups)
    parts = asked.by in (None, "part")
    if asked.by == "part":
        rows = plain(found.parts)
    else:
        rows = [_group_row(one) for some in groups.values() for one in some[: asked.first(None)]]
    over = "" if found.threshold_ms is None else f", {ms(found.threshold_ms)} ms and more"
    metric, words = NAMES[found.metric], asked.where.words if asked.where is not None else "all samples"
    page = [f"tail of {metric}: {found.rule}{over}; {number(found.tail_n)} of {number(found.n)} samples ({words})"]
    if parts:
        page += _part_lines(found)
    for by, some in groups.items():
        if some and asked.by != "part":
            page += ["", *_group_lines(by, some, asked.first(8 if asked.by is None else 40))]
    page += finding_lines(found.findings, drill.run.run)
    return Shown(plain(found), rows, "\n".join(page), [f"{found.metric}_ms", *(f"{one.name}_ms" for one in found.parts), "lift"])


def _group_row(one: TailGroup) -> dict[str, Any]:
    row: dict[str, Any] = plain(one)
    del row["where"]
    return row


def _part_lines(found: Tail) -> list[str]:
    if not found.parts:
        return []
    return ["", part_table(found.parts)] + (
        [f"{number(found.without_parts)} samples have only the sum of their parts"] if found.without_parts else []
    )


def part_table(parts: Sequence[PartShare]) -> str:
    rows = [
        [one.name, ms(one.mean_ms), ms(one.p50_ms), ms(one.p99_ms), ms(one.tail_mean_ms), share(one.share_of_excess)]
        for one in parts
    ]
    return table(["part", "mean ms", "p50 ms", "p99 ms", "mean of the tail", "share of its excess"], rows, right=range(1, 6))


def _most_telling(some: Sequence[TailGroup], most: int | None) -> list[TailGroup]:
    """Those with the largest lift, in the order in which they stand."""
    if most is None or len(some) <= most:
        return list(some)
    chosen = {id(one) for one in sorted(some, key=lambda one: -one.lift)[:most]}
    return [one for one in some if id(one) in chosen]


def _group_lines(by: str, some: Sequence[TailGroup], most: int | None) -> list[str]:
    rows = [
        [one.key, number(one.n), number(one.tail), share(one.share_of_tail), number(one.lift, 2), ms(one.p50_ms), ms(one.p99_ms)]
        for one in _most_telling(some, most)
    ]
    lines = [table([by, "samples", "of the tail", "share of it", "lift", "p50 ms", "p99 ms"], rows, right=range(1, 7))]
    if len(rows) < len(some):
        lines.append(f"  and {len(some) - len(rows)} more (--by {by.replace(' ', '-')} --top {len(some)})")
    return lines


# --- fleet and samples ---------------------------------------------------------------------------------------


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


def slowest(drill: Drill, asked: Asked) -> Shown:
    by = asked.metric or "latency"
    found = drill.slowest(by, asked.first(30) or 50, asked.where)  # type: ignore[arg-type]
    rows = [
        [
            str(one.seq),
            str(one.index),
            one.slot or "-",
            f"{one.scheduled_s:.3f}",
            number(one.n_prompt),
            number(one.n_tokens),
            number(one.tries),
            ms(one.ttft_ms),
            ms(one.tpot_ms),
            ms(one.latency_ms),
            "failed" if one.failed else "",
        ]
        for one in found
    ]
    titles = ["sample", "index", "replica", "at s", "prompt", "output", "tries", "TTFT ms", "TPOT ms", "latency ms", ""]
    words = asked.where.words if asked.where is not None else "all samples"
    page = [f"slowest by {NAMES[by]}, of {words}", table(titles, rows, right=(0, 1, *range(3, 10)))] if found else ["no samples"]
    page += [f"\n{typed(f'show {drill.run.run} --sample {found[0].seq}')} shows the life of the first"] if found else []
    return Shown(plain(found), plain(found), "\n".join(page), _LATENCIES)


def life(drill: Drill, seq: int) -> Shown:
    found = drill.sample(seq)
    one = found.sample
    where = f"{one.slot or '-'}" + (f", prefilled by {one.prefill_slot}" if one.prefill_slot else "")
    began = f"scheduled at {one.scheduled_s:.3f} s ({when(found.scheduled_unix)})"
    page = [
        f"sample {one.seq}: index {one.index} of the dataset, {began}",
        f"{where}, incarnation {one.incarnation}; {plural(one.n_prompt, 'prompt token')}, "
        f"{plural(one.n_tokens, 'output token')}, dispatched {plural(one.tries, 'time')}" + ("; FAILED" if one.failed else ""),
        f"TTFT {ms(one.ttft_ms)} ms  TPOT {ms(one.tpot_ms)} ms  latency {ms(one.latency_ms)} ms",
        *(f"  {remark}" for remark in found.remarks),
    ]
    if found.segments:
        page += ["", _segments(found)]
    page += _around(found)
    return Shown(plain(found), plain(found.segments), "\n".join(page), _LATENCIES)


def _segments(found: Life) -> str:
    end = max((one.end_ms for one in found.segments), default=0.0) or 1.0
    rows = [
        [
            one.name,
            one.at,
            ms(one.start_ms),
            ms(one.end_ms - one.start_ms),
            ms(one.usual_ms),
            "-" if one.rank is None else f"longer than {share(one.rank)}",
            " " * round(one.start_ms / end * 30) + "█" * max(1, round((one.end_ms - one.start_ms) / end * 30)),
        ]
        for one in found.segments
    ]
    return table(["part", "in the", "from ms", "took ms", "usual ms", "of all samples", ""], rows, right=(2, 3, 4))


def _around(found: Life) -> list[str]:
    lines: list[str] = []
    if found.journal:
        lines += ["", "the run then"]
        for entry in found.journal:
            told = " ".join(str(entry[key]) for key in ("who", "what", "subject", "why") if entry.get(key))
            lines.append(f"  {at(float(entry.get('at_s') or 0.0)):>8}  {told}")
    if found.gpus:
        lines += ["", "its GPUs, worst: " + "  ".join(f"{role} {number(value, 2)}" for role, value in found.gpus.items())]
    if found.replica:
        names = [
            name
            for name, value in found.replica[0].items()
            if isinstance(value, int | float | str) and name not in ("slot", "unix")
        ]
        rows = [[_cell(row.get(name)) for name in names] for row in found.replica]
        lines += ["", "its replica, second by second", table(names, rows, right=range(len(names)))]
    return lines


def _cell(value: Any) -> str:
    return number(value, 2) if isinstance(value, float) else str(value)


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
    return Shown(plain(found), rows, "\n".join(page[:-1]) or "no act of an operator or a policy touched this attempt")


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
                f"  {change.figure}",
                change.unit,
                ms(change.before),
                interval(change.before_interval),
                ms(change.after),
                interval(change.after_interval),
                interval(change.difference_interval),
                change.told,
            ]
            for change in one.changes
        ]
        titles = ["  figure", "unit", "before", "95% interval", "after", "95% interval", "difference, 95% interval", "told"]
        lines.append(table(titles, rows, right=range(2, 7)))
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
