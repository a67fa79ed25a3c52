"""Runs of mlcommons/endpoints: requests from its events, the rest from its own report."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from imports_kit import Client, write_client

from harness.imports.endpoints_events import read_events
from harness.imports.endpoints_summary import read_config, read_snapshot
from harness.imports.errors import ImportProblem
from harness.imports.importing import import_run
from harness.imports.pieces import Pieces
from harness.imports.told import silent
from harness.records.reader import Record
from harness.spec import RunSpec


def test_events_and_summary_together_make_one_attempt(tmp_path: Path) -> None:
    source = write_client(tmp_path / "point-c16", Client(open_ones=2))
    made = import_run(source, tmp_path / "runs")
    (attempt,) = made.run.attempts
    assert made.folder.name == "point-c16"
    assert (attempt.kind, attempt.scenario, attempt.verdict) == ("explore", "concurrency", "EXPLORATION")
    assert attempt.totals == {"issued": 200, "completed": 195, "failed": 3, "lost": 2, "redispatched": 0, "tokens": 784}
    assert attempt.ttft_ms["p99"] == pytest.approx(30.0)
    assert attempt.tpot_ms["p90"] == pytest.approx(5.0)  # the client's own
    assert attempt.rates["tokens_per_s"] == 392.0
    assert attempt.started_unix == made.run.started_unix == 0.0
    samples = Record(made.folder).samples(1).sort("seq").collect()
    assert (samples.height, samples["index"].max(), set(samples["slot"])) == (198, 49, {"endpoint"})
    assert samples["scheduled_ns"][0] == 0  # since tracking began
    assert (samples["scheduled_ns"] == samples["issued_ns"]).all()
    assert any("16" in note for note in attempt.notes)
    assert any("4 requests outside of performance tracking" in line for line in made.told.missing)
    assert RunSpec.model_validate(made.run.spec).model.name == "some-model"
    assert (made.folder.attempt(1) / "performance" / "result_summary.json").exists()


def test_token_ids_of_prompts_are_counted(tmp_path: Path) -> None:
    made = import_run(write_client(tmp_path / "run", Client(token_ids=True), summary=False), tmp_path / "runs")
    assert set(Record(made.folder).samples(1).collect()["n_prompt"]) == {5}
    assert made.run.attempts[0].rates["tokens_per_s"] is None


def test_a_summary_alone_gives_its_figures(tmp_path: Path) -> None:
    made = import_run(write_client(tmp_path / "run", events=False), tmp_path / "runs")
    (attempt,) = made.run.attempts
    assert attempt.totals["completed"] == 196
    assert attempt.latency_ms["p99_9"] == pytest.approx(45.0)
    assert any("cannot be drilled into" in line for line in made.told.missing)


def test_a_snapshot_stands_in_for_the_summary(tmp_path: Path) -> None:
    metrics = [
        {"type": "counter", "name": "tracked_samples_issued", "value": 100},
        {"type": "counter", "name": "tracked_samples_completed", "value": 90},
        {"type": "counter", "name": "tracked_duration_ns", "value": 10_000_000_000},
        {"type": "series", "name": "ttft_ns", "count": 90, "total": 9e9, "min": 1e6, "max": 1e9, "percentiles": {"99": 5e8}},
    ]
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "final_snapshot.json").write_text(json.dumps({"state": "interrupted", "metrics": metrics}))
    summary = read_snapshot(tmp_path / "metrics" / "final_snapshot.json")
    assert summary is not None
    assert (summary.qps, summary.ttft_ms["avg"], summary.ttft_ms["p99"]) == (9.0, 100.0, 500.0)
    made = import_run(tmp_path / "metrics" / "final_snapshot.json", tmp_path / "runs")
    assert (made.run.verdict, made.run.phase) == ("ABORTED", "ABORTED")


def test_a_truncated_log_gives_the_requests_that_it_has(tmp_path: Path) -> None:
    source = write_client(tmp_path / "run", summary=False)
    content = (source / "events.jsonl").read_bytes()
    (source / "events.jsonl").write_bytes(content[: len(content) // 2])
    made = import_run(source, tmp_path / "runs")
    assert 90 < made.run.attempts[0].totals["completed"] < 110
    assert any("1 of its lines are damaged" in line and "line " in line for line in made.told.missing)
    assert any("no session.ended" in line for line in made.told.missing)


def test_a_foreign_file_of_lines_is_refused_with_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "login"}\n{"event": "logout"}\n')
    with pytest.raises(ImportProblem, match=r"no request \(2 of 2 lines damaged; line 1: .*event_type"):
        import_run(tmp_path / "events.jsonl", tmp_path / "runs")


def test_a_large_log_is_read_in_little_memory(tmp_path: Path) -> None:
    answer = "x" * 20_000
    with (tmp_path / "events.jsonl").open("w") as file:
        for line in Client(requests=1500, parts=0, warm_up=0).lines():
            file.write(line.replace('"some"', f'"{answer}"') + "\n")
    assert (tmp_path / "events.jsonl").stat().st_size > 25e6
    tracemalloc.start()
    events = read_events(tmp_path / "events.jsonl", {}, silent)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(events.columns) == 1500
    assert peak < 20e6


def test_lines_without_an_end_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"short\n" + b"x" * 9_000_000 + b"\nafter\nlast")
    pieces = Pieces(tmp_path / "file", silent, most=1_000_000)
    assert list(pieces) == [b"short", b"after"]
    assert (pieces.too_long, pieces.rest) == (1, b"last")


def test_yaml_that_stands_for_millions_is_bounded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1]"] + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (tmp_path / "config.yaml").write_text(
        "\n".join([*lines, "settings: {x: *a11, load_pattern: {type: poisson, target_qps: 5}}"])
    )
    config = read_config(tmp_path / "config.yaml")
    assert config is not None
    assert (config.pattern, config.target_qps) == ("poisson", 5.0)
    assert len(config.settings) < 600
