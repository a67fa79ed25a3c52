"""compare, scaling and definitions on the command line: pages, JSON, CSV, and what they refuse."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_run import Made, make_run

from console.cli import main
from harness.analysis.published import SHIPPED

Told = tuple[int, str, str]
Run = Callable[..., Told]
BASE = Made(name="base-1", nodes=1, per_node=4, qps=40.0, seconds=10, slow_node=None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_run(root, BASE)
    make_run(root, dataclasses.replace(BASE, name="slow-2", seed=2, tpot_ms=30.0))
    make_run(root, dataclasses.replace(BASE, name="wide-3", seed=3, nodes=4, qps=150.0))
    return root


@pytest.fixture
def run(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("PACELINE_RUNS", str(root))
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)

    def call(*words: str) -> Told:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_runs_are_compared_figure_by_figure_with_intervals_and_a_judgement(run: Run) -> None:
    code, out, err = run("compare", "base", "slow")
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("  TPOT p50 ms")]
    assert "worse" in line
    assert line.count("[") == 2
    assert "No setting differs" in out
    code, out, _ = run("compare", "base", "slow", "wide", "--baseline", "slow")
    (line,) = [line for line in out.splitlines() if line.startswith("  TPOT p50 ms")]
    assert line.count("better") == 2
    assert "! replicas differ: 4 in base-1, slow-2; 16 in wide-3; compare per replica or GPU" in out
    assert "spec fleet.nodes" in out


def test_a_comparison_as_json_is_one_object_and_as_csv_a_line_a_figure_and_run(run: Run) -> None:
    code, out, _ = run("compare", "base:1", "slow", "--json", "--explain")
    found = json.loads(out)
    assert code == 0
    assert [side["name"] for side in found["sides"]] == ["base-1", "slow-2"]
    assert {one["id"] for one in found["definitions"]} >= {"completed_qps", "ttft_p99_ms"}
    code, out, _ = run("compare", "base", "slow", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    (row,) = [row for row in rows if (row["figure"], row["run"]) == ("tpot_p50_ms", "slow-2")]
    assert row["told"] == "worse"
    assert float(row["low"]) <= float(row["value"]) <= float(row["high"])
    assert float(row["difference_low"]) > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "base"], "compare takes 2 to 8 runs, 1 given"),
        (["compare", *["base"] * 9], "compare takes 2 to 8 runs, 9 given"),
        (["compare", "base", "base"], "was given twice"),
        (["compare", "base", "slow:7"], "slow-2 has no attempt 7; there is 1"),
        (["compare", "base", "nothing"], "no run named 'nothing'"),
        (["compare", "base", "slow", "--baseline", "wide"], "--baseline wide is none of the runs given"),
        (["compare", "base", "slow", "--json", "--csv"], "--json or --csv, not both"),
        (["scaling", "--json", "--csv"], "--json or --csv, not both"),
        (["scaling", "--reference", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
        (["definitions", "goodputs"], "no figure is called 'goodputs'; near it are goodput"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line_with_exit_2(run: Run, words: list[str], said: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_scaling_shows_efficiency_against_linear_and_published_results(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("scaling")
    assert code == 0
    (line,) = [line for line in out.splitlines() if " base-1 " in line]
    assert "100.0 %" in line
    assert "Crusoe, 512x MI355X" in out
    assert "efficiency = (tokens/s at N / N)" in out
    mine = tmp_path / "mine.toml"
    mine.write_text(SHIPPED.read_text().replace("Crusoe, 512x MI355X", "Another site"))
    code, out, _ = run("scaling", "wide", "base", "--reference", str(mine), "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["row"], row["name"]) for row in rows] == [
        ("point", "base-1"), ("point", "wide-3"), ("published", "Crusoe, 512x MI355X"), ("published", "Another site"),
    ]  # fmt: skip
    assert float(rows[0]["efficiency_pct"]) == 100.0
    code, out, _ = run("scaling", "--json")
    (group,) = json.loads(out)["groups"]
    assert [(point["nodes"], [other["name"] for other in point["others"]]) for point in group["points"]] == [
        (1, ["slow-2"]), (4, []),
    ]  # fmt: skip


def test_definitions_say_formula_window_and_source(run: Run) -> None:
    code, out, _ = run("definitions", "ttft_p99_ms")
    assert code == 0
    assert "sorted values[int(n x .99)]" in out
    assert "every completed sample" in out
    code, out, _ = run("definitions")
    assert out.count("\n    ") > 40
    assert "loadgen_tokens_per_s" in out
    code, out, _ = run("definitions", "user", "--json")
    assert {one["id"] for one in json.loads(out)["definitions"]} >= {"tokens_per_user_p90", "tokens_per_user_turns"}
