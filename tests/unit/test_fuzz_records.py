"""Damaged records are read as far as they go: data, with what is wrong named beside it, or one clear error."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_run import Made, make_run
from spoiling import Spoil, spoils

from console.cli.app import main
from console.store.record import over
from console.store.runs import scan
from harness.analysis.drill import Drill
from harness.analysis.errors import NoSuchAttempt, NoSuchSample
from harness.analysis.scaling import scaling
from harness.analysis.sides import read_side
from harness.analysis.views import METRICS, Where
from harness.mlperf.scores import read_compliance, read_score
from harness.records.clusterlog import last_view
from harness.records.errors import RecordError
from harness.records.fleetfile import FleetFile, GpusOf, read_fleet, write_fleet
from harness.records.labels import read_labels
from harness.records.layout import RunFolder
from harness.records.reader import Record, slowest, summarise

FUZZ = settings(
    deadline=None, derandomize=True, database=None, max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
FILES = (
    "run.json", "run.json", "journal.jsonl", "samples/000001.parquet", "timeline/000001.parquet", "fleet.json", "cluster.jsonl",
    "labels.json", "gpus/fetched.jsonl", "attempts/1/accuracy.json", "logs/head.log", "logs/node000-gpu0.log",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small record with every file that a record can have."""
    path = make_run(tmp_path_factory.mktemp("record"), Made(name="made", nodes=1, per_node=2, qps=30, seconds=2, slow_node=None))
    folder = RunFolder(path)
    write_fleet(folder.fleet_json, FleetFile(1, {"node000/gpu0": [GpusOf(1.0, ["host"], "pod", ["0"])]}))
    view = {"source": "heard", "namespace": "ns", "pods": [], "hosts": []}
    folder.cluster.write_text(json.dumps({"unix": 1795000001.0, "whole": True, "about": view}) + "\n")
    folder.labels_json.write_text(json.dumps({"tags": ["a"], "note": "b", "pinned": True}))
    folder.gpus.mkdir(exist_ok=True)
    folder.fetched.write_text(json.dumps({"unix": 1.0, "source": "x", "rows": 1}) + "\n")
    folder.attempt(1).mkdir(parents=True)
    (folder.attempt(1) / "accuracy.json").write_text(json.dumps({"metric": "exact_match", "score": 80.0, "subsets": []}))
    folder.logs.mkdir(exist_ok=True)
    for name in ("head", "node000-gpu0"):
        folder.log(name).write_text("2026-11-18 11:06:41,123 INFO hello\n" * 20)
    return path


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Callable[[str, Spoil], Path]:
    def make(file: str, spoil: Spoil) -> Path:
        target = tmp_path / "made"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(whole, target)
        (target / file).write_bytes(spoil((whole / file).read_bytes()))
        return target

    return make


def _readers(path: Path) -> Iterator[Callable[[], object]]:
    folder, record = RunFolder(path), Record(path)
    yield lambda: record.run
    yield record.attempts
    yield record.journal
    yield lambda: record.collect(lambda samples: samples, 1)
    yield lambda: record.collect(lambda timeline: timeline, table="timeline")
    yield lambda: record.collect(lambda gpus: gpus, table="gpus")
    yield lambda: summarise(record, 1)
    yield lambda: slowest(record, 5)
    yield lambda: read_fleet(folder.fleet_json)
    yield lambda: last_view(folder.cluster)
    yield lambda: read_labels(folder)
    yield lambda: read_score(folder.attempt(1))
    yield lambda: read_compliance(folder.attempt(1))
    yield lambda: over(path)
    yield lambda: list(scan(path.parent, {}))
    yield lambda: read_side(record)
    yield lambda: scaling([folder])


def _views(path: Path) -> Iterator[Callable[[], object]]:
    drill = Drill(Record(path))
    yield drill.overview
    yield drill.timeline
    yield drill.distributions
    for metric in METRICS:
        yield lambda metric=metric: drill.tail(metric)  # type: ignore[misc]
        yield lambda metric=metric: drill.slowest(metric, 5, Where(from_s=0.5))  # type: ignore[misc]
    yield drill.fleet
    yield lambda: drill.fleet("node")
    yield lambda: drill.sample(3)
    yield drill.effects
    yield drill.config
    yield lambda: drill.logs(1_795_000_001.0)


IN_WORDS = (RecordError, NoSuchAttempt, NoSuchSample)


@FUZZ
@given(file=st.sampled_from(FILES), spoil=spoils())
def test_readers(damaged: Callable[[str, Spoil], Path], file: str, spoil: Spoil) -> None:
    for some in _readers(damaged(file, spoil)):
        with contextlib.suppress(*IN_WORDS):
            some()


@settings(FUZZ, max_examples=20)
@given(file=st.sampled_from(FILES), spoil=spoils())
def test_views_of_a_drill_down(damaged: Callable[[str, Spoil], Path], file: str, spoil: Spoil) -> None:
    path = damaged(file, spoil)
    views: list[Callable[[], object]] = []
    with contextlib.suppress(*IN_WORDS):
        views = list(_views(path))
    for some in views:
        with contextlib.suppress(*IN_WORDS):
            some()


@settings(FUZZ, max_examples=20)
@given(file=st.sampled_from(FILES), spoil=spoils())
def test_show(damaged: Callable[[str, Spoil], Path], capsys: pytest.CaptureFixture[str], file: str, spoil: Spoil) -> None:
    path = damaged(file, spoil)
    for arguments in (["--json"], []):
        code = main(["show", str(path), *arguments])
        out, err = capsys.readouterr()
        assert "defect of paceline" not in err
        assert code in (0, 1, 2, 3)
        if arguments and code == 0:
            json.loads(out)
