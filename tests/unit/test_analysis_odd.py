"""Records that are not as a head writes them after a good run: every view is data or a clear remark, whatever the rows say."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_run import Made, make_run, sample_rows

from harness.analysis.drill import Drill
from harness.analysis.errors import NoSuchSample
from harness.analysis.views import METRICS, Overview, Where
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.records.runfile import AttemptRecord, Imported, RunFile, read_run, write_run
from harness.records.writer import RecordWriter
from harness.wire.attempt import SAMPLE_DTYPE

SLOTS = ["node000/gpu0", "node000/gpu1", "node001/gpu0"]
LIMITS = {"limits": {"ttft_p99_ms": 100.0, "tpot_p99_ms": 20.0}}
Rows = np.ndarray[Any, Any]


def record(path: Path, rows: Rows | None, *attempts: AttemptRecord, spec: dict[str, Any] | None = None, **more: Any) -> Record:
    path.mkdir(parents=True, exist_ok=True)
    if rows is not None:
        writer = RecordWriter(RunFolder(path))
        writer.samples(1, 1, rows, SLOTS)
        writer.flush(final=True)
    write_run(
        path,
        RunFile(run=path.name, spec=LIMITS if spec is None else spec, phase="DONE", synthetic=True, attempts=[*attempts], **more),
    )
    return Record(path)


def attempt(**more: Any) -> AttemptRecord:
    return AttemptRecord(
        **{"number": 1, "kind": "performance", "scenario": "Server", "target_qps": 5.0, "epoch": 1, "state": "ENDED", **more}
    )


def every_view(drill: Drill) -> Overview:
    """As JSON: no NaN, no numpy number, nothing that raises."""
    seqs = [row.seq for row in drill.slowest("ttft", 3)] + drill.table.seq[:2].tolist()
    views = [
        drill.overview(), drill.timeline(), drill.distributions(), drill.fleet(), drill.fleet("node"), drill.effects(),
        drill.config(), *(drill.tail(metric, over_limit=over) for metric in METRICS for over in (False, True)), drill.logs(1e9),
        drill.tail("ttft", where=Where(slot=SLOTS[0], from_s=0.0, tries_to=3)), *(drill.slowest(metric) for metric in METRICS),
        *(drill.sample(seq) for seq in seqs),
    ]  # fmt: skip
    for view in views:
        said = msgspec.to_builtins(view)
        assert not list(_not_a_number(said)), view
        assert msgspec.json.encode(view)
    return drill.overview()


def _not_a_number(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [each for inner in value.values() for each in _not_a_number(inner)]
    if isinstance(value, list | tuple):
        return [each for inner in value for each in _not_a_number(inner)]
    return [value] if isinstance(value, float) and not np.isfinite(value) else []


def some_rows(n: int = 200) -> Rows:
    rows = sample_rows(Made(nodes=1, per_node=3, qps=n / 10, seconds=10, slow_node=None))
    assert len(rows) == n
    return rows


# --- whole records --------------------------------------------------------------------------------------------


def test_a_record_without_samples_has_run_jsons_figures_and_says_so(tmp_path: Path) -> None:
    told = attempt(
        totals={"issued": 500, "completed": 500},
        rates={"completed_qps": 4.5},
        ttft_ms={"p99": 77.0},
        loadgen={"tokens_per_s": 9.0},
    )
    drill = Drill(
        record(tmp_path / "x", None, told, imported=Imported("loadgen", "/x", 1.0, ["detail"], ["samples", "replicas"]))
    )
    overview = every_view(drill)
    assert (overview.totals["completed"], overview.rates["completed_qps"], overview.imported) == (500, 4.5, "loadgen: /x")
    assert "Not in them: samples; replicas." in overview.findings[0].text
    assert (drill.distributions(), drill.slowest(), drill.fleet(), drill.timeline().ticks) == ([], [], [], [])
    with pytest.raises(NoSuchSample, match="it has none"):
        drill.sample(0)


def test_samples_that_went_missing_are_told_as_such(tmp_path: Path) -> None:
    overview = every_view(Drill(record(tmp_path / "x", None, attempt(totals={"issued": 500}))))
    assert "500 samples were issued, and the record has no row of them" in overview.findings[0].text


def test_a_run_without_attempts_has_no_attempt_and_says_why(tmp_path: Path) -> None:
    drill = Drill(record(tmp_path / "x", None))
    assert drill.attempt is None
    assert "The run has no attempt" in every_view(drill).findings[0].text


def test_samples_are_drilled_even_where_run_json_is_damaged(tmp_path: Path) -> None:
    there = record(tmp_path / "x", some_rows(), attempt())
    (tmp_path / "x/run.json").write_text("{")
    drill = Drill(Record(there.folder))
    assert drill.number == 1
    assert every_view(drill).totals["completed"] == 200
    assert "is not a run record" in drill.problems[0]


def test_without_asking_the_last_attempt_with_samples_is_meant(tmp_path: Path) -> None:
    drill = Drill(record(tmp_path / "x", some_rows(), attempt(), attempt(number=2)))
    assert drill.number == 1
    assert Drill(drill.record, 2).overview().attempt == 2


def test_a_run_without_a_timeline_or_journal_has_figures_all_the_same(tmp_path: Path) -> None:
    path = make_run(tmp_path, Made("bare", seconds=5))
    shutil.rmtree(path / "timeline")
    (path / "journal.jsonl").unlink()
    drill = Drill(Record(path))
    every_view(drill)
    assert {row.step_ms for row in drill.fleet()} == {None}
    assert {tick.ready for tick in drill.timeline().ticks} == {None}


def test_an_attempt_that_goes_on_says_so(tmp_path: Path) -> None:
    overview = every_view(Drill(record(tmp_path / "x", some_rows(), attempt(state="issuing", totals={"issued": 230}))))
    assert (overview.totals["in_flight"], overview.totals["lost"]) == (30, 0)
    assert any("has not ended: 30 samples are open" in finding.text for finding in overview.findings)


def test_offline_and_accuracy_have_no_limits(tmp_path: Path) -> None:
    for number, told in enumerate((attempt(scenario="Offline"), attempt(kind="accuracy"))):
        overview = every_view(Drill(record(tmp_path / str(number), some_rows(), told)))
        assert overview.margins == []
        assert [finding.text for finding in overview.findings if "No limit applies" in finding.text or finding.level == "info"]


# --- odd rows -------------------------------------------------------------------------------------------------


def one(rows: Rows, **values: int) -> Rows:
    for name, value in values.items():
        rows[name] = value
    return rows


@pytest.mark.parametrize(
    "rows",
    [
        some_rows(100)[:1],
        one(some_rows(), done_ns=-1),
        one(some_rows(), done_ns=-1, first_ns=-1, dispatched_ns=-1, slot=-1, tries=0, incarnation=0),
        one(some_rows(), slot=-1, queue_us=-1, prefill_us=-1, decode_us=-1),
        one(some_rows(), tries=0, n_tokens=0, n_prompt=0),
        one(some_rows(), first_ns=5, done_ns=2),
        one(some_rows(), dispatched_ns=60_000_000_000, tries=2),
        one(some_rows(), scheduled_ns=0, issued_ns=0, dispatched_ns=0, first_ns=0, done_ns=0),
        one(some_rows(), done_ns=2**62, scheduled_ns=-(2**62)),
        some_rows()[:0],
    ],
    ids=["one", "all failed", "never dispatched", "no replica told", "no tokens", "negative", "first of a lost try", "no time",
         "absurd times", "none"],
)  # fmt: skip
def test_whatever_rows_say_every_view_is_data(tmp_path: Path, rows: Rows) -> None:
    overview = every_view(Drill(record(tmp_path / "x", rows, attempt(started_unix=1000.0))))
    assert overview.totals["issued"] == len(rows)
    assert overview.findings


def test_a_sample_whose_first_token_came_from_a_lost_try_is_not_taken_apart_wrongly(tmp_path: Path) -> None:
    rows = some_rows()
    rows["dispatched_ns"][7], rows["tries"][7] = rows["first_ns"][7] + 10_000_000, 2
    rows["done_ns"][7] = rows["dispatched_ns"][7] + 500_000_000
    drill = Drill(record(tmp_path / "x", rows, attempt()))
    life = drill.sample(7)
    assert "its first token came from an earlier try than the one that completed it" in life.remarks
    assert [segment.name for segment in life.segments] == ["schedule lag", "an earlier try", "decode, and tries that were lost"]
    assert drill.tail("ttft").without_parts == 1


def test_split_roles_have_their_own_parts_and_prefill_replicas_their_own_rows(tmp_path: Path) -> None:
    rows = some_rows()
    rows["slot"], rows["prefill_slot"] = 2, np.arange(len(rows)) % 2
    rows["transfer_us"], rows["prefilled_ns"] = 2_000, rows["first_ns"] - 10_000_000
    slow = rows["prefill_slot"] == 1
    for name in ("prefilled_ns", "first_ns", "done_ns"):
        rows[name][slow] += 300_000_000
    rows["queue_us"][slow] += 300_000
    drill = Drill(record(tmp_path / "x", rows, attempt()))
    every_view(drill)
    parts = {part.name: part.mean_ms for part in drill.tail("ttft").parts}
    assert list(parts) == ["schedule lag", "head queue", "prefill queue", "prefill", "decode wait", "KV transfer", "other"]
    assert parts["KV transfer"] == pytest.approx(2.0)
    assert parts["decode wait"] == pytest.approx(8.0, abs=0.01)
    assert drill.tail("ttft", over_limit=True).groups["replica"][0].key == "node000/gpu1", "the prefill replica answers for TTFT"
    fleet = {row.name: row for row in drill.fleet()}
    assert (fleet["node000/gpu1"].samples, fleet["node000/gpu1"].tpot_p50_ms, fleet["node001/gpu0"].samples) == (100, None, 200)
    names = [segment.name for segment in drill.sample(3).segments]
    assert names == ["schedule lag", "head queue", "prefill queue", "prefill", "other", "KV transfer", "decode wait", "decode"]
    assert len(drill.slowest("ttft", 500, Where(slot="node000/gpu1"))) == 100


NUMBERS = np.array([-1, 0, 1, 2, 3, 100, 5_000, 10**6, 10**9, 3 * 10**9])


def any_rows(seed: int, n: int) -> Rows:
    """Each column plausible, of a few numbers, or of anything that fits. Drawn by numpy: value by value costs seconds."""
    rng = np.random.default_rng(seed)
    rows = sample_rows(Made(nodes=1, per_node=3, qps=n, seconds=1, slow_node=None, seed=seed))
    for name in SAMPLE_DTYPE.names or ():
        kind, how = np.iinfo(SAMPLE_DTYPE[name]), rng.integers(3)
        low, top = (-1, len(SLOTS) - 1) if name in ("slot", "prefill_slot") else (int(kind.min), int(kind.max))
        if how:
            drawn = rng.choice(NUMBERS, n) if how == 1 else rng.integers(low, top, n, dtype=kind.dtype, endpoint=True)
            rows[name] = np.clip(drawn, low, top)
    return rows


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    limit=st.sampled_from([None, 1e-3, 100.0]),
    began=st.sampled_from([0.0, 1e3]),
)
def test_any_rows_at_all_end_in_data(seed: int, n: int, limit: float | None, began: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        spec = {"limits": {"ttft_p99_ms": limit, "tpot_p99_ms": limit}}
        drill = Drill(record(Path(place) / "x", any_rows(seed, n), attempt(started_unix=began), spec=spec))
        every_view(drill)


@pytest.mark.parametrize("limits", [None, [], {"ttft_p99_ms": "fast"}, {"ttft_p99_ms": -1, "tpot_p99_ms": True}])
def test_a_spec_of_another_shape_has_no_limits(tmp_path: Path, limits: Any) -> None:
    drill = Drill(record(tmp_path / "x", some_rows(), attempt(), spec={"limits": limits}))
    assert every_view(drill).margins == []
    assert read_run(tmp_path / "x").attempts
