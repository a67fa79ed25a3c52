"""The data of screens as rows, as pages of text and as sentences, from sample data."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from console_helpers import HandClock
from hypothesis import given, settings
from hypothesis import strategies as st

from console.cli.page import Page
from console.cli.pages import events_page, fleet_page, live_page, nodes_page, replica_page, sla_page
from console.export import write_tables
from console.feeds.scripted import SAMPLE_UNIX, ScriptedFleet
from console.plain import ONE_BY_ONE, SETTLED_S, Narrator, ended, sentence, sentences, status
from console.store import tables
from console.store.columns import NUMBERS, live
from console.store.fleet import FleetStore
from console.store.nodes import NodeRows
from console.store.sla_tables import sla_tables
from console.store.tables import Row, Tables
from harness.wire import control
from harness.wire.inquiry import InFlight, LatencyDetail, LogLine, PartTimes, ReplicaDetail, SlaDetail
from harness.wire.states import REPLICA_STATES


def detail(store: FleetStore) -> SlaDetail:
    count = len(store.slots)
    over = np.zeros(count, dtype="<i4")
    over[store.index["node015/gpu3"]], over[store.index["node006/gpu6"]] = 30, 10
    latency = LatencyDetail(
        limit_ms=3000.0, edges_ms=[100.0, 200.0, 400.0], window=[5, 3], whole=[50, 30], window_ms={"p50": 150.0, "p99": 390.0},
        whole_ms={"p50": 160.0, "p99": 395.0, "p99.9": 399.0}, window_n=8, whole_n=80, over_window=over.tobytes(),
        over_whole=over.tobytes(), samples_whole=np.full(count, 100, dtype="<i4").tobytes(),
    )  # fmt: skip
    parts = [PartTimes("schedule lag", 0.1, 0.1, 0.4, 0.2), PartTimes("prefill", 12.0, 11.0, math.nan, 30.0)]
    return SlaDetail("1", 1, 60.0, latency, latency, parts, 8, 1)


def every_table(store: FleetStore) -> Tables:
    slot = "node015/gpu3"
    told = ReplicaDetail("1", slot, "x", in_flight=[InFlight(7, 2.5, 100)], log_lines=["warm"])
    found = [
        tables.live(store), tables.fleet(store), tables.nodes(store), tables.events(store.journal),
        sla_tables(detail(store), [info.slot for info in store.slots]), tables.replica(store, slot, told),
    ]  # fmt: skip
    return {f"{number}-{name}": rows for number, one in enumerate(found) for name, rows in one.items()}


def test_rows_are_plain_data_and_never_hold_a_nan(store: FleetStore) -> None:
    for name, rows in every_table(store).items():
        json.dumps(rows, allow_nan=False)
        assert rows, name


def test_unknown_is_none_and_not_zero(store: FleetStore) -> None:
    lost = tables.fleet(store, [store.index["node010/gpu0"]])["replicas"][0]
    assert lost["state"] == "LOST"
    assert (lost["tokens_per_s"], lost["ttft_p99_ms"], lost["step_z"]) == (None, None, None)


def test_before_the_first_snapshot_nothing_is_counted(hand_clock: HandClock) -> None:
    store = FleetStore(hand_clock)
    store.apply(ScriptedFleet(nodes=1, gpus=2).run_state())
    row = tables.fleet(store)["replicas"][0]
    assert (row["in_flight"], row["waiting"], row["tokens_per_s"]) == (None, None, None)
    assert tables.live(store)["load"] == []
    assert tables.nodes(store)["nodes"][0]["in_flight"] is None


def test_fleet_rows_come_in_the_order_asked_for(store: FleetStore) -> None:
    found = tables.fleet(store, [5, 3])["replicas"]
    assert [row["slot"] for row in found] == [store.slots[5].slot, store.slots[3].slot]
    assert len(tables.fleet(store)["replicas"]) == 512


def test_a_node_is_the_sum_of_its_replicas(store: FleetStore) -> None:
    found = {row["node"]: row for row in tables.nodes(store)["nodes"]}
    assert len(found) == 64
    own = [row for row in tables.fleet(store)["replicas"] if row["node"] == "node015"]
    assert found["node015"]["replicas"] == 8
    assert found["node015"]["states"] == {"READY": 7, "SLOW": 1}
    assert found["node015"]["tokens_per_s"] == pytest.approx(sum(row["tokens_per_s"] for row in own))
    assert found["node015"]["in_flight"] == sum(row["in_flight"] for row in own)
    assert found["node015"]["step_ratio_max"] == max(row["step_ratio"] for row in own)


SLOTS = 6  # two nodes of three
NUMBERS_OF_A_ROW = [*tables._REPLICA_NUMBERS.items(), *tables._REPLICA_COUNTS.items()]


@st.composite
def any_fleet(draw: st.DrawFn) -> FleetStore:
    """Replicas in any states, with any figures: also with old ones of those that serve no more."""
    fleet, store = ScriptedFleet(nodes=2, gpus=3), FleetStore(HandClock())
    store.apply(fleet.run_state())
    snap = fleet.snapshot()
    codes = draw(st.lists(st.integers(0, len(REPLICA_STATES) - 1), min_size=SLOTS, max_size=SLOTS))
    ready = [info.slot for info, code in zip(store.slots, codes, strict=True) if REPLICA_STATES[code] == "READY"]
    figure = st.one_of(st.just(math.nan), st.floats(0.0, 1e4, width=32))
    floats = {
        name: np.array(draw(st.lists(figure, min_size=SLOTS, max_size=SLOTS)), dtype="<f4").tobytes()
        for name in control.FLOAT_COLUMNS
    }
    ints = {
        name: np.array(draw(st.lists(st.integers(0, 900), min_size=SLOTS, max_size=SLOTS)), dtype="<i4").tobytes()
        for name in control.INT_COLUMNS
    }
    slow = draw(st.lists(st.sampled_from(ready), unique=True)) if ready else []
    told = {"state_code": bytes(codes), "slow": slow, "slow_age_s": [1.0] * len(slow)}
    store.apply(msgspec.structs.replace(snap, **floats, **ints, **told))
    return store


def figures(rows: list[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


@settings(max_examples=60, deadline=None)
@given(any_fleet())
def test_screen_and_twin_have_the_same_numbers(store: FleetStore) -> None:
    summed, serving = NodeRows(store), live(store)
    replicas, nodes = tables.fleet(store)["replicas"], tables.nodes(store)["nodes"]
    for name, key in NUMBERS_OF_A_ROW:
        shown = [None if math.isnan(value) else value for value in NUMBERS[name].values(store)]
        assert [row[key] for row in replicas] == shown
    for at, row in enumerate(replicas):
        assert serving[at] or (row["tokens_per_s"], row["in_flight"], row["kv_use_fraction"]) == (None, None, None)
    for at, row in enumerate(nodes):
        for name, key in (*tables._NODE_NUMBERS.items(), *tables._NODE_COUNTS.items()):
            value = summed.columns[name][at]
            assert row[key] == (None if math.isnan(value) else value)
        own = [replica for replica in replicas if replica["node"] == row["node"]]
        for key in ("step_ratio", "ttft_p99_ms", "tpot_p99_ms", "oldest_in_flight_s"):
            assert row[f"{key}_max"] == max(figures(own, key), default=None)
        for key in ("tokens_per_s", "running", "waiting", "in_flight"):
            known = figures(own, key)
            assert row[key] == (pytest.approx(sum(known)) if known else None)
        shares = figures(own, "kv_use_fraction")
        assert row["kv_use_fraction_mean"] == (pytest.approx(sum(shares) / len(shares)) if shares else None)
        assert row["states"] == dict(Counter(replica["state"] for replica in own))


def test_a_straggler_comes_with_its_likely_cause(store: FleetStore) -> None:
    at = store.index["node015/gpu3"]
    store.columns["kv_use"] = np.where(np.arange(len(store.slots)) == at, 0.97, 0.5).astype("<f4")
    found = {row["slot"]: row["likely_cause"] for row in tables.live(store)["stragglers"]}
    assert (found["node015/gpu3"], found["node006/gpu6"], found["node010/gpu0"]) == ("KV cache full", "", "")
    page = Page(160)
    live_page(page, tables.live(store))
    assert "likely KV cache full" in str(page)


def test_stragglers_are_the_flagged_ones_first_then_who_is_gone(store: FleetStore) -> None:
    rows = tables.live(store)["stragglers"]
    assert [row["slot"] for row in rows[:2]] == ["node015/gpu3", "node006/gpu6"]
    assert all(row["flagged"] for row in rows[:2])
    assert {"node010/gpu0", "node012/gpu1"} <= {row["slot"] for row in rows}
    assert len({row["slot"] for row in rows}) == len(rows)


def test_the_tail_is_told_by_replica_worst_first(store: FleetStore) -> None:
    tail = sla_tables(detail(store), [info.slot for info in store.slots])["tail"]
    assert [(row["slot"], row["ttft_over_whole_n"]) for row in tail] == [("node015/gpu3", 30), ("node006/gpu6", 10)]
    assert tail[0]["samples_whole_n"] == 100


def test_a_quantile_with_too_few_samples_is_none(store: FleetStore) -> None:
    rows = {(row["metric"], row["quantile"]): row for row in sla_tables(detail(store))["percentiles"]}
    assert rows["TTFT", "p99.9"]["window_ms"] is None
    assert rows["TTFT", "p99.9"]["whole_ms"] == 399.0
    assert [quantile for metric, quantile in rows if metric == "TTFT"] == ["p50", "p99", "p99.9"]


def test_events_and_log_lines_are_merged_by_time() -> None:
    entries = [control.JournalEntry(1, 20.0, "head", "run.phase", after="READY"), LogLine(10.0, "node003", "hello")]
    rows = tables.events(entries)["events"]
    assert [(row["unix"], row["source"], row["why"]) for row in rows] == [(10.0, "log", "hello"), (20.0, "journal", "")]


def test_a_slot_that_is_gone_has_no_tables(store: FleetStore) -> None:
    assert tables.replica(store, "node999/gpu0") == {}


def test_every_table_survives_being_written_and_read_back(store: FleetStore, tmp_path: Path) -> None:
    found = every_table(store)
    files = write_tables(found, tmp_path, "all")
    assert json.loads(files[0].read_text()) == found
    with (tmp_path / "all-1-replicas.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 512
    assert rows[0]["slot"] == "node000/gpu0"


# --- pages -------------------------------------------------------------------------------------------------


def pages_of(store: FleetStore, width: int) -> dict[str, str]:
    run: Row = tables.live(store)["run"][0]
    sla = sla_tables(detail(store), [info.slot for info in store.slots])
    pages = {name: Page(width) for name in ("live", "fleet", "nodes", "events", "sla", "replica")}
    live_page(pages["live"], tables.live(store))
    fleet_page(pages["fleet"], run, tables.fleet(store), "worst first")
    nodes_page(pages["nodes"], run, tables.nodes(store))
    events_page(pages["events"], run, list(store.journal))
    sla_page(pages["sla"], run, sla, tables.sla_rows(store))
    replica_page(pages["replica"], run, tables.replica(store, "node015/gpu3"))
    return {name: str(page) for name, page in pages.items()}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_pages_fit_the_width_and_hold_no_escape_codes(store: FleetStore, width: int) -> None:
    for name, text in pages_of(store, width).items():
        assert max(map(len, text.splitlines())) <= width, name
        assert "\x1b" not in text
        assert not re.search(r"\bnan\b|None", text), name


@pytest.mark.parametrize("width", [80, 120])
def test_columns_of_a_page_are_aligned(store: FleetStore, width: int) -> None:
    lines = pages_of(store, width)["fleet"].splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  REPLICA"))
    edge = lines[at].index("TTFT p99") + len("TTFT p99")
    assert {line[edge - 1 : edge + 1] for line in lines[at + 1 : at + 100]} <= {"s ", "– ", "s", "–"}


def test_the_live_page_says_what_the_screen_says(store: FleetStore) -> None:
    page = pages_of(store, 120)["live"]
    for expected in (
        "MEASURING",
        "ACTS 1",
        "TTFT",
        "3.00 s",
        "2 SLOW",
        "node015/gpu3",
        "node013: its replicas are slow",
        "kim@head",
    ):
        assert expected in page


def test_headings_are_bold_only_when_asked(store: FleetStore) -> None:
    page = Page(120, bold=True)
    live_page(page, tables.live(store))
    assert page.lines[0].startswith("\x1b[1m")
    assert page.lines[0].endswith("\x1b[0m")


# --- sentences ---------------------------------------------------------------------------------------------


def entry(what: str, subject: str = "", seq: int = 1, **more: object) -> control.JournalEntry:
    return control.JournalEntry(seq, SAMPLE_UNIX, "head", what, subject, **more)  # type: ignore[arg-type]


def told(narrator: Narrator, store: FleetStore, now_s: float) -> list[str]:
    """Without the time of day."""
    return [line[9:] for line in narrator.tell(store, now_s)]


def test_the_first_lines_say_which_run_and_how_it_stands(store: FleetStore) -> None:
    lines = told(Narrator(), store, 0.0)
    assert lines[0].startswith(f"Run {store.run}, phase MEASURING, 512 replicas with synthetic engines")
    assert "target QPS completed over the last 10 s" in lines[1]
    assert "of 512 replicas ready" in lines[1]
    assert len(lines) == 2  # not its past


def test_a_status_comes_every_so_often_and_events_when_they_happen(store: FleetStore) -> None:
    narrator = Narrator(every_s=30.0)
    narrator.tell(store, 0.0)
    assert told(narrator, store, 10.0) == []
    store.apply(
        control.JournalNews([entry("replica.state", "node001/gpu1", 100, before="READY", after="LOST", why="lease over")])
    )
    assert told(narrator, store, 11.0) == ["Replica node001/gpu1 is lost (was READY): lease over."]
    assert told(narrator, store, 12.0) == []
    assert [line.split(";")[0] for line in told(narrator, store, 30.0)] == ["Phase MEASURING"]


def test_sentences_hold_words_and_no_glyphs(store: FleetStore) -> None:
    text = " ".join([*sentences(store.journal), status(store), ended(store)])
    assert not re.search(r"[→●▲×⊘▽·–»\x1b]", text), text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (entry("straggler.slow", "node001/gpu1", why="ratio 1.7"), "Replica node001/gpu1 is slow: ratio 1.7."),
        (entry("straggler.recovered", "node001/gpu1"), "Replica node001/gpu1 is no longer slow."),
        (entry("run.phase", before="READY", after="MEASURING", why="attempt 1"), "Phase MEASURING, after READY: attempt 1."),
        (entry("attempt.end", "1", after="VALID"), "Attempt 1 ended VALID."),
        (entry("replica.state", "node001/gpu1", after="WARMING"), ""),
        (entry("worker.register", "w1"), ""),
        (entry("record.dropped", level="error", why="7 rows"), "Error: record dropped: 7 rows."),
        (entry("policy.held", "node001/gpu1", level="warn", why="quorum"), "Warning: policy held node001/gpu1: quorum."),
    ],
)
def test_what_happens_is_one_sentence(given: control.JournalEntry, expected: str) -> None:
    assert sentence(given) == expected


def test_an_act_names_its_operator_and_reason() -> None:
    act = control.JournalEntry(1, 0.0, "operator:kim@head", "act.evict", "node012/gpu1", "hot", level="warn")
    assert sentence(act) == "Operator kim@head evicted node012/gpu1: hot."
    rate = control.JournalEntry(
        2, 0.0, "operator:kim@head", "act.set_rate", before="144 QPS", after="150 QPS", data={"qps": 150.0}
    )
    assert sentence(rate) == "Operator kim@head changed the target rate from 144 QPS to 150 QPS."
    assert sentence(control.JournalEntry(3, 0.0, "policy", "act.drain", "node001/gpu1")) == (
        "The straggler policy drained node001/gpu1."
    )


def test_what_befalls_many_replicas_at_once_is_one_sentence() -> None:
    entries = [entry("replica.state", f"node{n:03d}/gpu0", n, after="READY") for n in range(50)]
    assert sentences(entries) == ["50 replicas are ready, node000/gpu0 first."]
    assert len(sentences(entries[:ONE_BY_ONE])) == ONE_BY_ONE


def test_a_latency_that_goes_over_its_limit_is_told_once_it_stays_there(hand_clock: HandClock) -> None:
    fleet, store, narrator = ScriptedFleet(nodes=1, gpus=2), FleetStore(hand_clock), Narrator(every_s=1e6)

    def at(p99_ms: float, now_s: float) -> list[str]:
        snap = fleet.snapshot()
        window = control.Percentiles(2000, p99_ms / 3, p99_ms / 2, p99_ms, p99_ms)
        good = control.SlaView(80.0, control.Percentiles(2000, 1.0, 1.0, 1.0, 1.0))
        store.apply(control.FleetSnapshot(**{name: getattr(snap, name) for name in snap.__struct_fields__} | {
            "ttft": control.SlaView(3000.0, window), "tpot": good}))  # fmt: skip
        return [line for line in told(narrator, store, now_s) if "TTFT p99" in line and not line.startswith("Phase")]

    store.apply(fleet.run_state())
    assert at(1000.0, 0.0) == []
    assert at(1000.0, SETTLED_S) == []  # within its limit: no news
    assert at(3100.0, 10.0) == []  # perhaps only for a moment
    assert at(2900.0, 11.0) == []
    assert at(3100.0, 12.0) == []
    assert at(3100.0, 12.0 + SETTLED_S) == ["TTFT p99 over the last 60 s is 3.10 s, over its limit of 3.00 s."]
    assert at(3150.0, 60.0) == []
    assert at(2000.0, 61.0) == []
    assert at(2000.0, 61.0 + SETTLED_S) == ["TTFT p99 over the last 60 s is 2.00 s, within its limit of 3.00 s."]


def test_a_silent_head_is_told_in_words_and_so_is_its_return(store: FleetStore, hand_clock: HandClock) -> None:
    narrator = Narrator(every_s=1e6)
    narrator.tell(store, 0.0)
    hand_clock.s += 3
    assert told(narrator, store, 3.0) == [
        "The head is silent: nothing was heard for 3 seconds. Figures are old until it answers."
    ]
    store.disconnected("head gone: paceline restart-head x")
    hand_clock.s += 10
    assert told(narrator, store, 13.0) == ["The head is lost: silent for 13 seconds; head gone: paceline restart-head x."]
    fleet = ScriptedFleet()
    store.apply(fleet.snapshot())
    assert "The head answers again." in told(narrator, store, 14.0)


def test_the_last_sentence_has_verdict_reasons_and_figures(hand_clock: HandClock) -> None:
    fleet, store = ScriptedFleet(nodes=1, gpus=2), FleetStore(hand_clock)
    fleet.phase, fleet.verdict, fleet.reasons = "DONE", "INVALID", ["TTFT p99 3.21 s is over the limit of 3.00 s"]
    store.apply(fleet.run_state())
    text = ended(store)
    assert text.startswith("The run has ended, phase DONE: attempt 1 INVALID: TTFT p99 3.21 s is over the limit of 3.00 s.")
    assert "TTFT p99 of the whole attempt 2.69 s" in text
