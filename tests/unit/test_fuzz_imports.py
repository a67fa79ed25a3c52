"""Damaged files of other people's runs end in a record or in words, whatever the damage; and never in half a record."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imports_kit import Client, run_loadgen, write_client
from made_run import Made, make_run
from spoiling import Spoil, spoils

from harness.analysis.drill import Drill
from harness.imports.errors import ImportProblem
from harness.imports.importing import import_run
from harness.records.reader import Record, summarise
from harness.spec import RunSpec

FUZZ = settings(
    deadline=None, derandomize=True, database=None, max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """loadgen/ (an accuracy run with its trace), endpoints/ and run.tar.gz."""
    root = tmp_path_factory.mktemp("sources")
    run_loadgen(root / "loadgen", mode="AccuracyOnly", trace=True)
    shutil.copy(run_loadgen(root / "whole", trace=False) / "mlperf_log_detail.txt", root / "loadgen" / "performance.txt")
    shutil.rmtree(root / "whole")
    write_client(root / "endpoints", Client(requests=40, warm_up=2, fails=10))
    made = make_run(root, Made(name="made", nodes=1, per_node=2, qps=20, seconds=2, slow_node=None))
    with tarfile.open(root / "run.tar.gz", "w:gz") as packed:
        packed.add(made, "made")
    return root


def _check(source: Path, root: Path) -> None:
    """A record that reads and opens, or words; nothing else is left."""
    shutil.rmtree(root, ignore_errors=True)
    made = None
    with contextlib.suppress(ImportProblem):
        made = import_run(source, root)
    if made is None:
        assert list(root.iterdir()) == []
        return
    assert [path.name for path in root.iterdir()] == [made.folder.name]
    record = Record(made.folder)
    assert record.run == made.run
    if made.kind != "run":
        RunSpec.model_validate(made.run.spec)
    for attempt in made.run.attempts:
        summary = summarise(record, attempt.number)
        assert summary.totals["completed"] <= max(attempt.totals["completed"], 0)
        Drill(record, attempt.number).overview()


@pytest.fixture
def import_of_damaged(sources: Path, tmp_path: Path) -> Callable[[str, str, Spoil], None]:
    def check(folder: str, file: str, spoil: Spoil) -> None:
        target = tmp_path / "source"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(sources / folder, target)
        (target / file).write_bytes(spoil((sources / folder / file).read_bytes()))
        if file == "performance.txt":
            (target / file).replace(target / "mlperf_log_detail.txt")
        _check(target, tmp_path / "runs")

    return check


LOADGEN = ("mlperf_log_detail.txt", "performance.txt", "mlperf_log_accuracy.json", "mlperf_log_trace.json")
ENDPOINTS = ("events.jsonl", "performance/result_summary.json", "config.yaml", "sample_idx_map.json")


@FUZZ
@given(file=st.sampled_from(LOADGEN), spoil=spoils())
def test_loadgen_logs(import_of_damaged: Callable[[str, str, Spoil], None], file: str, spoil: Spoil) -> None:
    import_of_damaged("loadgen", file, spoil)


@FUZZ
@given(file=st.sampled_from(ENDPOINTS), spoil=spoils())
def test_runs_of_endpoints(import_of_damaged: Callable[[str, str, Spoil], None], file: str, spoil: Spoil) -> None:
    import_of_damaged("endpoints", file, spoil)


@settings(FUZZ, max_examples=20)
@given(spoil=spoils())
def test_archives(sources: Path, tmp_path: Path, spoil: Spoil) -> None:
    (tmp_path / "run.tar.gz").write_bytes(spoil((sources / "run.tar.gz").read_bytes()))
    _check(tmp_path / "run.tar.gz", tmp_path / "runs")
