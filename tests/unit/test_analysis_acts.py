"""Acts and what followed them, in windows of equal length; and in which settings replicas are not alike."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from made_run import BEFORE_S, T0, Made, make_run
from registered_kit import registered, with_fleet

from harness.analysis.drill import Drill
from harness.analysis.views import Effect
from harness.records.fleetfile import FleetFile, GpusOf, flat_facts, read_fleet, write_fleet
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.spec import slot_name
from harness.wire.control import JournalEntry

# --- acts -----------------------------------------------------------------------------------------------------


def acted(path: Path, *acts: tuple[float, str, str]) -> list[Effect]:
    """With these acts (second, name, subject) beside the evict at two thirds of the load."""
    journal = JournalWriter(RunFolder(path).journal)
    for at_s, name, subject in acts:
        journal.append(JournalEntry(0, T0 + BEFORE_S + at_s, "operator:kim", f"act.{name}", subject, attempt=1))
    journal.close()
    return Drill(Record(path)).effects()


def slower_after(path: Path, at_s: float) -> None:
    """From then on whoever is scheduled decodes half as fast."""
    import polars as pl

    for chunk in (path / "samples").iterdir():
        rows = pl.read_parquet(chunk)
        longer = pl.when(pl.col("scheduled_ns") > at_s * 1e9).then(pl.col("done_ns") - pl.col("first_ns")).otherwise(0)
        rows.with_columns(done_ns=pl.col("done_ns") + longer).write_parquet(chunk)


def test_an_act_that_changed_nothing_is_told_so_over_equal_windows(tmp_path: Path) -> None:
    (effect,) = acted(make_run(tmp_path, Made(slow_node=None)))
    assert (effect.act, effect.subject, effect.who, effect.at_s) == ("evict", "node003/gpu3", "operator:kim", 40.0)
    assert effect.window_s == pytest.approx(60 - 40 - effect.settle_s, abs=0.1)
    assert abs(effect.before_n - effect.after_n) < 0.2 * effect.before_n
    assert [change.figure for change in effect.changes] == [
        "completed_qps", "tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms",
    ]  # fmt: skip
    assert "worse" not in {change.told for change in effect.changes if change.figure.startswith("tpot")}
    for change in effect.changes:
        assert change.before_interval is not None
        assert change.before_interval[0] <= (change.before or 0) <= change.before_interval[1]


def test_an_act_after_which_decoding_took_twice_as_long_made_tpot_worse(tmp_path: Path) -> None:
    path = make_run(tmp_path, Made(slow_node=None))
    slower_after(path, 40.0)
    (effect,) = acted(path)
    told = {change.figure: change for change in effect.changes}
    assert told["tpot_p50_ms"].told == "worse"
    assert (told["tpot_p50_ms"].after or 0) / (told["tpot_p50_ms"].before or 1) == pytest.approx(2.0, rel=0.05)
    assert told["tpot_p50_ms"].difference_interval is not None
    assert told["ttft_p50_ms"].told == "no clear change"


def test_windows_end_where_the_next_act_begins_and_acts_at_once_share_theirs(tmp_path: Path) -> None:
    path = make_run(tmp_path, Made(slow_node=None))
    drains, evict = acted(path, (30.0, "drain", "node000/gpu0"), (30.2, "drain", "node000/gpu1"))[:2], acted(path)[-1]
    for effect in drains:
        assert effect.window_s == pytest.approx(40 - 30.2 - effect.settle_s, abs=0.01)
        assert effect.remark == "measured together with 1 other act at that time"
    assert evict.window_s <= 10


def test_without_room_for_windows_an_act_says_why(tmp_path: Path) -> None:
    effects = acted(make_run(tmp_path, Made(slow_node=None, seconds=20)), (-3.0, "drain", "a"), (19.5, "set_rate", ""))
    before, late = effects[0], effects[-1]
    assert (before.changes, before.remark) == ([], "it came before the load began")
    assert "too little time for windows" in late.remark
    assert (late.changes, late.before_n, late.window_s) == ([], 0, 0.0)


def test_a_shorter_window_can_be_asked_for_and_the_lease_is_no_act_on_the_load(tmp_path: Path) -> None:
    path = make_run(tmp_path, Made(slow_node=None))
    acted(path, (20.0, "take_control", ""))
    (effect,) = Drill(Record(path)).effects(window_s=5.0)
    assert effect.window_s == 5.0


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path, Made(seconds=2))


def test_replicas_that_are_not_alike_are_told_field_by_field_the_most_common_first(run: Path) -> None:
    slots = [slot_name(0, gpu) for gpu in range(8)]
    odd = registered("node000/gpu3", "", {"arg.max_num_seqs": 256, "arg.kv_cache_dtype": "fp8"}, vllm="0.23", args_hash="h2")
    drill = with_fleet(run, *(registered(slot) if slot != "node000/gpu3" else odd for slot in slots))
    found = {difference.field: difference.variants for difference in drill.config()}
    assert list(found) == ["arg.kv_cache_dtype", "arg.max_num_seqs", "args_hash", "versions.vllm"]
    assert [(variant.value, len(variant.slots)) for variant in found["arg.max_num_seqs"]] == [("512", 7), ("256", 1)]
    assert found["arg.kv_cache_dtype"][0].value == "(not told)"
    assert found["versions.vllm"][1].slots == ["node000/gpu3"]


def test_what_counts_is_how_a_replica_was_at_the_attempts_end(run: Path) -> None:
    with_fleet(run, registered("node000/gpu0"), registered("node000/gpu1", vllm="0.23"))
    drill = with_fleet(run, registered("node000/gpu1"), at_unix=T0 + 3)
    assert drill.config() == []
    drill = with_fleet(run, registered("node000/gpu1", vllm="0.25"), at_unix=T0 + 1e6)
    assert drill.config() == [], "that was after the attempt"


def test_split_roles_are_compared_within_the_role(run: Path) -> None:
    prefill = [registered(f"node000/gpu{gpu}", "prefill", {"arg.max_num_seqs": 8}) for gpu in range(2)]
    decode = [registered("node001/gpu0", "decode"), registered("node001/gpu1", "decode", vllm="0.23")]
    assert [difference.field for difference in with_fleet(run, *prefill, *decode).config()] == ["versions.vllm (decode)"]


def test_alike_replicas_cost_little_and_a_record_of_before_reads_as_one_without_facts(run: Path) -> None:
    replicas = [registered(slot_name(n, g), "", {f"arg.number_{i}": i for i in range(60)}) for n in range(64) for g in range(8)]
    drill = with_fleet(run, *replicas)
    fleet = read_fleet(run / "fleet.json")
    assert fleet is not None
    assert (len(fleet.slots), len(fleet.facts), drill.config()) == (512, 1, [])
    size = (run / "fleet.json").stat().st_size
    for lives in fleet.slots.values():
        lives[0] = msgspec.structs.replace(lives[0], facts=None)
    write_fleet(run / "fleet.json", FleetFile(fleet.devices, fleet.slots))
    without = (run / "fleet.json").stat().st_size
    assert size - without < 512 * 11 + 4000
    assert Drill(Record(run)).config() == []


def test_a_recycled_replica_that_came_back_otherwise_has_a_new_life(run: Path) -> None:
    with_fleet(run, registered("node000/gpu0"))
    with_fleet(run, registered("node000/gpu0"), at_unix=T0 + 5)
    with_fleet(run, registered("node000/gpu0", vllm="0.25"), at_unix=T0 + 9)
    fleet = read_fleet(run / "fleet.json")
    assert fleet is not None
    assert [(life.since_unix, life.facts) for life in fleet.slots["node000/gpu0"]] == [(T0, 0), (T0 + 9, 1)]


def test_a_damaged_fleet_file_is_a_problem_and_not_an_error(run: Path) -> None:
    (run / "fleet.json").write_text("[")
    drill = Drill(Record(run))
    assert drill.config() == []
    assert "is not a fleet's file" in drill.problems[0]


def test_facts_become_short_and_flat() -> None:
    told = flat_facts({"layout": {"tp": 8, "ep": {"on": True}}, "faults": ["slow"], "none": None, "long": "x" * 999, "n": 0.5})
    assert told == {"layout.tp": "8", "layout.ep.on": "true", "faults": '["slow"]', "long": "x" * 199 + "…", "n": "0.5"}
    assert len(flat_facts({str(n): n for n in range(999)})) == 200
    assert GpusOf(1.0).facts is None


def test_the_samples_of_an_act_are_counted_by_completion(tmp_path: Path) -> None:
    path = make_run(tmp_path, Made(slow_node=None, seconds=30))
    drill = Drill(Record(path))
    (effect,) = drill.effects()
    done_s = drill.table.done_s()
    assert effect.before_n == np.count_nonzero((done_s >= 20 - effect.window_s) & (done_s < 20))
