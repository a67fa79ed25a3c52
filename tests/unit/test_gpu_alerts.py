"""Alerts: when they start and end, what a round that failed leaves, whose they are, and what is asked of a server."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from harness.metrics.gpu.alerts import AlertBook, Finding, Findings, find
from harness.metrics.gpu.base import Curve, MetricInfo, QueryAnswer, Reading, SeriesKey, SourceError
from harness.metrics.gpu.join import GpuPlace, Joined, Joiner
from harness.metrics.gpu.rules import Rule, load_rules, read_rules
from harness.metrics.gpu.twins import not_evaluated
from harness.metrics.gpu.window import RoleHistory
from harness.metricspec import GpuSourceSpec

SLOT = "node000/gpu1"


def rule(id: str = "hot", for_s: float = 0.0, **more: object) -> Rule:
    return Rule(id, id.title(), "mine", "gpu_x > 1", for_s=for_s, summary="too hot", **more)  # type: ignore[arg-type]


def found(*subjects: str, value: float = 1.0, text: str = "") -> list[Finding]:
    return [Finding(None, value, subject, text) for subject in subjects]


def book(*rules: Rule) -> AlertBook:
    return AlertBook(list(rules) or [rule()], lambda: 0.0)


# --- the book ------------------------------------------------------------------------------------------------


def test_an_alert_starts_at_once_and_ends_when_it_is_not_found_any_more() -> None:
    alerts = book(rule(severity="crit", cause="running hot", act="evict"))
    (start,) = alerts.update({"hot": found(SLOT, value=97, text="97 °C")}, 10)
    assert start.started
    assert (start.row.rule, start.row.subject, start.row.severity, start.row.since_unix) == ("hot", SLOT, "crit", 10)
    assert (start.row.value, start.row.text, start.row.cause, start.row.act) == (97, "97 °C", "running hot", "evict")
    assert alerts.update({"hot": found(SLOT, value=98, text="98 °C")}, 20) == []
    assert [row.text for row in alerts.rows()] == ["98 °C"]
    (end,) = alerts.update({"hot": []}, 30)
    assert not end.started
    assert (end.row.since_unix, end.row.text) == (10, "98 °C")
    assert alerts.rows() == []


def test_a_rule_that_wants_to_hold_for_a_while_starts_only_then() -> None:
    alerts = book(rule(for_s=60))
    assert alerts.update({"hot": found(SLOT)}, 0) == []
    assert alerts.update({"hot": found(SLOT)}, 59) == []
    assert alerts.rows() == []
    (start,) = alerts.update({"hot": found(SLOT)}, 60)
    assert start.row.since_unix == 0


def test_a_value_that_wavers_at_its_threshold_is_one_alert() -> None:
    alerts = book(rule(keep_s=30))
    assert [change.started for change in alerts.update({"hot": found(SLOT)}, 100)] == [True]
    assert alerts.update({"hot": []}, 110) == []
    assert alerts.update({"hot": found(SLOT)}, 120) == []
    assert alerts.update({"hot": []}, 149) == []
    assert [change.started for change in alerts.update({"hot": []}, 150)] == [False]


def test_a_gap_begins_the_while_anew_and_is_no_end() -> None:
    alerts = book(rule(for_s=60))
    for now, holds in ((0, True), (30, True), (45, False), (60, True), (115, True)):
        assert alerts.update({"hot": found(SLOT) if holds else []}, now) == []
    assert len(alerts.update({"hot": found(SLOT)}, 120)) == 1


def test_a_round_in_which_a_rule_was_not_evaluated_keeps_what_fires_and_what_waits() -> None:
    alerts = book(rule(for_s=20), rule("cold"))
    alerts.update({"hot": found(SLOT), "cold": found("fleet")}, 0)
    assert alerts.update({}, 10) == []
    assert [row.rule for row in alerts.rows()] == ["cold"]
    (start,) = alerts.update({"hot": found(SLOT)}, 20)
    assert (start.row.rule, start.row.since_unix) == ("hot", 0)
    assert len(alerts.rows()) == 2


def test_each_subject_is_an_alert_of_its_own_and_the_gravest_come_first() -> None:
    alerts = book(rule(severity="warn"), rule("cold", severity="crit"), rule("dim", severity="info"))
    changes = alerts.update({"dim": found("node000"), "hot": found("b", "a"), "cold": found("fleet")}, 0)
    assert [(change.row.rule, change.row.subject) for change in changes] == [
        ("cold", "fleet"), ("hot", "a"), ("hot", "b"), ("dim", "node000")
    ]  # fmt: skip
    assert [change.row.subject for change in alerts.update({"hot": found("a")}, 1)] == ["b"]


def test_several_gpus_of_a_replica_are_one_alert() -> None:
    (start,) = book().update({"hot": found(SLOT, SLOT, SLOT, text="97 °C")}, 0)
    assert start.row.text == "97 °C (and 2 more)"


def test_a_finding_without_a_subject_is_of_its_key_or_of_the_fleet() -> None:
    alerts = book()
    alerts.update({"hot": [Finding(SeriesKey(host="n1", slot=SLOT), 1), Finding(SeriesKey(host="n1"), 1), Finding(None, 1)]}, 0)
    assert {row.subject for row in alerts.rows()} == {SLOT, "n1", "fleet"}


def test_another_head_goes_on_with_what_fired_and_ends_what_it_does_not_find() -> None:
    first = book(rule(for_s=60), rule("cold"))
    first.update({"hot": found(SLOT, "node001/gpu0"), "cold": found("fleet")}, 0)
    first.update({"hot": found(SLOT, "node001/gpu0")}, 60)
    second = book(rule(for_s=60), rule("cold"))
    second.restore(first.rows())
    assert second.rows() == first.rows()
    (end,) = second.update({"hot": found(SLOT)}, 100)
    assert (end.started, end.row.subject) == (False, "node001/gpu0")
    assert {(row.rule, row.since_unix) for row in second.rows()} == {("hot", 0), ("cold", 0)}


def test_the_end_of_a_run_ends_all_alerts() -> None:
    alerts = book()
    alerts.update({"hot": found(SLOT)}, 0)
    assert [(change.started, change.row.subject) for change in alerts.end_all()] == [(False, SLOT)]
    assert alerts.rows() == []


def test_rules_that_the_book_does_not_have_are_left_out() -> None:
    assert book().update({"other": found(SLOT)}, 0) == []


# --- whose they are, and what is asked -----------------------------------------------------------------------


class Server:
    """Answers each query with what `answer` makes of it."""

    kind, name = "promql", "a server"

    def __init__(self, answer: Callable[[str], list[tuple[dict[str, str], float]]]) -> None:
        self.asked: list[str] = []
        self._answer = answer

    async def query(
        self,
        promql: str,
        start_unix: float | None = None,
        end_unix: float | None = None,
        step_s: float | None = None,
        *,
        most: int = 200,
    ) -> QueryAnswer:
        self.asked.append(promql)
        one = np.ones(1)
        return QueryAnswer([Curve(labels, one, one * value) for labels, value in self._answer(promql)], "vector")

    async def read(self, roles: object) -> Reading:
        raise NotImplementedError

    async def metrics(self) -> list[MetricInfo]:
        raise NotImplementedError

    async def close(self) -> None: ...


def fleet(matched: int = 4) -> Joined:
    places = [
        GpuPlace(
            f"node{n:03d}/gpu{g}", 0, (f"host{n}.example", f"node{n:03d}"), gpu=str(g), uuid=f"U{n}{g}", pod=f"r-worker-{n}-x"
        )
        for n in range(2)
        for g in range(2)
    ]
    return Joined({}, {}, matched, 4 - matched, 0, (), Joiner(places))


MINE = """
groups:
  - name: mine
    rules:
      - {alert: Hot, expr: gpu_x > 1, labels: {id: hot, severity: warn}, annotations: {only: serving}}
"""


async def subjects(labels: dict[str, str], *, serving: list[bool] | None = None) -> list[str]:
    server = Server(lambda _: [({**labels, "paceline_rule": "hot"}, 7.0)])
    shown = None if serving is None else np.array(serving)
    findings = await find(server, read_rules(MINE, "mine"), RoleHistory(), fleet(), 4, serving=shown)
    return [finding.subject for finding in findings["hot"]]


@pytest.mark.parametrize(
    ("labels", "subject"),
    [
        ({"gpu_uuid": "U01", "hostname": "elsewhere"}, "node000/gpu1"),
        ({"hostname": "HOST1", "gpu_id": "0"}, "node001/gpu0"),
        ({"Hostname": "host1.example", "gpu": "1"}, "node001/gpu1"),
        ({"instance": "host1:9400", "gpu": "1"}, "node001/gpu1"),
        ({"hostname": "host1"}, "node001"),
        ({"instance": "host0:9100", "mountpoint": "/"}, "node000"),
        ({"instance": "10.0.0.9:9100", "job": "gpu"}, "fleet"),
        ({"pod": "r-worker-1-x", "namespace": "paceline"}, "node001"),
        ({"pod": "r-head-0", "namespace": "paceline"}, "fleet"),
        ({"replica": "node001/gpu1"}, "node001/gpu1"),
        ({}, "fleet"),
    ],
)
async def test_a_finding_is_of_a_slot_a_node_or_the_fleet(labels: dict[str, str], subject: str) -> None:
    assert await subjects(labels) == [subject]


@pytest.mark.parametrize(
    "labels",
    [{"hostname": "host9", "gpu_id": "0"}, {"hostname": "host9"}, {"gpu_uuid": "U77"}, {"pod": "other-worker-0-x"}],
)
async def test_what_concerns_somebody_elses_machines_is_no_finding(labels: dict[str, str]) -> None:
    assert await subjects(labels) == []


async def test_a_replica_that_does_not_serve_is_not_compared_with_those_that_do() -> None:
    assert await subjects({"gpu_uuid": "U01"}, serving=[True, False, True, True]) == []
    assert await subjects({"gpu_uuid": "U01"}, serving=[True, True, True, True]) == ["node000/gpu1"]


async def test_only_rules_of_the_exporters_that_answer_are_asked_one_query_a_group() -> None:
    server = Server(lambda _: [])
    spec = GpuSourceSpec(source="promql", url="http://p", prefix="amd_", matchers='cluster="a"')
    findings = await find(server, load_rules(), RoleHistory(), fleet(), 4, profiles=["amd-dme", "vllm"], spec=spec, window_s=240)
    assert len(server.asked) == 3
    amd, engines, cluster = server.asked
    assert 'amd_gpu_gfx_activity{cluster="a"}[240s]' in amd
    assert 'vllm:num_requests_waiting{cluster="a"}' in engines
    assert "kube_pod_container_status_restarts_total" in cluster
    assert "DCGM" not in "".join(server.asked)
    assert findings["power_cap"] == []
    assert "xid" not in findings
    assert "ttft_over_limit" not in findings


async def test_where_a_server_refuses_one_rule_the_others_are_asked_alone() -> None:
    def answer(query: str) -> list[tuple[dict[str, str], float]]:
        if "bad" in query:
            raise SourceError("bad_query", "many-to-many matching")
        return [({"gpu_uuid": "U00"}, 3.0)]

    two = MINE + "      - {alert: Bad, expr: bad > 1, labels: {id: bad, severity: warn}}\n"
    findings = await find(Server(answer), read_rules(two, "mine"), RoleHistory(), fleet(), 4)
    assert [finding.subject for finding in findings["hot"]] == ["node000/gpu0"]
    assert "bad" not in findings
    assert findings.problems == ["alert rule bad: many-to-many matching"]


async def test_a_server_that_is_down_ends_no_alert() -> None:
    def down(_: str) -> list[tuple[dict[str, str], float]]:
        raise SourceError("unreachable", "connection refused")

    rules = read_rules(MINE, "mine")
    alerts = AlertBook(rules, lambda: 0.0)
    alerts.update({"hot": found(SLOT)}, 0)
    server = Server(down)
    findings = await find(server, rules, RoleHistory(), fleet(), 4)
    assert findings == Findings()
    assert findings.problems == ["alert rules were not asked for: connection refused"]
    assert alerts.update(findings, 10) == []
    assert [row.subject for row in alerts.rows()] == [SLOT]


async def test_missing_gpus_are_counted_by_the_join_which_knows_whose_they_are() -> None:
    server = Server(lambda _: [])
    findings = await find(server, load_rules(), RoleHistory(), fleet(matched=3), 4, profiles=["amd-dme"])
    (missing,) = findings["gpus_missing"]
    assert (missing.subject, missing.value, missing.text) == ("fleet", 1.0, "GPUs of the fleet without metrics: 1")
    assert "paceline_gpus_expected" not in "".join(server.asked)


async def test_a_rule_is_not_judged_while_nothing_is_known_of_what_it_judges() -> None:
    """After a restart of the head a growth needs two readings; until then what fired goes on."""
    history, errors = RoleHistory(), np.zeros(4, np.float32)
    history.push(100.0, {"ecc_uncorrectable": errors, "gpu_util": errors})
    first = await scraped(history)
    assert "ecc_uncorrectable" not in first
    assert "power_cap" not in first
    assert first["straggler_util"] == []
    history.push(110.0, {"ecc_uncorrectable": errors})
    assert (await scraped(history))["ecc_uncorrectable"] == []


async def scraped(history: RoleHistory) -> Findings:
    pages = Server(lambda _: [])
    pages.kind = "scrape"
    return await find(pages, load_rules(), history, fleet(), 4, profiles=("amd-dme",))


def test_rules_of_ones_own_need_a_server() -> None:
    assert "metrics.gpu.url" in not_evaluated(read_rules(MINE, "mine"))["hot"]
    assert not_evaluated([one for one in load_rules() if one.id == "power_cap"]) == {}
