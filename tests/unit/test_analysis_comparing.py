"""Attempts side by side: figures, what their differences are worth, distributions, settings, and when not to compare."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from made_run import Made, make_run

from harness.analysis.comparing import CannotCompare, Comparison, FigureRow, compare
from harness.analysis.errors import NoSuchAttempt
from harness.analysis.sides import chosen_attempt
from harness.records.errors import RecordError
from harness.records.fleetfile import FleetFile, GpusOf, write_fleet
from harness.records.reader import Record, summarise
from harness.records.runfile import AttemptRecord, Imported, RunFile, read_run, write_run

SMALL = Made(nodes=2, per_node=2, qps=60.0, seconds=60, slow_node=None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    made: dict[str, dict[str, Any]] = {
        "before": {},
        "again": {"seed": 8},
        "slower": {"seed": 9, "tpot_ms": 26.0},
        "failing": {"seed": 10, "failed": 60, "again_every": 20},
        "short": {"seed": 11, "seconds": 1},
    }
    for name, changes in made.items():
        make_run(root, dataclasses.replace(SMALL, name=name, **changes))
    return root


def side_by_side(root: Path, *names: str, **how: Any) -> Comparison:
    return compare([(Record(root / name), None) for name in names], **how)


def row(comparison: Comparison, name: str) -> FigureRow:
    return next(row for row in comparison.figures if row.id == name)


def edited(root: Path, name: str, to: Path, **fields: Any) -> Path:
    """A copy of a run with other fields in its run.json."""
    path = to / f"{name}-edited"
    shutil.copytree(root / name, path)
    run = read_run(path)
    for field, value in fields.items():
        setattr(run, field, value)
    run.run = path.name
    write_run(path, run)
    return path


def test_every_figure_is_that_of_the_record_and_lies_in_its_interval(runs: Path) -> None:
    comparison = side_by_side(runs, "before", "again")
    summary = summarise(Record(runs / "before"), 1)
    for metric, latencies in (("ttft", summary.ttft_ms), ("tpot", summary.tpot_ms), ("latency", summary.latency_ms)):
        for place, value in latencies.items():
            assert row(comparison, f"{metric}_{place}_ms").values[0].value == pytest.approx(value)
    for name in ("completed_qps", "tokens_per_s", "scheduled_qps", "duration_s"):
        assert row(comparison, name).values[0].value == pytest.approx(summary.rates[name])
    for figure in comparison.figures:
        for one in figure.values:
            if one.interval is not None and one.value is not None:
                assert one.interval[0] <= one.value <= one.interval[1], figure.id
    assert row(comparison, "tokens_per_s_gpu").values[0].value == pytest.approx((summary.rates["tokens_per_s"] or 0) / 4)


def test_a_faster_fleet_is_told_better_a_slower_one_worse_and_the_same_one_neither(runs: Path) -> None:
    comparison = side_by_side(runs, "before", "again", "slower")
    same, slower = row(comparison, "tpot_p50_ms").changes[1:]
    assert same is not None
    assert slower is not None
    assert (same.told, slower.told) == ("no clear difference", "worse")
    assert slower.relative == pytest.approx(0.3, abs=0.02)
    assert slower.interval is not None
    assert slower.interval[0] < 6.0 < slower.interval[1]
    per_user = row(comparison, "tokens_per_user_median").changes[2]
    assert per_user is not None
    assert per_user.told == "worse"
    turned = row(side_by_side(runs, "before", "again", "slower", baseline=2), "tpot_p50_ms").changes
    assert turned[2] is None
    assert turned[0] is not None
    assert turned[0].told == "better"


def test_more_completed_at_a_higher_target_rate_is_not_called_better(runs: Path, tmp_path: Path) -> None:
    attempts = read_run(runs / "slower").attempts
    attempts[0].target_qps *= 2
    faster = edited(runs, "slower", tmp_path, attempts=attempts)
    comparison = compare([(Record(runs / "before"), None), (Record(faster), None)])
    assert any(warning.startswith("target QPS differs") for warning in comparison.warnings)
    assert {row(comparison, name).better for name in ("completed_qps", "tokens_per_s", "tokens_per_s_gpu")} == {0}
    slower = row(comparison, "tpot_p50_ms").changes[1]
    assert slower is not None
    assert slower.told == "worse"


def test_a_percentile_of_too_few_samples_is_not_judged(runs: Path) -> None:
    comparison = side_by_side(runs, "before", "short")
    short = row(comparison, "ttft_p99_ms")
    assert short.values[1].value is not None
    assert short.values[1].interval is None
    assert short.changes[1] is not None
    assert short.changes[1].told == "too few samples"
    largest = row(comparison, "ttft_max_ms").changes[1]
    assert largest is not None
    assert (largest.interval, largest.told) == (None, "")


def test_failures_and_second_dispatches_are_told_as_shares(runs: Path) -> None:
    comparison = side_by_side(runs, "before", "failing")
    failed, again = row(comparison, "failed_share"), row(comparison, "redispatched_share")
    assert failed.values[1].value == pytest.approx(100 * 60 / 3600)
    assert again.values[1].value == pytest.approx(5.0)
    assert [one.told if one else "" for one in (failed.changes[1], again.changes[1])] == ["worse", "worse"]
    assert row(comparison, "failed").values[1].value == 60


def test_distributions_lie_over_the_same_edges_and_hold_every_sample(runs: Path) -> None:
    comparison = side_by_side(runs, "before", "slower")
    assert [overlay.metric for overlay in comparison.overlays] == ["ttft", "tpot", "latency"]
    for overlay in comparison.overlays:
        assert [sum(counts) for counts in overlay.counts] == [3600, 3600]
        assert all(len(counts) == len(overlay.edges_ms) - 1 <= 60 for counts in overlay.counts)
        assert np.all(np.diff(overlay.edges_ms) > 0)
        for cdf in overlay.cdfs:
            assert cdf == sorted(cdf)
            assert cdf[-1][1] == 1.0
    tpot = comparison.overlays[1]
    assert tpot.limits_ms == [80.0, 80.0]
    median = row(comparison, "tpot_p50_ms").values[0].value
    assert median is not None
    before, after = (np.interp(median, *zip(*cdf, strict=True)) for cdf in tpot.cdfs)
    assert before == pytest.approx(0.5, abs=0.02)
    assert after < 0.01


def test_only_what_differs_of_the_settings_is_listed(runs: Path, tmp_path: Path) -> None:
    before = read_run(runs / "before")
    spec = {**before.spec, "fleet": {**before.spec["fleet"], "balance": "round_robin"}}
    attempt = before.attempts[0]
    attempt.settings_effective = {"effective_qsl_rng_seed": 2, "requested_qsl_rng_seed": 2}
    other = edited(runs, "before", tmp_path, spec=spec, versions={"vllm": "0.22.1"}, attempts=[attempt])
    same = compare([(Record(runs / "before"), None), (Record(runs / "again"), None)])
    assert same.config == []
    found = compare([(Record(runs / "before"), None), (Record(other), None)])
    assert [(one.group, one.field, one.values) for one in found.config] == [
        ("spec", "fleet.balance", ["least_outstanding", "round_robin"])
    ]
    assert not any("differ" in warning for warning in found.warnings)


def test_what_replicas_told_of_their_engines_is_compared_and_mixed_fleets_are_counted(runs: Path, tmp_path: Path) -> None:
    paths = [edited(runs, name, tmp_path) for name in ("before", "again")]
    for path, second in zip(paths, ("0.22.0", "0.22.1"), strict=True):
        fleet = FleetFile(1)
        for slot, version in (("node000/gpu0", "0.22.0"), ("node000/gpu1", second)):
            fleet.note(slot, GpusOf(1.0), {"engine": "vllm", "versions.vllm": version})
        write_fleet(path / "fleet.json", fleet)
    found = compare([(Record(path), None) for path in paths])
    assert [(one.group, one.field, one.values) for one in found.config] == [
        ("engine", "versions.vllm", ["0.22.0", "0.22.0 (1), 0.22.1 (1)"])
    ]


def test_what_cannot_be_compared_fairly_is_said_first(runs: Path, tmp_path: Path) -> None:
    before = read_run(runs / "before")
    attempt = msgspec.structs.replace(before.attempts[0], kind="explore", target_qps=90.0)
    spec = {**before.spec, "model": {"name": "deepseek-r1"}, "limits": {"ttft_p99_ms": 2000.0, "tpot_p99_ms": 80.0}}
    spec["dataset"] = {**spec["dataset"], "seed": 5}
    other = edited(runs, "before", tmp_path, spec=spec, synthetic=False, attempts=[attempt])
    warnings = compare([(Record(runs / "before"), None), (Record(other), 1)]).warnings
    for words in (
        "the model differs: gpt-oss-120b in before; deepseek-r1 in before-edited",
        "the dataset differs (seed)",
        "the limit of TTFT differs: 3,000 ms in before; 2,000 ms in before-edited",
        "synthetic engine in before",
        "an exploration has no LoadGen",
        "target QPS differs (60 in before; 90 in before-edited)",
    ):
        assert any(words in warning for warning in warnings), (words, warnings)
    assert not any("TPOT differs" in warning for warning in warnings)


def test_a_record_without_samples_gives_what_it_states(runs: Path, tmp_path: Path) -> None:
    attempt = AttemptRecord(1, "performance", "Server", 60.0, 1)
    attempt.rates, attempt.ttft_ms = {"tokens_per_s": 2000.0}, {"p99": 150.0}
    read = Imported(kind="loadgen", source="/logs", unix=1.0, read=[], missing=["samples"])
    run = RunFile(run="foreign", spec={}, phase="DONE", synthetic=False, attempts=[attempt], imported=read)
    (tmp_path / "foreign").mkdir()
    write_run(tmp_path / "foreign", run)
    found = compare([(Record(runs / "before"), None), (Record(tmp_path / "foreign"), None)])
    assert (
        "foreign has no samples (imported from loadgen files): figures as stated, without intervals or distributions"
        in found.warnings
    )
    change = row(found, "ttft_p99_ms").changes[1]
    assert change is not None
    assert (change.interval, change.told) == (None, "")
    assert (found.overlays[0].counts[1], found.overlays[0].cdfs[1]) == ([], [])
    assert row(found, "completed_qps").changes[1] is None
    assert found.config == []


def test_attempts_of_one_run_are_told_apart_and_one_alone_is_no_comparison(runs: Path, tmp_path: Path) -> None:
    before = read_run(runs / "before")
    second = msgspec.structs.replace(before.attempts[0], number=2, totals={})
    path = edited(runs, "before", tmp_path, attempts=[before.attempts[0], second])
    found = compare([(Record(path), 1), (Record(path), 2)])
    assert [side.name for side in found.sides] == ["before-edited:1", "before-edited:2"]
    assert chosen_attempt(read_run(path), None).number == 1  # the second has no samples
    with pytest.raises(NoSuchAttempt, match=r"has no attempt 3; there is 1, 2"):
        compare([(Record(path), 1), (Record(path), 3)])
    with pytest.raises(CannotCompare, match="2 to 8 attempts; 1 given"):
        compare([(Record(path), 1)])
    with pytest.raises(CannotCompare, match="was given twice"):
        compare([(Record(path), 1), (Record(path), None)])
    with pytest.raises(RecordError):
        compare([(Record(path), 1), (Record(tmp_path / "nothing"), None)])


def test_a_comparison_is_json(runs: Path) -> None:
    told: list[str] = []
    found = side_by_side(runs, "before", "slower", progress=told.append)
    assert told == ["reading before (1 of 2)", "reading slower (2 of 2)"]
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found
