"""Runs of other people, made for tests: real LoadGen logs, and folders as the client of mlcommons/endpoints leaves them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A LoadGen test that answers at once, four tokens a sample. argv: folder, scenario, mode, trace (0 or 1), queries, limits in ns.
_LOADGEN = """
import array, sys, time
from pathlib import Path
import mlperf_loadgen as lg

out, scenario, mode, trace = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "1"
out.mkdir(parents=True)
test, log, output = lg.TestSettings(), lg.LogSettings(), lg.LogOutputSettings()
test.scenario, test.mode = getattr(lg.TestScenario, scenario), getattr(lg.TestMode, mode)
test.server_target_qps = test.offline_expected_qps = 2000
test.min_duration_ms, test.min_query_count = 300, int(sys.argv[5])
test.use_token_latencies, test.ttft_latency, test.tpot_latency = True, 10**9, 10**9
test.qsl_rng_seed, test.sample_index_rng_seed, test.schedule_rng_seed = 1, 2, 3
output.outdir, log.log_output, log.enable_trace = str(out), output, trace
tokens = array.array("i", [1, 2, 3, 4])
address = tokens.buffer_info()[0]

def issue(samples):
    if scenario == "Server":
        lg.FirstTokenComplete([lg.QuerySampleResponse(sample.id, address, 4) for sample in samples])
    lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, address, 16, 4) for sample in samples])

sut = lg.ConstructSUT(issue, lambda: None)
qsl = lg.ConstructQSL(32, 32, lambda some: None, lambda some: None)
lg.StartTestWithLogSettings(sut, qsl, test, log, str(out / "no-audit.config"))
lg.DestroyQSL(qsl)
lg.DestroySUT(sut)
"""


def run_loadgen(folder: Path, scenario: str = "Server", mode: str = "PerformanceOnly", *, trace: bool = False) -> Path:
    """In a child, as LoadGen needs it."""
    argv = [sys.executable, "-c", _LOADGEN, str(folder), scenario, mode, str(int(trace)), "500"]
    child = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    return folder


@dataclass(frozen=True)
class Client:
    """A run of mlcommons/endpoints: a request every 10 ms, first part after 30 ms, `parts` more of 5 ms each. Every
    `fails`-th fails; `warm_up` requests come before tracking begins, the last `open_ones` never complete."""

    requests: int = 200
    parts: int = 3
    fails: int = 50
    warm_up: int = 4
    open_ones: int = 0
    ended: bool = True
    token_ids: bool = False

    def lines(self) -> list[str]:
        happened = sorted(self._events(), key=lambda event: int(event["timestamp_ns"]))
        return [json.dumps(event, separators=(",", ":")) for event in happened]

    def _events(self) -> Iterator[dict[str, Any]]:
        zero = 5_000_000_000_000
        yield _event("session.started", zero)
        for n in range(self.warm_up):
            yield from self._request(f"warm-{n}", zero + n * 1000, number=1)
        tracked = zero + 1_000_000_000
        yield _event("session.start_performance_tracking", tracked)
        for n in range(self.requests):
            yield from self._request(f"{n:032x}", tracked + n * 10_000_000, number=n + 1)
        end = tracked + self.requests * 10_000_000
        yield _event("session.stop_performance_tracking", end)
        if self.ended:
            yield _event("session.ended", end + 10**9)

    def _request(self, uuid: str, at: int, number: int) -> Iterator[dict[str, Any]]:
        prompt: list[Any] = ["PromptData", None, [1, 2, 3, 4, 5]] if self.token_ids else ["PromptData", "a prompt"]
        yield _event("sample.issued", at, uuid, prompt)
        if number > self.requests - self.open_ones:
            return
        if self.fails and number % self.fails == 0:
            yield _event("error.client", at + 20_000_000, uuid, ["ErrorData", "TimeoutError", "no answer"])
            yield _event("sample.complete", at + 20_000_001, uuid)
            return
        yield _event("sample.recv_first", at + 30_000_000, uuid)
        for part in range(self.parts):
            yield _event("sample.recv_non_first", at + 30_000_000 + (part + 1) * 5_000_000, uuid)
        answer = ["TextModelOutput", ["some", " of", " the", " text"]]
        yield _event("sample.complete", at + 30_000_001 + self.parts * 5_000_000, uuid, answer)

    def summary(self) -> dict[str, Any]:
        done = self.requests - self.requests // self.fails if self.fails else self.requests

        def series(ns: float) -> dict[str, Any]:
            at = dict.fromkeys(("50.0", "75.0", "90.0", "95.0", "99.0", "99.9"), ns)
            return {"total": ns * done, "min": ns, "max": ns, "median": ns, "avg": ns, "std_dev": 0.0, "percentiles": at}

        return {
            "version": "0.1", "git_sha": None, "test_started_at": 0, "n_samples_issued": self.requests,
            "n_samples_completed": self.requests, "n_samples_failed": self.requests - done, "duration_ns": 2_000_000_000,
            "state": "complete", "complete": True, "ttft": series(30e6), "tpot": series(5e6), "latency": series(45e6),
            "output_sequence_lengths": {"total": done * 4, "avg": 4.0}, "qps": done / 2.0, "tps": done * 4 / 2.0,
        }  # fmt: skip


CONFIG = """\
name: some-point
type: online
model_params: {name: some-model, streaming: "on"}
settings:
  load_pattern: {type: concurrency, target_concurrency: 16}
  runtime: {n_samples_to_issue: 200}
"""


def _event(kind: str, at: int, uuid: str = "", data: Any = None) -> dict[str, Any]:
    return {"event_type": kind, "timestamp_ns": at, "sample_uuid": uuid, "conversation_id": "", "turn": None, "data": data}


def write_client(folder: Path, client: Client | None = None, *, events: bool = True, summary: bool = True) -> Path:
    client = client or Client()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG)
    if events:
        (folder / "events.jsonl").write_text("\n".join(client.lines()) + "\n")
        places = {f"{n:032x}": n % 50 for n in range(client.requests)}
        (folder / "sample_idx_map.json").write_text(json.dumps({"performance": places}))
    if summary:
        (folder / "performance").mkdir(exist_ok=True)
        (folder / "performance" / "result_summary.json").write_text(json.dumps(client.summary(), indent=2))
    return folder
