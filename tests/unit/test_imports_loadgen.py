"""LoadGen's own logs, with and without a trace, as a record that can be drilled into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from imports_kit import run_loadgen

from harness.imports.errors import ImportProblem
from harness.imports.importing import import_run
from harness.imports.loadgen_tokens import read_answers
from harness.imports.told import silent
from harness.mlperf.detail_log import DETAIL_LOG
from harness.mlperf.rules import MODELS, SEEDS_V61
from harness.records.reader import Record, summarise
from harness.spec import RunSpec


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A LoadGen test, run once for all that ask for the same one."""
    made: dict[tuple[Any, ...], Path] = {}

    def get(scenario: str = "Server", mode: str = "PerformanceOnly", *, trace: bool = False) -> Path:
        key = (scenario, mode, trace)
        if key not in made:
            made[key] = run_loadgen(tmp_path_factory.mktemp("lg") / "some-logs", scenario, mode, trace=trace)
        return made[key]

    return get


def test_a_trace_gives_samples_whose_percentiles_are_loadgens_to_the_nanosecond(
    logs: Callable[..., Path], tmp_path: Path
) -> None:
    made = import_run(logs(trace=True), tmp_path / "runs")
    (attempt,) = made.run.attempts
    theirs = attempt.loadgen
    for name, ours in (("ttft_ms", attempt.ttft_ms), ("latency_ms", attempt.latency_ms)):
        for key, at in (("p50", "50.00"), ("p99", "99.00"), ("p99_9", "99.90"), ("max", "max")):
            assert ours[key] == pytest.approx(theirs[name][at], abs=1e-9), (name, key)
    assert attempt.tpot_ms["p99"] == theirs["tpot_ms"]["99.00"]  # the trace has no tokens: it stays LoadGen's
    samples = Record(made.folder).samples(1).collect()
    assert samples.height == theirs["queries"] == attempt.totals["completed"]
    assert samples["seq"].sort().to_list() == list(range(samples.height))
    assert set(samples["slot"]) == {"sut"}
    assert samples["lag_ms"].min() >= 0  # type: ignore[operator]
    assert samples["first_ns"].null_count() == 0
    assert made.problems == []


def test_without_a_trace_figures_are_loadgens_and_the_lack_is_named(logs: Callable[..., Path], tmp_path: Path) -> None:
    made = import_run(logs(), tmp_path / "runs")
    (attempt,) = made.run.attempts
    assert attempt.verdict == "VALID"
    assert attempt.ttft_ms["p99"] == attempt.loadgen["ttft_ms"]["99.00"]
    assert attempt.rates["tokens_per_s"] == attempt.loadgen["tokens_per_s"]
    assert attempt.totals["issued"] == attempt.totals["completed"] >= 500
    assert attempt.started_unix < attempt.ended_unix
    assert any("no per-sample times" in line for line in made.told.missing)
    assert any("LoadGen's percentiles" in reason for reason in attempt.reasons)
    imported = made.run.imported
    assert imported is not None
    assert imported.kind == "loadgen"
    assert (made.folder.attempt(1) / DETAIL_LOG).read_bytes() == (logs() / DETAIL_LOG).read_bytes()
    assert Record(made.folder).samples().collect().is_empty()
    assert Record(made.folder).problems == []
    spec = RunSpec.model_validate(made.run.spec)
    assert (spec.load.target_qps, spec.limits.ttft_p99_ms, spec.fleet.engine) == (2000.0, 1000.0, "imported")


def test_an_accuracy_run_has_its_tokens_and_with_a_trace_its_tpot(logs: Callable[..., Path], tmp_path: Path) -> None:
    made = import_run(logs(mode="AccuracyOnly", trace=True), tmp_path / "runs")
    (attempt,) = made.run.attempts
    assert (attempt.kind, attempt.totals["tokens"]) == ("accuracy", 4 * 32)
    samples = Record(made.folder).samples(1).collect()
    assert set(samples["n_tokens"]) == {4}
    assert samples["tpot_ms"].null_count() == 0
    assert summarise(Record(made.folder), 1).totals["completed"] == 32


def test_offline_has_one_query_of_all_samples(logs: Callable[..., Path], tmp_path: Path) -> None:
    made = import_run(logs("Offline", trace=True), tmp_path / "runs")
    (attempt,) = made.run.attempts
    assert attempt.scenario == "Offline"
    assert attempt.verdict == "INVALID"  # ended at once
    samples = Record(made.folder).samples(1).collect()
    assert samples.height == attempt.totals["issued"] >= 500
    assert samples["scheduled_ns"].unique().to_list() == [0]


def test_a_submissions_folder_becomes_one_run_with_performance_last(logs: Callable[..., Path], tmp_path: Path) -> None:
    scenario = tmp_path / "closed" / "Org" / "results" / "eight-gpus" / "gpt-oss-120b" / "Server"
    shutil.copytree(logs(), scenario / "performance" / "run_1")
    shutil.copytree(logs(mode="AccuracyOnly"), scenario / "accuracy")
    shutil.copytree(logs(), scenario / "TEST09" / "performance" / "run_1")
    (scenario / "accuracy" / "accuracy.txt").write_text("{'exact_match': 83.13}\nhash=0\n")
    made = import_run(tmp_path / "closed", tmp_path / "runs")
    assert made.folder.name == "eight-gpus-gpt-oss-120b-Server"
    assert sorted(attempt.kind for attempt in made.run.attempts[:2]) == ["accuracy", "compliance"]
    last = made.run.attempts[-1]
    assert last.kind == "performance"
    assert last.verdict == "INVALID"
    assert any("6396" in reason for reason in last.reasons)  # of this model's rules
    accuracy = next(attempt for attempt in made.run.attempts if attempt.kind == "accuracy")
    assert any("83.13" in note for note in accuracy.notes)
    assert RunSpec.model_validate(made.run.spec).model.mlperf_name == "gpt-oss-120b"


def test_two_results_in_one_tree_are_refused_by_name(logs: Callable[..., Path], tmp_path: Path) -> None:
    for model in ("gpt-oss-120b", "deepseek-r1"):
        shutil.copytree(logs(), tmp_path / "results" / "sys" / model / "Server" / "performance" / "run_1")
    with pytest.raises(ImportProblem, match=r"2 submitted results .sys/deepseek-r1, sys/gpt-oss-120b."):
        import_run(tmp_path / "results", tmp_path / "runs")
    assert not list((tmp_path / "runs").iterdir())


def test_a_killed_loadgen_is_a_crash_with_what_it_had(logs: Callable[..., Path], tmp_path: Path) -> None:
    killed = shutil.copytree(logs(trace=True), tmp_path / "killed")
    for name, share in (("mlperf_log_trace.json", 3), (DETAIL_LOG, 2)):
        content = (killed / name).read_bytes()
        (killed / name).write_bytes(content[: len(content) // share])
    made = import_run(killed, tmp_path / "runs")
    (attempt,) = made.run.attempts
    assert attempt.verdict == "CRASHED"
    assert attempt.totals["completed"] > 0
    assert Record(made.folder).samples(1).select(pl.len()).collect().item() == attempt.totals["completed"]
    assert any("no end" in line for line in made.told.missing)


def test_a_model_is_told_by_its_counts_and_limits(logs: Callable[..., Path], tmp_path: Path) -> None:
    rules = MODELS["deepseek-r1"]
    changed = shutil.copytree(logs(), tmp_path / "changed")
    lines = []
    for line in (changed / DETAIL_LOG).read_text().splitlines():
        entry = json.loads(line.partition(":::MLLOG ")[2])
        wanted: dict[str, Any] = {
            "effective_performance_sample_count": rules.performance_samples,
            "requested_server_ttft_latency": int(rules.ttft_p99_ms * 1e6),
            "requested_server_tpot_latency": int(rules.tpot_p99_ms * 1e6),
            "effective_schedule_rng_seed": SEEDS_V61.schedule,
        }
        entry["value"] = wanted.get(entry["key"], entry["value"])
        lines.append(":::MLLOG " + json.dumps(entry))
    (changed / DETAIL_LOG).write_text("\n".join(lines) + "\n")
    made = import_run(changed, tmp_path / "runs")
    assert RunSpec.model_validate(made.run.spec).model.mlperf_name == "deepseek-r1"
    assert any("not a submission-length run" in reason for reason in made.run.reasons)
    assert any("those of deepseek-r1" in line for line in made.told.missing)


def test_answers_are_counted_however_they_are_laid_out(tmp_path: Path) -> None:
    entries = [{"seq_id": n, "qsl_idx": n, "data": "01000000" * (n + 1)} for n in range(5)]
    for text in (json.dumps(entries), "[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n"):
        (tmp_path / "log.json").write_text(text)
        answers = read_answers(tmp_path / "log.json", silent)
        assert (list(answers.tokens), answers.damaged, answers.closed) == ([1, 2, 3, 4, 5], 0, True)
    (tmp_path / "log.json").write_text(text[:-30])
    answers = read_answers(tmp_path / "log.json", silent)
    assert (len(answers.seq), answers.closed) == (4, False)


def test_a_log_without_an_entry_of_loadgen_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / DETAIL_LOG).write_text("hello\n:::MLLOG {\n")
    with pytest.raises(ImportProblem, match="nothing was read"):
        import_run(tmp_path / "logs", tmp_path / "runs")
    (tmp_path / "logs" / DETAIL_LOG).rename(tmp_path / "logs" / "mlperf_log_summary.txt")
    with pytest.raises(ImportProblem, match=r"it has mlperf_log_summary.txt and no mlperf_log_detail.txt"):
        import_run(tmp_path / "logs", tmp_path / "runs")
