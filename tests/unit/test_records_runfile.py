"""run.json is replaced whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_kit import files_may_have

from harness.records.errors import RecordError
from harness.records.runfile import AttemptRecord, HeadEpoch, RunFile, read_run, write_atomically, write_run
from harness.spec import RunSpec


def run_file() -> RunFile:
    attempt = AttemptRecord(
        number=1,
        kind="performance",
        scenario="Server",
        target_qps=12.5,
        epoch=1,
        started_unix=100.25,
        verdict="VALID",
        totals={"issued": 5, "completed": 5},
        settings_asked={"min_duration": 600000},
        settings_effective={"min_duration": 600000},
        loadgen={"result": "VALID"},
        rates={"completed_qps": 12.1, "tokens_per_s": None},
        ttft_ms={"p99": 410.5, "p99_9": float("nan")},
    )
    spec = RunSpec().model_dump(mode="json")
    return RunFile(
        run="demo-1", spec=spec, phase="DONE", synthetic=True, head_epochs=[HeadEpoch(1, 77, 99.0)], attempts=[attempt], acts=1
    )


def test_a_run_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_run(tmp_path, run_file())
    back = read_run(tmp_path)
    assert back.attempts[0].ttft_ms == {"p99": 410.5, "p99_9": None}, "JSON has no NaN"
    assert back.attempts[0].loadgen == {"result": "VALID"}
    assert back.head_epochs == [HeadEpoch(1, 77, 99.0)]
    assert RunSpec.model_validate(back.spec) == RunSpec()
    assert json.loads((tmp_path / "run.json").read_text())["attempts"][0]["number"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    write_run(tmp_path, run_file())
    before = (tmp_path / "run.json").read_bytes()
    with files_may_have(100), pytest.raises(RecordError, match="file size limit") as caught:
        write_atomically(tmp_path / "run.json", b"x" * 1000)
    assert caught.value.full
    assert (tmp_path / "run.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_missing_or_foreign_run_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"run\.json: cannot read: it does not exist"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"run": 5}')
    with pytest.raises(RecordError, match="is not a run record"):
        read_run(tmp_path)


@given(cut=st.integers(0, 400))
@settings(max_examples=40, deadline=None)
def test_a_truncated_run_file_is_a_record_error(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.getbasetemp()
    write_run(folder, run_file())
    content = (folder / "run.json").read_bytes()
    (folder / "run.json").write_bytes(content[:cut])
    with pytest.raises(RecordError):
        read_run(folder)
