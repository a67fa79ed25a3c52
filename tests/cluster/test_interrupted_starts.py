"""A start that is broken off leaves nothing on the cluster, whatever breaks it off: a signal, two, the terminal, the network."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of
from laptop_kit import Laptop, laptop_of, objects_of

from harness.cluster.base import ClusterError
from harness.cluster.interrupts import deaf, like_ctrl_c
from harness.cluster.kube.access import access
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.placing import place
from harness.records.layout import RunFolder
from harness.spec import RunSpec

RUN = "trial-20261130-120000"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    """All nodes are cordoned: the head stays Pending."""
    with cluster_of(2, tmp_path, backoff_s=0.5) as made:
        for number in range(2):
            made.cordon(f"node-{number}")
        yield made


def pending(kit: ClusterKit, laptop: Laptop) -> Any:
    running = laptop.begin(*laptop.run(1))
    kit.until(lambda: kit.pods("head"), 60, "a head pod")
    return running


def gone(kit: ClusterKit) -> None:
    kit.until(lambda: not objects_of(kit), 60, "nothing left")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_or_a_closed_terminal_takes_all_back_as_ctrl_c_does(
    kit: ClusterKit, tmp_path: Path, number: signal.Signals
) -> None:
    with laptop_of(kit, tmp_path) as laptop:
        running = pending(kit, laptop)
        os.kill(running.pid, number)
        _, said = running.communicate(timeout=60)
        assert (running.returncode, "interrupted: all that was made" in said) == (130, True), said
        gone(kit)
        assert list(laptop.runs.iterdir()) == []


def test_a_second_ctrl_c_does_not_stop_the_first_from_taking_all_back(kit: ClusterKit, tmp_path: Path) -> None:
    with laptop_of(kit, tmp_path) as laptop:
        running = pending(kit, laptop)
        for _ in range(4):
            os.kill(running.pid, signal.SIGINT)
            time.sleep(0.03)
        _, said = running.communicate(timeout=60)
        assert "all that was made" in said, said
        assert running.returncode in (130, -signal.SIGINT)  # the last of them may have met an interpreter that was ending
        gone(kit)


def test_a_terminal_that_is_gone_does_not_keep_the_objects_there(kit: ClusterKit, tmp_path: Path) -> None:
    def said(line: str) -> None:
        if line.startswith("head pod"):
            raise BrokenPipeError("the terminal is closed")

    with pytest.raises(BrokenPipeError):
        placing(kit, tmp_path, said)
    gone(kit)


def placing(kit: ClusterKit, path: Path, say: Any) -> None:
    folder = RunFolder(path / RUN)
    folder.path.mkdir()
    small = {"head_cpu": "1", "head_memory": "1Gi", "worker_cpu": "1", "worker_memory": "1Gi"}
    spec = RunSpec.model_validate({"name": "trial", "cluster": {"kind": "kubernetes", "kubernetes": small}})
    place(folder, spec, say=say, way=access(kubeconfig=kit.kubeconfig), head_ready_within_s=20.0)


def test_a_config_map_whose_making_was_not_heard_of_is_found_and_removed(
    kit: ClusterKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Api.create

    async def unheard(self: Api, *arguments: Any, **named: Any) -> Any:
        await create(self, *arguments, **named)
        raise ApiProblem(0, "TimedOut", "the API server does not answer: no reply within 10 s")

    monkeypatch.setattr(Api, "create", unheard)
    said: list[str] = []
    with pytest.raises(ClusterError, match="no reply within"):
        placing(kit, tmp_path, said.append)
    assert any("is being removed" in line for line in said), said
    gone(kit)


def test_a_config_map_of_that_name_that_is_not_ours_stays(
    kit: ClusterKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(self: Api, *_: Any, **__: Any) -> Any:
        raise ApiProblem(0, "TimedOut", "the API server does not answer: no reply within 10 s")

    kit.create("ConfigMap", {"metadata": {"name": f"{RUN}-run"}, "data": {}})
    monkeypatch.setattr(Api, "create", silent)
    said: list[str] = []
    with pytest.raises(ClusterError, match="no reply within"):
        placing(kit, tmp_path, said.append)
    assert said == [f"{RUN}: nothing was made on the cluster"]
    assert objects_of(kit) == [f"ConfigMap {RUN}-run"]


def test_signals_are_as_before_once_it_is_over_and_nohup_stays_nohup() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with like_ctrl_c():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            with deaf():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, old)
    assert {number: signal.getsignal(number) for number in before} == before


def test_other_threads_leave_signals_as_they_are() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def elsewhere() -> None:
        with like_ctrl_c(), deaf():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert seen == [before]
