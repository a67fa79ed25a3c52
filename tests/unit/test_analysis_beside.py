"""What stands beside a slow replica or node: GPU metrics and settings where they are unlike the fleet's, and only then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from made_run import BEFORE_S, T0, Made, make_run
from registered_kit import registered, with_fleet

from harness.analysis.drill import Drill
from harness.analysis.views import Where
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.records.writer import RecordWriter

MADE = Made(nodes=4, per_node=4, seconds=10)  # node001 decodes 60 % slower


def with_gpus(tmp_path: Path, **of_node001: float) -> Drill:
    """Two rounds: alike all over the fleet but for what is given of node001's GPUs."""
    path, slots = make_run(tmp_path, MADE), MADE.spec.slots()
    rng = np.random.default_rng(1)
    usual = {"clock_ratio": 0.97, "throttle_power": 0.02, "junction_temp": 70.0, "ecc_uncorrectable": 3.0}
    writer = RecordWriter(RunFolder(path))
    for number, at_s in enumerate((2.0, 6.0)):
        unix = T0 + BEFORE_S + at_s
        roles = {}
        for role, value in usual.items():
            values = np.full(len(slots), value)
            if role != "ecc_uncorrectable":
                values *= 1 + 0.002 * rng.standard_normal(len(slots))
            if role in of_node001:
                mine = [at for at, slot in enumerate(slots) if slot.startswith("node001")]
                values[mine] = of_node001[role] if role != "ecc_uncorrectable" or number else value
            roles[role] = (values, np.full(len(slots), unix))
        writer.gpus(1, unix, roles, slots, 1)
    writer.flush(final=True)
    return Drill(Record(path))


def of_node001(drill: Drill) -> str:
    (text,) = [one.text for one in drill.overview().findings if one.text.startswith("node001 (4 replicas) decodes")]
    return text


def test_a_slow_node_is_told_with_the_metrics_of_its_gpus_that_stand_out(tmp_path: Path) -> None:
    text = of_node001(with_gpus(tmp_path, clock_ratio=0.58, throttle_power=0.67, ecc_uncorrectable=5.0))
    assert "Its GPUs meanwhile: clock against its maximum 58% against 97%; time at the power cap 67% against 2%" in text
    assert "uncorrectable memory errors 8 new, none elsewhere" in text
    assert "temperature" not in text


def test_gpus_like_all_others_and_better_ones_are_not_told(tmp_path: Path) -> None:
    assert "GPUs meanwhile" not in of_node001(with_gpus(tmp_path, junction_temp=40.0))


def test_settings_that_most_replicas_do_not_have_are_told_and_others_are_not(tmp_path: Path) -> None:
    path = make_run(tmp_path, MADE)
    node = {slot: slot.partition("/")[0] for slot in MADE.spec.slots()}
    replicas = [
        registered(slot, facts={"kernel": "triton" if node[slot] == "node001" else "aiter", "port": slot}) for slot in node
    ]
    text = of_node001(with_fleet(path, *replicas))
    assert "Set up otherwise than most: kernel triton, most aiter." in text
    assert "port" not in text


def test_without_metrics_and_facts_nothing_is_said(tmp_path: Path) -> None:
    text = of_node001(Drill(Record(make_run(tmp_path, MADE))))
    assert "meanwhile" not in text
    assert "Set up" not in text


def test_a_sample_names_the_part_that_cost_it_the_most_though_many_shared_its_fate(tmp_path: Path) -> None:
    """A stall of 4 s in 60: its queue is among the longest 7 %, not among the longest 1 %."""
    drill = Drill(Record(make_run(tmp_path, Made(slow_node=None, stall_s=30))))
    in_the_stall = drill.slowest("ttft", 400, Where(from_s=30, to_s=34))[-1]
    assert drill.sample(in_the_stall.seq).remarks[0].startswith("replica queue took 1,5")


def test_more_replicas_are_not_advised_for_a_stall_of_four_seconds_but_are_for_a_queue_all_along(tmp_path: Path) -> None:
    def said(made: Made) -> str:
        drill = Drill(Record(make_run(tmp_path, made)))
        return "\n".join(finding.text for finding in drill.overview().findings)

    stalled = said(Made("stalled", slow_node=None, stall_s=30, ttft_limit_ms=500))
    assert "is replica queue" in stalled
    assert "more replicas" not in stalled
    assert "more replicas" in said(Made("queued", slow_node=None, queue_ms=300.0, ttft_limit_ms=500))
