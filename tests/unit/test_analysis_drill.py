"""A drill-down names what was planted in a record: a slow node, a stall, samples dispatched twice; its figures are run.json's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
from made_run import BEFORE_S, T0, Made, make_run

from harness.analysis.drill import Drill
from harness.analysis.errors import NoSuchAttempt, NoSuchColumn, NoSuchSample
from harness.analysis.views import BYS, METRICS, Overview, Where
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.reader import Record, summarise
from harness.records.runfile import read_run, write_run
from harness.wire.control import JournalEntry


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drills")


@pytest.fixture(scope="module")
def slow_node(root: Path) -> Drill:
    """node001 decodes 60 % slower; all limits hold."""
    return Drill(Record(make_run(root, Made("slow-node", failed=3, again_every=400))))


@pytest.fixture(scope="module")
def stalled(root: Path) -> Drill:
    """Prompts waited 1.5 s more from second 40 to 44, which breaks the TTFT limit."""
    made = Made("stalled", slow_node=None, stall_s=40, ttft_limit_ms=1000.0, tpot_limit_ms=15.0, verdict="INVALID")
    return Drill(Record(make_run(root, made)))


def texts(overview: Overview) -> str:
    return "\n".join(f"{finding.level}: {finding.text}" for finding in overview.findings)


# --- overview -------------------------------------------------------------------------------------------------


def test_figures_are_those_of_run_json_to_the_last_digit(slow_node: Drill) -> None:
    attempt, overview = slow_node.attempt, slow_node.overview()
    assert attempt is not None
    assert overview.rates == pytest.approx(attempt.rates)
    assert overview.totals == attempt.totals
    for found in slow_node.distributions():
        told = getattr(attempt, f"{found.metric}_ms")
        assert {k: v for k, v in found.figures.items() if k != "avg"} == {k: v for k, v in told.items() if k != "avg"}
        assert found.figures["avg"] == pytest.approx(told["avg"])


def test_a_slow_node_is_named_though_every_limit_holds(slow_node: Drill) -> None:
    found = [finding for finding in slow_node.overview().findings if finding.view == "fleet" and finding.by == "node"]
    assert [finding.where for finding in found] == [Where(node="node001")]
    assert "node001 (4 replicas) decodes 60% slower than the fleet" in found[0].text
    assert "recycle it between attempts" in found[0].text


def test_failures_come_first_and_rule_out_words_of_head_room(slow_node: Drill) -> None:
    findings = slow_node.overview().findings
    assert findings[0].level == "bad"
    assert "3 of 12,000 samples failed" in findings[0].text
    assert not [finding for finding in findings if finding.level == "good"]


def test_samples_dispatched_again_are_told_with_what_they_cost(slow_node: Drill) -> None:
    (found,) = [finding for finding in slow_node.overview().findings if finding.by == "tries"]
    assert found.text.startswith("30 samples were dispatched again")
    assert len(slow_node.slowest("ttft", 100, found.where)) == 30


def test_a_broken_limit_comes_first_with_where_its_tail_is_and_what_it_is_made_of(stalled: Drill) -> None:
    overview = stalled.overview()
    ttft, tpot = overview.margins
    assert (ttft.metric, tpot.metric) == ("ttft", "tpot")
    assert ttft.head_room is not None
    assert ttft.head_room < 0
    assert ttft.over == sum(row.ttft_ms is not None and row.ttft_ms > 1000 for row in stalled.slowest("ttft", 2000))
    first = overview.findings[0]
    assert (first.level, first.metric, first.view) == ("bad", "ttft", "tail")
    assert "over its limit of 1,000 ms" in first.text
    said = texts(overview)
    assert "scheduled at 40–44 s" in said, "the stretch is told closely, not by groups of two seconds or more"
    assert "Then: evict node003/gpu3 by operator:kim: slow" in said
    assert "is replica queue" in said
    assert "bad: TPOT p99" in said


def test_all_is_well_says_how_much_room_there_is_and_that_more_may_hold(root: Path) -> None:
    overview = Drill(Record(make_run(root, Made("well", slow_node=None, seconds=20)))).overview()
    assert "A higher target QPS than 200 may hold" in texts(overview)
    good = [finding for finding in overview.findings if finding.level == "good"]
    assert len(good) == 1
    assert not [finding for finding in overview.findings if finding.level in ("bad", "warn")]


def test_saturation_is_told_as_the_fleets_and_with_what_it_completes(root: Path) -> None:
    path = make_run(root, Made("saturated", slow_node=None, seconds=20, qps=100.0))
    rewrite(path, lambda rows: rows.with_columns(first_ns=_later(rows, "first_ns"), done_ns=_later(rows, "done_ns")))
    found = [finding for finding in Drill(Record(path)).overview().findings if "saturated" in finding.text]
    assert len(found) == 1
    assert "Lower the target QPS below what completes" in found[0].text


def test_a_client_that_issues_late_is_told_as_such(root: Path) -> None:
    path = make_run(root, Made("late", slow_node=None, seconds=10))
    late = [(pl.col(name) + 400_000_000).alias(name) for name in ("issued_ns", "dispatched_ns", "first_ns", "done_ns")]
    rewrite(path, lambda rows: rows.with_columns(late))
    assert "Samples were issued late: schedule lag p99 400" in texts(Drill(Record(path)).overview())


def test_a_head_that_stood_still_for_a_moment_is_not_said_to_bound_the_run(root: Path) -> None:
    path = make_run(root, Made("moment", slow_node=None, seconds=20))
    then = pl.col("scheduled_ns").is_between(0, 300_000_000)
    late_ns = then.cast(pl.Int64) * 400_000_000
    names = ("issued_ns", "dispatched_ns", "first_ns", "done_ns")
    rewrite(path, lambda rows: rows.with_columns((pl.col(name) + late_ns).alias(name) for name in names))
    told = texts(Drill(Record(path)).overview())
    assert "the head, not the replicas, stood still for a moment" in told
    assert "lower the target QPS" not in told


def test_a_slow_decode_is_not_blamed_for_a_broken_limit_of_ttft(root: Path) -> None:
    made = Made("both", slow_node=1, stall_s=40, ttft_limit_ms=1000.0, tpot_limit_ms=500.0, verdict="INVALID")
    overview = Drill(Record(make_run(root, made))).overview()
    assert overview.findings[0].level == "bad"
    assert [finding.level for finding in overview.findings if "decodes" in finding.text] == ["warn"]


def test_what_was_done_to_a_slow_replica_in_the_attempt_stands_beside_the_advice(root: Path) -> None:
    path = make_run(root, Made("acted"))
    journal = JournalWriter(RunFolder(path).journal)
    journal.append(JournalEntry(0, T0 + BEFORE_S + 30, "operator:kim", "act.drain", "node001/gpu2", why="slow", attempt=1))
    journal.close()
    (found,) = [finding for finding in Drill(Record(path)).overview().findings if finding.view == "fleet"]
    assert found.text.endswith("Done in the attempt: drain node001/gpu2 by operator:kim: slow, at 30 s.")


def test_loadgens_tokens_are_explained_by_the_straggler_that_its_time_leaves_out(root: Path) -> None:
    path = make_run(root, Made("straggler", slow_node=None, seconds=20))
    run = read_run(path)
    tokens_per_s, duration_s = run.attempts[0].rates["tokens_per_s"], run.attempts[0].rates["duration_s"]
    assert tokens_per_s is not None
    assert duration_s is not None
    last = pl.col("seq") == 17  # ends 30 s after everybody
    end_ns = int((duration_s + 30) * 1e9)
    rewrite(path, lambda rows: rows.with_columns(done_ns=pl.when(last).then(end_ns).otherwise(pl.col("done_ns"))))
    done_s = Record(path).samples(1).sort("scheduled_ns").tail(1).collect()["done_ns"][0] / 1e9
    run.attempts[0].loadgen = {"tokens_per_s": tokens_per_s * duration_s / done_s}
    write_run(path, run)
    (found,) = [finding for finding in Drill(Record(path)).overview().findings if finding.text.startswith("LoadGen")]
    assert "sample 17" in found.text
    run.attempts[0].loadgen = {"tokens_per_s": tokens_per_s * 9}
    write_run(path, run)
    (found,) = [finding for finding in Drill(Record(path)).overview().findings if finding.text.startswith("LoadGen")]
    assert found.level == "warn"


# --- distributions and tails ----------------------------------------------------------------------------------


def test_distributions_count_every_completed_sample_and_reach_from_end_to_end(slow_node: Drill) -> None:
    for found in slow_node.distributions():
        assert sum(found.counts) == found.n == 11_997
        assert len(found.edges_ms) == len(found.counts) + 1
        assert (found.edges_ms[0], found.edges_ms[-1]) == (found.figures["min"], found.figures["max"])
        assert found.cdf[-1] == (found.figures["max"], 1.0)
        assert found.cdf == sorted(found.cdf)
        assert found.p99_interval_ms is not None
        assert found.p99_interval_ms[0] <= (found.figures["p99"] or 0) <= found.p99_interval_ms[1]


def test_a_tails_groups_add_up_and_lead_on_to_their_samples(slow_node: Drill) -> None:
    for metric in METRICS:
        tail = slow_node.tail(metric)
        assert tail.n == 11_997
        assert tail.tail_n == 120
        for by in BYS:
            groups = tail.groups[by]
            assert sum(group.n for group in groups) == tail.n, by
            assert sum(group.tail for group in groups) == tail.tail_n, by
            worst = max(groups, key=lambda group: group.tail)
            rows = slow_node.slowest(metric, worst.n + 10, worst.where)
            assert len(rows) == min(worst.n, 10_000), by
            assert getattr(rows[0], f"{metric}_ms") >= (tail.threshold_ms or 0)


def test_the_node_stands_first_and_parts_say_decode(slow_node: Drill) -> None:
    tail = slow_node.tail("tpot")
    first = tail.groups["node"][0]
    assert (first.key, first.tail) == ("node001", tail.tail_n)
    assert first.lift == pytest.approx(tail.n / first.n)
    assert [part.name for part in tail.parts] == ["decode", "other"]
    assert (tail.parts[0].share_of_excess or 0) > 0.99
    assert "100% of the slowest 1 % by TPOT" in tail.findings[0].text
    assert "come from node001 (25% of all samples)" in tail.findings[0].text


def test_parts_of_a_time_add_up_to_it(slow_node: Drill) -> None:
    for metric, figure in (("ttft", "avg"), ("latency", "avg")):
        (found,) = [each for each in slow_node.distributions() if each.metric == metric]
        tail = slow_node.tail(metric)  # type: ignore[arg-type]
        assert tail.without_parts == 0
        assert sum(part.mean_ms for part in tail.parts) == pytest.approx(found.figures[figure], rel=1e-3)
        assert sum(part.share_of_excess or 0.0 for part in tail.parts) == pytest.approx(1.0)
        assert "re-dispatch" in [part.name for part in tail.parts]


def test_over_the_limit_and_within_a_part_of_the_samples(stalled: Drill) -> None:
    tail = stalled.tail("ttft", over_limit=True)
    assert tail.rule == "over the limit of 1,000 ms"
    assert tail.tail_n == stalled.overview().margins[0].over
    within = stalled.tail("ttft", over_limit=True, where=Where(from_s=40.0, to_s=45.0))
    assert within.tail_n == tail.tail_n
    assert within.n < tail.n / 10
    assert all((group.where.from_s or 0) >= 40.0 for group in within.groups["time"])
    none = stalled.tail("latency", over_limit=True)
    assert (none.tail_n, none.groups["node"][0].share_of_tail) == (0, 0.0)


# --- fleet, time, samples -------------------------------------------------------------------------------------


def test_replicas_agree_with_the_summary_and_the_slow_ones_have_the_z(slow_node: Drill) -> None:
    rows = {row.name: row for row in slow_node.fleet()}
    for told in summarise(slow_node.record, 1).replicas:
        row = rows[told.slot]
        assert (row.samples, row.failed, row.tokens, row.redispatched) == (
            told.samples,
            told.failed,
            told.tokens,
            told.redispatched,
        )
        assert (row.ttft_p99_ms, row.tpot_p99_ms) == (told.ttft_p99_ms, told.tpot_p99_ms)
        assert row.tokens_per_s == pytest.approx(told.tokens_s)
    slow = {name for name, row in rows.items() if (row.z_tpot or 0) > 3.5}
    assert slow == {f"node001/gpu{gpu}" for gpu in range(4)}
    assert (rows["node001/gpu0"].step_ms, rows["node000/gpu0"].step_ms) == (32.0, 20.0)


def test_nodes_hold_their_replicas(slow_node: Drill) -> None:
    nodes = {row.name: row for row in slow_node.fleet("node")}
    assert {name: row.replicas for name, row in nodes.items()} == {f"node00{n}": 4 for n in range(4)}
    assert sum(row.tokens for row in nodes.values()) == slow_node.overview().totals["tokens"]
    assert max(nodes, key=lambda name: nodes[name].z_tpot or 0) == "node001"


def test_ticks_add_up_to_the_totals_and_marks_tell_the_story(slow_node: Drill) -> None:
    found = slow_node.timeline(60)
    totals = slow_node.overview().totals
    assert round(sum(tick.scheduled_qps for tick in found.ticks) * found.step_s) == totals["issued"]
    assert round(sum(tick.completed_qps for tick in found.ticks) * found.step_s) == totals["completed"]
    assert round(sum(tick.tokens_per_s for tick in found.ticks) * found.step_s) == totals["tokens"]
    assert found.ticks[-1].in_flight == 0
    ready = {tick.from_s: tick.ready for tick in found.ticks}
    assert (ready[30.0], ready[45.0]) == (16, 15), "one was evicted at two thirds"
    kinds = {mark.kind for mark in found.marks}
    assert kinds == {"act", "phase", "attempt", "replica", "straggler"}
    (act,) = [mark for mark in found.marks if mark.kind == "act"]
    assert (act.at_s, act.text) == (40.0, "evict node003/gpu3 by operator:kim: slow")
    assert [mark.at_s for mark in found.marks] == sorted(mark.at_s for mark in found.marks)


def test_the_slowest_come_in_order_and_keep_to_what_was_asked(slow_node: Drill) -> None:
    rows = slow_node.slowest("tpot", 30, Where(node="node002", output_from=32))
    assert len(rows) == 30
    values = [row.tpot_ms or 0 for row in rows]
    assert values == sorted(values, reverse=True)
    assert all((row.slot or "").startswith("node002/") and row.n_tokens >= 32 for row in rows)
    assert slow_node.slowest("latency", 0) == []


def test_one_samples_life_adds_up_and_shows_its_replica(slow_node: Drill) -> None:
    row = next(row for row in slow_node.slowest("tpot", 50) if row.tries == 1)
    life = slow_node.sample(row.seq)
    assert life.sample == row
    assert [segment.name for segment in life.segments] == [
        "schedule lag", "head queue", "replica queue", "prefill", "other", "decode",
    ]  # fmt: skip
    assert all(a.end_ms == b.start_ms for a, b in zip(life.segments, life.segments[1:], strict=False))
    assert life.segments[-1].start_ms == row.ttft_ms
    assert life.segments[-1].end_ms == row.latency_ms
    assert life.scheduled_unix == pytest.approx(T0 + BEFORE_S + row.scheduled_s)
    assert {each["slot"] for each in life.replica} == {row.slot}
    assert life.replica[0]["at_s"] >= row.scheduled_s - 3


def test_a_sample_dispatched_twice_says_so_and_where_the_time_went(slow_node: Drill) -> None:
    life = slow_node.sample(400)
    assert life.segments[1].name == "re-dispatch"
    assert life.segments[1].end_ms - life.segments[1].start_ms > 800
    assert "dispatched 2 times: earlier tries were lost" in life.remarks


def test_a_failed_sample_shows_as_far_as_it_came(slow_node: Drill) -> None:
    life = slow_node.sample(11_999)
    assert life.sample.failed
    assert life.sample.latency_ms is None
    assert "it failed" in life.remarks
    assert [segment.name for segment in life.segments] == ["schedule lag", "head queue", "until the first token"]


def test_the_journal_around_a_sample_has_what_was_done_to_its_replica(slow_node: Drill) -> None:
    table = slow_node.table
    at = int(np.flatnonzero((table.scheduled_s > 39.5) & (table.scheduled_s < 40) & (table.slot == len(table.slots) - 1))[0])
    whats = [entry["what"] for entry in slow_node.sample(int(table.seq[at])).journal]
    assert "act.evict" in whats
    assert "replica.state" in whats


# --- what is not there ----------------------------------------------------------------------------------------


def test_what_is_not_there_is_refused_with_what_is(slow_node: Drill) -> None:
    with pytest.raises(NoSuchAttempt, match="has no attempt 9; it has 1"):
        Drill(slow_node.record, 9)
    with pytest.raises(NoSuchSample, match="its samples are 0 to 11,999"):
        slow_node.sample(77_777)
    with pytest.raises(NoSuchSample):
        slow_node.sample(-1)
    with pytest.raises(NoSuchColumn, match="choose one of ttft, tpot, latency"):
        slow_node.slowest("speed")  # type: ignore[arg-type]
    with pytest.raises(NoSuchColumn, match="choose replica or node"):
        slow_node.fleet("rack")  # type: ignore[arg-type]


def test_every_view_is_plain_data(slow_node: Drill) -> None:
    views = (
        slow_node.overview(),
        slow_node.timeline(),
        slow_node.tail(),
        slow_node.fleet(),
        slow_node.sample(5),
        slow_node.effects(),
    )
    for view in views:
        assert msgspec.json.encode(view)


def rewrite(path: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    for chunk in (path / "samples").iterdir():
        change(pl.read_parquet(chunk)).write_parquet(chunk)


def _later(rows: pl.DataFrame, name: str) -> pl.Series:
    """Everybody waits longer than the one before: by half a second a second."""
    return rows.select(pl.col(name) + pl.col("scheduled_ns") // 2)[name]
