"""Progress lines: what a person needs to see without a console, at most one every two seconds."""

from __future__ import annotations

import io
import math
from typing import Any, get_type_hints

import pytest

from console.cli.errors import exit_code_of
from console.cli.output import clean, clock, number, table
from console.cli.processes import parse_nodes
from console.cli.progress import ProgressLines, eta_s, longer_than_asked, progress_line
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


def test_a_p99_that_is_not_known_yet_is_told_with_the_number_of_samples_and_without_a_limit() -> None:
    line = progress_line(fleet(ttft=SlaView(500, window=Percentiles(40, 33.0), whole=Percentiles(57, 33.0))))
    assert "TTFT p99 – (n=57)  TPOT p99 44.0!" in line
    assert "33.0" not in line


@pytest.mark.parametrize("columns", [120, 80])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ttft": SlaView(3000, whole=Percentiles(57)), "tpot": SlaView(80, whole=Percentiles(57))},
        {"slow": ["node000/gpu3", "node005/gpu1"], "backlog": 1234, "redispatched": 567, "min_queries": 17_280},
        {
            "counts": {"READY": 510, "LOST": 2}, "elapsed_s": 599.0, "duration_s": 600.0, "issued": 2_397_113,
            "completed": 2_390_001, "offered_qps": 3999.5, "completed_qps": 3987.2, "target_qps": 4000.0,
        },
    ],
)  # fmt: skip
def test_on_a_terminal_both_limits_and_the_eta_are_in_view(changes: dict[str, Any], columns: int) -> None:
    width = columns - 7  # the run's clock before it, and a free last column
    line = progress_line(fleet(**changes), width)
    assert len(line) <= width
    for name, sla in (("TTFT", fleet(**changes).ttft), ("TPOT", fleet(**changes).tpot)):
        known = f"{name} p99 {sla.whole.p99:.1f}" if math.isfinite(sla.whole.p99) else f"{name} p99 – (n={sla.whole.n})"
        assert known in line
    assert "ETA" in line


def test_a_terminal_of_120_columns_has_rates_and_ready_replicas_too() -> None:
    line = progress_line(fleet(), 113)
    for expected in ("64/64 ready", "0:30/2:00", "148.0 of 150 q/s", "TTFT p99 92.5/500 ms", "TPOT p99 44.0!/40 ms", "ETA 1:30"):
        assert expected in line


def test_of_replicas_that_wait_for_the_same_pod_one_is_named() -> None:
    missing = [f"node004/gpu{gpu}: pod w-4 is Pending" for gpu in range(8)] + ["node005/gpu0: pod w-5 is Pending"]
    line = progress_line(fleet(phase="REGISTERING", attempt=0, attempt_state="", missing=missing, missing_total=480))
    assert line.endswith("missing node004/gpu0: pod w-4 is Pending; node005/gpu0: pod w-5 is Pending and 478 more")


def test_why_replicas_are_missing_is_told_again_only_when_it_changes() -> None:
    now_s, out = [0.0], io.StringIO()
    lines = ProgressLines(out, lambda: now_s[0])
    for reason in ("Pending for 6 s", "Pending for 8 s", "ErrImagePull"):
        missing = [f"node004/gpu0: pod w-4: {reason}"]
        lines.snapshot(fleet(phase="REGISTERING", attempt=0, attempt_state="", missing=missing, missing_total=1))
        now_s[0] += 2.0
    first, second, third = out.getvalue().splitlines()
    assert first.endswith("missing node004/gpu0: pod w-4: Pending for 6 s")
    assert second.endswith("1 missing")
    assert third.endswith("missing node004/gpu0: pod w-4: ErrImagePull")


def test_while_it_drains_the_clock_of_the_load_stands_still() -> None:
    now_s, out = [0.0], io.StringIO()
    lines = ProgressLines(out, lambda: now_s[0])
    lines.snapshot(fleet(elapsed_s=127.6, duration_s=10.0, min_queries=6396, issued=6396, target_qps=50.0))
    now_s[0] = 20.0
    draining = {"phase": "DRAINING", "attempt_state": "draining", "unix": 1000.0, "phase_since_unix": 985.0}
    lines.snapshot(fleet(**draining, elapsed_s=142.6, duration_s=10.0, min_queries=6396, issued=6396, in_flight=1510))
    line = out.getvalue().splitlines()[-1]
    assert "Server #1 issued in 2:08" in line
    assert line.endswith("draining for 0:15, 1,510 in flight")
    assert "0:10" not in line
    assert "ETA" not in line


def test_an_attempt_that_is_being_stopped_says_so() -> None:
    assert progress_line(fleet(attempt_state="stopping", in_flight=7)).endswith("stopping, 7 in flight")


def test_before_the_first_query_it_says_what_is_being_waited_for() -> None:
    line = progress_line(fleet(attempt_state="generating schedule", issued=0, completed=0, elapsed_s=0.0))
    assert "Server #1: generating schedule" in line
    assert "TTFT" not in line


def test_a_minimum_of_queries_that_outlasts_the_duration_is_told_once() -> None:
    out = io.StringIO()
    lines = ProgressLines(out, lambda: 0.0)
    for state in ("generating schedule", "issuing", "issuing"):
        lines.snapshot(fleet(attempt_state=state, min_queries=6396, target_qps=50.0, duration_s=10.0, elapsed_s=0.0))
    told = [line for line in out.getvalue().splitlines() if "6,396 queries at 50 QPS: at least 2:08" in line]
    assert len(told) == 1


def test_chance_in_the_schedule_is_no_longer_attempt() -> None:
    assert longer_than_asked(fleet(min_queries=18_100)) == "", "two minutes at 150 QPS, a little more than 18,000"
    assert longer_than_asked(fleet(min_queries=0)) == ""
    assert longer_than_asked(fleet(min_queries=30, target_qps=2.0, duration_s=10.0)) == ""
    assert longer_than_asked(fleet(min_queries=6396, scenario="Offline")) == ""
    assert longer_than_asked(fleet(min_queries=6396, target_qps=0.0)) == ""


def test_lines_that_begin_late_carry_the_runs_own_clock() -> None:
    out = io.StringIO()
    ProgressLines(out, lambda: 50.0, already_s=83.0).say("stopping")
    assert out.getvalue() == " 1:23 stopping\n"


def test_stragglers_backlog_and_dispatches_again_are_told() -> None:
    line = progress_line(fleet(slow=["node005/gpu3"], backlog=12, redispatched=3))
    for expected in ("slow node005/gpu3", "12 held in the head", "3 dispatched again"):
        assert expected in line


def test_eta_waits_for_minimum_queries_too_and_an_endless_run_has_none() -> None:
    assert eta_s(fleet()) == 90
    assert eta_s(fleet(min_queries=19_500)) == 100, "19,500 at the target of 150 QPS, whatever the rate of the last seconds"
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
            JournalEntry(
                4, 0.0, "operator:kim@desk", "act.set_rate", before="144 QPS", after="150 QPS", level="warn", data={"qps": 150.0}
            ),
            JournalEntry(5, 0.0, "operator:kim@desk", "act.set_rate", level="warn", data={"qps": 150.0}),
            JournalEntry(6, 0.0, "head", "attempt.end", "1", "TTFT p99 is over", after="INVALID", level="error"),
            JournalEntry(7, 0.0, "head", "attempt.end", "2", "the driver exited", after="CRASHED", level="error"),
        ]
    )
    assert out.getvalue().splitlines() == [
        " 0:00 act.evict node005/gpu3 by kim@desk: hot",
        " 0:00 ERROR replica.state node001/gpu0 READY → LOST: lease over",
        " 0:00 act.set_rate 144 QPS → 150 QPS by kim@desk",
        " 0:00 act.set_rate (qps 150) by kim@desk",
        " 0:00 attempt.end 1 INVALID: TTFT p99 is over",
        " 0:00 ERROR attempt.end 2 CRASHED: the driver exited",
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
