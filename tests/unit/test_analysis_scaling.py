"""Runs at several numbers of nodes: which counts, how near linear, and published figures beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.analysis.published import SHIPPED, BadReference, read_references, shipped
from harness.analysis.scaling import ScaleGroup, scaling
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, write_run

SHARED = Path(os.environ.get("PACELINE_SHARED") or Path(__file__).parents[2].parent / "shared")
RESULTS = SHARED / "data" / "crusoe_results.json"


def a_run(
    root: Path, name: str, nodes: int, tokens_per_s: float | None, verdict: str = "VALID", *, model: str = "gpt-oss-120b",
    scenario: str = "Server", synthetic: bool = True, kind: str = "performance", per_node: int = 8,
) -> RunFolder:  # fmt: skip
    attempt = AttemptRecord(1, kind, scenario, 100.0, 1, state="ENDED", verdict=verdict)
    attempt.rates = {"tokens_per_s": tokens_per_s, "completed_qps": 10.0 * nodes}
    attempt.ttft_ms, attempt.tpot_ms = {"p99": 200.0}, {"p99": 30.0}
    spec = {"model": {"name": model}, "fleet": {"nodes": nodes, "replicas_per_node": per_node, "layout": {"tp": 1}}}
    (root / name).mkdir()
    write_run(root / name, RunFile(run=name, spec=spec, phase="DONE", synthetic=synthetic, attempts=[attempt], verdict=verdict))
    return RunFolder(root / name)


def only_group(folders: list[RunFolder]) -> ScaleGroup:
    found = scaling(folders, shipped())
    assert len(found.groups) == 1
    return found.groups[0]


def test_efficiency_is_against_linear_from_the_smallest_number_of_nodes(tmp_path: Path) -> None:
    group = only_group(
        [a_run(tmp_path, f"n{nodes}", nodes, tokens) for nodes, tokens in ((64, 57_600.0), (1, 1_000.0), (8, 7_600.0))]
    )
    assert [(point.nodes, point.efficiency, point.speedup) for point in group.points] == [
        (1, 100.0, 1.0),
        (8, pytest.approx(95.0), pytest.approx(7.6)),
        (64, pytest.approx(90.0), pytest.approx(57.6)),
    ]
    assert (group.points[2].best.tokens_per_s_node, group.points[2].best.tokens_per_s_gpu) == (900.0, 112.5)
    assert group.remarks == []


def test_the_best_valid_run_at_a_number_of_nodes_counts_and_the_others_are_listed(tmp_path: Path) -> None:
    group = only_group([
        a_run(tmp_path, "one", 1, 1_000.0), a_run(tmp_path, "slow", 8, 7_000.0), a_run(tmp_path, "good", 8, 7_500.0),
        a_run(tmp_path, "over", 8, 9_000.0, "INVALID"), a_run(tmp_path, "only-invalid", 64, 60_000.0, "INVALID"),
    ])  # fmt: skip
    at_8, at_64 = group.points[1:]
    assert (at_8.best.name, [run.name for run in at_8.others]) == ("good", ["slow", "over"])
    assert (at_64.counts, at_64.efficiency, at_64.best.verdict) == (False, None, "INVALID")


def test_models_scenarios_and_a_models_numbers_are_kept_apart(tmp_path: Path) -> None:
    found = scaling([
        a_run(tmp_path, "a", 1, 1_000.0), a_run(tmp_path, "b", 1, 1_000.0, scenario="Offline"),
        a_run(tmp_path, "c", 1, 1_000.0, synthetic=False), a_run(tmp_path, "d", 1, 1_000.0, model="deepseek-r1"),
    ])  # fmt: skip
    assert [(group.model, group.scenario, group.synthetic) for group in found.groups] == [
        ("gpt-oss-120b", "Server", False), ("deepseek-r1", "Server", True), ("gpt-oss-120b", "Offline", True),
        ("gpt-oss-120b", "Server", True),
    ]  # fmt: skip
    assert "only N = 1 has a VALID run: efficiency needs a second N" in found.groups[0].remarks


def test_what_has_no_place_among_the_points_is_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    found = scaling([
        a_run(tmp_path, "explored", 1, 900.0, kind="explore"), a_run(tmp_path, "nowhere", 0, 900.0),
        a_run(tmp_path, "nothing", 1, None), RunFolder(tmp_path / "broken"),
    ])  # fmt: skip
    assert found.groups == []
    assert [name for name, _ in found.left_out] == ["explored", "nowhere", "nothing", "broken"]
    assert found.left_out[0][1] == "no performance attempt with tokens/s (explore attempts)"
    assert "how many nodes" in found.left_out[1][1]
    assert "is not a run record" in found.left_out[3][1]


def test_published_figures_stand_beside_runs_of_their_model_and_scenario_only(tmp_path: Path) -> None:
    runs = {"one": (1, 80_000.0), "all": (64, 5_000_000.0)}
    group = only_group([a_run(tmp_path, name, *size, synthetic=False) for name, size in runs.items()])
    (beside,) = group.references
    assert beside.point.tokens_per_s == 5_392_930
    assert beside.tokens_per_s_gpu == pytest.approx(10_533.07, abs=0.01)
    assert beside.share_per_gpu == pytest.approx(5_000_000 / 5_392_930)
    assert [point.nodes for point in group.points] == [1, 64]
    (fake,) = scaling([a_run(tmp_path, "fake", 64, 5_000_000.0)], shipped()).groups
    assert fake.references[0].share_per_gpu is None
    assert scaling([a_run(tmp_path, "other", 1, 1.0, model="llama")], shipped()).groups[0].references == []


@pytest.mark.skipif(not RESULTS.exists(), reason=f"{RESULTS} is not there (PACELINE_SHARED names another folder)")
def test_the_shipped_figures_are_the_published_ones() -> None:
    published = json.loads(RESULTS.read_text())
    (crusoe,) = shipped()
    assert len(crusoe.points) == 4
    for point in crusoe.points:
        model = published[point.model]
        one = model[point.scenario]
        assert (point.tokens_per_s, point.samples_per_s, point.target_qps) == (
            one["tokens_per_s"], one["samples_per_s"], one["target_qps"],
        )  # fmt: skip
        assert (point.gpus, point.replicas) == (512, model["replicas"])
        if point.scenario == "Server":
            assert point.ttft_p99_ms == pytest.approx(one["ttft_p99_s"] * 1e3)
            assert point.tpot_p99_ms == one["tpot_p99_ms"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[set]", "is no TOML"),
        ("title = 1", r"missing required field `set`|unknown field `title`"),
        ('[[set]]\ntitle = "x"\nsource = "y"\n[[set.point]]\nmodel = "m"', "missing required field"),
        (
            '[[set]]\ntitle = "x"\nsource = "y"\n[[set.point]]\nmodel = "m"\nscenario = "Server"\n'
            "nodes = 0\ngpus = 8\ntokens_per_s = 1",
            "nodes = 0 of point 1 of 'x' must be more than 0",
        ),
    ],
)
def test_a_bad_reference_file_is_refused_with_the_field(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(BadReference, match=said):
        read_references(tmp_path / "mine.toml")
    with pytest.raises(BadReference, match="No such file"):
        read_references(tmp_path / "none.toml")


def test_an_own_reference_file_reads_like_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(SHIPPED.read_bytes())
    assert read_references(tmp_path / "mine.toml") == shipped()
