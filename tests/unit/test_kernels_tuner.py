"""Successive halving and the tuner's journal. Times are scripted, with noise: no GPU is here, and none of them was measured."""

from __future__ import annotations

import json
import os
import random
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.tuner.halving import Failed, Measured, Step, halve
from kernels.tuner.journal import Journal

NAMES = [f"c{index}" for index in range(40)]


class Scripted:
    """Measures what it was told each configuration takes, give or take half of `spread_us`."""

    def __init__(
        self, true_us: dict[str, float], spread_us: float = 0.0, failing: frozenset[str] = frozenset(), seed: int = 0
    ) -> None:
        self.true_us, self.spread_us, self.failing = true_us, spread_us, failing
        self.random = random.Random(seed)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, config: str, repetitions: int) -> Measured | Failed:
        self.asked.append((config, repetitions))
        if config in self.failing:
            return Failed("relative error 0.3 is above 0.01")
        us = self.true_us[config] + self.spread_us * (self.random.random() - 0.5)
        return Measured(us, us, self.spread_us, repetitions)


def test_the_best_third_of_each_round_is_measured_three_times_as_long() -> None:
    measure = Scripted({name: 100.0 + index for index, name in enumerate(NAMES[:9])})
    found = halve(NAMES[:9], measure, first=5)
    assert [repetitions for _, repetitions in measure.asked] == [5] * 9 + [15] * 3 + [45]
    assert found.order[0][0] == "c0"
    assert found.order[0][1].repetitions == 45
    assert [name for name, _ in found.order] == NAMES[:9]
    assert found.complete


@settings(max_examples=150, deadline=None)
@given(
    times=st.lists(st.floats(100.0, 1000.0), min_size=1, max_size=40),
    spread_us=st.floats(0.0, 50.0),
    failing=st.sets(st.integers(0, 39)),
    seed=st.integers(0, 1000),
)
def test_a_failed_configuration_is_never_returned_and_noise_costs_no_more_than_its_spread(
    times: list[float], spread_us: float, failing: set[int], seed: int
) -> None:
    true_us = {NAMES[index]: us for index, us in enumerate(times)}
    bad = frozenset(NAMES[index] for index in failing)
    found = halve(list(true_us), Scripted(true_us, spread_us, bad, seed))
    good = {name: us for name, us in true_us.items() if name not in bad}
    assert {name for name, _ in found.order} == set(good)
    assert set(found.failed) == bad & set(true_us)
    if good:
        assert true_us[found.order[0][0]] <= min(good.values()) + spread_us + 1e-6


def test_one_that_fails_only_in_a_later_round_gives_way_to_the_next_best() -> None:
    class FailsLater(Scripted):
        def __call__(self, config: str, repetitions: int) -> Measured | Failed:
            if config == "c0" and repetitions > 5:
                return Failed("ended by SIGKILL")
            return super().__call__(config, repetitions)

    found = halve(["c0", "c1", "c2"], FailsLater({"c0": 1.0, "c1": 2.0, "c2": 3.0}))
    assert [name for name, _ in found.order] == ["c1", "c2"]
    assert found.failed == {"c0": "ended by SIGKILL"}


def test_what_cannot_beat_the_best_measured_is_not_measured() -> None:
    least = {"c0": 90.0, "c1": 95.0, "c2": 120.0}
    measure = Scripted({"c0": 110.0, "c1": 100.0, "c2": 130.0})
    found = halve(["c2", "c1", "c0"], measure, least_us=least.__getitem__)
    assert found.skipped == ["c2"]
    assert "c2" not in [config for config, _ in measure.asked]
    assert found.order[0][0] == "c1"


def test_when_the_time_is_up_the_best_so_far_stands_and_is_marked() -> None:
    steps: list[Step] = []
    measure = Scripted({name: 100.0 - index for index, name in enumerate(NAMES[:9])})
    found = halve(NAMES[:9], measure, keep_on=lambda: len(measure.asked) < 10, told=steps.append)
    assert not found.complete
    assert found.order[0][0] == "c8"
    assert (steps[-1].round, steps[-1].done, steps[-1].of) == (2, 1, 3)
    nothing = halve(NAMES[:3], measure, keep_on=lambda: False)
    assert nothing.order == []
    assert not nothing.complete


# --- the journal --------------------------------------------------------------------------------------------

IDENTITY = {"kernel_hash": "0123456789ab", "triton": "3.9.0", "node_class": "gfx942-304cu-192gb-AMD_Instinct_MI300X"}
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64}
TIMES = Measured(120.5, 130.5, 1.5, 15, 3e-3, 51.0)


def test_what_was_found_is_there_again_for_the_same_identity_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "journal.jsonl"
    with Journal(path) as journal:
        journal.use(IDENTITY)
        journal.keep(16, "gate_up", CONFIG, TIMES)
        journal.keep(16, "down", CONFIG, Failed("relative error 0.2 is above 0.01"))
        journal.keep_fact("read_gb_s", 4321.5)
    with Journal(path) as journal:
        journal.use(IDENTITY)
        assert journal.outcome(16, "gate_up", dict(reversed(CONFIG.items())), 15) == TIMES
        assert journal.outcome(16, "gate_up", CONFIG, 5) == TIMES
        assert journal.outcome(16, "gate_up", CONFIG, 45) is None
        assert journal.outcome(16, "down", CONFIG, 45) == Failed("relative error 0.2 is above 0.01")
        assert journal.outcome(32, "gate_up", CONFIG, 5) is None
        assert journal.fact("read_gb_s") == 4321.5
        journal.use(IDENTITY | {"kernel_hash": "ba9876543210"})
        assert journal.outcome(16, "gate_up", CONFIG, 5) is None
        assert journal.fact("read_gb_s") is None


def test_a_line_that_was_torn_off_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.use(IDENTITY)
        journal.keep(16, "layer", CONFIG, TIMES)
        journal.keep(32, "layer", CONFIG, TIMES)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30] + b"")
    with Journal(path) as journal:
        journal.use(IDENTITY)
        assert journal.outcome(16, "layer", CONFIG, 5) == TIMES
        assert journal.outcome(32, "layer", CONFIG, 5) is None
        journal.keep(64, "layer", CONFIG, TIMES)
    path.write_bytes(path.read_bytes() + b'\xff\x00not ours\n[1, 2]\n{"of": "x"}\n{"of": 1, "kind": "measured"}\n')
    with Journal(path) as journal:
        journal.use(IDENTITY)
        assert journal.outcome(64, "layer", CONFIG, 5) == TIMES


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path), pytest.raises(KernelInputError, match="another process is tuning this"):
        Journal(path)
    with Journal(path):
        pass


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelInputError, match="cannot be kept there"):
        Journal(tmp_path / "file" / "journal.jsonl")


@pytest.mark.parametrize(
    "damage",
    [
        {"uniform_us": float("nan")}, {"uniform_us": 0.0}, {"zipf_us": -1.0}, {"spread_us": float("inf")}, {"uniform_us": "x"},
        {"repetitions": float("inf")}, {"uniform_us": 10**400}, {"error": None}, {"config": 5, "m": "x"},
    ],
)  # fmt: skip
def test_a_damaged_line_of_a_journal_is_measured_again(tmp_path: Path, damage: dict[str, object]) -> None:
    path, config = tmp_path / "journal.jsonl", {"BLOCK_SIZE_M": 16}
    with Journal(path) as journal:
        journal.use({"kernel": "a"})
        journal.keep(16, "down", config, Measured(10.0, 11.0, 0.1, 5))
        journal.keep(32, "down", config, Measured(20.0, 21.0, 0.1, 5))
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | damage)
    path.write_text("\n".join([*lines, "[" * 100_000]))
    with Journal(path) as journal:
        journal.use({"kernel": "a"})
        assert journal.outcome(16, "down", config, 5) is None
        assert journal.outcome(32, "down", config, 5) == Measured(20.0, 21.0, 0.1, 5)


def test_a_journal_on_a_full_disk_ends_in_words_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path) as journal:
        journal.use({"kernel": "a"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, usual[1]))
        try:
            with pytest.raises(KernelInputError, match=r"File too large; what it has is kept: free some space"):
                journal.keep_fact("read_gb_s", 1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    with Journal(path) as journal:
        journal.use({"kernel": "a"})
        assert journal.fact("read_gb_s") is None
        journal.keep_fact("read_gb_s", 2.0)
    with Journal(path) as journal:
        journal.use({"kernel": "a"})
        assert journal.fact("read_gb_s") == 2.0


def test_a_journal_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.jsonl")
    with pytest.raises(KernelInputError, match="is no file"):
        Journal(tmp_path / "journal.jsonl")
