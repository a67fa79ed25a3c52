"""Samples and timeline: written in chunks, read while they are written, after kills, and on full disks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_kit import files_may_have

from harness.records.columns import ADDED_LATER, SAMPLE_SCHEMA, TIMELINE_SCHEMA
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.reader import Record, slowest, summarise
from harness.records.runfile import AttemptRecord, RunFile, write_run
from harness.records.writer import RecordWriter
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.states import REPLICA_CODE

SLOTS = ["node000/gpu0", "node000/gpu1", "node001/gpu0"]
MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def rows(n: int, start: int = 0) -> np.ndarray[Any, Any]:
    """Sample k: scheduled at k s, TTFT 100 + k ms, 11 tokens, TPOT 20 ms, on slot k mod 3."""
    made = np.zeros(n, SAMPLE_DTYPE)
    k = np.arange(start, start + n)
    made["seq"] = made["index"] = k
    made["slot"] = k % 3
    made["incarnation"] = made["tries"] = 1
    made["n_prompt"], made["n_tokens"] = 7, 11
    made["scheduled_ns"] = k * 1000 * MS
    made["issued_ns"] = made["scheduled_ns"] + 1 * MS
    made["dispatched_ns"] = made["issued_ns"] + 2 * MS
    made["first_ns"] = made["scheduled_ns"] + (100 + k) * MS
    made["done_ns"] = made["first_ns"] + 200 * MS
    made["queue_us"] = made["prefill_slot"] = made["prefilled_ns"] = made["transfer_us"] = -1
    return made


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_a_chunk_is_due_after_its_time_and_holds_all_that_came(folder: RunFolder) -> None:
    clock = Clock()
    writer = RecordWriter(folder, chunk_s=1.0, clock=clock)
    assert not writer.due()
    writer.samples(1, 4, rows(5), SLOTS)
    assert not writer.due()
    clock.now_s += 1.0
    writer.samples(1, 4, rows(5, 5), SLOTS)
    assert writer.due()
    writer.flush()
    assert not writer.due()
    writer.flush()
    assert [path.name for path in folder.samples.iterdir()] == ["000001.parquet"]
    frame = Record(folder).samples().collect()
    assert frame["seq"].to_list() == list(range(10))
    assert frame["epoch"].unique().to_list() == [4]
    assert writer.written_samples == 10


def test_a_sample_has_names_nulls_and_times(folder: RunFolder) -> None:
    made = rows(3)
    made["slot"][1], made["tries"][1], made["n_tokens"][1] = -1, 0, 0
    for name in ("dispatched_ns", "first_ns", "done_ns"):
        made[name][1] = -1
    made["n_tokens"][2] = 1
    writer = RecordWriter(folder)
    writer.samples(1, 1, made, SLOTS)
    writer.flush()
    good, failed, single = Record(folder.path).samples().collect().iter_rows(named=True)
    assert good["slot"] == "node000/gpu0"
    assert good["queue_us"] is None
    times = {name: good[name] for name in ("ttft_ms", "tpot_ms", "latency_ms", "lag_ms", "head_queue_ms")}
    assert times == {"ttft_ms": 100.0, "tpot_ms": 20.0, "latency_ms": 300.0, "lag_ms": 1.0, "head_queue_ms": 2.0}
    for name in ("slot", "first_ns", "done_ns", "ttft_ms", "tpot_ms", "latency_ms", "head_queue_ms"):
        assert failed[name] is None
    assert failed["lag_ms"] == 1.0
    assert (single["ttft_ms"], single["tpot_ms"]) == (102.0, None)


def test_the_timeline_keeps_a_row_a_slot_a_second(folder: RunFolder) -> None:
    writer = RecordWriter(folder)
    state = np.array([REPLICA_CODE[name] for name in ("READY", "LOST", "READY")], np.uint8)
    step_ms = np.array([14.5, np.nan, 15.0], np.float32)
    writer.timeline(1, 1000.0, {"state": state, "step_ms": step_ms, "running": np.array([3, 0, 4], np.int32)}, SLOTS)
    writer.timeline(0, 1001.0, {"state": state}, SLOTS)
    writer.flush()
    frame = Record(folder).timeline(1).collect()
    assert frame["slot"].to_list() == SLOTS
    assert frame["state"].to_list() == ["READY", "LOST", "READY"]
    assert frame["step_ms"].to_list() == [14.5, None, 15.0]
    assert frame["running"].to_list() == [3, 0, 4]
    assert frame["z"].null_count() == 3
    assert Record(folder).timeline().collect().height == 6


def test_rows_that_cannot_be_right_are_refused_when_handed_over(folder: RunFolder) -> None:
    writer = RecordWriter(folder)
    with pytest.raises(ValueError, match="slot position 2, the roster has 2"):
        writer.samples(1, 1, rows(3), SLOTS[:2])
    with pytest.raises(ValueError, match="not SAMPLE_DTYPE"):
        writer.samples(1, 1, np.zeros(3, np.int32), SLOTS)
    with pytest.raises(ValueError, match="no column 'power'"):
        writer.timeline(1, 1.0, {"power": np.zeros(3)}, SLOTS)
    with pytest.raises(ValueError, match="2 values for 3 slots"):
        writer.timeline(1, 1.0, {"z": np.zeros(2)}, SLOTS)
    with pytest.raises(ValueError, match="state code 99"):
        writer.timeline(1, 1.0, {"state": np.full(3, 99)}, SLOTS)
    writer.samples(1, 1, rows(0), SLOTS)
    writer.flush()
    assert not list(folder.samples.iterdir())


def test_numbering_continues_after_a_restart_and_leftovers_are_removed(folder: RunFolder) -> None:
    first = RecordWriter(folder)
    for start in (0, 5):
        first.samples(1, 1, rows(5, start), SLOTS)
        first.flush()
    (folder.samples / ".000003.parquet.tmp").write_bytes(b"half a chunk of a killed head")
    assert Record(folder).samples().collect().height == 10
    second = RecordWriter(folder)
    second.samples(2, 2, rows(3), SLOTS)
    second.flush()
    assert sorted(path.name for path in folder.samples.iterdir()) == ["000001.parquet", "000002.parquet", "000003.parquet"]
    record = Record(folder)
    assert [record.samples(n).collect().height for n in (1, 2, 3)] == [10, 3, 0]


def test_a_full_disk_is_said_in_words_shows_nothing_half_written_and_keeps_the_rows(folder: RunFolder) -> None:
    clock = Clock()
    writer = RecordWriter(folder, clock=clock, waiting_rows=100)
    writer.samples(1, 1, rows(60), SLOTS)
    with files_may_have(500), pytest.raises(RecordError, match=r"000001\.parquet: cannot write: .*limit") as caught:
        writer.flush()
    assert caught.value.full
    assert not list(folder.samples.iterdir())
    assert not writer.due(), "the next try is a chunk's time away"
    clock.now_s += 1
    assert writer.due()
    writer.samples(1, 1, rows(40, 60), SLOTS)
    writer.samples(1, 1, rows(7, 100), SLOTS)
    assert writer.dropped_rows == 7
    writer.flush()
    assert Record(folder).samples().collect()["seq"].to_list() == list(range(100))
    assert writer.written_samples == 100


def test_trouble_with_samples_does_not_keep_the_timeline_back(folder: RunFolder) -> None:
    writer = RecordWriter(folder)
    writer.samples(1, 1, rows(20_000), SLOTS)
    writer.timeline(1, 5.0, {}, SLOTS)
    with files_may_have(10_000), pytest.raises(RecordError, match="samples"):
        writer.flush()
    assert Record(folder).timeline().collect().height == 3


def test_rows_may_be_handed_over_while_a_thread_writes(folder: RunFolder) -> None:
    writer = RecordWriter(folder, chunk_s=0.05)
    stop = threading.Event()

    def flusher() -> None:
        while not stop.is_set():
            writer.flush()

    thread = threading.Thread(target=flusher)
    thread.start()
    buffer = rows(50)
    for n in range(100):
        buffer["seq"] = np.arange(n * 50, (n + 1) * 50)  # the caller's buffer is used again at once
        writer.samples(1, 1, buffer, SLOTS)
    stop.set()
    thread.join()
    writer.flush()
    assert sorted(Record(folder).samples().collect()["seq"].to_list()) == list(range(5000))


def test_where_roles_are_split_a_sample_names_both_replicas_and_when_it_went_from_one_to_the_other(folder: RunFolder) -> None:
    made = rows(3)
    made["prefill_slot"], made["prefilled_ns"], made["transfer_us"] = [2, 0, -1], [5 * MS, 6 * MS, -1], [2000, 0, -1]
    writer = RecordWriter(folder)
    writer.samples(1, 1, made, SLOTS)
    writer.flush()
    frame = Record(folder).samples().collect()
    assert frame["slot"].to_list() == SLOTS
    assert frame["prefill_slot"].to_list() == [SLOTS[2], SLOTS[0], None]
    assert frame["prefilled_ns"].to_list() == [5 * MS, 6 * MS, None]
    assert frame["transfer_us"].to_list() == [2000, 0, None]


def test_a_record_from_before_roles_were_split_is_read_with_nulls_beside_newer_chunks(folder: RunFolder) -> None:
    writer = RecordWriter(folder)
    writer.samples(1, 1, rows(5), SLOTS)
    writer.flush()
    chunk = folder.samples / "000001.parquet"
    pl.read_parquet(chunk).drop(sorted(ADDED_LATER)).write_parquet(chunk)
    for more in (False, True):
        if more:  # by the head that goes on with it
            writer.samples(1, 1, rows(4, 5), SLOTS)
            writer.flush()
        record = Record(folder)
        frame = record.samples(1).collect().sort("seq")
        assert frame["seq"].to_list() == list(range(9 if more else 5))
        assert frame["prefill_slot"].null_count() == frame["transfer_us"].null_count() == frame.height
        assert frame["ttft_ms"][:5].to_list() == [100, 101, 102, 103, 104]
        assert record.collect(lambda samples: samples.select("prefilled_ns"), 1).height == frame.height
        assert slowest(record, 1)["seq"].to_list() == [frame.height - 1]
        assert summarise(record, 1).totals["completed"] == frame.height
        assert not [problem for problem in record.problems if "run.json" not in problem]


def test_a_chunk_that_lacks_a_column_it_always_had_is_still_left_out(folder: RunFolder) -> None:
    writer = RecordWriter(folder)
    writer.samples(1, 1, rows(5), SLOTS)
    writer.flush()
    chunk = folder.samples / "000001.parquet"
    pl.read_parquet(chunk).drop("queue_us").write_parquet(chunk)
    record = Record(folder)
    assert record.samples().collect().height == 0
    assert any("other columns" in problem for problem in record.problems)


def test_an_empty_folder_reads_as_empty_tables(folder: RunFolder) -> None:
    record = Record(folder)
    assert record.timeline().collect_schema() == TIMELINE_SCHEMA
    assert dict(SAMPLE_SCHEMA).items() <= dict(record.samples().collect_schema()).items()
    assert record.samples(1).collect().height == 0
    assert (list(record.journal()), record.attempts()) == ([], [])
    assert summarise(record, 1).totals == dict.fromkeys(("issued", "completed", "failed", "lost", "redispatched", "tokens"), 0)
    assert summarise(record, 1).ttft_ms["p99"] is None
    assert slowest(record, 3).height == 0
    assert any("run.json" in problem for problem in record.problems)


def test_the_summary_adds_up_and_uses_loadgens_percentiles(folder: RunFolder) -> None:
    made = rows(1000)
    made["tries"][10:15] = 3
    for name in ("first_ns", "done_ns"):
        made[name][999] = -1
    attempt = AttemptRecord(number=1, kind="explore", scenario="Server", target_qps=1, epoch=1, totals={"issued": 1002})
    write_run(folder.path, RunFile(run="r", spec={}, phase="MEASURING", synthetic=False, attempts=[attempt]))
    writer = RecordWriter(folder)
    writer.samples(1, 1, made, SLOTS)
    writer.samples(2, 2, rows(9), SLOTS)
    writer.flush()
    record = Record(folder)
    summary = summarise(record, 1)
    assert summary.totals == {
        "issued": 1002, "completed": 999, "failed": 1, "lost": 2, "redispatched": 10, "tokens": 999 * 11
    }  # fmt: skip
    ttft = np.sort(100.0 + np.arange(999))
    for name, p in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99_9", 0.999)):
        assert summary.ttft_ms[name] == ttft[int(999 * p)]
    assert (summary.ttft_ms["min"], summary.ttft_ms["max"]) == (100.0, 1098.0)
    assert summary.ttft_ms["avg"] == pytest.approx(ttft.mean())
    assert summary.tpot_ms["p99"] == pytest.approx(20.0)
    assert summary.rates["duration_s"] == pytest.approx(998 + 1.098 + 0.2)
    assert summary.rates["completed_qps"] == pytest.approx(999 / 999.298)
    assert [replica.slot for replica in summary.replicas] == SLOTS
    assert sum(replica.samples for replica in summary.replicas) == 999
    assert sum(replica.failed for replica in summary.replicas) == 1
    assert sum(replica.tokens for replica in summary.replicas) == summary.totals["tokens"]
    assert sum(replica.redispatched for replica in summary.replicas) == 10
    of_last = ttft[2::3]
    assert summary.replicas[2].ttft_p99_ms == of_last[int(len(of_last) * 0.99)]
    assert record.problems == []


def test_the_slowest_come_first_by_the_time_asked_for(folder: RunFolder) -> None:
    writer = RecordWriter(folder)
    writer.samples(1, 1, rows(50), SLOTS)
    writer.samples(2, 2, rows(60), SLOTS)
    writer.flush()
    record = Record(folder)
    assert slowest(record, 3, 1)["seq"].to_list() == [49, 48, 47]
    assert slowest(record, 2, by="ttft_ms")["seq"].to_list() == [59, 58]
    with pytest.raises(ValueError, match="choose one of ttft_ms"):
        slowest(record, 2, by="seq")


def test_a_corrupt_chunk_is_named_and_the_others_are_read(folder: RunFolder) -> None:
    writer = RecordWriter(folder)
    for start in (0, 10, 20, 30):
        writer.samples(1, 1, rows(10, start), SLOTS)
        writer.flush()
    (folder.samples / "000001.parquet").write_bytes((folder.samples / "000001.parquet").read_bytes()[:300])
    (folder.samples / "000002.parquet").write_bytes(b"")
    pl.DataFrame({"other": [1]}).write_parquet(folder.samples / "000003.parquet")
    record = Record(folder)
    assert record.samples().collect()["seq"].to_list() == list(range(30, 40))
    assert len(record.problems) == 3
    assert all(f"00000{n}.parquet" in problem for n, problem in enumerate(record.problems, 1))
    record.samples()
    assert len(record.problems) == 3


def test_a_damaged_page_is_found_when_it_is_decoded(folder: RunFolder) -> None:
    writer = RecordWriter(folder)
    for start in (0, 1000):
        writer.samples(1, 1, rows(1000, start), SLOTS)
        writer.flush()
    path = folder.samples / "000001.parquet"
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    write_run(folder.path, RunFile(run="r", spec={}, phase="DONE", synthetic=False))
    record = Record(folder)
    assert summarise(record, 1).totals["completed"] == 1000
    assert ["000001.parquet" in problem for problem in record.problems] == [True]


@given(cut=st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_a_truncated_chunk_costs_only_itself(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("cut"))
    writer = RecordWriter(folder)
    for start in (0, 10):
        writer.samples(1, 1, rows(10, start), SLOTS)
        writer.flush()
    path = folder.samples / "000002.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content) - 1)])
    record = Record(folder)
    assert summarise(record, 1).totals["completed"] == 10
    assert len(record.problems) >= 1
