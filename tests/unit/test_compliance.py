"""Compliance tests as data, their verification by our own reading and by official scripts, and what the verdict takes of it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from answers_kit import ids_of, line, work_over, write_answers, write_lines
from pydantic import ValidationError

from harness.mlperf.accuracy.errors import ScoringError
from harness.mlperf.compliance.audits import AUDITS, Attempt
from harness.mlperf.compliance.verify import verify
from harness.mlperf.judging import judge_again, judge_ended, judged_by_answers
from harness.mlperf.scores import AccuracyScore, Compliance, read_compliance, write_compliance, write_score
from harness.records.journal import read_journal
from harness.records.layout import RunFolder
from harness.records.lock import FolderTaken, folder_lock
from harness.records.runfile import AttemptRecord, RunFile, read_run, write_run
from harness.spec import RunSpec

EOS = 2
OFFICIAL = os.environ.get("PACELINE_COMPLIANCE", "")


def spec_of(**load: Any) -> RunSpec:
    model = load.pop("model", None)
    return RunSpec.model_validate({"load": {"kind": "compliance"} | load, "model": {"mlperf_name": model}})


# --- what may be asked for -----------------------------------------------------------------------------------


def test_a_test_goes_with_its_model_and_with_compliance_alone() -> None:
    for test, model in (
        ("TEST06", "deepseek-r1"),
        ("TEST07", "gpt-oss-120b"),
        ("TEST09", "gpt-oss-120b-interactive"),
        ("TEST07", None),
    ):
        for scenario in ("Server", "Offline"):
            assert spec_of(test=test, model=model, scenario=scenario).load.what == f"compliance {test}"


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({}, "needs load.test: TEST06, TEST07, TEST09"),
        ({"kind": "performance", "test": "TEST06"}, "goes with load.kind = compliance; load.kind is performance"),
        (
            {"test": "TEST06", "model": "gpt-oss-120b"},
            "TEST06 is for deepseek-r1; for model.mlperf_name = gpt-oss-120b: TEST07, TEST09",
        ),
        ({"test": "TEST09", "model": "deepseek-r1"}, "deepseek-r1: TEST06"),
        ({"test": "TEST09", "max_queries": 5}, "load.min_queries and load.max_queries do not apply"),
        ({"test": "TEST01"}, "TEST06"),
    ],
)
def test_what_does_not_fit_is_told(load: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        spec_of(**load)


def test_audit_configs_have_the_rules_keys() -> None:
    lines = {test: audit.config().splitlines()[1:] for test, audit in AUDITS.items()}
    assert lines["TEST06"] == [
        "*.*.mode = 2", "*.*.accuracy_log_rng_seed = 720381539243781796", "*.*.accuracy_log_sampling_target = 100",
        "*.*.min_query_count = 100", "*.*.min_duration = 0", "*.*.sample_concatenate_permutation = 0",
    ]  # fmt: skip
    assert {"*.*.performance_issue_unique = 1", "*.*.min_query_count = 990", "*.*.test07_accuracy_threshold = 60.698"} < set(
        lines["TEST07"]
    )
    assert {"*.*.min_query_count = 6396", "*.*.accuracy_log_sampling_target = 10000", "*.*.test09_min_output_tokens = 1150.38",
            "*.*.test09_max_output_tokens = 1406.02"} < set(lines["TEST09"])  # fmt: skip


# --- verification --------------------------------------------------------------------------------------------


def checks(found: Compliance) -> dict[str, bool]:
    return {check.name: check.passed for check in found.checks}


def verified06(folder: Path, lines: list[str], scenario: str = "Server") -> Compliance:
    write_lines(folder, lines)
    return verify(Attempt(folder, "TEST06", scenario, EOS))


GOOD = [line(n, n % 7, [40 + n, 50, EOS]) for n in range(100)]


def test_test06_passes_consistent_answers(tmp_path: Path) -> None:
    found = verified06(tmp_path, GOOD)
    assert (found.test, found.passed, found.remarks) == ("TEST06", True, [])
    assert checks(found) == {"samples logged": True, "first token": True, "end of text": True, "token counts": True}


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        (line(99, 0, [40, 50, EOS], token_data="29000000"), "first token"),
        (line(99, 0, [40, 50, EOS], token_data=None), "first token"),
        (line(99, 0, [40, 50, EOS, EOS]), "end of text"),
        (line(99, 0, [EOS, EOS, EOS]), "end of text"),
        (line(99, 0, [40, 50, EOS], token_count=4), "token counts"),
        (line(99, 0, [40, 50, EOS], token_count=None), "token counts"),
        (None, "samples logged"),
    ],
)
def test_test06_fails_for_one_answer_that_is_not(tmp_path: Path, answer: str | None, check: str) -> None:
    found = verified06(tmp_path, [*GOOD[:-1], *([answer] if answer else [])])
    assert not found.passed
    assert [name for name, passed in checks(found).items() if not passed] == [check]
    assert answer is None or "seq_id 99" in next(one.text for one in found.checks if one.name == check)


def test_test06_lets_an_empty_answer_end_twice_as_the_official_script_does(tmp_path: Path) -> None:
    assert verified06(tmp_path, [*GOOD[:-1], line(99, 0, [EOS, EOS])]).passed


def test_test06_offline_has_no_first_tokens_to_check(tmp_path: Path) -> None:
    found = verified06(tmp_path, [line(n, n, [40, 50], token_data=None) for n in range(100)], "Offline")
    assert (found.passed, "first token" in checks(found)) == (True, False)
    assert "Offline has no first tokens" in found.remarks[0]


def detail(folder: Path, count: int) -> None:
    entry = f'{{"key": "effective_performance_sample_count", "value": {count}, "metadata": {{}}}}'
    (folder / "mlperf_log_detail.txt").write_text(f":::MLLOG {entry}\n")


@pytest.mark.parametrize(("length", "passed"), [(1150, False), (1151, True), (1406, True), (1407, False)])
def test_test09_bounds_the_mean_of_output_tokens(tmp_path: Path, length: int, passed: bool) -> None:
    write_lines(tmp_path, [line(n, n, [7] * length) for n in range(3)])
    detail(tmp_path, 3)
    found = verify(Attempt(tmp_path, "TEST09", "Server", EOS))
    assert checks(found) == {"every sample once": True, "mean output tokens": passed}
    assert found.passed is passed


def test_test09_wants_every_sample_once(tmp_path: Path) -> None:
    write_lines(tmp_path, [line(0, 0, [7] * 1278), line(1, 0, [7] * 1278)])
    detail(tmp_path, 2)
    found = verify(Attempt(tmp_path, "TEST09", "Server", EOS))
    assert not found.passed
    assert found.checks[0].text == "1 of 2 samples of the dataset were asked, 1 of them more than once"


@pytest.mark.parametrize(("right", "passed"), [(6, False), (7, True)])
def test_test07_needs_its_accuracy_over_all_samples(tmp_path: Path, right: int, passed: bool) -> None:
    work = work_over(tmp_path, [("gpqa", "A", "Answer: A")] * right + [("gpqa", "A", "Answer: B")] * (10 - right))
    detail(tmp_path, 10)
    found = verify(Attempt(tmp_path, "TEST07", "Offline", EOS, "gpt-oss-120b"), work)
    assert checks(found) == {"every sample once": True, "accuracy": passed}
    assert f"exact_match {right}0.000 over 10 samples, 60.698 is needed" in found.checks[1].text
    detail(tmp_path, 990)
    found = verify(Attempt(tmp_path, "TEST07", "Offline", EOS), work)
    assert (checks(found), found.remarks) == ({"every sample once": False}, ["not scored, since not every sample was asked once"])


def test_what_cannot_be_verified_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match="needs the dataset and the model's tokenizer"):
        verify(Attempt(tmp_path, "TEST07", "Server", EOS))
    with pytest.raises(ScoringError, match="there is no compliance test 'TEST01' here; there are TEST06, TEST07, TEST09"):
        verify(Attempt(tmp_path, "TEST01", "Server", EOS))
    with pytest.raises(ScoringError, match="LoadGen wrote no accuracy log"):
        verify(Attempt(tmp_path, "TEST09", "Server", EOS))


# --- official scripts ----------------------------------------------------------------------------------------


def official(folder: Path, test: str, program: str) -> Path:
    (folder / "compliance" / test).mkdir(parents=True)
    (folder / "compliance" / test / "run_verification.py").write_text(program)
    return folder


@pytest.mark.parametrize(
    ("says", "passed"), [("TEST06 verification complete", True), ("EOS check pass: False", False), ("Traceback", False)]
)
def test_an_official_script_has_a_say(tmp_path: Path, says: str, passed: bool) -> None:
    script = official(
        tmp_path / "scripts", "TEST06", f"import sys; print(sys.argv[1:]); print({says!r}); open('verify_x.txt','w')"
    )
    write_lines(tmp_path / "attempt", GOOD)
    found = verify(Attempt(tmp_path / "attempt", "TEST06", "Server", EOS), official=script)
    assert (found.passed, checks(found)["official script"]) == (passed, passed)
    assert says in found.official or says == "Traceback"
    assert str(tmp_path) not in found.checks[-1].text  # an export tells it to everybody
    printed = (tmp_path / "attempt" / "official" / "printed.txt").read_text()
    assert all(word in printed for word in ("'-s', 'Server'", "'-e', '2'", "'-d', 'int32'"))


def test_a_folder_without_the_script_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"has no TEST09/run_verification.py; --official names the compliance folder"):
        verify(Attempt(tmp_path, "TEST09", "Server", EOS), official=tmp_path)


@pytest.mark.skipif(not OFFICIAL, reason="PACELINE_COMPLIANCE does not name the compliance folder of mlcommons/inference")
@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("test", sorted(AUDITS))
def test_the_official_scripts_agree_with_us(tmp_path: Path, test: str, good: bool) -> None:
    work = None
    if test == "TEST06":  # not by its end of text: scripts that take `-e` as text let every end pass
        write_lines(tmp_path, GOOD if good else [*GOOD[:-1], line(99, 0, [40, 50, EOS], token_data="29000000")])
    elif test == "TEST09":
        write_lines(tmp_path, [line(n, n, [7] * (1278 if good else 900)) for n in range(5)])
    else:
        work = work_over(tmp_path, [("gpqa", "A", "Answer: A" if good else "Answer: B")] * 5)
    detail(tmp_path, 5)
    (tmp_path / "audit.config").write_text(AUDITS[test].config())
    found = verify(Attempt(tmp_path, test, "Server", EOS), work, Path(OFFICIAL))
    assert checks(found)["official script"] is good, found.official
    assert found.passed is good


# --- into the verdict ----------------------------------------------------------------------------------------


def scored(passed: bool | None, **more: Any) -> AccuracyScore:
    fields: dict[str, Any] = {
        "metric": "exact_match", "score": 83.0, "gate": 82.2987, "passed": passed, "n": 4395, "expected_n": 4395, "subsets": [],
        "tokens_per_sample": 1000.0, "log_sha256": "", "scored_unix": 0.0,
    }  # fmt: skip
    return AccuracyScore(**fields | more)


def record(kind: str, verdict: str, test: str = "", **more: Any) -> AttemptRecord:
    return AttemptRecord(1, kind, "Server", 10.0, 1, state="ENDED", verdict=verdict, test=test, **more)


def test_an_accuracy_attempt_of_a_model_with_a_gate_waits_for_its_score(tmp_path: Path) -> None:
    unscored = judged_by_answers("accuracy", None, "gpt-oss-120b", tmp_path)
    assert unscored.reasons == ["accuracy: not scored yet (paceline score)"]
    attempt = record("accuracy", "INVALID", reasons=[*unscored.reasons], notes=["synthetic"])
    write_score(tmp_path, scored(True))
    assert judge_again(attempt, "gpt-oss-120b", tmp_path)
    assert (attempt.verdict, attempt.reasons) == ("VALID", [])
    assert attempt.notes == ["synthetic", "accuracy: exact_match 83.0000 over 4,395 samples, the gate is 82.2987"]
    assert not judge_again(attempt, "gpt-oss-120b", tmp_path)
    write_score(tmp_path, scored(False, score=80.0, remarks=["exact_match 80 is under the gate of 82.2987"]))
    assert judge_again(attempt, "gpt-oss-120b", tmp_path)
    assert (attempt.verdict, attempt.notes) == ("INVALID", ["synthetic"])
    assert "under the gate" in attempt.reasons[0]


def test_without_a_gate_a_score_is_a_note(tmp_path: Path) -> None:
    assert judged_by_answers("accuracy", None, None, tmp_path).notes == ["accuracy: not scored yet (paceline score)"]
    write_score(tmp_path, scored(None, gate=None))
    assert judged_by_answers("accuracy", None, None, tmp_path).notes == ["accuracy: exact_match 83.0000 over 4,395 samples"]
    assert judged_by_answers("performance", None, "gpt-oss-120b", tmp_path).reasons == []


def test_a_score_does_not_heal_other_faults(tmp_path: Path) -> None:
    write_score(tmp_path, scored(True))
    attempt = record("accuracy", "INVALID", reasons=["1 sample failed", "accuracy: not scored yet (paceline score)"])
    judge_again(attempt, "gpt-oss-120b", tmp_path)
    assert (attempt.verdict, attempt.reasons) == ("INVALID", ["1 sample failed"])
    aborted = record("accuracy", "ABORTED", reasons=["stopped by kim"])
    assert not judge_again(aborted, "gpt-oss-120b", tmp_path)


def test_a_compliance_attempt_is_valid_only_when_its_own_test_passed(tmp_path: Path) -> None:
    assert judged_by_answers("compliance", "TEST09", None, tmp_path).reasons == ["compliance: not verified yet (paceline verify)"]
    assert "could not be verified: no log" in judged_by_answers("compliance", "TEST09", None, tmp_path, "no log").reasons[0]
    write_lines(tmp_path, [line(0, 0, [7] * 1278)])
    detail(tmp_path, 1)
    write_compliance(tmp_path, verify(Attempt(tmp_path, "TEST09", "Server", EOS)))
    passed = judged_by_answers("compliance", "TEST09", None, tmp_path)
    assert (passed.reasons, passed.notes) == ([], ["compliance: TEST09 passed"])
    assert "verified as TEST09, but it is TEST07" in judged_by_answers("compliance", "TEST07", None, tmp_path).reasons[0]
    (tmp_path / "compliance.json").write_text("{")
    assert "compliance.json" in judged_by_answers("compliance", "TEST09", None, tmp_path).reasons[0]


def ended_run(root: Path) -> RunFolder:
    folder = RunFolder(root / "run-1")
    (folder.path / "attempts" / "1").mkdir(parents=True)
    spec = RunSpec.model_validate({"model": {"mlperf_name": "gpt-oss-120b"}}).model_dump(mode="json")
    attempt = record("accuracy", "INVALID", reasons=["accuracy: not scored yet (paceline score)"])
    run = RunFile(
        run="run-1", spec=spec, phase="DONE", synthetic=True, attempts=[attempt], verdict="INVALID", reasons=[*attempt.reasons]
    )
    write_run(folder.path, run)
    return folder


def test_the_record_of_an_ended_run_takes_the_score_under_its_lock(tmp_path: Path) -> None:
    folder = ended_run(tmp_path)
    write_score(folder.attempt(1), scored(True))
    before_unix = time.time()
    with folder_lock(folder), pytest.raises(FolderTaken):
        judge_ended(folder, 1, "attempt.scored", "exact_match 83")
    assert read_run(folder.path).verdict == "INVALID"
    assert judge_ended(folder, 1, "attempt.scored", "exact_match 83", score=83.0).verdict == "VALID"
    run = read_run(folder.path)
    assert (run.verdict, run.reasons, run.attempts[0].verdict) == ("VALID", [], "VALID")
    (entry,) = read_journal(folder.journal)
    assert (entry.what, entry.subject, entry.after, entry.attempt, entry.data) == (
        "attempt.scored",
        "1",
        "VALID",
        1,
        {"score": 83.0},
    )
    assert entry.unix >= before_unix
    assert entry.who.startswith("operator:")


def test_a_log_that_answers_nothing_is_no_compliance(tmp_path: Path) -> None:
    write_answers(tmp_path, [])
    found = verify(Attempt(tmp_path, "TEST06", "Server", EOS))
    assert not found.passed
    assert read_compliance(tmp_path) is None
    assert ids_of("a") != ids_of("b")
