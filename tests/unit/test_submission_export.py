"""`paceline export mlperf`: the tree of a conforming set, and the reason for every set that does not conform, among them those
that the official checker lets pass. It runs too where PACELINE_CHECKER names the folder that holds submission_checker."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from made_run import Made, make_run
from submission_kit import ANSWERS, DETAIL, SUMMARY, Submission, add_error, edit_log, make_runs, real_logs, set_times, system_toml

from console.cli import main
from harness.imports.importing import import_run
from harness.mlperf import detail_log
from harness.mlperf.judging import NOT_JUDGED, judge_again
from harness.mlperf.scores import AccuracyScore, SubsetScore, read_compliance, read_score, write_compliance, write_score
from harness.mlperf.submission import tree
from harness.mlperf.submission.system import FIELDS, MEASUREMENTS, NEEDED
from harness.mlperf.submission.texts import accuracy_txt
from harness.records.runfile import Imported


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return real_logs(tmp_path_factory.mktemp("logs"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    (tmp_path / "system.toml").write_text(system_toml())
    return tmp_path / "runs"


Export = Callable[..., dict[str, Any]]


@pytest.fixture
def export(root: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    """The command's JSON, with its exit code as "rc"."""

    def run(*runs: str, division: str = "closed", force: bool = False) -> dict[str, Any]:
        command = ["export", "mlperf", *runs, "--submitter", "Example", "--system", str(root.parent / "system.toml")]
        command += ["--out", str(root.parent / "out"), "--division", division, "--json", *(["--force"] if force else [])]
        rc = main(command)
        said: dict[str, Any] = json.loads(capsys.readouterr().out or "{}")
        return said | {"rc": rc}

    return run


SYSTEM = "2x_Example_Box_8x_Accelerator_X"


def scenario_folder(root: Path, benchmark: str, scenario: str, division: str = "closed") -> Path:
    return root.parent / "out" / division / "Example" / "results" / SYSTEM / benchmark / scenario


def assert_conforms(folder: Path, tests: Mapping[str, str], least: float) -> None:
    """What the official checker looks at in a scenario's folder, and that the logs which it forgets to ask for are there."""
    for name in ("measurements.json", "user.conf", "README.md"):
        assert (folder / name).stat().st_size > 0
    assert all(json.loads((folder / "measurements.json").read_text())[key] for key in MEASUREMENTS)
    for logs in (folder / "performance/run_1", folder / "accuracy", *(folder / test / "performance/run_1" for test in tests)):
        assert detail_log.read(logs).complete
        assert (logs / SUMMARY).stat().st_size > 0
    said = (folder / "accuracy/accuracy.txt").read_text().splitlines()
    score = re.match(r".*'exact_match':\s([\d.]+).*", said[0])
    assert score is not None
    assert float(score[1]) >= least
    assert sum(bool(re.match(r"^hash=([\w\d]+)$", line)) for line in said) == 1
    for log in folder.rglob(ANSWERS):
        assert log.stat().st_size <= 10240
    for test, name in tests.items():
        verified = (folder / test / name).read_text()
        assert "TEST PASS" in verified


@pytest.mark.parametrize(
    ("benchmark", "scenarios", "tests", "least"),
    [
        ("gpt-oss-120b", ("Offline", "Server"), {"TEST07": "verify_accuracy.txt", "TEST09": "verify_output_len.txt"}, 82.2987),
        ("deepseek-r1", ("Offline", "Interactive"), {"TEST06": "verify_accuracy.txt"}, 80.5446),
    ],
)
def test_a_conforming_set_becomes_the_tree_that_the_rules_want(
    root: Path,
    logs: Mapping[str, Path],
    export: Export,
    benchmark: str,
    scenarios: tuple[str, ...],
    tests: dict[str, str],
    least: float,
) -> None:
    made = make_runs(root, logs, benchmark, *scenarios)
    said = export(*made.names)
    assert (said["rc"], said["reasons"], said["submittable"], said["left_out"]) == (0, [], True, [])
    home = root.parent / "out" / "closed" / "Example"
    system = json.loads((home / "systems" / f"{SYSTEM}.json").read_text())
    assert list(system) == list(FIELDS)
    assert all(system[key] for key in NEEDED)
    assert (system["submitter"], system["division"]) == ("Example", "closed")
    assert (home / "src" / benchmark / "README.md").exists()
    assert said["to_fill_in"] == ["closed/Example/docs/calibration.md", f"closed/Example/src/{benchmark}/README.md"]
    for scenario in scenarios:
        assert_conforms(scenario_folder(root, benchmark, scenario), tests, least)
    assert not list(root.parent.glob(".out*")), "what was written aside is renamed, not copied"
    assert not (root.parent / "out" / tree.NOT_SUBMITTABLE).exists()


def test_accuracy_logs_are_cut_as_the_official_tool_cuts_them_and_kept_whole_beside_the_tree(
    root: Path, logs: Mapping[str, Path], export: Export
) -> None:
    made = make_runs(root, logs)
    assert export(*made.names)["rc"] == 0
    whole = (made.run("Server").attempt(2) / ANSWERS).read_bytes()
    assert len(whole) > 10240
    cut = scenario_folder(root, "gpt-oss-120b", "Server") / "accuracy"
    assert (cut / ANSWERS).read_bytes() == whole[:4096] + b"\n\n...\n\n" + whole[-4096:]
    assert f"hash={hashlib.sha256(whole).hexdigest()}\n" in (cut / "accuracy.txt").read_text()
    assert (root.parent / "out" / tree.UNTRUNCATED / "gpt-oss-120b" / "Server" / ANSWERS).read_bytes() == whole


def test_the_readme_declares_samples_issued_again_and_acts_without_naming_people(
    root: Path, logs: Mapping[str, Path], export: Export
) -> None:
    made = make_runs(root, logs)
    export(*made.names)
    readme = (scenario_folder(root, "gpt-oss-120b", "Server") / "README.md").read_text()
    assert "performance: 3 of 600 samples" in readme
    assert "performance, 60 s after its start: drain node000/gpu3 by an operator: fan noise" in readme
    assert "kim" not in readme
    for told in ("engine vllm, 2 nodes x 8 replicas", "tp 1", "max_num_seqs=256", "mlcommons-loadgen 6.0.17", "6.0.17 @"):
        assert told in readme


def test_what_may_be_secret_stays_out_of_the_readme(root: Path, logs: Mapping[str, Path], export: Export) -> None:
    made = make_runs(root, logs)
    spec: dict[str, Any] = json.loads((made.run("Server").path / "run.json").read_text())["spec"]
    spec["fleet"]["engine_args"] = {"headers": {"x-key": "hush"}, "env": {"TOKEN": "hush"}, "base_urls": ["http://hush/v1"]}
    made.change("Server", 0, spec=spec)
    export(*made.names, force=True)
    readme = (scenario_folder(root, "gpt-oss-120b", "Server") / "README.md").read_text()
    assert "base_urls=1, env=['TOKEN'], headers=['x-key']" in readme
    assert "hush" not in readme


def test_compliance_of_deepseek_r1_is_told_in_the_words_that_the_official_checker_reads(
    root: Path, logs: Mapping[str, Path], export: Export
) -> None:
    export(*make_runs(root, logs, "deepseek-r1").names)
    offline, server = (
        (scenario_folder(root, "deepseek-r1", scenario) / "TEST06/verify_accuracy.txt").read_text().splitlines()
        for scenario in ("Offline", "Server")
    )
    wanted = {"First token check pass: True", "EOS check pass: True", "Sample length check pass: True"}
    assert wanted <= set(server)
    assert {"First token check pass: Skipped", *sorted(wanted)[:1], "Sample length check pass: True"} <= set(offline)


# --- refusals: what is changed in a conforming set, and the reason that must be told -----------------------------------------


def server(made: Submission, number: int = 1) -> Path:
    return made.run("Server").attempt(number)


def interactive(made: Submission) -> Path:
    return made.run("Interactive").attempt(1)


def score(made: Submission, **changes: Any) -> None:
    found = read_score(server(made, 2))
    assert found is not None
    for name, value in changes.items():
        setattr(found, name, value)
    write_score(server(made, 2), found)


def fail_test09(made: Submission) -> None:
    found = read_compliance(server(made, 4))
    assert found is not None
    found.passed = found.checks[0].passed = False
    write_compliance(server(made, 4), found)


def forget_attempt(made: Submission, scenario: str, number: int) -> None:
    shutil.rmtree(made.run(scenario).attempt(number))
    made.change(scenario, number, kind="explore")


def forget_runs(made: Submission, *scenarios: str) -> None:
    for scenario in scenarios:
        shutil.rmtree(made.run(scenario).path)


def system(made: Submission, **changes: str) -> None:
    (made.root.parent / "system.toml").write_text(system_toml(**changes))


#: (what the official checker says of it, the change, what we say). "passes": it lets that through.
MUTATIONS: dict[str, tuple[Callable[[Submission], object], str]] = {
    "passes: LoadGen says INVALID, Server": (
        lambda made: edit_log(server(made) / DETAIL, {"result_validity": "INVALID"}),
        "LoadGen's result is INVALID",
    ),
    "passes: LoadGen says INVALID, Offline": (
        lambda made: edit_log(made.run("Offline").attempt(1) / DETAIL, {"result_validity": "INVALID"}),
        "LoadGen's result is INVALID",
    ),
    "passes: an error in the performance log": (
        lambda made: add_error(server(made) / DETAIL, "Attempted to complete a sample twice."),
        "LoadGen logged 1 error: Attempted to complete a sample twice.",
    ),
    "passes: Interactive by Server's limit of TTFT": (
        lambda made: set_times(made.run("Interactive"), ttft_ms=2900.0),
        "TTFT p99 2900 ms by the record's samples is not below the Interactive limit of 2000 ms",
    ),
    "passes: Interactive by Server's limit of TPOT": (
        lambda made: set_times(made.run("Interactive"), tpot_ms=15.5),
        "TPOT p99 15.5 ms by the record's samples is not below the Interactive limit of 15 ms",
    ),
    "passes: Interactive over its limit in LoadGen's log": (
        lambda made: edit_log(interactive(made) / DETAIL, {"result_first_token_99.00_percentile_latency_ns": 2_900_000_000}),
        "TTFT p99 2900 ms in LoadGen's log is not below the Interactive limit of 2000 ms",
    ),
    "passes: no log of a test": (lambda made: (server(made, 3) / DETAIL).unlink(), "TEST07): mlperf_log_detail.txt is missing"),
    "passes: no summary of a test": (
        lambda made: (server(made, 3) / SUMMARY).unlink(),
        "TEST07): mlperf_log_summary.txt is missing",
    ),
    "passes: an operator's eviction": (
        lambda made: made.change("Server", 1, verdict="INVALID", reasons=["an operator's evict touched the attempt"]),
        "its verdict is INVALID; an operator's evict touched the attempt",
    ),
    "passes: a synthetic engine": (lambda made: made.change("Server", 0, synthetic=True), "its engine is synthetic"),
    "passes: an imported record": (
        lambda made: made.change("Server", 0, imported=Imported("loadgen", "logs", 1.0, [], [])),
        "its record was imported",
    ),
    "passes: lost samples": (
        lambda made: made.change("Server", 1, totals={"issued": 600, "completed": 598}),
        "600 samples were issued, 598 completed",
    ),
    "passes: another file than was scored": (
        lambda made: (server(made, 2) / ANSWERS).write_text("[\n]\n"),
        "mlperf_log_accuracy.json is not the file that was scored",
    ),
    "passes: prefix caching": (
        lambda made: made.change("Server", 0, spec=_with_argument(made, "enable_prefix_caching")),
        "enable_prefix_caching is on",
    ),
    "passes: fewer tokens to draw from": (
        lambda made: made.change("Server", 0, spec=_with_sampling(made, top_p=0.5)),
        "sampling.top_p is 0.5, gpt-oss-120b wants 1.0",
    ),
    "passes: the likeliest tokens alone": (
        lambda made: made.change("Server", 0, spec=_with_sampling(made, top_k=5)),
        "sampling.top_k is 5, gpt-oss-120b wants 0",
    ),
    "passes: speculative decoding in Server": (
        lambda made: made.change("Server", 0, spec=_with_argument(made, "speculative_config")),
        "speculative decoding is for Interactive only",
    ),
    "passes: a system of other size": (lambda made: system(made, number_of_nodes="64"), "number_of_nodes is 64"),
    "fails: an error in the accuracy log": (
        lambda made: add_error(server(made, 2) / DETAIL, "n_tokens argument missing or attempted to record 0"),
        "Server accuracy): LoadGen logged 1 error",
    ),
    "fails: Server over its limit of TTFT in LoadGen's log": (
        lambda made: edit_log(server(made) / DETAIL, {"result_first_token_99.00_percentile_latency_ns": 3_000_000_000}),
        "TTFT p99 3000 ms in LoadGen's log is not below the Server limit of 3000 ms",
    ),
    "passes: Server over its limit of TTFT by the samples": (
        lambda made: set_times(made.run("Server"), ttft_ms=3000.0),
        "TTFT p99 3000 ms by the record's samples is not below the Server limit of 3000 ms",
    ),
    "fails: low accuracy": (lambda made: score(made, score=82.29), "exact_match 82.29 is below the gate of 82.2987"),
    "passes: too few samples scored": (lambda made: score(made, n=4000), "4000 samples were scored, gpt-oss-120b has 4395"),
    "fails: not scored": (lambda made: (server(made, 2) / "accuracy.json").unlink(), "it is not scored (`paceline score"),
    "fails: another seed": (
        lambda made: edit_log(server(made) / DETAIL, {"effective_schedule_rng_seed": 1}),
        "schedule_rng_seed: MLPerf Inference v6.1 wants 16159082839903944936",
    ),
    "fails: 60 s": (
        lambda made: edit_log(server(made) / DETAIL, {"effective_min_duration_ms": 60_000}),
        "min_duration_ms in effect is 60000",
    ),
    "fails: early stopping not met": (
        lambda made: edit_log(server(made) / DETAIL, {"early_stopping_met": False}),
        "early stopping was not met",
    ),
    "fails: a small Offline query": (
        lambda made: edit_log(made.run("Offline").attempt(1) / DETAIL, {"effective_samples_per_query": 4388}),
        "samples_per_query in effect is 4388, at least 6396 is wanted",
    ),
    "fails: fewer samples": (
        lambda made: edit_log(server(made) / DETAIL, {"effective_performance_sample_count": 64}),
        "performance_sample_count: MLPerf Inference v6.1 wants 6396",
    ),
    "fails: no TEST07": (lambda made: forget_attempt(made, "Server", 3), "gpt-oss-120b Server: TEST07 is missing"),
    "fails: TEST09 not passed": (fail_test09, "TEST09 was not passed; mean output tokens"),
    "fails: TEST09 not verified": (
        lambda made: (server(made, 4) / "compliance.json").unlink(),
        "it is not verified (`paceline verify",
    ),
    "fails: no user.conf": (lambda made: (server(made) / "user.conf").unlink(), "user.conf is missing"),
    "fails: no Offline": (lambda made: shutil.rmtree(made.run("Offline").path), "gpt-oss-120b: Offline is missing"),
    "fails: neither Server nor Interactive": (
        lambda made: forget_runs(made, "Server", "Interactive"),
        "Server or Interactive is missing",
    ),
    "fails: bad status": (lambda made: system(made, status="soon"), "status is 'soon'; it must be one of available"),
    "crashes: no number of accelerators": (
        lambda made: system(made, accelerators_per_node="N/A"),
        "accelerators_per_node is 'N/A'; a whole number is wanted",
    ),
    "fails: no cooling": (lambda made: system(made, cooling=""), "cooling is empty"),
    "fails: no weights named": (lambda made: system(made, retraining=""), "measurements.retraining of gpt-oss-120b is empty"),
    "fails: of another submitter": (lambda made: system(made, submitter="Else"), "submitter is 'Else'"),
    "a spec of another shape": (
        lambda made: made.change("Server", 0, spec={"model": {"mlperf_name": "gpt-oss-120b"}, "fleet": [1], "sampling": "hot"}),
        "sampling.temperature is 0.0",
    ),
    "a damaged score": (lambda made: (server(made, 2) / "accuracy.json").write_text("{"), "is not what scoring writes"),
    "a log that was cut short": (
        lambda made: (server(made) / DETAIL).write_text("\n".join((server(made) / DETAIL).read_text().splitlines()[:40])),
        "mlperf_log_detail.txt was not written to its end",
    ),
    "passes: an attempt that goes on": (
        lambda made: made.change("Server", 2, state="draining"),
        "it has not ended (draining)",
    ),
}


def _with_argument(made: Submission, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((made.run("Server").path / "run.json").read_text())["spec"]
    spec["fleet"]["engine_args"][name] = {"method": "mtp"} if name == "speculative_config" else True
    return spec


def _with_sampling(made: Submission, **said: float) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((made.run("Server").path / "run.json").read_text())["spec"]
    spec["sampling"].update(said)
    return spec


@pytest.fixture(scope="module")
def conforming(tmp_path_factory: pytest.TempPathFactory, logs: Mapping[str, Path]) -> Path:
    return make_runs(tmp_path_factory.mktemp("set") / "runs", logs, "gpt-oss-120b", "Offline", "Server", "Interactive").root


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_set_that_does_not_conform_is_refused_with_its_reason(root: Path, conforming: Path, export: Export, what: str) -> None:
    shutil.copytree(conforming, root)
    made = Submission(root, "gpt-oss-120b")
    change, expected = MUTATIONS[what]
    change(made)
    said = export(*made.names)
    assert said["rc"] == 1
    assert [reason for reason in said["reasons"] if expected in reason], said["reasons"]
    assert not said["submittable"]
    assert not (root.parent / "out").exists()


def test_all_reasons_are_told_at_once(root: Path, conforming: Path, export: Export) -> None:
    shutil.copytree(conforming, root)
    made = Submission(root, "gpt-oss-120b")
    changed = [MUTATIONS[name] for name in ("fails: low accuracy", "fails: 60 s", "fails: no Offline", "fails: no cooling")]
    for change, _ in changed:
        change(made)
    reasons = " ".join(export(*made.names)["reasons"])
    assert all(expected in reasons for _, expected in changed)


def test_forced_the_tree_is_marked_at_its_top_and_in_every_readme(root: Path, conforming: Path, export: Export) -> None:
    shutil.copytree(conforming, root)
    made = Submission(root, "gpt-oss-120b")
    made.change("Server", 0, synthetic=True)
    said = export(*made.names, force=True)
    assert (said["rc"], said["submittable"]) == (0, False)
    out = root.parent / "out"
    assert "its engine is synthetic" in (out / tree.NOT_SUBMITTABLE).read_text()
    readmes = list((out / "closed/Example/results").rglob("README.md"))
    assert len(readmes) == 3
    assert all("NOT SUBMITTABLE" in readme.read_text() for readme in readmes)


def test_the_open_division_does_without_gate_tests_and_a_full_set_but_not_without_valid_results(
    root: Path, conforming: Path, export: Export
) -> None:
    shutil.copytree(conforming, root)
    made = Submission(root, "gpt-oss-120b")
    score(made, score=70.0)
    made.change("Server", 2, verdict="INVALID", reasons=["accuracy: exact_match 70.0000, the gate is 82.2987"])
    for number in (3, 4):
        forget_attempt(made, "Server", number)
    run = made.run("Server").name
    assert (said := export(run, division="open"))["reasons"] == []
    assert said["rc"] == 0
    assert (scenario_folder(root, "gpt-oss-120b", "Server", "open") / "accuracy/accuracy.txt").exists()
    made.change("Server", 2, reasons=["accuracy: exact_match 70.0000", "an operator's evict touched the attempt"])
    edit_log(server(made) / DETAIL, {"result_validity": "INVALID"})
    reasons = " ".join(export(run, division="open")["reasons"])
    assert "an operator's evict touched" in reasons
    assert "LoadGen's result is INVALID" in reasons


def test_one_attempt_of_a_run_can_be_named_and_of_two_valid_ones_one_must_be(
    root: Path, conforming: Path, export: Export
) -> None:
    shutil.copytree(conforming, root)
    made = Submission(root, "gpt-oss-120b")
    shutil.copytree(made.run("Server").path, root / "again")
    reasons = export(*made.names, "again:1")["reasons"]
    assert [reason for reason in reasons if "2 attempts are VALID (gpt-oss-120b-server:1, again:1)" in reason]
    run = json.loads((root / "again/run.json").read_text())
    run["attempts"][0]["verdict"] = "INVALID"
    (root / "again/run.json").write_text(json.dumps(run))
    said = export(*made.names, "again:1")
    assert said["reasons"] == []
    assert said["left_out"] == ["again:1: gpt-oss-120b-server:1 takes its place (gpt-oss-120b Server performance)"]


# --- bad input and bad disks ---------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_empty_is_left_alone(root: Path, conforming: Path, export: Export) -> None:
    shutil.copytree(conforming, root)
    (out := root.parent / "out").mkdir()
    assert export(*Submission(root, "gpt-oss-120b").names)["rc"] == 0, "an empty folder is as good as none"
    before = sorted(out.rglob("*"))
    assert export(*Submission(root, "gpt-oss-120b").names)["rc"] == 2
    assert sorted(out.rglob("*")) == before


def test_too_little_room_on_the_disk_is_told_before_anything_is_written(
    root: Path, conforming: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(conforming, root)
    used = shutil.disk_usage(root)
    monkeypatch.setattr("harness.mlperf.submission.tree.shutil.disk_usage", lambda _: used._replace(free=1000))
    assert export(*Submission(root, "gpt-oss-120b").names)["rc"] == 2
    assert sorted(path.name for path in root.parent.iterdir()) == ["runs", "system.toml"]


def test_a_disk_that_fails_half_way_leaves_nothing_behind(
    root: Path, conforming: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(conforming, root)
    copied: list[Path] = []

    def failing(source: Path, target: Path) -> None:
        copied.append(target)
        if len(copied) == 9:
            raise OSError(28, "No space left on device", str(target))
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr("harness.mlperf.submission.tree.shutil.copyfile", failing)
    assert export(*Submission(root, "gpt-oss-120b").names)["rc"] == 2
    assert sorted(path.name for path in root.parent.iterdir()) == ["runs", "system.toml"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing-1"], "no run"),
        (["gpt-oss-120b-server:9"], "has no attempt 9; it has 1, 2, 3, 4"),
        (["gpt-oss-120b-server", "--submitter", "../up"], "--submitter '../up'"),
        (["gpt-oss-120b-server", "--system", "absent.toml"], "absent.toml: No such file or directory; `paceline system describe"),
        (["gpt-oss-120b-server", "--division", "network"], "network"),
        ([], "at least one run"),
    ],
)
def test_bad_input_is_told_with_what_would_be_right(
    root: Path, conforming: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    shutil.copytree(conforming, root)
    command = ["export", "mlperf", *arguments]
    for name, value in (("--submitter", "Example"), ("--system", str(root.parent / "system.toml"))):
        command += [name, value] if name not in command else []
    assert main(command) == 2
    assert says in capsys.readouterr().err


def test_a_synthetic_run_without_rules_is_refused_for_both_reasons_and_force_is_said_not_to_help(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(root, Made("plain", seconds=2))
    command = ["export", "mlperf", made.name, "--submitter", "Example", "--system", str(root.parent / "system.toml")]
    for more in ([], ["--force"]):
        assert main([*command, *more]) == 1
        out = capsys.readouterr().out
        assert "it ran without model.mlperf_name (as in -s model.mlperf_name=gpt-oss-120b)" in out
        assert "plain:1: its engine is synthetic: no hardware was measured" in out
        assert "nothing was written: no attempt has a place in the tree, which --force does not change" in out


def test_what_a_scorers_command_says_stays_on_its_machine() -> None:
    score = AccuracyScore(
        metric="exact_match", score=83.13, gate=None, passed=None, n=2, expected_n=None, log_sha256="", tokens_per_sample=9.5,
        subsets=[SubsetScore("livecodebench_v6", 2, 1, 50.0, "command: /home/kim/score.py --token s3cret")], scored_unix=0.0,
    )  # fmt: skip
    assert accuracy_txt(score, "ab").splitlines() == [
        "{'exact_match': 83.13, 'tokens_per_sample': 9.5, 'num_samples': 2}",
        "livecodebench_v6: 50.0000 % of 2 (command)",
        "hash=ab",
    ]


def test_an_imported_submission_waits_for_our_own_score_and_verification_alone(
    root: Path, logs: Mapping[str, Path], export: Export, tmp_path: Path
) -> None:
    made = make_runs(root, logs, "gpt-oss-120b")
    assert export(*made.names)["rc"] == 0
    got = import_run(tmp_path / "out" / "closed", tmp_path / "others")
    wait = {"performance": [], "accuracy": ["accuracy: not scored yet (paceline score)"]}
    for attempt in got.run.attempts:
        against = [reason for reason in attempt.reasons if not reason.startswith(NOT_JUDGED)]
        assert against == wait.get(attempt.kind, ["compliance: not verified yet (paceline verify)"])
        assert attempt.verdict == ("INVALID" if against else "VALID")
    assert sorted(attempt.test for attempt in got.run.attempts if attempt.test) == ["TEST07", "TEST07", "TEST09", "TEST09"]
    accuracy = next(attempt for attempt in got.run.attempts if attempt.kind == "accuracy")
    score = read_score(made.run("Server").attempt(2))
    assert score is not None
    write_score(got.folder.attempt(accuracy.number), score)
    assert judge_again(accuracy, "gpt-oss-120b", got.folder.attempt(accuracy.number))
    assert accuracy.verdict == "VALID"
    assert all(reason.startswith(NOT_JUDGED) for reason in accuracy.reasons)


# --- the official checker ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.environ.get("PACELINE_CHECKER"), reason="PACELINE_CHECKER names no folder with submission_checker")
@pytest.mark.parametrize("benchmark", ["gpt-oss-120b", "deepseek-r1"])
@pytest.mark.parametrize("more", [[], ["--submission-exceptions"]])
def test_the_official_checker_passes_the_tree(
    root: Path, logs: Mapping[str, Path], export: Export, benchmark: str, more: list[str]
) -> None:
    made = make_runs(root, logs, benchmark, "Offline", "Server", "Interactive")
    assert export(*made.names)["rc"] == 0
    command = [sys.executable, "-m", "submission_checker.main", "--input", str(root.parent / "out"), "--version", "v6.1"]
    done = subprocess.run(
        [*command, "--csv", str(root.parent / "out.csv"), *more],
        cwd=os.environ["PACELINE_CHECKER"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
