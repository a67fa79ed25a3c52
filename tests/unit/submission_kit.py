"""Records of runs that would make a submission, for tests: LoadGen's own logs of attempts of a second, with the counts, durations
and seeds written into them that only hours on real accelerators would give. Nothing here was measured."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.mlperf.compliance.audits import AUDITS
from harness.mlperf.rules import MODELS
from harness.mlperf.scores import AccuracyScore, Check, Compliance, write_compliance, write_score
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run, write_run
from harness.records.writer import RecordWriter
from harness.spec import RunSpec
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.control import JournalEntry

DETAIL, SUMMARY, ANSWERS = "mlperf_log_detail.txt", "mlperf_log_summary.txt", "mlperf_log_accuracy.json"
MARKER = ":::MLLOG "
SCORES = {"gpt-oss-120b": (83.13, 1300.5), "deepseek-r1": (81.5, 3886.2)}
T0 = 1_795_000_000.0

# Answers in the callback: 40 tokens a sample, so that the answers' log is longer than a submission may hold. argv: spec, folder.
CHILD = """
import array, sys
import mlperf_loadgen as lg
from pathlib import Path
from harness.mlperf.settings import build
from harness.spec import RunSpec

settings = build(RunSpec.model_validate_json(sys.argv[1]), 64, Path(sys.argv[2]))
tokens = array.array("i", range(40))
address = tokens.buffer_info()[0]

def issue(samples):
    lg.FirstTokenComplete([lg.QuerySampleResponse(sample.id, address, 4) for sample in samples])
    lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, address, 160, 40) for sample in samples])

sut = lg.ConstructSUT(issue, lambda: None)
qsl = lg.ConstructQSL(64, settings.performance_count, lambda some: None, lambda some: None)
lg.StartTestWithLogSettings(sut, qsl, settings.test_settings, settings.log_settings, settings.audit_path)
lg.DestroyQSL(qsl)
lg.DestroySUT(sut)
"""


def real_logs(root: Path) -> dict[str, Path]:
    """Folders of LoadGen's files by scenario, and "accuracy"; three short attempts at once."""
    loads: dict[str, dict[str, Any]] = {
        "Server": {"scenario": "Server", "target_qps": 900.0, "duration_s": 0.6, "min_queries": 1},
        "Offline": {"scenario": "Offline", "target_qps": 400.0, "duration_s": 0.2, "min_queries": 1},
        "accuracy": {"scenario": "Server", "kind": "accuracy", "target_qps": 900.0, "duration_s": 0.1},
    }
    children = []
    for name, load in loads.items():
        spec = RunSpec.model_validate(
            {
                "load": load,
                "model": {"name": "m", "mlperf_name": "gpt-oss-120b"},
                "limits": {"ttft_p99_ms": 3000, "tpot_p99_ms": 80},
            }
        )
        command = [sys.executable, "-c", CHILD, spec.model_dump_json(), str(root / name)]
        children.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    for child in children:
        _, said = child.communicate(timeout=60)
        assert child.returncode == 0, said
    return {name: root / name for name in loads}


def edit_log(path: Path, changes: Mapping[str, Any]) -> None:
    """Give keys of a detail log other values; a key that it lacks is added at its end."""
    lines, missing = [], dict(changes)
    for line in path.read_text().splitlines():
        entry = json.loads(line.removeprefix(MARKER))
        if entry["key"] in changes:
            entry["value"] = changes[entry["key"]]
            missing.pop(entry["key"], None)
        lines.append(MARKER + json.dumps(entry))
    about = {"is_error": False, "is_warning": False, "file": "kit.cc", "line_no": 1, "pid": 1, "tid": 1}
    lines += [MARKER + json.dumps({"key": key, "value": value, "metadata": about}) for key, value in missing.items()]
    path.write_text("\n".join(lines) + "\n")


def add_error(path: Path, text: str) -> None:
    """As LoadGen logs one: it then counts it, and says VALID all the same."""
    entry = {"key": "error_runtime", "value": text, "metadata": {"is_error": True, "is_warning": False}}
    path.write_text(path.read_text() + MARKER + json.dumps(entry) + "\n")
    edit_log(path, {"num_errors": 1})


@dataclass(frozen=True)
class Submission:
    """What `make_runs` made: a run for each scenario, whose attempts are performance, accuracy, and the tests in order."""

    root: Path
    benchmark: str

    def run(self, scenario: str) -> RunFolder:
        return RunFolder(self.root / f"{self.benchmark}-{scenario.lower()}")

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if path.name.startswith(self.benchmark))

    def change(self, scenario: str, number: int, **fields: Any) -> None:
        """Fields of an attempt in run.json, or (with number 0) of the run."""
        run = read_run(self.run(scenario).path)
        target: Any = run.attempts[number - 1] if number else run
        for name, value in fields.items():
            setattr(target, name, value)
        write_run(self.run(scenario).path, run)


def make_runs(root: Path, logs: Mapping[str, Path], benchmark: str = "gpt-oss-120b", *scenarios: str) -> Submission:
    """A complete, conforming set of Offline and Server, or of the scenarios given."""
    made = Submission(root, benchmark)
    for scenario in scenarios or ("Offline", "Server"):
        _make_run(made, scenario, logs)
    return made


def _make_run(made: Submission, scenario: str, logs: Mapping[str, Path]) -> None:
    name = made.benchmark + "-interactive" * (scenario == "Interactive")
    loadgens = "Offline" if scenario == "Offline" else "Server"
    folder = made.run(scenario)
    folder.path.mkdir(parents=True)
    spec = _spec(name, loadgens)
    run = RunFile(
        run=folder.name, spec=spec, phase="DONE", synthetic=False, versions={"paceline": "0.1.0", "mlcommons-loadgen": "6.0.17"},
        host="head-1", started_unix=T0, ended_unix=T0 + 5000, verdict="VALID",
    )  # fmt: skip
    tests = [test for test, audit in AUDITS.items() if audit.model == made.benchmark]
    for number, part in enumerate(["performance", "accuracy", *tests], 1):
        kind = part if number < 3 else "compliance"
        attempt = AttemptRecord(number, kind, loadgens, 40.0, number, T0 + number, T0 + number + 600, "ENDED", "VALID")
        attempt.totals = {"issued": 600, "completed": 600, "failed": 0, "lost": 0, "redispatched": 3 * (number == 1)}
        run.attempts.append(attempt)
        _loadgen_files(folder.attempt(number), part, name, loadgens, logs)
        attempt.test = part if kind == "compliance" else ""
    write_run(folder.path, run)
    rows = np.zeros(600, SAMPLE_DTYPE)
    rows["seq"], rows["tries"], rows["n_tokens"], rows["slot"] = np.arange(600), 1, 101, 0
    rows["scheduled_ns"] = np.arange(600) * 1_000_000
    set_times(folder, rows)
    journal = JournalWriter(folder.journal)
    journal.append(JournalEntry(0, T0 + 61, "operator:kim@desk", "act.drain", "node000/gpu3", why="fan noise", attempt=1))
    journal.close()


def set_times(
    folder: RunFolder, rows: np.ndarray[Any, Any] | None = None, *, ttft_ms: float = 900.0, tpot_ms: float = 9.0
) -> None:
    """Samples of attempt 1, all with these times."""
    if rows is None:
        rows = np.zeros(600, SAMPLE_DTYPE)
        rows["seq"], rows["tries"], rows["n_tokens"] = np.arange(600), 1, 101
    for path in folder.samples.glob("*.parquet"):
        path.unlink()
    rows["first_ns"] = rows["scheduled_ns"] + int(ttft_ms * 1e6)
    rows["done_ns"] = rows["first_ns"] + int(tpot_ms * 1e6) * 100
    writer = RecordWriter(folder)
    writer.samples(1, 1, rows, ["node000/gpu0"])
    writer.flush(final=True)


def _spec(name: str, scenario: str) -> dict[str, Any]:
    rules = MODELS[name]
    spec = RunSpec.model_validate(
        {
            "name": "made",
            "model": {"name": name, "mlperf_name": name},
            "load": {"scenario": scenario, "target_qps": 40.0},
            "limits": {"ttft_p99_ms": rules.ttft_p99_ms, "tpot_p99_ms": rules.tpot_p99_ms},
            "sampling": {"temperature": 1.0 if name.startswith("gpt-oss") else 0.0},
            "fleet": {"nodes": 2, "replicas_per_node": 8, "engine": "vllm", "engine_args": {"max_num_seqs": 256}},
            "cluster": {"kind": "kubernetes"},
        }
    )
    return spec.model_dump(mode="json")


def _loadgen_files(folder: Path, part: str, name: str, scenario: str, logs: Mapping[str, Path]) -> None:
    folder.mkdir(parents=True)
    source = logs["accuracy" if part == "accuracy" else scenario]
    for file in (DETAIL, SUMMARY, "user.conf"):
        (folder / file).write_bytes((source / file).read_bytes())
    (folder / ANSWERS).write_bytes((logs["accuracy"] / ANSWERS).read_bytes() if part != "performance" else b"[\n]\n")
    benchmark, rules = name.removesuffix("-interactive"), MODELS[name]
    changes: dict[str, Any] = {
        "requested_scenario": scenario,
        "effective_scenario": scenario,
        "effective_min_duration_ms": 600_000,
        "effective_performance_sample_count": rules.performance_samples,
        "effective_accuracy_sample_count": rules.accuracy_samples,
        "generated_samples_per_query": rules.performance_samples if scenario == "Offline" else 1,
        "result_validity": "VALID",
        "result_min_duration_met": True,
        "result_min_queries_met": True,
    }
    if scenario == "Server":
        changes["requested_server_ttft_latency"] = int(rules.ttft_p99_ms * 1e6)
        changes["requested_server_tpot_latency"] = int(rules.tpot_p99_ms * 1e6)
        changes["result_completed_tokens_per_second"] = 51234.5
    else:
        changes["effective_samples_per_query"] = rules.performance_samples
        changes["result_tokens_per_second"] = 61234.5
    if part == "accuracy":
        changes = {key: value for key, value in changes.items() if not key.startswith("result_")}
        changes["generated_samples_per_query"] = rules.accuracy_samples
        score, tokens = SCORES[benchmark]
        sha256 = hashlib.sha256((folder / ANSWERS).read_bytes()).hexdigest()
        write_score(
            folder,
            AccuracyScore(
                metric="exact_match", score=score, gate=rules.accuracy_gate, passed=True, n=rules.accuracy_samples,
                expected_n=rules.accuracy_samples, subsets=[], tokens_per_sample=tokens, log_sha256=sha256, scored_unix=T0,
            ),
        )  # fmt: skip
    elif part in AUDITS:
        audit = AUDITS[part]
        changes |= {
            "effective_performance_sample_count": audit.performance_samples,
            "effective_sample_concatenate_permutation": False,
            "effective_accuracy_log_rng_seed": audit.settings["accuracy_log_rng_seed"],
            "effective_accuracy_log_sampling_target": audit.log_target,
            "effective_performance_issue_unique": audit.unique,
        }
        write_compliance(folder, Compliance(test=part, passed=True, checks=_checks(part), verified_unix=T0))
    edit_log(folder / DETAIL, changes)


def _checks(test: str) -> list[Check]:
    """By the names that harness/mlperf/compliance/verify.py gives them."""
    names = {"TEST06": ["first token", "end of text", "token counts"], "TEST07": ["accuracy"], "TEST09": ["mean output tokens"]}
    return [Check(name, True, "made up") for name in names[test]]


def system_toml(**changes: str) -> str:
    """A complete description of the made-up system that `make_runs` ran on."""
    said = {
        "status": "available", "system_type": "datacenter", "system_name": "2x Example Box (8x Accelerator X)",
        "number_of_nodes": "2",
        "host_processor_model_name": "Example CPU", "host_processors_per_node": "2", "host_processor_core_count": "64",
        "host_memory_capacity": "3 TB", "host_memory_configuration": "24x 128 GB", "host_storage_capacity": "8 TB",
        "host_storage_type": "NVMe SSD", "host_networking": "400 Gb/s Ethernet", "host_network_card_count": "8",
        "host_networking_topology": "rail-optimized", "accelerators_per_node": "8", "accelerator_model_name": "Accelerator X",
        "accelerator_memory_capacity": "288 GB", "accelerator_host_interconnect": "PCIe Gen5 x16",
        "accelerator_memory_configuration": "HBM3E", "accelerator_interconnect": "N/A", "cooling": "air",
        "framework": "vLLM 0.30", "operating_system": "Example Linux 1", "other_software_stack": "Python 3.12",
    }  # fmt: skip
    measured = dict.fromkeys(
        ("input_data_types", "retraining", "starting_weights_filename", "weight_data_types", "weight_transformations"), "as made"
    )
    lines = [f'{key} = "{value}"' for key, value in (said | changes).items() if key not in measured]
    return (
        "\n".join([*lines, "[measurements]", *(f'{key} = "{changes.get(key, value)}"' for key, value in measured.items())]) + "\n"
    )
