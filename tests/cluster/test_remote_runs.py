"""Runs on a cluster from a laptop: `paceline` as people type it, real heads and workers in the pods of the fake cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from cluster_kit import ClusterKit
from fake.access import Rule
from laptop_kit import Laptop, laptop_of, objects_of, on_claim, ready

from harness.cluster.kube.linkfile import read_link
from harness.cluster.local import head_alive
from harness.cluster.procinfo import is_alive
from harness.records.runfile import read_run
from harness.wire.client import HeadAddress

PATIENCE_S = 60.0

pytestmark = pytest.mark.timeout(240)


def test_a_run_goes_from_one_command_to_a_whole_record_and_an_empty_namespace(kit: ClusterKit, laptop: Laptop) -> None:
    done = laptop.paceline(*laptop.run(2, **{"load.duration_s": 3}), within_s=120)
    assert done.returncode == 0, done.stderr + kit.situation()
    assert "head Ready after" in done.stderr
    assert "workers: 2 pods asked for" in done.stderr
    assert "nothing of it is left on the cluster" in done.stderr
    assert objects_of(kit) == []
    there, here = on_claim(kit, laptop.folder).path, laptop.folder.path
    copied = [path.relative_to(there) for path in there.rglob("*.parquet")] + [Path("run.json"), Path("journal.jsonl")]
    assert len(copied) > 3
    for name in copied:
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    assert not laptop.folder.head_json.exists()
    assert read_run(here).verdict == "EXPLORATION"


def test_a_link_that_ended_leaves_the_run_alone_and_the_next_command_starts_another(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(1))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(laptop.folder) == 2, PATIENCE_S, "both replicas ready")
    os.kill(first := laptop.link_pid(), signal.SIGTERM)
    laptop.until(lambda: not is_alive(first, None), PATIENCE_S, "the link ended")
    assert kit.ready("head") == 1
    status = laptop.paceline("status", folder.name)
    assert "its link to the cluster is dead" in status.stdout
    assert laptop.paceline("rate", folder.name, "20").returncode == 0, laptop.said()
    assert head_alive(folder)
    os.kill(second := laptop.link_pid(), signal.SIGKILL)
    laptop.until(lambda: not is_alive(second, None), PATIENCE_S, "the link was killed")
    stopped = laptop.paceline("stop", folder.name)
    assert stopped.returncode == 0, stopped.stderr + laptop.said()
    laptop.until(lambda: not objects_of(kit), PATIENCE_S, "nothing left")
    assert (link := read_link(folder)) is not None
    assert link.state == "whole"
    there = on_claim(kit, laptop.folder).path
    assert (folder.path / "journal.jsonl").read_bytes() == (there / "journal.jsonl").read_bytes()


def test_a_head_that_is_replaced_is_found_again_at_the_same_local_address(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(1))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(laptop.folder) == 2, PATIENCE_S, "both replicas ready")
    before = HeadAddress.read(folder)
    kit.kill(kit.pods("head")[0]["metadata"]["name"])
    laptop.until(lambda: HeadAddress.read(folder).epoch == before.epoch + 1, PATIENCE_S, "the next epoch")
    after = HeadAddress.read(folder)
    assert (after.control, after.telemetry, after.pid) == (before.control, before.telemetry, before.pid)
    laptop.until(lambda: ready(laptop.folder) == 2, PATIENCE_S, "both replicas registered again")
    kit.cluster.stop()
    laptop.until(lambda: "does not answer" in laptop.said(), PATIENCE_S, "the link says that the API server is away")
    kit.cluster.start()
    back = "control: leads to the head again"
    laptop.until(lambda: back in laptop.said().rpartition("does not answer")[2], PATIENCE_S, "the link says that it is back")
    assert ready(laptop.folder) == 2
    assert laptop.paceline("stop", folder.name).returncode == 0


def test_a_run_is_scaled_down_and_up_while_it_goes_on(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(2))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(laptop.folder) == 4, PATIENCE_S, "all replicas ready")
    too_many = laptop.paceline("scale", folder.name, "3")
    assert (too_many.returncode, "1 to 2" in too_many.stderr) == (2, True)
    down = laptop.paceline("scale", folder.name, "1", "--reason", "enough")
    assert down.returncode == 0, down.stderr
    kit.until(lambda: len(kit.pods("worker", living=False)) == 1, PATIENCE_S, "one worker pod left")
    up = laptop.paceline("scale", folder.name, "2", "--json")
    assert up.returncode == 0, up.stderr
    assert json.loads(up.stdout)["nodes"] == 2
    laptop.until(lambda: ready(laptop.folder) == 4, PATIENCE_S, "all replicas ready again")
    budget = kit.get("PodDisruptionBudget", f"{folder.name}-worker")
    assert budget is not None
    assert budget["spec"]["minAvailable"] == 0
    assert laptop.paceline("stop", folder.name).returncode == 0


def test_somebody_elsewhere_finds_the_run_takes_its_keys_and_may_act(kit: ClusterKit, laptop: Laptop, tmp_path: Path) -> None:
    laptop.begin(*laptop.run(1))
    name = laptop.until_linked().name
    with laptop_of(kit, tmp_path, "elsewhere") as other:
        listed = other.paceline("attach", "--list", "--json")
        assert [(run["run"], run["head"]) for run in json.loads(listed.stdout)] == [(name, "running")], listed.stderr
        seen = other.paceline("attach", name, "--namespace", "paceline", "--once", "--json")
        assert seen.returncode == 0, seen.stderr
        assert other.folder.name == name
        assert other.folder.keys.stat().st_mode & 0o777 == 0o700
        assert (other.folder.keys / "operator.key").stat().st_mode & 0o777 == 0o600
        assert not (other.folder.keys / "server.key").exists()
        assert (link := read_link(other.folder)) is not None
        assert not link.started_here
        # The starter's link takes the record, whereupon the head ends: held up here, or the guest's copy might not be that far.
        os.kill(link_pid := laptop.link_pid(), signal.SIGSTOP)
        assert other.paceline("stop", name, "--no-wait").returncode == 0
        other.until(lambda: read_run(other.folder.path).phase in ("DONE", "ABORTED"), PATIENCE_S, "the end is copied")
        os.kill(link_pid, signal.SIGCONT)
        laptop.until(lambda: not objects_of(kit), PATIENCE_S, "nothing left")
        other.until(lambda: not head_alive(other.folder), PATIENCE_S, "the guest's link has noticed")


def test_whoever_may_read_only_the_viewers_keys_watches_and_is_told_so(kit: ClusterKit, laptop: Laptop, tmp_path: Path) -> None:
    laptop.begin(*laptop.run(1))
    name = laptop.until_linked().name
    rights = (
        Rule(("get", "list"), ("", "batch"), ("configmaps", "jobs", "pods"), "paceline"),
        Rule(("get",), ("",), ("secrets",), "paceline", (f"{name}-viewer-keys",)),
        Rule(("get", "create"), ("",), ("pods/portforward",), "paceline"),
    )
    with laptop_of(kit, tmp_path, "guest", kit.operator(tmp_path / "guest.kubeconfig", *rights)) as guest:
        seen = guest.paceline("attach", name, "--namespace", "paceline", "--once", "--json")
        assert seen.returncode == 0, seen.stderr
        assert "only the viewers' keys" in seen.stderr
        refused = guest.paceline("stop", name)
        assert refused.returncode == 3
        assert "operator.key" in refused.stderr
    assert laptop.paceline("stop", name).returncode == 0


def test_a_head_that_failed_for_good_is_made_anew_and_the_workers_stay(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(1, **{"cluster.kubernetes.head_restarts": 0}))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(laptop.folder) == 2, PATIENCE_S, "both replicas ready")
    workers = [pod["metadata"]["uid"] for pod in kit.pods("worker")]
    healthy = laptop.paceline("restart-head", folder.name, "--no-console")
    assert "has not failed" in healthy.stderr
    kit.kill(kit.pods("head")[0]["metadata"]["name"])
    kit.until(lambda: not kit.pods("head"), PATIENCE_S, "the head is gone")
    laptop.until(lambda: f"paceline restart-head {folder.name}" in laptop.said(), PATIENCE_S, "the link says what to do")
    laptop.begin("restart-head", folder.name, "--no-console")
    laptop.until(lambda: HeadAddress.read(folder).epoch == 2, PATIENCE_S, "the next epoch")
    laptop.until(lambda: ready(laptop.folder) == 2, PATIENCE_S, "both replicas registered again")
    assert [pod["metadata"]["uid"] for pod in kit.pods("worker")] == workers
    assert laptop.paceline("stop", folder.name).returncode == 0


def test_what_a_run_has_left_is_listed_and_removed_on_request_only(kit: ClusterKit, laptop: Laptop) -> None:
    done = laptop.paceline(*laptop.run(1, **{"load.duration_s": 1, "cluster.kubernetes.clean_up": "false"}), within_s=120)
    assert done.returncode == 0, done.stderr
    assert "clean-up" in done.stderr
    name = laptop.folder.name
    kit.create("ConfigMap", {"metadata": {"name": "somebody-elses"}, "data": {}})
    unasked = laptop.paceline("clean-up", name)
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    assert f"ConfigMap {name}-run" in unasked.stdout
    removed = laptop.paceline("clean-up", name, "--yes")
    assert removed.returncode == 0, removed.stderr
    assert objects_of(kit) == ["ConfigMap somebody-elses"]
    assert "nothing of" in laptop.paceline("clean-up", name, "--yes").stdout


def test_a_record_that_nobody_came_for_in_time_is_said_to_be_on_the_claim(kit: ClusterKit, laptop: Laptop) -> None:
    wishes = {"load.duration_s": 4, "cluster.kubernetes.keep_record_s": 1}
    laptop.begin(*laptop.run(1, **wishes))
    folder = laptop.until_linked()
    os.kill(link := laptop.link_pid(), signal.SIGKILL)
    laptop.until(lambda: not is_alive(link, None), PATIENCE_S, "the link was killed")
    head = f"{folder.name}-head"
    kit.until(lambda: "Complete" in str((kit.get("Job", head) or {})["status"].get("conditions")), PATIENCE_S, "the head ended")
    late = laptop.paceline("attach", folder.name, "--once")
    assert "the record is whole on the claim" in late.stderr
    assert f"the record is whole on the claim paceline-results of namespace paceline, in /results/{folder.name}" in laptop.said()
    assert (about := read_link(folder)) is not None
    assert about.state == "gone"
    kit.until(lambda: not objects_of(kit), PATIENCE_S, "nothing left")
    assert (on_claim(kit, laptop.folder).path / "run.json").is_file()
    assert "no longer on its cluster" in laptop.paceline("rate", folder.name, "5").stderr


def test_a_second_ctrl_c_ends_the_run_on_the_cluster_at_once(kit: ClusterKit, laptop: Laptop) -> None:
    running = laptop.begin(*laptop.run(1))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(laptop.folder) == 2, PATIENCE_S, "both replicas ready")
    link = laptop.link_pid()
    lines: list[str] = []
    reading = threading.Thread(target=lines.extend, args=(running.stderr,), daemon=True)
    reading.start()
    # Before its first line of progress a Ctrl-C still means the start, and before it has noticed the first, two are one.
    laptop.until(lambda: any(re.match(r" *\d+:\d\d ", line) for line in lines), PATIENCE_S, "the run is followed")
    os.killpg(running.pid, signal.SIGINT)
    laptop.until(lambda: any("Ctrl-C: stopping" in line for line in lines), PATIENCE_S, "the first is noticed")
    os.killpg(running.pid, signal.SIGINT)
    running.wait(PATIENCE_S)
    reading.join(PATIENCE_S)
    assert any("second Ctrl-C" in line for line in lines), lines
    laptop.until(lambda: not is_alive(link, None), PATIENCE_S, "the link was killed")
    kit.until(lambda: not objects_of(kit), PATIENCE_S, "nothing left")
    assert read_run(folder.path).phase == "ABORTED"
