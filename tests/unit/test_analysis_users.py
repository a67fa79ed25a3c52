"""What is derived from a sweep's primary figures: every derived column of a published table, to its printed digits."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from harness.analysis import users
from harness.analysis.definitions import DEFINITIONS, NoSuchDefinition, beside_loadgen, define, find, used_ids
from harness.records.runfile import AttemptRecord

SHARED = Path(os.environ.get("PACELINE_SHARED") or Path(__file__).parents[2].parent / "shared")
KRAI = SHARED / "data" / "krai_points.csv"

#: Derived from the same primary figures by others: TPS / C, 1000 / mean TPOT, 1000 / p50, 1000 / p90, tokens / Σ latency.
DERIVED = {
    32: ("73.19", "103.4", "108.1", "75.76", "86.09"),
    40: ("65.44", "90.9", "95.2", "67.57", "76.41"),
    64: ("50.67", "67.1", "70.9", "50.51", "57.64"),
    128: ("32.25", "41.5", "44.8", "31.75", "36.15"),
    256: ("20.15", "25.4", "27.1", "19.46", "22.13"),
    384: ("14.30", "18.1", "19.3", "13.93", "15.94"),
    512: ("10.70", "13.7", "15.1", "9.85", "11.66"),
}  # fmt: skip
#: tokens / duration of this point is 5476.455 ± 0.003 (its duration is printed to 0.01 s): right at the edge between the two
#: values in print, 5476.4 and 5476.5. Either is taken; every other figure must match its digits.
AT_THE_EDGE = 512


def printed(value: float | None, like: str) -> str:
    assert value is not None
    return f"{value:.{len(like.partition('.')[2])}f}"


@pytest.mark.skipif(not KRAI.exists(), reason=f"{KRAI} is not there (PACELINE_SHARED names another folder)")
def test_every_derived_column_of_the_published_sweep_is_reproduced() -> None:
    lines = [line for line in KRAI.read_text().splitlines() if not line.startswith("#")]
    points = list(csv.DictReader(lines))
    assert [int(point["concurrency"]) for point in points] == list(DERIVED)
    tps = []
    for point in points:
        concurrency, tokens, queries = (int(point[name]) for name in ("concurrency", "total_output_tokens", "queries"))
        duration_s = float(point["duration_s"])
        own = users.system_tps(tokens, duration_s)
        assert own is not None
        tps.append(own)
        if concurrency == AT_THE_EDGE:
            assert own == pytest.approx(5476.45, abs=0.01)
            assert point["system_tps"] in ("5476.4", "5476.5")
        else:
            assert printed(own, point["system_tps"]) == point["system_tps"]
        assert printed(users.qps(queries, duration_s), point["qps"]) == point["qps"]
        average = users.average_output(tokens, queries)
        assert printed(average, point["avg_output_tokens"]) == point["avg_output_tokens"]
        assert printed(users.per_user_system(own, concurrency), point["tps_per_user"]) == point["tps_per_user"]
        by_hand = (
            users.per_user_system(own, concurrency),
            users.per_user_tpot(float(point["tpot_avg"])),
            users.per_user_tpot(float(point["tpot_p50"])),
            users.per_user_tpot(float(point["tpot_p90"])),
            users.per_user_turns(tokens, queries * float(point["latency_avg"]) / 1e3),
        )
        assert (
            tuple(printed(value, like) for value, like in zip(by_hand, DERIVED[concurrency], strict=True)) == DERIVED[concurrency]
        )
        in_flight = users.mean_in_flight(float(point["qps"]), float(point["latency_avg"]))
        assert in_flight is not None
        assert 0.85 <= in_flight / concurrency <= 0.93  # users of a chat pause between turns
    for share, point in zip(users.utilization(tps), points, strict=True):
        assert printed(share, point["utilization_pct"]) == point["utilization_pct"]


def test_every_definition_of_tokens_a_user_says_who_uses_it_and_what_stands_for_concurrency() -> None:
    attempt = AttemptRecord(1, "performance", "Server", 10.0, 1)
    attempt.totals = {"completed": 100, "tokens": 5000}
    attempt.rates = {"completed_qps": 10.0, "tokens_per_s": 500.0}
    attempt.tpot_ms, attempt.latency_ms = {"p50": 20.0, "p90": 25.0}, {"avg": 2000.0}
    found = {one.id: one for one in users.tokens_per_user(attempt)}
    assert {name: one.value for name, one in found.items()} == {
        "tokens_per_user_system": 25.0, "tokens_per_user_p90": 40.0, "tokens_per_user_turns": 25.0,
        "tokens_per_user_median": 50.0,
    }  # fmt: skip
    assert "mean in flight, 20.0: Server has no fixed concurrency" in found["tokens_per_user_system"].remark
    assert all("Used by" in one.how for one in found.values())
    fixed = {one.id: one for one in users.tokens_per_user(attempt, concurrency=25)}
    assert (fixed["tokens_per_user_system"].value, fixed["tokens_per_user_system"].remark) == (20.0, "")


def test_an_attempt_without_figures_has_no_tokens_a_user_either() -> None:
    assert [one.value for one in users.tokens_per_user(AttemptRecord(1, "accuracy", "Offline", 1.0, 1))] == [None] * 4
    assert users.tokens_per_kw(2342.2, 9.9) == pytest.approx(236.6, abs=0.05)
    assert users.tokens_per_kw(2342.2, 0.0) is None
    assert users.utilization([]) == []


def test_every_figure_says_formula_window_and_source() -> None:
    for name, one in DEFINITIONS.items():
        assert one.id == name
        assert one.title
        assert one.formula
        assert one.window
        assert one.source, name
        if "tokens/s" in one.title and "user" not in name:
            assert "output" in one.formula + one.title, f"{name}: output, or input + output?"


def test_a_percentile_has_its_own_definition_and_an_unknown_name_is_told_its_neighbours() -> None:
    assert define("ttft_p99_9_ms").title == "TTFT p99.9"
    assert define("ttft_p99_9_ms").formula.startswith("sorted values[int(n x .999)] of: first token")
    assert define("latency_avg_ms").formula.startswith("the mean of the values of: ")
    with pytest.raises(NoSuchDefinition, match=r"no figure is called 'good_put'; near it are goodput"):
        define("good_put")
    assert [one.id for one in used_ids(["completed_qps", "slot", "ttft_p99_ms", "completed_qps"])] == [
        "completed_qps",
        "ttft_p99_ms",
    ]
    assert {one.id for one in find("user")} >= {"tokens_per_user_p90", "tokens_per_user_system"}
    assert find("nothing like it") == []


def test_loadgens_figures_stand_beside_ours_with_the_reason_why_they_differ() -> None:
    attempt = AttemptRecord(1, "performance", "Server", 144.0, 1)
    attempt.rates = {"completed_qps": 124.4, "tokens_per_s": 7474.6}
    attempt.ttft_ms = {"p99": 38.8}
    attempt.loadgen = {"samples_per_s": 149.5, "tokens_per_s": 8989.7, "ttft_ms": {"99.00": 38.9}, "tpot_ms": {}}
    rows = {row.id: row for row in beside_loadgen(attempt)}
    assert (rows["completed_qps"].ours, rows["completed_qps"].loadgens) == (124.4, 149.5)
    assert "last issued query" in rows["tokens_per_s"].why
    assert (rows["ttft_p99_ms"].ours, rows["ttft_p99_ms"].loadgens) == (38.8, 38.9)
    assert "tpot_p99_ms" not in rows
    assert beside_loadgen(AttemptRecord(1, "explore", "Server", 1.0, 1)) == []
