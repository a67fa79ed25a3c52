"""What a drill-down does not claim: what too few samples, too short a load or a time that nobody measured would bear out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl
import pytest
from made_run import BEFORE_S, T0, Made, make_run

from harness.analysis.definitions import define
from harness.analysis.drill import Drill
from harness.analysis.views import METRICS
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.wire.control import JournalEntry


def made(root: Path, run: Made, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Drill:
    path = make_run(root, run)
    for chunk in (path / "samples").iterdir():
        change(pl.read_parquet(chunk)).write_parquet(chunk)
    return Drill(Record(path))


def said(drill: Drill) -> str:
    return "\n".join(finding.text for finding in drill.overview().findings)


def test_a_load_shorter_than_its_samples_take_is_not_called_saturated(tmp_path: Path) -> None:
    """Samples in flight grow all along, in any fleet: none has come to its end yet."""
    longer = (pl.col("done_ns") + 30_000_000_000).alias("done_ns")
    assert "saturated" not in said(made(tmp_path, Made(slow_node=None, seconds=20), lambda rows: rows.with_columns(longer)))


def test_a_replica_with_a_handful_of_samples_is_not_called_slow(tmp_path: Path) -> None:
    def few(rows: pl.DataFrame) -> pl.DataFrame:
        mine = pl.col("slot") == "node002/gpu1"
        slower = pl.when(mine).then(pl.col("done_ns") + 2 * (pl.col("done_ns") - pl.col("first_ns"))).otherwise(pl.col("done_ns"))
        return rows.with_columns(done_ns=slower).filter(~mine | (pl.col("seq") < 100))

    drill = made(tmp_path, Made(slow_node=None, seconds=20), few)
    (row,) = [row for row in drill.fleet() if row.name == "node002/gpu1"]
    assert 0 < row.samples < 10
    assert row.z_tpot is not None
    assert row.z_tpot > 3.5, "the table shows what was measured"
    assert "decodes" not in said(drill)


def test_a_limit_of_what_nobody_measured_is_neither_kept_nor_broken(tmp_path: Path) -> None:
    """As in a trace of times without tokens."""
    drill = made(tmp_path, Made(seconds=10), lambda rows: rows.with_columns(n_tokens=pl.lit(0, pl.Int32)))
    assert [margin.metric for margin in drill.overview().margins] == ["ttft"]
    without = made(tmp_path, Made("neither", seconds=10), lambda rows: rows.with_columns(first_ns=pl.lit(None, pl.Int64)))
    assert without.overview().margins == []
    assert "No limit applies" not in said(without)
    assert "Nothing that has a limit was measured: latency p99" in said(without)


def test_a_critical_alert_is_a_mark_of_the_worst_level(tmp_path: Path) -> None:
    path = make_run(tmp_path, Made(seconds=10))
    journal = JournalWriter(RunFolder(path).journal)
    data = {"rule": "ecc_uncorrectable", "severity": "crit"}
    journal.append(
        JournalEntry(0, T0 + BEFORE_S + 3, "head", "alert.start", "node000/gpu0", why="2 errors", attempt=1, data=data)
    )
    journal.close()
    (mark,) = [mark for mark in Drill(Record(path)).timeline().marks if mark.kind == "alert"]
    assert mark.level == "error"


@pytest.mark.parametrize("metric", METRICS)
def test_every_answer_is_plain_data(tmp_path: Path, metric: str) -> None:
    drill = Drill(Record(make_run(tmp_path, Made(seconds=10, again_every=50))))
    answers = [
        drill.overview(), drill.timeline(), drill.distributions(), drill.tail(metric), drill.fleet("node"),  # type: ignore[arg-type]
        drill.sample(3), drill.effects(2.0),
    ]  # fmt: skip
    assert msgspec.json.encode(msgspec.to_builtins(answers))


def test_the_interval_of_an_acts_rate_is_not_defined_as_that_of_a_whole_attempt() -> None:
    assert "of an act, its windows" in define("rate_interval").window
