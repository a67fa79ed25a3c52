"""The views of a record that speak of single samples: the tail and its groups, the slowest, the life of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from console.cli.output import number, plural, table, typed, when
from console.cli.view_words import Shown, at, finding_lines, ms, plain, share
from console.widgets.gpu_figures import titled
from harness.analysis.views import CALLED

if TYPE_CHECKING:
    from console.cli.showing import Asked
    from harness.analysis.drill import Drill
    from harness.analysis.views import Life, PartShare, Tail, TailGroup

_LATENCIES: Final = ("ttft_ms", "tpot_ms", "latency_ms")


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
    metric, words = CALLED[found.metric], asked.where.words if asked.where is not None else "all samples"
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


# --- samples ------------------------------------------------------------------------------------------------


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
    page = [f"slowest by {CALLED[by]}, of {words}", table(titles, rows, right=(0, 1, *range(3, 10)))] if found else ["no samples"]
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
        lines += ["", "its GPUs then, the worst value of each; counts: by how much they grew"]
        lines.append(table(["", ""], [titled(role, value) for role, value in found.gpus.items()], right=(1,)).lstrip("\n"))
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
