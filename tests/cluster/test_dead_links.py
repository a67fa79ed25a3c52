"""A run whose link to its cluster was killed: it is told, and taken up again where the copy had come to."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from cluster_kit import ClusterKit
from laptop_kit import Laptop, laptop_of, objects_of, on_claim, ready, told

from console.starting import START_DEADLINE_S
from harness.cluster.kube.linkfile import read_link
from harness.cluster.local import head_alive
from harness.cluster.procinfo import is_alive
from harness.records.layout import RunFolder

PATIENCE_S = 60.0

pytestmark = pytest.mark.timeout(180)


def begun(laptop: Laptop) -> RunFolder:
    laptop.begin(*laptop.run(1, **{"record.chunk_s": "0.5"}))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "both replicas ready")
    laptop.until(lambda: len(list(folder.samples.glob("*.parquet"))) > 2, PATIENCE_S, "chunks are copied")
    return folder


def kill_link(laptop: Laptop) -> None:
    os.kill(link := laptop.link_pid(), signal.SIGKILL)
    laptop.until(lambda: not is_alive(link, None), PATIENCE_S, "the link was killed")


def identity(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_ino, about.st_ctime_ns if path.suffix == ".parquet" else 0


def test_a_killed_link_is_told_with_what_to_type_and_attach_goes_on_where_the_copy_was(kit: ClusterKit, laptop: Laptop) -> None:
    folder = begun(laptop)
    kill_link(laptop)
    status = laptop.paceline("status")
    assert status.returncode == 1
    assert "its link to the cluster is dead, the record is copied until" in status.stdout
    assert f"attach {folder.name}" in status.stdout
    assert json.loads(laptop.paceline("status", "--json").stdout)["link"] == "dead"
    listed = laptop.paceline("runs").stdout
    assert "link dead" in listed
    assert f"attach {folder.name}" in listed
    copied = {path: identity(path) for path in (folder.journal, folder.log("head"), *folder.samples.glob("*.parquet"))}
    there = on_claim(kit, folder)
    laptop.until(lambda: len(list(there.samples.glob("*.parquet"))) > len(copied), PATIENCE_S, "the run goes on without a link")
    seen = laptop.paceline("attach", "--once", "--json")
    assert seen.returncode == 0, seen.stderr
    assert "the link to its cluster had ended and is started again" in seen.stderr
    assert head_alive(folder)
    assert (link := read_link(folder)) is None or link.started_here
    assert laptop.paceline("stop", folder.name).returncode == 0
    laptop.until(lambda: not objects_of(kit), PATIENCE_S, "nothing left")
    assert {path: identity(path) for path in copied} == copied, "something was copied from its beginning again"
    for path in there.samples.glob("*.parquet"):
        assert (folder.samples / path.name).read_bytes() == path.read_bytes()
    assert folder.journal.read_bytes() == there.journal.read_bytes()


def test_without_a_name_the_only_run_with_a_dead_link_is_meant_and_of_two_none(kit: ClusterKit, laptop: Laptop) -> None:
    folder = begun(laptop)
    kill_link(laptop)
    other = RunFolder(laptop.runs / "demo-other")
    other.path.mkdir()
    for path in (folder.spec_json, folder.run_json):
        (other.path / path.name).write_bytes(path.read_bytes())
    refused = laptop.paceline("rate", "20")
    assert refused.returncode != 0
    assert "name the one that is meant" in refused.stderr
    assert "demo-other" in refused.stderr
    (other.path / "link.json").write_text('{"state": "gone", "why": "it was removed"}')
    assert "no longer on its cluster: it was removed" in laptop.paceline("status", "demo-other").stdout
    assert laptop.paceline("rate", "20").returncode == 0
    laptop.until(lambda: bool(told(kit, folder, "act.set_rate")), PATIENCE_S, "the rate is set")


def test_a_link_that_was_killed_before_it_had_copied_anything_is_still_the_starters(kit: ClusterKit, laptop: Laptop) -> None:
    folder = begun(laptop)
    kill_link(laptop)
    folder.run_json.unlink()
    folder.head_json.unlink()
    seen = laptop.paceline("attach", folder.name, "--namespace", "paceline", "--once", "--json")
    assert seen.returncode == 0, seen.stderr
    assert (link := read_link(folder)) is None or link.started_here
    assert laptop.paceline("stop", folder.name).returncode == 0
    laptop.until(lambda: not objects_of(kit), PATIENCE_S, "nothing left")


def test_a_link_that_cannot_write_here_ends_at_once_and_says_why(kit: ClusterKit, laptop: Laptop) -> None:
    """As on a disk that is full: something of the record is to be written where nothing can be."""
    laptop.begin(*laptop.run(1))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "both replicas ready")
    laptop.until((folder.path / "fleet.json").is_file, PATIENCE_S, "what the fleet is made of is copied")
    kill_link(laptop)
    (folder.path / "fleet.json").unlink()
    (folder.path / "fleet.json" / "in-the-way").mkdir(parents=True)
    began_s = time.monotonic()
    late = laptop.paceline("rate", folder.name, "20")
    assert (late.returncode, "the record cannot be kept here" in late.stderr) == (3, True), late.stderr
    assert time.monotonic() - began_s < START_DEADLINE_S, "a link that is merely slow is waited for"
    assert objects_of(kit)
    (folder.path / "fleet.json" / "in-the-way").rmdir()
    (folder.path / "fleet.json").rmdir()
    assert laptop.paceline("stop", folder.name).returncode == 0


def test_a_run_that_is_not_known_here_is_looked_for_on_the_cluster_for_one_screen_too(
    kit: ClusterKit, laptop: Laptop, tmp_path: Path
) -> None:
    laptop.begin(*laptop.run(1))
    folder = laptop.until_linked()
    with laptop_of(kit, tmp_path, "elsewhere") as other:
        seen = other.paceline("attach", folder.name, "--once")
        assert seen.returncode == 0, seen.stderr
        assert "found in namespace paceline" in seen.stderr
        unknown = other.paceline("attach", "nobodys", "--once")
        assert (unknown.returncode, "no run named 'nobodys'" in unknown.stderr) == (2, True), unknown.stderr
    assert laptop.paceline("stop", folder.name).returncode == 0
