"""What a head says is in head.log of the laptop's folder: while it runs, after its end, and when it could not start."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from cluster_kit import ClusterKit
from laptop_kit import Laptop, on_claim, ready

from harness.records.layout import RunFolder
from harness.records.logs import merge_logs

PATIENCE_S = 60.0
ZONED = re.compile(r"(--- )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}[+-]\d\d:?\d\d ")

pytestmark = pytest.mark.timeout(180)


def words(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_the_heads_own_output_is_in_the_copied_record_live_and_to_its_last_line(kit: ClusterKit, laptop: Laptop) -> None:
    running = laptop.begin(*laptop.run(1, **{"load.duration_s": 0}))
    folder = laptop.until_linked()
    log = folder.log("head")
    first = kit.pods("head")[0]["metadata"]["name"]
    laptop.until(lambda: "epoch 1" in words(log), PATIENCE_S, "its first line, while it runs")
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "both replicas ready")
    kit.kill(first)
    wanted = ("epoch 2", f"pod {first} has ended: exit code 137")
    laptop.until(lambda: all(part in words(log) for part in wanted), PATIENCE_S, "its end, and those of its successor")
    second = kit.pods("head")[0]["metadata"]["name"]
    assert laptop.paceline("stop", folder.name).returncode == 0
    running.communicate(timeout=PATIENCE_S)
    lines = words(log).splitlines()
    assert f"pod {second} has ended: exit code 0" in lines[-1]
    begins = [line for line in lines if " begins" in line]
    assert [sum(name in line for line in begins) for name in (first, second)] == [1, 1]
    assert len([line for line in lines if "epoch 2" in line]) == 1
    for path in folder.logs.glob("*.log"):
        assert ZONED.match(words(path)) or not words(path), f"{path}: {words(path)[:200]}"
    shown = [line for line in merge_logs(folder.logs, 0.0, 1000).lines if line.source == "head"]
    assert any("epoch 2" in line.text for line in shown)


def test_a_head_that_could_not_start_leaves_its_words_here(kit: ClusterKit, laptop: Laptop) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        wishes = {"cluster.kubernetes.control_port": taken.getsockname()[1], "cluster.kubernetes.head_restarts": 0}
        done = laptop.paceline(*laptop.run(1, **wishes), within_s=120)
    assert done.returncode != 0
    (path,) = laptop.runs.iterdir()
    folder = RunFolder(path)
    assert "cannot listen" in words(folder.log("head")), done.stderr + words(folder.log("head"))
    assert str(folder.log("head")) in done.stderr
    assert not folder.keys.exists()
    assert "has ended: exit code" in words(folder.log("head"))


def test_a_head_whose_successors_cannot_start_leaves_theirs(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(1, **{"cluster.kubernetes.head_restarts": 1}))
    folder = laptop.until_linked()
    laptop.until(lambda: "epoch 1" in words(folder.log("head")), PATIENCE_S, "the first head's words")
    on_claim(kit, folder).spec_json.write_text("{}")
    kit.kill(kit.pods("head")[0]["metadata"]["name"])
    laptop.until(lambda: "has failed for good" in laptop.said(), PATIENCE_S, "the head's Job has failed")
    laptop.until(lambda: "holds another run" in words(folder.log("head")), PATIENCE_S, "why, in its own words")
    assert words(folder.log("head")).count("epoch 1") == 1
