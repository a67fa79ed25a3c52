"""fleet.json: what a head writes down of where its replicas' GPUs are, across recycles, moves and restarts of the head."""

from __future__ import annotations

from pathlib import Path

from harness.head.fleetbook import FleetBook
from harness.head.roster import Replica
from harness.records.fleetfile import read_fleet
from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire.control import Register

SPEC = RunSpec.model_validate({"name": "x", "fleet": {"nodes": 1, "replicas_per_node": 1, "engine": "synthetic"}})


def replica(host: str, gpus: str = "0,1", incarnation: str = "a") -> Replica:
    about = Register(
        slot="node000/gpu0", incarnation=incarnation, role="", model="m", args_hash="", engine="synthetic", synthetic=True,
        worker="w", pid=1, host=host, accelerator={"gpus": gpus, "uuids": "GPU-1, GPU-2"}, pod="pod-7", node_name="rack-3",
    )  # fmt: skip
    return Replica(0, "node000/gpu0", 0, 0, "", registered=about)


def test_lives_are_written_once_for_each_place_and_go_on_after_a_restart(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    book = FleetBook(folder, SPEC)
    book.save()
    assert not folder.fleet_json.exists(), "nobody is there yet"
    book.note(Replica(0, "node000/gpu0", 0, 0, ""), 1.0)  # has not registered
    book.note(replica("host-a"), 10.0)
    book.note(replica("host-a", incarnation="b"), 20.0)  # recycled on the same GPUs
    book.save()
    (life,) = (read_fleet(folder.fleet_json) or book.fleet).slots["node000/gpu0"]
    assert (life.since_unix, life.hosts, life.pod) == (10.0, ["rack-3", "host-a", "node000"], "pod-7")
    assert (life.gpus, life.uuids, life.pcis) == (["0", "1"], ["GPU-1", "GPU-2"], [])
    again = FleetBook(folder, SPEC)
    again.note(replica("host-a"), 30.0)
    again.note(replica("host-b"), 40.0)
    again.save()
    kept = read_fleet(folder.fleet_json)
    assert kept is not None
    assert [one.since_unix for one in kept.slots["node000/gpu0"]] == [10.0, 40.0]


def test_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.fleet_json.write_text("{")
    book = FleetBook(folder, SPEC)
    book.note(replica("host-a"), 10.0)
    book.save()
    assert read_fleet(folder.fleet_json) == book.fleet
