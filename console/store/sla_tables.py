"""The SLA screen as tables: percentiles, histogram, parts of TTFT, and whose samples the tail is. Part of tables.py, whose
rules hold here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from console.store.tables import Row, Tables, known
from harness.wire.inquiry import LatencyDetail, SlaDetail

if TYPE_CHECKING:
    from harness.records.runfile import AttemptRecord


def sla_tables(detail: SlaDetail, slots: Sequence[str] = ()) -> Tables:
    """`slots`: the roster, for the names of those that the tail comes from."""
    both = (("TTFT", detail.ttft), ("TPOT", detail.tpot))
    return {
        "percentiles": [row for name, part in both for row in _percentiles(name, part, detail.window_s)],
        "histogram": [row for name, part in both for row in _histogram(name, part)],
        "ttft_parts": [
            {"part": part.name, "n": detail.parts_n, "mean_ms": known(part.mean_ms), "p50_ms": known(part.p50_ms),
             "p99_ms": known(part.p99_ms), "mean_of_slowest_1_percent_ms": known(part.tail_ms), "slowest_n": detail.parts_tail_n}
            for part in detail.parts
        ],
        "tail": _tail(detail, slots),
    }  # fmt: skip


def _percentiles(name: str, part: LatencyDetail, width_s: float) -> list[Row]:
    quantiles = list(dict.fromkeys([*part.whole_ms, *part.window_ms]))
    return [
        {"metric": name, "quantile": quantile, "limit_ms": known(part.limit_ms) if quantile == "p99" else None,
         "window_s": width_s, "window_ms": known(part.window_ms.get(quantile)), "window_n": part.window_n,
         "whole_ms": known(part.whole_ms.get(quantile)), "whole_n": part.whole_n}
        for quantile in sorted(quantiles, key=lambda name: float(name.removeprefix("p")))
    ]  # fmt: skip


def ended_percentiles(attempt: AttemptRecord) -> list[Row]:
    """Of the whole attempt, from the record."""
    return [
        {"metric": name, "quantile": quantile.replace("_", "."), "whole_ms": known(figures[quantile])}
        for name, figures in (("TTFT", attempt.ttft_ms), ("TPOT", attempt.tpot_ms))
        for quantile in figures
        if quantile.startswith("p")
    ]


def _histogram(name: str, part: LatencyDetail) -> list[Row]:
    cells = max(0, len(part.edges_ms) - 1)
    return [
        {"metric": name, "from_ms": part.edges_ms[cell], "to_ms": part.edges_ms[cell + 1],
         "window_n": part.window[cell] if cell < len(part.window) else 0,
         "whole_n": part.whole[cell] if cell < len(part.whole) else 0}
        for cell in range(cells)
    ]  # fmt: skip


def _tail(detail: SlaDetail, slots: Sequence[str]) -> list[Row]:
    """A row for each replica that has samples over a limit, those with most of TTFT's first."""
    columns = {
        "ttft_over_window_n": detail.ttft.over_window, "ttft_over_whole_n": detail.ttft.over_whole,
        "tpot_over_window_n": detail.tpot.over_window, "tpot_over_whole_n": detail.tpot.over_whole,
        "samples_whole_n": detail.ttft.samples_whole,
    }  # fmt: skip
    counts = {name: np.frombuffer(raw, dtype="<i4") for name, raw in columns.items()}
    rows = []
    for at, slot in enumerate(slots):
        row = {name: int(column[at]) if at < len(column) else None for name, column in counts.items()}
        if any(number for name, number in row.items() if "over" in name):
            rows.append({"slot": slot} | row)
    return sorted(rows, key=lambda row: (-(row["ttft_over_whole_n"] or 0), -(row["tpot_over_whole_n"] or 0)))
