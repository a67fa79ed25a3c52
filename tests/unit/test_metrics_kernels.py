"""Who runs another MoE kernel or table: judged within a node class, told by the head, compared by console and analysis."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from head_kit import Fleet, a_spec

from console.store.compare import differences as live_differences
from harness.analysis.config import differences
from harness.analysis.views import Difference
from harness.engines.synthetic.planted import kernels_of
from harness.head.journal import Journal
from harness.head.kernelwatch import KernelWatch
from harness.head.roster import Roster
from harness.metrics.kernels import Replica, in_use, node_classes, odd_ones, of_kernels, splits, summary, word
from harness.records.fleetfile import FleetFile, GpusOf, write_fleet
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.records.runfile import RunFile, write_run
from harness.wire.control import JournalEntry, SlotInfo
from harness.wire.states import LOST

NEW, OLD = "gfx950-256cu-288gb-AMD_Instinct_MI355X", "gfx942-304cu-192gb-AMD_Instinct_MI300X"
TUNED = {"kernel": "ours", "kernel.hash": "aa", "kernel.config": "tuned", "kernel.config_hash": "0a1b", "kernel.node_class": NEW}
DEFAULT = {"kernel": "ours", "kernel.hash": "aa", "kernel.config": "default", "kernel.node_class": NEW}
OTHER_CLASS = {**TUNED, "kernel.config_hash": "77ff", "kernel.node_class": OLD}


def fleet_of(*facts: dict[str, str], role: str = "both") -> list[Replica]:
    return [Replica(f"node{number:03d}/gpu0", role, each) for number, each in enumerate(facts)]


# --- what runs ---------------------------------------------------------------------------------------------


def test_kernels_in_use_are_told_with_their_numbers_the_most_usual_first() -> None:
    fell_back = {"kernel": "vLLM TRITON (Mxfp4)", "kernel.fallback": "vLLM 0.40 is not known"}
    used = in_use([fell_back, *[TUNED | {"kernel.of_floor": "M=64 71 %"}] * 1500])
    assert [one.words for one in used] == [
        f"1,500 replicas: ours aa, table tuned 0a1b, of its floor M=64 71 %, on {NEW}",
        "1 replica: vLLM TRITON (Mxfp4), not Paceline's: vLLM 0.40 is not known",
    ]


def test_a_fleet_without_such_layers_has_no_kernels_in_use() -> None:
    assert in_use([{"device_name": "MI355X"}, {}]) == []


# --- who is odd --------------------------------------------------------------------------------------------


def test_one_of_four_with_another_table_is_odd_and_says_in_what() -> None:
    odd = odd_ones(fleet_of(TUNED, TUNED, DEFAULT, TUNED))
    assert list(odd) == ["node002/gpu0"]
    (one,) = odd.values()
    assert one.cause == "MoE table: default instead of tuned"
    assert one.why == f"runs another MoE table: default instead of tuned, as 3 of 4 replicas of {NEW} have"
    assert summary(odd) == {f"1 replica runs another MoE kernel or table than most of {NEW}": one}


def test_two_classes_have_their_own_tables_and_neither_is_odd_for_that() -> None:
    assert odd_ones(fleet_of(TUNED, TUNED, TUNED, OTHER_CLASS, OTHER_CLASS)) == {}
    odd = odd_ones(fleet_of(TUNED, TUNED, TUNED, OTHER_CLASS, OTHER_CLASS, {**OTHER_CLASS, "kernel.hash": "bb"}))
    assert {slot: one.cause for slot, one in odd.items()} == {"node005/gpu0": "MoE kernel source: bb instead of aa"}


def test_of_two_camps_of_one_size_neither_is_odd_and_a_table_of_the_same_word_is_told_by_its_hash() -> None:
    assert odd_ones(fleet_of(TUNED, DEFAULT)) == {}
    (one,) = odd_ones(fleet_of(TUNED, TUNED, {**TUNED, "kernel.config_hash": "9c9c"})).values()
    assert one.cause == "MoE table: 9c9c instead of 0a1b"


def test_a_class_whose_largest_camps_are_of_one_size_is_told_as_split() -> None:
    halves = fleet_of(TUNED, DEFAULT, DEFAULT, TUNED, OTHER_CLASS)
    assert splits(halves) == [f"no usual MoE table: 2 default, 2 tuned, of the replicas of {NEW}"]
    of_decode = splits(fleet_of({"kernel": "a"}, {}, role="decode"))
    assert of_decode == ["no usual MoE kernel: 1 a, 1 none told, of the decode replicas"]
    assert splits(fleet_of(TUNED, OTHER_CLASS)) == []
    assert splits(fleet_of(TUNED, TUNED, DEFAULT)) == splits([]) == splits(fleet_of({}, {})) == []


def test_one_that_tells_no_class_is_of_its_devices_only_one() -> None:
    device = {"device_name": "AMD Instinct MI355X"}
    silent = {**device, "kernel": "vLLM TRITON (Mxfp4)"}
    facts = [{**TUNED, **device}, {**TUNED, **device}, silent]
    assert node_classes(facts) == [NEW, NEW, NEW]
    (one,) = odd_ones(fleet_of(*facts)).values()
    assert one.cause == "MoE kernel: vLLM TRITON (Mxfp4) instead of ours"
    partitioned = {**TUNED, **device, "kernel.node_class": "gfx950-128cu-144gb-AMD_Instinct_MI355X"}
    assert node_classes([*facts, partitioned])[2] == "AMD Instinct MI355X", "two classes have that name: which is not known"
    assert odd_ones(fleet_of(*facts, partitioned)) == {}
    assert odd_ones(fleet_of({}, {}, {})) == {}, "a model without such layers"


def test_each_line_of_the_summary_has_the_first_of_its_own_class() -> None:
    odd = odd_ones(fleet_of(DEFAULT, TUNED, TUNED, OTHER_CLASS, OTHER_CLASS, {**OTHER_CLASS, "kernel.hash": "bb"}))
    assert [(line.rpartition(" of ")[2], first.slot) for line, first in summary(odd).items()] == [
        (NEW, "node000/gpu0"),
        (OLD, "node005/gpu0"),
    ]


def test_what_a_replica_tells_is_one_printable_line_of_bounded_length() -> None:
    hostile = {**TUNED, "kernel": "\x1b[31mred\n\tand \u202emore", "kernel.hash": "z" * 5000}
    (one,) = odd_ones(fleet_of(TUNED, TUNED, hostile)).values()
    assert one.own == "[31mred and more"
    assert word(hostile, "kernel.hash") == "z" * 399 + "…"
    assert word({"kernel": 7, "kernel.hash": None}, "kernel") == "7"


def test_roles_count_apart() -> None:
    prefill, decode = fleet_of(TUNED, TUNED, TUNED, role="prefill"), fleet_of(DEFAULT, DEFAULT, role="decode")
    assert odd_ones([*prefill, *decode]) == {}
    odd = odd_ones([*fleet_of(TUNED, TUNED, DEFAULT, role="prefill"), *decode])
    assert odd["node002/gpu0"].why.endswith(f"as 2 of 3 prefill replicas of {NEW} have")


def test_facts_that_a_class_has_in_common_are_those_of_kernels_but_not_the_class() -> None:
    told = ["kernel", "kernel.config", "kernel.fallback", "kernel.node_class", "kernels", "arg.kernel", "preset"]
    assert [name for name in told if of_kernels(name)] == ["kernel", "kernel.config", "kernel.fallback"]


# --- the head ----------------------------------------------------------------------------------------------


class AHead:
    roster: Roster

    def __init__(self, folder: Path, *facts: dict[str, str]) -> None:
        self.fleet = Fleet(a_spec(len(facts), 1))
        self.roster = self.fleet.roster
        self.journal = Journal(JournalWriter(folder / "journal.jsonl"), lambda entry: None, time.time)
        self.watch = KernelWatch(self.roster, self.journal)
        for number, each in enumerate(facts):
            self.comes(number, each)

    def comes(self, number: int, facts: dict[str, str], incarnation: str = "a") -> None:
        self.roster.register(self.fleet.message(number, incarnation, facts=facts), b"peer")
        self.fleet.beat(number, incarnation)

    def looks(self) -> list[JournalEntry]:
        known = len(self.journal.tail)
        self.watch.look()
        return list(self.journal.tail)[known:]


def test_the_head_notes_once_who_differs_and_when_it_is_alike_again(tmp_path: Path) -> None:
    head = AHead(tmp_path, TUNED, TUNED, DEFAULT, TUNED)
    (entry,) = head.looks()
    assert (entry.what, entry.subject, entry.level) == ("kernel.differs", "node002/gpu0", "warn")
    assert entry.why.startswith("runs another MoE table: default instead of tuned, as 3 of 4 replicas of ")
    assert head.watch.cause_of("node002/gpu0") == head.watch.cause_of("node002") == "MoE table: default instead of tuned"
    assert head.watch.cause_of("node001/gpu0") == head.watch.cause_of("node001") == ""
    head.comes(0, TUNED, "b")
    assert head.looks() == [], "another life of another replica is no news of this one"
    head.comes(2, TUNED, "b")
    (again,) = head.looks()
    assert (again.what, again.subject, again.level) == ("kernel.alike", "node002/gpu0", "info")
    assert head.watch.cause_of("node002/gpu0") == ""


def test_one_that_takes_a_while_to_restart_is_told_again_whether_it_is_alike_or_differs_still(tmp_path: Path) -> None:
    head = AHead(tmp_path, TUNED, TUNED, DEFAULT, TUNED)
    assert [entry.what for entry in head.looks()] == ["kernel.differs"]
    head.roster.move(head.fleet[2], LOST, "recycled")
    assert head.looks() == []
    head.comes(2, DEFAULT, "b")
    assert [(entry.what, entry.subject) for entry in head.looks()] == [("kernel.differs", "node002/gpu0")], (
        "recycling did not help"
    )
    head.roster.move(head.fleet[2], LOST, "recycled")
    assert head.looks() == []
    head.comes(2, TUNED, "c")
    assert [(entry.what, entry.subject) for entry in head.looks()] == [("kernel.alike", "node002/gpu0")]
    head.comes(0, TUNED, "b")
    assert head.looks() == []


def test_one_that_is_gone_neither_differs_nor_counts(tmp_path: Path) -> None:
    head = AHead(tmp_path, TUNED, DEFAULT, DEFAULT)
    (entry,) = head.looks()
    assert entry.subject == "node000/gpu0"
    head.roster.move(head.fleet[1], LOST, "test")
    split, entry = head.looks()
    assert (split.what, split.subject, split.level) == ("kernel.differs", "", "warn")
    assert split.why == f"no usual MoE table: 1 default, 1 tuned, of the replicas of {NEW}"
    assert (entry.what, entry.subject) == ("kernel.alike", "node000/gpu0"), "one against one: neither differs"
    assert head.watch.cause_of("node000/gpu0") == ""


def test_many_at_once_are_one_entry(tmp_path: Path) -> None:
    head = AHead(tmp_path, *[TUNED] * 20, *[DEFAULT] * 12)
    (entry,) = head.looks()
    assert entry.why.startswith(f"12 replicas run another MoE kernel or table than most of {NEW}: node020/gpu0, node021/gpu0, ")
    assert entry.why.endswith("and 9 more, the first with another MoE table: default instead of tuned")
    assert len(entry.data["slots"]) == 12


# --- comparing ---------------------------------------------------------------------------------------------


def slot(number: int, facts: dict[str, Any]) -> SlotInfo:
    return SlotInfo(f"node{number:03d}/gpu0", f"node{number:03d}", 0, "both", "i", 1, state="READY", engine="vllm", facts=facts)


def test_the_replica_screen_compares_tables_within_the_class_and_hardware_over_all() -> None:
    slots = [slot(number, TUNED) for number in range(4)] + [slot(4, OTHER_CLASS), slot(5, OTHER_CLASS), slot(6, DEFAULT)]
    assert [found.name for found in live_differences(slots, 4)] == ["kernel.node_class"]
    assert live_differences(slots, 0) == []
    odd = {found.name: (found.own, found.majority, found.of) for found in live_differences(slots, 6)}
    assert odd == {"kernel.config": ("default", "tuned", 5), "kernel.config_hash": ("", "0a1b", 5)}


def recorded(path: Path, *facts: dict[str, str]) -> list[Difference]:
    fleet = FleetFile(1)
    for number, each in enumerate(facts):
        fleet.note(f"node{number:03d}/gpu0", GpusOf(1.0, [f"host{number}"]), {"engine": "vllm", "role": "both", **each})
    write_fleet(RunFolder(path).fleet_json, fleet)
    write_run(path, RunFile(run=path.name, spec={}, phase="DONE", synthetic=True, attempts=[]))
    return differences(Record(RunFolder(path)), None)


def test_the_record_compares_tables_within_the_class(tmp_path: Path) -> None:
    found = recorded(tmp_path, TUNED, TUNED, TUNED, OTHER_CLASS, OTHER_CLASS)
    assert [one.field for one in found] == ["kernel.node_class"]
    found = recorded(tmp_path, TUNED, TUNED, DEFAULT, OTHER_CLASS, OTHER_CLASS)
    assert [one.field for one in found] == [f"kernel.config ({NEW})", f"kernel.config_hash ({NEW})", "kernel.node_class"]
    (tuned, default) = found[0].variants
    assert (tuned.value, default.value, default.slots) == ("tuned", "default", ["node002/gpu0"])
    alone = recorded(tmp_path, TUNED, TUNED, DEFAULT)
    assert [one.field for one in alone] == ["kernel.config", "kernel.config_hash"], "a fleet of one class needs no name for it"


def test_planted_facts_of_later_patterns_go_over_earlier_ones() -> None:
    planted = {"*": {"kernel": "ours", "config": "tuned"}, "node001/*": {"config": "default"}, "node002/*": {"kernel": ""}}
    assert kernels_of(planted, "node000/gpu0") == {"kernel": "ours", "kernel.config": "tuned"}
    assert kernels_of(planted, "node001/gpu3") == {"kernel": "ours", "kernel.config": "default"}
    assert kernels_of(planted, "node002/gpu0") == {"kernel.config": "tuned"}
