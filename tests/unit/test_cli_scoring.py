"""`paceline score` and `paceline verify` as they are typed, over a record made by hand."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answers_kit import tokenizer_file, write_answers

from console.cli.app import main
from harness.records.layout import RunFolder
from harness.records.lock import folder_lock
from harness.records.runfile import AttemptRecord, RunFile, read_run, write_run
from harness.spec import RunSpec

ANSWERS = ["Answer: A", "Answer: B", "\\boxed{7}"]
TRUTHS = [("gpqa", "A"), ("gpqa", "A"), ("aime", "7")]
Typed = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    def run(*words: str) -> tuple[int, Any, str]:
        code = main(words)
        said = capsys.readouterr()
        return code, json.loads(said.out) if "--json" in words and said.out else said.out, said.err

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Attempt 1: performance; 2: accuracy over three samples; 3: TEST07 over the same."""
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    folder = RunFolder(tmp_path / "run-1")
    data = tmp_path / "truths.jsonl"
    rows = [{"text": "?", "dataset": subset, "ground_truth": truth} for subset, truth in TRUTHS]
    data.write_text("\n".join(map(json.dumps, rows)) + "\n")
    spec = RunSpec.model_validate({"dataset": {"kind": "jsonl", "path": "truths.jsonl", "tokenizer": str(tokenizer_file())}})
    attempts = []
    for number, kind, test in ((1, "performance", ""), (2, "accuracy", ""), (3, "compliance", "TEST07")):
        write_answers(folder.attempt(number), ANSWERS)
        given = {"spec": spec.model_dump_json(), "dataset_base": str(tmp_path)}
        (folder.attempt(number) / "driver.json").write_text(json.dumps(given))
        (folder.attempt(number) / "mlperf_log_detail.txt").write_text(
            ':::MLLOG {"key": "effective_performance_sample_count", "value": 3, "metadata": {}}\n'
        )
        reasons = [] if kind != "compliance" else ["compliance: not verified yet (paceline verify)"]
        verdict = "INVALID" if reasons else "VALID"
        attempts.append(AttemptRecord(number, kind, "Server", 1.0, 1, state="ENDED", verdict=verdict, reasons=reasons, test=test))
    run = RunFile(
        run="run-1", spec=spec.model_dump(mode="json"), phase="DONE", synthetic=True, attempts=attempts, verdict="INVALID",
    )  # fmt: skip
    write_run(folder.path, run)
    return folder


def test_an_accuracy_attempt_is_scored_and_kept(folder: RunFolder, typed: Typed) -> None:
    code, told, _ = typed("score", "--json")
    assert code == 0
    assert (told["attempt"], told["n"], told["passed"], told["verdict"]) == (2, 3, None, "VALID")
    assert told["score"] == pytest.approx(100 * 2 / 3)
    assert {one["name"]: one["correct"] for one in told["subsets"]} == {"gpqa": 1, "aime": 1}
    assert Path(told["answers"]).is_file()
    assert json.loads((folder.attempt(2) / "accuracy.json").read_text())["score"] == told["score"]
    assert any("accuracy: exact_match 66.6667" in note for note in read_run(folder.path).attempts[1].notes)
    code, told, _ = typed("score", "run-1:2")
    assert code == 0
    assert "exact_match 66.6667 over 3 samples: no gate is known for this model" in told


def test_a_compliance_attempt_is_verified_and_its_verdict_follows(folder: RunFolder, typed: Typed) -> None:
    code, told, _ = typed("verify", "--json")
    assert (code, told["test"], told["passed"], told["verdict"]) == (0, "TEST07", True, "VALID")
    run = read_run(folder.path)
    assert (run.attempts[2].verdict, run.verdict) == ("VALID", "VALID")
    write_answers(folder.attempt(3), ["no", *ANSWERS[1:]])
    code, told, _ = typed("verify", "run-1:3")
    assert code == 1
    assert "TEST07: NOT passed" in told
    assert read_run(folder.path).verdict == "INVALID"


def test_while_a_head_has_the_run_the_score_is_kept_for_it(folder: RunFolder, typed: Typed) -> None:
    with folder_lock(folder):
        code, _, said = typed("score", "--json")
    assert code == 0
    assert "still going on: the verdict of attempt 2 takes this up when it ends" in said
    assert (folder.attempt(2) / "accuracy.json").is_file()
    assert read_run(folder.path).attempts[1].notes == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["score", "run-1:1"], "attempt 1 of run-1 is of kind performance, not accuracy; its attempts are 1 (performance)"),
        (["score", "run-1:9"], "run-1 has no attempt 9; its attempts are"),
        (["score", "nope"], "no run named 'nope'"),
        (["score", "--dataset", "nothing.jsonl"], "nothing.jsonl: does not exist; --dataset names the file"),
        (["score", "--tokenizer", "/nothing"], "/nothing: does not exist; --tokenizer names"),
        (["score", "--scorer", "gpqa"], "is not of the form NAME=COMMAND"),
        (["score", "--scorer", "code=true"], "--scorer code: the dataset has no such subset"),
        (["score", "--deadline", "0"], "--deadline 0 must be more than 0"),
        (["verify", "run-1:2"], "attempt 2 of run-1 is of kind accuracy, not compliance"),
        (["verify", "--eos", "5"], "--eos goes with TEST06; attempt 3 is TEST07"),
        (["verify", "--official", "/nothing"], "/nothing: has no TEST07/run_verification.py"),
    ],
)
def test_what_cannot_be_done_is_told_and_nothing_is_written(folder: RunFolder, typed: Typed, words: list[str], said: str) -> None:
    before = (folder.path / "run.json").read_bytes()
    code, _, complained = typed(*words)
    assert code == 2
    assert said in complained
    assert (folder.path / "run.json").read_bytes() == before
    assert not list(folder.path.glob("attempts/*/accuracy.json"))


def test_a_run_without_right_answers_or_tokenizer_says_which_option_names_them(folder: RunFolder, typed: Typed) -> None:
    for spec, said in (
        (RunSpec(), "made-up prompts, which have no right answers: --dataset names"),
        (RunSpec.model_validate({"dataset": {"kind": "jsonl", "path": "truths.jsonl"}}), "names no tokenizer: --tokenizer names"),
    ):
        given = {"spec": spec.model_dump_json(), "dataset_base": str(folder.path.parent)}
        (folder.attempt(2) / "driver.json").write_text(json.dumps(given))
        code, _, complained = typed("score")
        assert (code, said in complained) == (2, True), complained
    assert typed("score", "--dataset", str(folder.path.parent / "truths.jsonl"), "--tokenizer", str(tokenizer_file()))[0] == 0


@pytest.mark.parametrize(
    ("printed", "score"), [("61.2", 61.2), ("np.float64(61.2)}", 61.2), ("6.12e1, done.", 61.2), ("1e9", None), ("50abc", None)]
)
def test_a_printed_score_is_read_as_a_whole(folder: RunFolder, typed: Typed, printed: str, score: float | None) -> None:
    program = shlex.join([sys.executable, "-c", f"print({f'exact_match: {printed}'!r})"])
    code, told, _ = typed("score", "--scorer", f"all={program}", "--json")
    assert code == (0 if score is not None else 2)
    assert score is None or told["score"] == pytest.approx(score)


def test_answers_are_scored_by_one_at_a_time(folder: RunFolder, typed: Typed) -> None:
    handle = os.open(folder.attempt(2), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        code, _, told = typed("score")
        assert (code, "another process scores or verifies it" in told) == (2, True)
        assert not (folder.attempt(2) / "accuracy.json").exists()
    finally:
        os.close(handle)
    assert typed("score")[0] == 0


def test_ending_a_score_ends_its_program(folder: RunFolder, tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = shlex.join(["sh", "-c", f"echo $$ > {started}; exec sleep 60"])
    process = subprocess.Popen(
        [sys.executable, "-m", "console.cli", "score", "--scorer", f"all={program}"], stderr=subprocess.DEVNULL
    )
    while not started.exists() or not started.read_text().strip():
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait(30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
