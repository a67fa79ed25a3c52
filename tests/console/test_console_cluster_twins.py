"""The same of pods and nodes without a screen: rows, pages of text, sentences, and `paceline evict --cordon`."""

from __future__ import annotations

import json

import pytest
from cluster_helpers import cluster_of, clustered, store_of
from console_helpers import HandClock

from console.cli import acts
from console.cli.page import Page
from console.cli.pages import fleet_page, live_page, nodes_page, replica_page
from console.feeds.scripted import SAMPLE_UNIX, ScriptedFleet
from console.plain import Narrator, sentence, status
from console.store import tables
from console.store.fleet import FleetStore
from harness.wire.control import JournalEntry, JournalNews


def page_of(name: str, store: FleetStore, width: int = 120) -> str:
    page, run = Page(width), tables.live(store)["run"][0]
    if name == "live":
        live_page(page, tables.live(store))
    elif name == "fleet":
        fleet_page(page, run, tables.fleet(store), "roster order")
    elif name == "nodes":
        nodes_page(page, run, tables.nodes(store))
    else:
        replica_page(page, run, tables.replica(store, "node012/gpu1"))
    assert all(len(line) <= width for line in page.lines)
    return " ".join(str(page).split())


# --- rows ----------------------------------------------------------------------------------------------------


def test_rows_of_replicas_and_nodes_carry_pod_host_rack_phase_and_reason() -> None:
    store = store_of(clustered())
    found = tables.nodes(store)
    json.dumps(found | tables.live(store) | tables.fleet(store), allow_nan=False)
    gone, unready, short = (found["nodes"][node] for node in (12, 10, 33))
    assert (gone["pod"], gone["host"], gone["rack"], gone["replacement_in_s"]) == ("", "", "r2", 32.0)
    assert gone["pod_reason"] == "evicted for the third time by kim@head"
    assert (unready["pod_phase"], unready["pod_ready"], unready["host_ready"]) == ("Running", False, False)
    assert (short["host_gpus_allocatable"], short["host_gpus"], short["pod_restarts"]) == (7, 8, 2)
    replica = tables.fleet(store)["replicas"][15 * 8]
    assert (replica["pod"], replica["host"], replica["rack"]) == ("sample-worker-15-x001", "mi355x-016", "r2")
    assert [row["host"] for row in found["hosts"] if not row["pods"]] == ["mi355x-013", "mi355x-090", "mi355x-091"]
    assert found["cluster"][0]["budget_allows"] == 1


def test_rows_of_a_run_of_processes_have_nothing_of_it(store: FleetStore) -> None:
    assert set(tables.nodes(store)) == {"nodes"}
    assert "cluster" not in tables.live(store)
    assert not any("pod_" in key or key == "rack" for key in tables.fleet(store)["replicas"][0])


def test_at_the_end_nothing_is_waited_for() -> None:
    fleet = clustered(pending=True)
    fleet.phase, fleet.verdict = "FAILED", "CRASHED"
    found = tables.live(store_of(fleet))
    assert "waiting" not in found
    assert "cluster" not in found


# --- pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [120, 80])
def test_pages_name_what_is_wrong(width: int) -> None:
    store = store_of(clustered())
    nodes = page_of("nodes", store, width)
    assert "node010 on mi355x-011: NotReady since" in nodes
    assert "node020 on mi355x-021: cordoned" in nodes
    assert "node033 on mi355x-034: 7 of 8 GPUs allocatable; 2 container restarts" in nodes
    assert "node012: replacement in ~32 s; evicted for the third time" in nodes
    assert "disruption budget lets 1 go now: 63 healthy, 62 needed" in nodes
    assert "mi355x-016" in page_of("fleet", store, width)
    assert "replacement in ~32 s" in page_of("replica", store, width)


@pytest.mark.parametrize("width", [120, 80])
def test_the_page_at_the_barrier_has_the_reasons_with_their_numbers(width: int) -> None:
    page = page_of("live", store_of(clustered(pending=True)), width)
    assert "37 pods: Pending: 0/64 nodes are available: 29 Insufficient amd.com/gpu" in page
    assert "(oldest 4m), node027, node028, node029, …" in page
    assert "missing node" not in page


def test_a_page_says_that_the_cluster_is_not_seen() -> None:
    fleet = clustered()
    cluster_of(fleet).problem, cluster_of(fleet).seen_s = "API server does not answer", 42.0
    page = page_of("live", store_of(fleet))
    assert "CLUSTER VIEW OLD: API server does not answer (the run goes on)" in page
    assert "seen 42 s ago" in page


# --- sentences -----------------------------------------------------------------------------------------------


def words(lines: list[str]) -> list[str]:
    return [line.split(" ", 1)[1] for line in lines]


def test_that_the_cluster_is_not_seen_is_said_once_and_so_is_that_it_is_seen_again(hand_clock: HandClock) -> None:
    fleet = clustered()
    store, narrator = store_of(fleet, hand_clock), Narrator(every_s=1e9)
    narrator.tell(store, hand_clock())

    def then(problem: str, seen_s: float) -> list[str]:
        cluster_of(fleet).problem, cluster_of(fleet).seen_s = problem, seen_s
        fleet.t_s += 1.0
        store.apply(fleet.snapshot())
        store.apply(cluster_of(fleet).view())
        return words(narrator.tell(store, hand_clock()))

    old = "Cluster view 42 s old: API server does not answer. The run goes on; what is said of pods and nodes is old."
    assert then("API server does not answer", 42.0) == [old]
    assert then("API server does not answer (2 tries)", 60.0) == []
    assert then("", 0.2) == ["The cluster can be seen again."]
    assert then("", 0.2) == []


@pytest.mark.parametrize("journal_first", [True, False])
def test_what_the_head_says_of_it_in_the_journal_is_not_said_again(journal_first: bool, hand_clock: HandClock) -> None:
    fleet = clustered()
    store, narrator = store_of(fleet, hand_clock), Narrator(every_s=1e9)
    narrator.tell(store, hand_clock())
    problem = "nothing is seen of the cluster since 14:02:11: connection refused; the run goes on"
    entry = JournalEntry(store.journal[-1].seq + 1, SAMPLE_UNIX, "head", "worker.event", "cluster", problem, level="warn")
    cluster_of(fleet).problem, cluster_of(fleet).seen_s = problem, 42.0
    lines = []
    for first in (journal_first, not journal_first):
        store.apply(JournalNews([entry]) if first else cluster_of(fleet).view())
        lines += words(narrator.tell(store, hand_clock()))
    assert len(lines) == 1
    assert "nothing is seen of the cluster since 14:02:11: connection refused" in lines[0]


def test_an_eviction_is_one_sentence(hand_clock: HandClock) -> None:
    store, narrator = store_of(clustered(), hand_clock), Narrator(every_s=1e9)
    narrator.tell(store, hand_clock())
    seq = store.journal[-1].seq
    entry = JournalEntry(seq + 1, SAMPLE_UNIX, "policy", "pod.evicted", "node003", "its successor starts in 10 s", level="warn")
    store.apply(JournalNews([entry]))
    assert words(narrator.tell(store, hand_clock())) == ["The pod of node003 is evicted: its successor starts in 10 s."]
    assert narrator.tell(store, hand_clock()) == []


def test_pods_that_wait_or_cannot_be_evicted_are_told() -> None:
    pending = JournalEntry(1, SAMPLE_UNIX, "head", "worker.pending", "worker-3", "Insufficient amd.com/gpu", level="warn")
    assert sentence(pending) == "worker-3 waits for its place: Insufficient amd.com/gpu."
    refused = JournalEntry(2, SAMPLE_UNIX, "head", "pod.not_evicted", "node003", "the budget lets none go", level="error")
    assert sentence(refused) == "The pod of node003 could not be evicted: the budget lets none go."


def test_the_status_counts_pods(store: FleetStore) -> None:
    assert status(store_of(clustered())).endswith("; 62 of 64 pods Running, 1 not ready, 1 missing.")
    assert "pods" not in status(store)


# --- the command ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cordon", "args"), [(True, {"cordon": True}), (False, {})])
def test_evict_sends_cordon_only_when_asked_for(cordon: bool, args: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, dict[str, object]]] = []

    def noted(folder: object, name: str, args: dict[str, object], reason: str, as_json: bool) -> int:
        sent.append((name, args))
        return 0

    monkeypatch.setattr(acts, "live_run", lambda run: run)
    monkeypatch.setattr(acts, "_act", noted)
    assert acts.evict("a-run", "node003/gpu1", cordon=cordon) == 0
    assert sent == [("evict", {"slot": "node003/gpu1", "incarnation": ""} | args)]


def test_sample_fleets_of_any_size_have_pods() -> None:
    for nodes in (1, 8, 64):
        store = store_of(ScriptedFleet(nodes=nodes, gpus=8, on_cluster=True))
        assert len(tables.nodes(store)["nodes"]) == nodes
        assert store.cluster.pod("node000") is not None
