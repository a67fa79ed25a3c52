"""`paceline show --view`: every view for people, as JSON and as CSV, and what does not go together."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_run import T0, Made, make_run

from console.cli import main
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, Imported, RunFile, read_run, write_run

Caught = pytest.CaptureFixture[str]
VIEWS = ("overview", "timeline", "distributions", "tail", "fleet", "slowest", "acts", "config", "logs")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 samples over 16 replicas; node001 is slow, and the head has logged a line at 12 s."""
    root = tmp_path_factory.mktemp("runs")
    path = make_run(root, Made(qps=100.0, seconds=30, stall_s=10, again_every=500))
    log = RunFolder(path).log("head")
    log.parent.mkdir(exist_ok=True)
    log.write_text(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(T0 + 17))},000 WARNING it stalls\n")
    return root


@pytest.fixture(autouse=True)
def of_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(root))
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)


def asked(view: str) -> list[str]:
    return ["show", "made", "--view", view, *(["--at", "0:12"] if view == "logs" else [])]


def as_json(capsys: Caught, *tokens: str) -> dict[str, Any]:
    assert main(["show", "made", *tokens, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def as_rows(capsys: Caught, *tokens: str) -> list[dict[str, str]]:
    assert main(["show", "made", *tokens, "--csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_a_page_one_object_and_rows(capsys: Caught, view: str) -> None:
    assert main(asked(view)) == 0
    page = capsys.readouterr()
    assert page.out.startswith("made-1  attempt 1 performance Server 100 QPS  VALID  SYNTHETIC\n")
    assert page.err in ("", "reading the record of made-1 …\n")
    assert main([*asked(view), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["attempt"], found["view"], found["problems"]) == ("made-1", 1, view, [])
    assert view in found
    assert main([*asked(view), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows or view == "config"


def test_pages_say_what_a_person_looks_for(capsys: Caught) -> None:
    for view, expected in (
        ("overview", ["95% interval", "head room", "findings", "show made-1 --view fleet"]),
        ("timeline", ["stretches of 1 s", "evict node003/gpu3"]),
        ("distributions", ["p99.9", "over the limit of 3000 ms", "latency: p99 is"]),
        ("tail", ["slowest 1 %", "replica queue", "node001/gpu0", "prompt length", "lift"]),
        ("fleet", ["16 replicas", "z TPOT", "node003/gpu3"]),
        ("slowest", ["slowest by latency, of all samples", "--sample "]),
        ("acts", ["0:20  evict node003/gpu3 by kim: slow", "completed QPS 1/s", "before and after, not because of"]),
    ):
        assert main(asked(view)) == 0
        out = capsys.readouterr().out
        assert [text for text in expected if text not in out] == []


def test_stretches_shorter_than_a_second_have_times_of_their_own(capsys: Caught) -> None:
    assert main([*asked("timeline"), "--ticks", "100"]) == 0
    times = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()[:2] == "0:" and "█" in line]
    assert len(times) > 40
    assert len(set(times)) == len(times)
    assert all("." in time for time in times)


def test_a_tail_is_narrowed_and_grouped_as_asked(capsys: Caught) -> None:
    found = as_json(capsys, "--view", "tail", "--metric", "tpot", "--by", "node")["tail"]
    assert list(found["groups"]) == ["node"]
    assert (found["groups"]["node"][0]["key"], found["groups"]["node"][0]["share_of_tail"]) == ("node001", 1.0)
    everywhere = as_json(capsys, "--view", "tail", "--metric", "tpot")["tail"]
    without = as_json(capsys, "--view", "tail", "--metric", "tpot", "--node", "node000", "--to-s", "10")["tail"]
    assert without["n"] < everywhere["n"] / 4
    assert {row["by"] for row in as_rows(capsys, "--view", "tail")} == {
        "replica", "node", "time", "prompt length", "output length", "tries",
    }  # fmt: skip
    assert "prefill" in {row["name"] for row in as_rows(capsys, "--view", "tail", "--by", "part")}
    assert [row["key"] for row in as_rows(capsys, "--view", "tail", "--by", "tries")] == ["1", "2"]


def test_rows_are_as_many_as_asked_and_without_limit_for_programs(capsys: Caught) -> None:
    assert len(as_rows(capsys, "--view", "slowest", "--top", "7")) == 7
    assert len(as_json(capsys, "--view", "slowest")["slowest"]) == 50
    assert len(as_rows(capsys, "--view", "fleet")) == 16
    assert len(as_rows(capsys, "--view", "fleet", "--by", "node", "--top", "3")) == 3
    bins = as_rows(capsys, "--view", "distributions", "--metric", "ttft")
    assert sum(int(row["samples"]) for row in bins) == 3000
    assert 10 <= len(as_rows(capsys, "--view", "timeline", "--ticks", "15")) <= 40


def test_one_sample_has_a_life(capsys: Caught) -> None:
    seq = as_rows(capsys, "--view", "slowest", "--metric", "ttft", "--top", "1")[0]["seq"]
    assert main(["show", "made", "--sample", seq]) == 0
    page = capsys.readouterr().out
    for expected in (f"sample {seq}: index ", "dispatched ", "TTFT ", "replica queue", "longer than "):
        assert expected in page
    assert as_json(capsys, "--sample", seq)["sample"]["sample"]["seq"] == int(seq)
    assert "decode" in {row["name"] for row in as_rows(capsys, "--sample", seq)}


def test_logs_are_those_around_the_moment_however_it_is_written(capsys: Caught) -> None:
    for at in ("0:12", "12", f"{T0 + 17:.0f}"):
        assert main(["show", "made", "--view", "logs", "--at", at]) == 0
        assert "it stalls" in capsys.readouterr().out
    assert main(["show", "made", "--view", "logs", "--at", "0:25", "--span-s", "2"]) == 0
    assert "no process has logged anything then" in capsys.readouterr().out


def test_figures_are_explained_when_asked(capsys: Caught) -> None:
    assert main(["show", "made", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "completed QPS (1/s): completed samples / duration_s" in out
    assert "window: whole attempt" in out
    found = as_json(capsys, "--view", "tail", "--explain")["definitions"]
    assert "ttft_ms" in {one["id"] for one in found}


def test_the_whole_page_has_margins_findings_parts_and_the_definitions_of_tokens_per_user(capsys: Caught) -> None:
    assert main(["show", "made"]) == 0
    out = capsys.readouterr().out
    for expected in ("95% interval", "in the slowest 1 %", "findings", "1/TPOT p90", "output tokens/s over"):
        assert expected in out
    found = as_json(capsys)
    assert {one["metric"] for one in found["margins"]} == {"ttft", "tpot"}
    assert found["findings"]
    assert sum(one["mean_ms"] for one in found["ttft_parts"]) == pytest.approx(found["ttft_ms"]["avg"], rel=0.01)
    assert (found["imported"], found["labels"]) == (None, {"tags": [], "note": "", "pinned": False})


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["--csv"], "a run has several tables: --csv needs --view"),
        (["--view", "tail", "--json", "--csv"], "--json or --csv, not both"),
        (["--view", "fleet", "--metric", "ttft"], "--metric goes with --view distributions or tail or slowest"),
        (["--top", "3"], "--top goes with --view tail or fleet or slowest or logs"),
        (["--view", "timeline", "--node", "node001"], "--node goes with --view tail or slowest"),
        (["--view", "fleet", "--by", "time"], "--view fleet takes --by replica or node, not time"),
        (["--view", "tail", "--sample", "3"], "--sample is a view of its own"),
        (["--view", "tail", "--top", "0"], "--top 0 must be more than 0"),
        (["--view", "logs"], "--view logs needs --at"),
        (["--view", "logs", "--at", "noon"], "--at 'noon' is no moment"),
        (["--view", "logs", "--at", "1e300"], "--at '1e300' is no moment"),
        (["--view", "sky"], "sky"),
        (["--sample", "99999999"], "99999999"),
        (["--view", "tail", "--attempt", "7"], "made-1 has no attempt 7; it has 1"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(capsys: Caught, tokens: list[str], said: str) -> None:
    assert main(["show", "made", *tokens]) == 2
    caught = capsys.readouterr()
    assert said in caught.err
    assert caught.out == ""


def test_a_record_without_samples_has_empty_views_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    (tmp_path / "made-elsewhere").mkdir()
    attempt = AttemptRecord(
        1, "performance", "Server", 50.0, 1, T0, T0 + 60, "ENDED", "VALID", totals={"issued": 10, "completed": 10},
        ttft_ms={"p99": 100.0},
    )  # fmt: skip
    imported = Imported("loadgen", "/data/logs", T0, ["mlperf_log_summary.txt: result"], ["which replica served a sample"])
    run = RunFile(
        run="made-elsewhere", spec={}, phase="DONE", synthetic=False, attempts=[attempt], verdict="VALID", imported=imported
    )
    write_run(tmp_path / "made-elsewhere", run)
    assert read_run(tmp_path / "made-elsewhere").imported == imported
    for view in VIEWS:
        for form in ([], ["--json"], ["--csv"]):
            assert main([*asked(view), *form]) == 0, (view, form)
            assert "Traceback" not in capsys.readouterr().err
    assert main(["show", "made-elsewhere"]) == 0
    out = capsys.readouterr().out
    assert "imported from loadgen files: /data/logs" in out
    assert "which replica served a sample" in out
