"""Settings, schedule and detail log against the real LoadGen, each attempt in a child process as in a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.mlperf import detail_log
from harness.mlperf.rules import SEEDS_V61, rules_diff
from harness.mlperf.schedule import ServerSchedule
from harness.mlperf.settings import NO_LIMIT_NS, SettingsError, build, settings_diff
from harness.spec import RunSpec

N_SAMPLES = 64

# The smallest SUT: answers in the callback, four tokens a sample. argv: spec JSON, workdir, fault.
CHILD = """
import array, json, sys, time
import mlperf_loadgen as lg
from pathlib import Path
from harness.mlperf.settings import build
from harness.spec import RunSpec

spec, workdir, fault = RunSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
settings = build(spec, 64, workdir)
tokens = array.array("i", [1, 2, 3, 4])
address = tokens.buffer_info()[0]
issued_ns, indices = [], []

def issue(samples):
    issued_ns.append(time.monotonic_ns())
    indices.extend(sample.index for sample in samples)
    lg.FirstTokenComplete([lg.QuerySampleResponse(sample.id, address, 4) for sample in samples])
    time.sleep(0.0002)
    done = [lg.QuerySampleResponse(sample.id, address, 16, 4) for sample in samples]
    lg.QuerySamplesComplete(done)
    if fault == "twice" and len(issued_ns) == 5:
        lg.QuerySamplesComplete(done)

sut = lg.ConstructSUT(issue, lambda: None)
qsl = lg.ConstructQSL(64, settings.performance_count, lambda some: None, lambda some: None)
lg.StartTestWithLogSettings(sut, qsl, settings.test_settings, settings.log_settings, settings.audit_path)
lg.DestroyQSL(qsl)
lg.DestroySUT(sut)
print(json.dumps({"asked": settings.asked, "issued_ns": issued_ns, "samples": len(indices), "count": settings.performance_count}))
"""


class Attempt:
    def __init__(self, spec: RunSpec, workdir: Path, fault: str = "") -> None:
        self.spec = spec
        self.workdir = workdir
        child = subprocess.run(
            [sys.executable, "-c", CHILD, spec.model_dump_json(), str(workdir), fault],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        self.child: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
        self.log = detail_log.read(workdir)

    @property
    def diff(self) -> list[str]:
        return settings_diff(self.child["asked"], self.log.keys)


def spec_of(load: dict[str, Any], **tables: dict[str, Any]) -> RunSpec:
    limits = tables.pop("limits", {"ttft_p99_ms": 60_000.0, "tpot_p99_ms": 60_000.0})
    return RunSpec.model_validate({"load": load, "limits": limits, **tables})


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Attempt]:
    """Runs an attempt once for all tests that ask for the same one."""
    made: dict[str, Attempt] = {}

    def run(spec: RunSpec, fault: str = "") -> Attempt:
        key = spec.model_dump_json() + fault
        if key not in made:
            made[key] = Attempt(spec, tmp_path_factory.mktemp("attempt") / "attempts" / "1", fault)
        return made[key]

    return run


SERVER = spec_of({"scenario": "Server", "target_qps": 500.0, "duration_s": 1.5})
OFFLINE = spec_of({"scenario": "Offline", "target_qps": 300.0, "duration_s": 0.5})
ACCURACY = spec_of({"scenario": "Server", "kind": "accuracy", "target_qps": 400.0, "duration_s": 1.0})
RULES_MODEL = spec_of(
    {"scenario": "Server", "target_qps": 400.0, "duration_s": 0.5, "min_queries": 1},
    model={"name": "gpt-oss-120b", "mlperf_name": "gpt-oss-120b"},
    limits={"ttft_p99_ms": 3000.0, "tpot_p99_ms": 80.0},
)


def test_a_short_server_attempt_is_valid_with_settings_as_asked(attempt: Callable[..., Attempt]) -> None:
    run = attempt(SERVER)
    result = run.log.result()
    assert run.log.complete
    assert run.diff == []
    assert result.validity == "VALID"
    assert (result.num_errors, result.invalid_reasons, run.log.explanations()) == (0, [], [])
    assert result.queries == run.child["samples"]
    assert result.early_stopping_met
    assert "Run successful" in result.early_stopping_ttft
    assert 0 < result.ttft_ms["min"] <= result.ttft_ms["99.00"] <= result.ttft_ms["max"]
    assert set(result.tpot_ms) == set(result.ttft_ms) == set(result.latency_ms)
    assert result.tokens_per_s == pytest.approx(4 * (result.samples_per_s or 0), rel=0.01)


def test_the_reproduced_schedule_matches_loadgen_to_the_nanosecond(attempt: Callable[..., Attempt]) -> None:
    run = attempt(SERVER)
    count = run.log.keys["generated_query_count"]
    schedule = ServerSchedule(SEEDS_V61.schedule, 500.0)
    assert schedule.generated(min_duration_ms=1500) == count
    # LoadGen logs the due time of the query after the last.
    assert int(schedule.due_ns(count, count + 1)[0]) == run.log.keys["generated_query_duration"]


def test_issues_follow_the_reproduced_schedule(attempt: Callable[..., Attempt]) -> None:
    issued_ns = np.array(attempt(SERVER).child["issued_ns"])
    due_ns = ServerSchedule(SEEDS_V61.schedule, 500.0).due_ns(0, len(issued_ns) + 1)

    def scatter_ns(shift: int) -> float:
        """Of the tenth whose lags are most alike: a machine that stalls for a second issues all others late."""
        lag_ns = np.sort(issued_ns - due_ns[shift : shift + len(issued_ns)])
        tenth = len(lag_ns) // 10
        return float(np.min(lag_ns[tenth:] - lag_ns[:-tenth]))

    # Were query n taken for query n + 1, lags would scatter by a gap (2 ms) instead of gathering.
    assert scatter_ns(0) < 0.7 * scatter_ns(1)


def test_equal_issue_pads_the_schedule_to_whole_passes_over_the_qsl(attempt: Callable[..., Attempt]) -> None:
    run = attempt(RULES_MODEL)
    count = run.log.keys["generated_query_count"]
    assert count % N_SAMPLES == 0
    schedule = ServerSchedule(SEEDS_V61.schedule, 400.0)
    assert schedule.generated(min_duration_ms=500, multiple_of=run.child["count"]) == count
    assert int(schedule.due_ns(count, count + 1)[0]) == run.log.keys["generated_query_duration"]


def test_a_rules_model_takes_the_embedded_configuration(attempt: Callable[..., Attempt]) -> None:
    run = attempt(RULES_MODEL)
    assert run.diff == []
    assert run.log.keys["effective_schedule_rng_seed"] == SEEDS_V61.schedule
    assert run.log.keys["effective_sample_concatenate_permutation"] is True
    assert run.log.keys["requested_server_ttft_latency"] == 3_000_000_000
    conf = (run.workdir / "user.conf").read_text()
    assert "gpt-oss-120b.Server.target_qps = 400.0" in conf


def test_a_small_dataset_is_named_as_a_difference_from_the_rules(attempt: Callable[..., Attempt]) -> None:
    run = attempt(RULES_MODEL)
    assert "4395" in str(run.child["asked"]["note.accuracy_samples"])
    differences = rules_diff("gpt-oss-120b", "Server", "performance", run.log.keys)
    assert differences == ["performance_sample_count: MLPerf Inference v6.1 wants 6396 for gpt-oss-120b, in effect 64"]
    assert rules_diff("synthetic", "Server", "performance", run.log.keys) == []


def test_an_offline_attempt_that_is_too_short_is_explained(attempt: Callable[..., Attempt]) -> None:
    run = attempt(OFFLINE)
    result = run.log.result()
    assert run.diff == []
    assert result.validity == "INVALID"
    assert result.min_duration_met is False
    assert run.child["samples"] == run.log.keys["generated_samples_per_query"]
    assert "raise load.target_qps" in run.log.explanations()[0]


def test_an_accuracy_attempt_sends_each_sample_once_and_is_complete_without_results(attempt: Callable[..., Attempt]) -> None:
    run = attempt(ACCURACY)
    assert run.log.complete
    assert run.diff == []
    assert run.log.result().validity is None
    assert run.child["samples"] == N_SAMPLES
    logged = json.loads((run.workdir / "mlperf_log_accuracy.json").read_text())
    assert sorted(entry["qsl_idx"] for entry in logged) == list(range(N_SAMPLES))
    assert int(ServerSchedule(SEEDS_V61.schedule, 400.0).due_ns(64, 65)[0]) == run.log.keys["generated_query_duration"]


def test_a_double_completion_is_an_error_in_spite_of_loadgens_valid(attempt: Callable[..., Attempt]) -> None:
    run = attempt(SERVER, "twice")
    result = run.log.result()
    assert result.validity == "VALID"
    assert result.num_errors == 1
    assert "exactly-once gate has failed" in run.log.explanations()[0]


def test_own_seeds_and_no_limits_are_in_effect_as_asked(attempt: Callable[..., Attempt]) -> None:
    seeds = {"qsl": 1, "sample_index": 2, "schedule": 3}
    spec = spec_of({"scenario": "Server", "target_qps": 400.0, "duration_s": 0.3, "seeds": seeds, "max_queries": 50}, limits={})
    run = attempt(spec)
    assert run.diff == []
    assert run.log.keys["effective_schedule_rng_seed"] == 3
    assert run.log.keys["requested_server_tpot_latency"] == NO_LIMIT_NS
    assert run.child["asked"]["note.tpot"] == "no TPOT limit: LoadGen is given 10 hours"
    assert run.child["samples"] == 50
    assert any("Max query count reached" in error for error in run.log.errors)
    count = run.log.keys["generated_query_count"]
    assert int(ServerSchedule(3, 400.0).due_ns(count, count + 1)[0]) == run.log.keys["generated_query_duration"]


def test_a_second_configuration_in_one_process_is_refused(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from harness.mlperf.settings import build, SettingsError;"
        "from harness.spec import RunSpec; spec = RunSpec.model_validate_json(sys.argv[1]);"
        "build(spec, 64, Path(sys.argv[2]))\n"
        "try: build(spec, 64, Path(sys.argv[2]))\n"
        "except SettingsError as error: print(error)"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, RULES_MODEL.model_dump_json(), str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "once per process" in child.stdout


@pytest.mark.parametrize("scenario", ["Server", "Offline"])
@pytest.mark.parametrize(("test", "model"), [("TEST06", "deepseek-r1"), ("TEST07", "gpt-oss-120b"), ("TEST09", "gpt-oss-120b")])
def test_an_audit_is_in_effect_and_logs_what_its_test_reads(
    attempt: Callable[..., Attempt], test: str, model: str, scenario: str
) -> None:
    """TEST07 in Offline would crash, were the model's own performance count (6396) left to a dataset of 64 samples."""
    load = {"scenario": scenario, "kind": "compliance", "test": test, "target_qps": 2000.0, "duration_s": 600.0}
    run = attempt(spec_of(load, model={"name": model, "mlperf_name": model}, limits={}))
    assert run.log.complete
    assert (run.diff, run.log.errors) == ([], [])
    assert any("Found Audit Config file" in warning for warning in run.log.warnings)
    logged = json.loads((run.workdir / "mlperf_log_accuracy.json").read_text())
    asked = [entry["qsl_idx"] for entry in logged]
    assert run.child["samples"] == len(asked)
    if test == "TEST06":
        assert len(asked) == 100
    else:
        assert sorted(asked) == list(range(N_SAMPLES))
        assert f"{model}.*.performance_sample_count_override = {N_SAMPLES}" in (run.workdir / "user.conf").read_text()
    assert all(entry["token_count"] == 4 for entry in logged)
    assert all(("token_data" in entry) == (scenario == "Server") for entry in logged)
    said = rules_diff(model, "Offline", "compliance", run.log.keys, test)
    wanted = {"TEST06": 4388, "TEST07": 990, "TEST09": 6396}[test]
    assert said == [f"performance_sample_count: MLPerf Inference v6.1 wants {wanted} for {model}, in effect 64"]


def test_settings_that_loadgen_could_not_survive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not run LoadGen"):
        build(spec_of({"kind": "explore"}), 10, tmp_path)
    with pytest.raises(SettingsError, match=r"performance_samples 20 .*10 samples"):
        build(spec_of({"performance_samples": 20}), 10, tmp_path)
    with pytest.raises(SettingsError, match="no samples"):
        build(spec_of({}), 0, tmp_path)


def test_trace_is_off_and_the_folder_exists(tmp_path: Path) -> None:
    settings = build(SERVER, 10, tmp_path / "attempts" / "3")
    assert settings.log_settings.enable_trace is False
    assert settings.log_settings.log_output.outdir == str(tmp_path / "attempts" / "3")
    assert settings.workdir.is_dir()
    assert not Path(settings.audit_path).exists()
    assert settings.test_settings.min_query_count == 1
