"""Progress lines: what a person needs to see without a console, at most one every two seconds."""

from __future__ import annotations

import io
import math
from typing import Any, get_type_hints

import pytest

from console.cli.errors import exit_code_of
from console.cli.output import clean, clock, number, table
from console.cli.processes import parse_nodes
from console.cli.progress import ProgressLines, eta_s, progress_line
from harness.wire.control import FleetSnapshot, JournalEntry, Percentiles, SlaView


def fleet(**changes: Any) -> FleetSnapshot:
    """A fleet of 64 in the middle of a two-minute attempt."""
    zeros: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False, bytes: b""}
    kinds = get_type_hints(FleetSnapshot)
    plain = {name: zeros.get(kinds[name]) for name in FleetSnapshot.__struct_fields__}
    measuring: dict[str, Any] = {
        "phase": "MEASURING", "attempt": 1, "attempt_kind": "performance", "attempt_state": "MEASURING", "scenario": "Server",
        "target_qps": 150.0, "elapsed_s": 30.0, "duration_s": 120.0, "min_queries": 1, "issued": 4500, "completed": 4400,
        "offered_qps": 149.6, "completed_qps": 148.0, "counts": {"READY": 64}, "missing": [], "slow": [], "slow_nodes": [],
        "ttft": SlaView(500, whole=Percentiles(4400, 60, 80, 92.5)), "tpot": SlaView(40, whole=Percentiles(4400, 10, 12, 44.0)),
    }  # fmt: skip
    return FleetSnapshot(**{**plain, **measuring, **changes})


def test_a_measuring_line_has_phase_rates_limits_and_eta() -> None:
    line = progress_line(fleet())
    for expected in (
        "MEASURING", "64/64 ready", "Server #1 0:30 of 2:00", "issued 4,500, done 4,400", "149.6 → 148.0 q/s (target 150)",
        "TTFT p99 92.5 of 500 ms", "TPOT p99 44.0! of 40 ms", "ETA 1:30",
    ):  # fmt: skip
        assert expected in line


def test_the_barrier_line_names_who_is_missing_and_why() -> None:
    missing = ["node003/gpu1: no REGISTER", "node003/gpu2: warming, round 2", "node004/gpu0: no REGISTER"]
    line = progress_line(
        fleet(phase="WARMING", attempt=0, attempt_state="", counts={"READY": 61, "WARMING": 3}, missing=missing, missing_total=3)
    )
    assert "61/64 ready" in line
    assert "missing node003/gpu1: no REGISTER; node003/gpu2: warming, round 2 and 1 more" in line
    assert "ETA" not in line


def test_too_few_samples_for_a_p99_show_the_median_instead() -> None:
    assert "TTFT p50 33.0 of 500 ms" in progress_line(fleet(ttft=SlaView(500, window=Percentiles(40, 33.0))))


def test_stragglers_backlog_and_dispatches_again_are_told() -> None:
    line = progress_line(fleet(slow=["node005/gpu3"], backlog=12, redispatched=3))
    for expected in ("slow node005/gpu3", "12 held in the head", "3 dispatched again"):
        assert expected in line


def test_eta_waits_for_minimum_queries_too_and_an_endless_run_has_none() -> None:
    assert eta_s(fleet()) == 90
    assert eta_s(fleet(min_queries=4500 + 14960)) == pytest.approx(100.0)
    assert eta_s(fleet(duration_s=0)) is None
    assert eta_s(fleet(elapsed_s=130.0)) == 0


def test_lines_come_every_two_seconds_and_at_a_change_of_phase() -> None:
    now_s, out = [0.0], io.StringIO()
    lines = ProgressLines(out, lambda: now_s[0])
    for step in range(17):  # four seconds at 4 Hz
        now_s[0] = step * 0.25
        lines.snapshot(fleet(phase="WARMING" if step < 3 else "MEASURING"))
    assert [line.split()[:2] for line in out.getvalue().splitlines()] == [
        ["0:00", "WARMING"],
        ["0:01", "MEASURING"],
        ["0:03", "MEASURING"],
    ]


def test_acts_and_warnings_get_lines_of_their_own_and_small_news_does_not() -> None:
    out = io.StringIO()
    lines = ProgressLines(out, lambda: 0.0)
    lines.news(
        [
            JournalEntry(1, 0.0, "head", "replica.state", "node000/gpu0", before="WARMING", after="READY"),
            JournalEntry(2, 0.0, "operator:kim@desk", "act.evict", "node005/gpu3", why="hot"),
            JournalEntry(3, 0.0, "head", "replica.state", "node001/gpu0", "lease over", "READY", "LOST", level="error"),
        ]
    )
    assert out.getvalue().splitlines() == [
        " 0:00 act.evict node005/gpu3 by kim@desk: hot",
        " 0:00 ERROR replica.state node001/gpu0 READY → LOST: lease over",
    ]


def test_what_befalls_many_replicas_at_once_is_counted() -> None:
    out = io.StringIO()
    lost = [JournalEntry(n, 0.0, "head", "replica.state", f"node000/gpu{n}", "", "READY", "LOST", level="warn") for n in range(8)]
    ProgressLines(out, lambda: 0.0).news(lost)
    assert len(out.getvalue().splitlines()) == 3
    assert "replica.state → LOST: 6 more" in out.getvalue()


@pytest.mark.parametrize(
    ("verdict", "phase", "code"),
    [
        ("VALID", "DONE", 0), ("EXPLORATION", "DONE", 0), ("INVALID", "DONE", 1), ("SUPERSEDED", "DONE", 1),
        ("ABORTED", "ABORTED", 1), ("CRASHED", "DONE", 3), ("", "DONE", 3), ("VALID", "FAILED", 3),
    ],
)  # fmt: skip
def test_a_verdict_has_its_exit_code(verdict: str, phase: str, code: int) -> None:
    assert exit_code_of(verdict, phase) == code


def test_numbers_nobody_knows_are_a_dash_for_people_and_null_for_programs() -> None:
    assert [number(math.nan), number(None), number(1234567), number(1.25, 2)] == ["-", "-", "1,234,567", "1.25"]
    assert clean({"a": math.nan, "b": [math.inf, 1.0]}) == {"a": None, "b": [None, 1.0]}
    assert [clock(5), clock(83), clock(7384), clock(None)] == ["0:05", "1:23", "2:03:04", "-"]


def test_a_table_aligns_numbers_to_the_right() -> None:
    assert table(["slot", "n"], [["a", "1"], ["bb", "100"]], right=[1]) == "slot    n\na       1\nbb    100"


def test_nodes_of_a_worker_are_numbers_and_ranges() -> None:
    assert parse_nodes("0,2,5-7") == [0, 2, 5, 6, 7]
