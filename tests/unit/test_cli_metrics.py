"""`paceline metrics`, `alerts` and what `show` and `doctor` say of GPUs: from records alone, in words, with exit codes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from console.cli import main
from console.cli.asked_for import moment
from harness.metrics.gpu.preflight import gpu_metrics, own_page, prometheus
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, write_run
from harness.records.writer import RecordWriter
from harness.specfile import load_spec
from harness.wire.control import JournalEntry

START, SLOTS = 1_790_000_000.0, ["node000/gpu0", "node000/gpu1", "node001/gpu0", "node001/gpu1"]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    monkeypatch.setenv("PACELINE_RUNS", str(root))
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    return root


def make_run(
    root: Path, *, gpus: bool = True, url: str | None = None, entries: Mapping[float, Mapping[str, Any]] | None = None
) -> RunFolder:
    """Two attempts of a minute; power 500 to 800 W, one replica hot and capped, two new correctable errors."""
    folder = RunFolder(root / "mine-1")
    folder.path.mkdir(parents=True)
    spec = load_spec(
        "demo",
        [
            "fleet.nodes=2",
            "fleet.replicas_per_node=2",
            "fleet.engine_args.faults=none",
            *([f"metrics.gpu.url={url}"] if url else []),
        ],
    )
    attempts = [
        AttemptRecord(
            number=n, kind="performance", scenario="Server", target_qps=10.0, epoch=n, state="ENDED", verdict="VALID",
            started_unix=START + 100 * (n - 1), ended_unix=START + 100 * (n - 1) + 60,
        )
        for n in (1, 2)
    ]  # fmt: skip
    run = RunFile(
        run="mine-1", spec=spec.model_dump(mode="json"), phase="DONE", synthetic=True, started_unix=START, ended_unix=START + 170,
        attempts=attempts, verdict="VALID",
    )  # fmt: skip
    write_run(folder.path, run)
    writer = RecordWriter(folder)
    for second in range(0, 160, 10) if gpus else ():
        attempt = 1 if second <= 60 else 2 if second >= 100 else 0
        unix = np.full(4, START + second)
        columns = {
            "power": np.array([500, 600, 700, 800], np.float32),
            "throttle_power": np.array([0, 0, 0, 0.9], np.float32),
            "ecc_correctable": np.array([7, 7, 7 + (second > 120), 7 + (second > 30)], np.float32),
        }
        writer.gpus(attempt, START + second, {role: (column, unix) for role, column in columns.items()}, SLOTS, 1)
    writer.flush(final=True)
    journal = JournalWriter(folder.journal)
    for after_s, entry in (entries or {}).items():
        journal.append(JournalEntry(seq=0, unix=START + after_s, who="head", **entry))
    journal.close()
    return folder


def told(capsys: pytest.CaptureFixture[str], *tokens: str) -> tuple[int, str, str]:
    code = main(tokens)
    out, err = capsys.readouterr()
    return code, out, err


ALERTS = {
    1.0: {
        "what": "metrics.source", "subject": "Prometheus prom:9090", "after": "ok",
        "data": {
            "kind": "promql", "profiles": ["amd-dme"], "resolution_s": 15.0, "matched": 4, "gpus_unmatched": 0,
            "not_collected": {"link_down": "no AI NIC"},
        },
    },
    20.0: {
        "what": "alert.start", "subject": "node001/gpu1", "why": "power-capped 90 % of the time", "level": "warn",
        "data": {"rule": "power_cap", "severity": "warn", "value": 0.9, "cause": "power cap", "act": ""},
    },
    30.0: {
        "what": "alert.start", "subject": "node000/gpu0", "why": "2 uncorrectable errors", "level": "error",
        "data": {"rule": "ecc_uncorrectable", "severity": "crit", "value": 2.0, "cause": "", "act": "evict"},
    },
    50.0: {"what": "alert.end", "subject": "node001/gpu1", "why": "", "data": {"rule": "power_cap", "since_unix": START + 15}},
}  # fmt: skip


def test_the_overview_has_ranges_worst_replicas_growth_and_source(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs, entries=ALERTS)
    code, out, _ = told(capsys, "metrics", "mine")
    assert code == 0
    assert "Prometheus prom:9090 (amd-dme): promql, ok, 4 of 4 GPUs, a value every 15 s" in out
    power = next(line.split() for line in out.splitlines() if line.startswith("power"))
    assert power[:8] == ["power", "W", "650", "500", "800", "4", "10", "node000/gpu0"]
    assert power[9] == "node001/gpu1", "too little power is as odd as too much"
    assert next(line for line in out.splitlines() if line.startswith("throttle_power")).split()[:5] == [
        "throttle_power", "%", "0.0", "0.0", "90.0",
    ]  # fmt: skip
    grown = next(line for line in out.splitlines() if line.startswith("ecc_correctable"))
    assert grown.split()[1:3] == ["2", "4"]
    assert "node001/gpu0 1  node001/gpu1 1" in grown
    assert "link_down: no AI NIC" in out
    assert "SYNTHETIC" in out


def test_json_has_the_same_of_one_attempt(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs, entries=ALERTS)
    code, out, _ = told(capsys, "metrics", "mine", "--attempt", "2", "--json")
    found = {row["role"]: row for row in json.loads(out)["roles"]}
    assert code == 0
    assert (found["power"]["values"], found["power"]["gpus"], found["power"]["every_s"]) == (24, 4, 10.0)
    assert found["ecc_correctable"]["grew"] == 1.0
    assert found["power"]["worst"][:2] == [["node000/gpu0", 500.0], ["node001/gpu1", 800.0]]


def test_the_course_of_one_role_of_one_replica(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make_run(runs)
    code, out, _ = told(capsys, "metrics", "mine", "--role", "power", "--slot", "node001/gpu0")
    assert code == 0
    assert out.splitlines()[0].endswith("power W")
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["700"] * 16
    for suffix in ("csv", "parquet", "json"):
        assert told(capsys, "metrics", "mine", "--role", "power", "--out", str(tmp_path / f"power.{suffix}"))[0] == 0
    assert pl.read_csv(tmp_path / "power.csv").height == pl.read_parquet(tmp_path / "power.parquet").height == 64
    assert json.loads((tmp_path / "power.json").read_text())["unit"] == "watt"


def test_a_record_without_gpu_metrics_says_what_to_type(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs, gpus=False)
    code, out, _ = told(capsys, "metrics", "mine")
    assert code == 1
    assert "no GPU metrics are recorded" in out
    assert "metrics mine-1 --fetch --url" in out
    code, out, _ = told(capsys, "alerts", "mine")
    assert (code, "no alert fired, and none could" in out) == (0, True)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["--fetch"], "give --url"),
        (["--query", "up"], "give --url"),
        (["--url", "http://x"], "--url goes with --fetch or --query"),
        (["--slot", "node000/gpu0"], "--slot goes with --role"),
        (["--role", "powr"], "there is no role 'powr'; roles are gpu_util"),
        (["--role", "clock"], "has nothing of clock recorded; it has power"),
        (["--role", "power", "--slot", "node009/gpu0"], "'node009/gpu0'; it has node000/gpu0"),
        (["--attempt", "7"], "no attempt 7; it has 1, 2"),
        (["--query", "up", "--fetch"], "use one or the other"),
        (["--query", "up", "--url", "prom:9090"], "metrics.gpu.url 'prom:9090': 'prom:9090' is not a URL"),
        (["--query", "up", "--url", "http://127.0.0.1:9", "-s", "timeout=3"], "metrics.gpu.timeout: there is no such field"),
        (["--query", "up", "--url", "http://127.0.0.1:9", "--start", "soon"], "--start 'soon' is no moment"),
        (["--query", "up", "--url", "http://127.0.0.1:9", "--start", "+9m"], "--start has to be before --end"),
        (["--query", "up", "--url", "http://127.0.0.1:9", "--out", "x.xls"], "has to end in .csv, .parquet, .json"),
        (["--query", "up", "--url", "http://127.0.0.1:9", "--step", "0"], "--step 0 must be more than 0"),
        (["--query", " ", "--url", "http://127.0.0.1:9"], "--query is empty"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(
    runs: Path, capsys: pytest.CaptureFixture[str], tokens: list[str], said: str
) -> None:
    make_run(runs)
    code, out, err = told(capsys, "metrics", "mine", *tokens)
    assert code == 2, (out, err)
    assert said in err
    assert "defect" not in err


def test_a_prometheus_that_does_not_answer_is_no_bad_input(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs, url="http://127.0.0.1:9")
    began_s = time.monotonic()
    for wish in (["--fetch"], ["--query", "up"]):
        code, _, err = told(capsys, "metrics", "mine", *wish)
        assert code == 3
        assert "http://127.0.0.1:9 cannot be reached: connection refused" in err
    assert time.monotonic() - began_s < 30, "nothing was tried again and again"


def test_moments_are_dates_seconds_or_offsets() -> None:
    assert moment("+90s", "--start", START) == moment("+1.5m", "--start", START) == START + 90
    assert moment("1790000000", "--start", 0.0) == START
    assert moment("2026-11-30T10:00:00+00:00", "--start", 0.0) == 1796032800.0


def test_alerts_have_start_duration_subject_and_cause(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs, entries=ALERTS)
    code, out, _ = told(capsys, "alerts", "mine")
    first, second = out.splitlines()
    assert code == 0
    assert "0:30  warn  power_cap  node001/gpu1  power-capped 90 % of the time (likely cause: power cap)" in first
    assert "?  crit  ecc_uncorrectable  node000/gpu0  2 uncorrectable errors (end not recorded)" in second
    rows = json.loads(told(capsys, "alerts", "mine", "--json")[1])
    assert [(row["rule"], row["duration_s"], row["firing"]) for row in rows] == [
        ("power_cap", 30.0, False), ("ecc_uncorrectable", None, False),
    ]  # fmt: skip


def test_show_has_a_short_section_of_both(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs, entries=ALERTS)
    _, out, _ = told(capsys, "show", "mine")
    assert "GPUs      4 GPUs with metrics" in out
    assert "power: p50 650 W, 500 to 800; worst node000/gpu0 500  node001/gpu1 800" in out
    assert "alerts    2 alerts, 1 of them critical" in out
    found = json.loads(told(capsys, "show", "mine", "--json")[1])
    assert [row["role"] for row in found["gpu_metrics"]] == ["power", "throttle_power", "ecc_correctable"]
    assert len(found["alerts"]) == 2


def test_the_preflight_names_a_source_that_is_missing_silent_or_simulated() -> None:
    simulated, silent = gpu_metrics(load_spec("demo")), gpu_metrics(load_spec("demo", ["metrics.gpu.url=http://127.0.0.1:9"]))
    off = gpu_metrics(load_spec("demo", ["metrics.gpu.source=none"]))
    assert (simulated.ok, silent.ok, off.ok) == (True, None, None)
    assert "simulated by the run itself" in simulated.detail
    assert "connection refused" in silent.detail
    assert "switched off" in off.detail


PAGE = "".join(f'gpu_gfx_activity{{gpu_id="{gpu}",hostname="HOST"}} 90\n' for gpu in range(8))


class Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE.replace("HOST", "gpu-17.example").encode())

    def log_message(self, *args: object) -> None:
        pass


def test_the_preflight_says_when_the_gpus_are_of_other_machines() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    asked = [f'metrics.gpu.targets=["http://127.0.0.1:{server.server_port}/metrics"]', "fleet.nodes=1"]
    try:
        strange = gpu_metrics(load_spec("demo", asked))
        mapped = gpu_metrics(load_spec("demo", [*asked, 'metrics.gpu.hosts={gpu-17="node000"}']))
    finally:
        server.shutdown()
        server.server_close()
    assert (strange.ok, "but of gpu-17.example" in strange.detail) == (None, True), strange
    assert 'metrics.gpu.hosts = { "gpu-17.example" = "node000" }' in strange.fix
    assert (mapped.ok, "8 GPUs by amd-dme" in mapped.detail) == (True, True), mapped


def test_a_program_that_is_no_prometheus_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PROMETHEUS", "/bin/true")
    found = prometheus()
    assert (found.ok, "is no Prometheus" in found.detail) == (None, True), found


def test_a_port_of_our_own_page_that_is_taken_is_told_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"metrics.listen=127.0.0.1:{taken.getsockname()[1]}"
        checks = {check["name"]: check for check in json.loads(told(capsys, "doctor", "demo", "-s", listen, "--json")[1])}
    assert checks["metrics page"]["ok"] is None
    assert "in use" in checks["metrics page"]["detail"]
    free = own_page(load_spec("demo", [listen]))
    assert free is not None
    assert free.ok
    assert own_page(load_spec("demo")) is None


def test_doctor_takes_a_spec(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "doctor", "demo", "-s", "metrics.gpu.url=http://127.0.0.1:9", "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert "connection refused" in checks["metrics"]["detail"]
    assert "prometheus" in checks
    assert told(capsys, "doctor", "-s", "fleet.nodes=2")[0] == 2
