"""The head's rounds of GPU metrics: what is told, recorded and journalled, whatever the source does."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from head_kit import Fleet, a_spec

from harness.head.before import Before
from harness.head.gpucolumns import GpuColumns, recorded
from harness.head.gpuwatch import GpuWatch
from harness.head.journal import Journal
from harness.metrics.gpu.base import Curve, MetricInfo, QueryAnswer, Reading, RoleReading, SeriesKey, SourceError
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.records.writer import RecordWriter
from harness.wire import inquiry
from harness.wire.control import JournalEntry
from harness.wire.gpus import AlertRow, GpuView

DEADLINE_S = 20.0


class ASource:
    """Answers what a test puts into it. A stand-in for a server: the real ones are asked in tests/metrics."""

    kind = "scrape"
    name = "2 exporters"

    def __init__(self, hosts: Sequence[str] = ("node000", "node001")) -> None:
        self.keys = [SeriesKey(host, str(gpu)) for host in hosts for gpu in range(2)]
        self.roles: dict[str, list[float]] = {"power": [700.0] * 4, "throttle_power": [0.0] * 4, "gpu_util": [95.0] * 4}
        self.profiles: tuple[str, ...] = ("amd-dme",)
        self.without = {"health": "not collected by it"}
        self.trouble: SourceError | None = None
        self.problems: tuple[str, ...] = ()
        self.age_s = 0.0
        self.rounds = 0
        self.closed = False

    async def read(self, roles: Sequence[str]) -> Reading:
        self.rounds += 1
        if self.trouble is not None:
            raise self.trouble
        now = time.time()
        unix = np.full(len(self.keys), now - self.age_s)
        read = {
            role: RoleReading(self.keys, np.array(values), unix, f"gpu_{role}")
            for role, values in self.roles.items()
            if role in roles
        }
        return Reading(now, read, dict(self.without), 5.0, self.profiles, ("partial data",), self.problems)

    async def query(
        self,
        promql: str,
        start_unix: float | None = None,
        end_unix: float | None = None,
        step_s: float | None = None,
        *,
        most: int = 200,
    ) -> QueryAnswer:
        if "(" in promql:
            raise SourceError("bad_query", "1:5: parse error")
        return QueryAnswer([Curve({"a": "b"}, np.array([1.0]), np.array([2.0]))], "vector", warnings=("careful",))

    async def metrics(self) -> list[MetricInfo]:
        return [MetricInfo("gpu_power", "gauge", "W", ("power",))]

    async def close(self) -> None:
        self.closed = True


class ASupply:
    def __init__(self, source: ASource | None) -> None:
        self.source, self.why = source, "" if source else "no source of GPU metrics is configured: set metrics.gpu.url"
        self.hosts: list[str] = []
        self.problem = ""

    async def open(self, hosts: Sequence[str]) -> ASource | None:
        self.hosts, self.problem = list(hosts), ""  # whatever had died is there again
        return self.source

    async def close(self) -> None:
        if self.source is not None:
            await self.source.close()


class AHead:
    def __init__(self, folder: Path, source: ASource | None, **metrics: Any) -> None:
        self.spec = a_spec(2, 2, metrics={"gpu": {"interval_s": 1, "slow_interval_s": 1, **metrics}})
        self.fleet = Fleet(self.spec)
        self.roster = self.fleet.roster
        self.entries: list[JournalEntry] = []
        self.journal = Journal(JournalWriter(folder / "journal.jsonl"), self.entries.append, time.time)
        self.folder = RunFolder(folder)
        self.writer = RecordWriter(self.folder)
        self.attempt: Any = None
        self.snapshot: Any = None
        self.views: list[GpuView] = []
        self.supply = ASupply(source)
        self.gpus = GpuWatch(self, self.supply, self.views.append)  # type: ignore[arg-type]

    def register(self) -> None:
        for number in range(4):
            self.roster.register(self.fleet.message(number, accelerator={"gpus": str(number % 2)}), b"peer")
            self.fleet.beat(number)

    def noted(self, what: str) -> list[JournalEntry]:
        return [entry for entry in self.entries if entry.what == what]


@asynccontextmanager
async def watching(head: AHead, fired: Sequence[AlertRow] = ()) -> AsyncIterator[Callable[[Callable[[], Any]], Any]]:
    head.gpus.start(fired)

    async def until(what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := what()):
            assert time.monotonic() < deadline, f"views: {[view.state for view in head.views]}, {head.entries[-3:]}"
            await asyncio.sleep(0.02)
        return found

    try:
        yield until
    finally:
        await head.gpus.close()


def column(view: GpuView, role: str) -> list[float]:
    return next(np.frombuffer(row.values, "<f4").tolist() for row in view.roles if row.role == role)


async def test_nobody_is_asked_before_a_replica_has_said_where_it_is(tmp_path: Path) -> None:
    source = ASource()
    head = AHead(tmp_path, source)
    async with watching(head):
        await asyncio.sleep(1.3)
        assert source.rounds == 0
        assert head.gpus.view.state == "starting"


async def test_a_round_is_told_with_its_source_and_what_it_does_not_collect(tmp_path: Path) -> None:
    head = AHead(tmp_path, ASource())
    head.register()
    async with watching(head) as until:
        view = (await until(lambda: head.views))[0]
        assert (view.state, view.kind, view.source) == ("ok", "scrape", "2 exporters")
        assert (view.matched, view.gpus_unmatched, view.series_unmatched) == (4, 0, 0)
        assert column(view, "power") == [700.0] * 4
        assert view.not_collected == {"health": "not collected by it"}
        assert view.warnings == ["partial data"]
        assert view.resolution_s == 5.0
    (entry,) = head.noted("metrics.source")
    assert (entry.after, entry.data["matched"]) == ("ok", 4)
    assert head.supply.source is not None
    assert head.supply.source.closed


async def test_without_a_source_it_says_what_to_set(tmp_path: Path) -> None:
    head = AHead(tmp_path, None)
    head.register()
    async with watching(head) as until:
        view = (await until(lambda: head.views))[0]
        assert (view.state, view.problem) == ("none", "no source of GPU metrics is configured: set metrics.gpu.url")
        answer = await head.gpus.curves(inquiry.QueryMetrics("1", "up"))
        assert answer.problem == view.problem


async def test_a_source_that_fails_leaves_the_last_values_and_comes_back(tmp_path: Path) -> None:
    source = ASource()
    head = AHead(tmp_path, source)
    head.register()
    async with watching(head) as until:
        await until(lambda: head.views)
        source.trouble = SourceError("unreachable", "nobody answers at 127.0.0.1:1; is it running?")
        view = await until(lambda: next((view for view in head.views if view.state == "down"), None))
        assert column(view, "power") == [700.0] * 4
        assert view.problem == "nobody answers at 127.0.0.1:1; is it running?"
        source.trouble = None
        await until(lambda: head.views[-1].state == "ok")
    assert [(entry.after, entry.level) for entry in head.noted("metrics.source")] == [
        ("ok", "info"),
        ("down", "warn"),
        ("ok", "info"),
    ]


async def test_a_prometheus_of_the_runs_own_that_died_is_told_although_another_takes_its_place(tmp_path: Path) -> None:
    head = AHead(tmp_path, ASource())
    head.register()
    async with watching(head) as until:
        await until(lambda: head.views)
        head.supply.problem = "the Prometheus of this run has ended (signal SIGKILL)"
        await until(lambda: len(head.noted("metrics.source")) == 3)
    told = [(entry.after, entry.why) for entry in head.noted("metrics.source")]
    assert told[1] == ("down", "the Prometheus of this run has ended (signal SIGKILL)")
    assert told[2][0] == "ok"


async def test_gpus_that_are_all_of_other_machines_are_named_at_once_with_what_to_set(tmp_path: Path) -> None:
    head = AHead(tmp_path, ASource(hosts=("gpu-17", "gpu-18")), interval_s=300)
    head.register()
    async with watching(head) as until:
        view = await until(lambda: head.views[-1] if head.views else None)
    assert (view.state, view.matched, view.series_unmatched) == ("stale", 0, 4)
    assert view.problem.startswith("none of the source's 4 GPUs is this fleet's: GPU 0 on gpu-18")
    assert "metrics.gpu.hosts" in view.problem


async def test_an_exporter_that_comes_and_goes_is_journalled_once(tmp_path: Path) -> None:
    source = ASource()
    head = AHead(tmp_path, source)
    head.register()
    async with watching(head) as until:
        for problems, state in ((), "ok"), (("node001 does not answer",), "partial"), ((), "ok"):
            source.problems = problems
            await until(lambda wanted=state: head.views and head.views[-1].state == wanted)
    assert [entry.after for entry in head.noted("metrics.source")] == ["ok"]


async def test_values_that_are_too_old_are_unknown_and_never_zero(tmp_path: Path) -> None:
    source = ASource()
    head = AHead(tmp_path, source, stale_after_s=2)
    source.age_s = 30.0
    head.register()
    async with watching(head) as until:
        view = await until(lambda: next((view for view in head.views if view.state == "stale"), None))
        assert view.roles == []
        assert "no series" in view.problem or "old" in view.problem


async def test_a_planted_power_cap_becomes_an_alert_a_cause_and_ends_with_the_run(tmp_path: Path) -> None:
    source = ASource()
    source.roles["throttle_power"] = [0.0, 0.0, 0.0, 0.85]
    head = AHead(tmp_path, source)
    head.snapshot = SimpleNamespace(slow=["node001/gpu1"], slow_nodes=[])
    head.register()
    rule = next(rule for rule in head.gpus._rules if rule.id == "power_cap")
    head.gpus._book._by_id["power_cap"] = _at_once(rule)
    async with watching(head) as until:
        (entry,) = await until(lambda: head.noted("alert.start"))
        assert (entry.subject, entry.data["cause"], entry.level) == ("node001/gpu1", "power cap", "warn")
        assert "85 %" in entry.why
        (cause,) = head.noted("straggler.cause")
        assert "power cap" in cause.why
        await until(lambda: head.gpus.cause_of("node001/gpu1") == "power cap")
        assert head.gpus.cause_of("node000/gpu0") == ""
    (ended,) = head.noted("alert.end")
    assert ended.why.startswith("the run ends; it was: ")


def _at_once(rule: Any) -> Any:
    return dataclasses.replace(rule, for_s=0.0)


async def test_an_alert_that_proposes_an_eviction_taints_the_attempt_and_evicts_nobody(tmp_path: Path) -> None:
    source = ASource()
    source.roles["ecc_uncorrectable"] = [0.0, 0.0, 0.0, 0.0]
    head = AHead(tmp_path, source)
    head.attempt = SimpleNamespace(number=3, record=SimpleNamespace(notes=[]))
    head.register()
    rule = next(rule for rule in head.gpus._rules if rule.id == "ecc_uncorrectable")
    head.gpus._book._by_id["ecc_uncorrectable"] = _at_once(rule)
    async with watching(head) as until:
        await until(lambda: len(head.views) > 1)
        source.roles["ecc_uncorrectable"] = [0.0, 2.0, 0.0, 0.0]
        (entry,) = await until(lambda: head.noted("alert.start"))
        assert (entry.subject, entry.level, entry.data["act"]) == ("node000/gpu1", "error", "evict")
        assert entry.why.endswith("evict it: paceline evict node000/gpu1")
        (left,) = Before.of(head.folder).fired.values()
        assert (left.subject, left.text) == ("node000/gpu1", "2 new uncorrectable memory errors in 10 minutes")
        (note,) = head.attempt.record.notes
        assert note.startswith("node000/gpu1: ")
        assert head.roster.by_slot["node000/gpu1"].state == "READY"


async def test_an_attempt_that_begins_while_such_an_alert_fires_is_tainted_too(tmp_path: Path) -> None:
    source = ASource()
    source.roles["health"] = [1.0, 1.0, 0.0, 1.0]
    head = AHead(tmp_path, source)
    head.register()
    async with watching(head) as until:
        await until(lambda: head.noted("alert.start"))
        head.attempt = SimpleNamespace(number=4, record=SimpleNamespace(notes=[]))
        await until(lambda: head.attempt.record.notes)
        rounds = len(head.views)
        await until(lambda: len(head.views) > rounds + 1)
        assert head.attempt.record.notes == ["node001/gpu0: its exporter calls it unhealthy"], "once"


async def test_a_slot_that_comes_back_on_another_gpu_does_not_inherit_counts_and_values(tmp_path: Path) -> None:
    source = ASource()
    source.keys = [dataclasses.replace(key, uuid=f"uuid-{number}") for number, key in enumerate(source.keys)]
    source.roles["ecc_uncorrectable"] = [0.0, 0.0, 0.0, 0.0]
    head = AHead(tmp_path, source)

    def register(number: int, incarnation: str, uuid: str) -> None:
        about = {"gpus": str(number % 2), "uuids": uuid}
        head.roster.register(head.fleet.message(number, incarnation, accelerator=about), b"peer")

    for number in range(4):
        register(number, "a", f"uuid-{number}")
    async with watching(head) as until:
        await until(lambda: len(head.views) > 1)
        source.keys[3] = dataclasses.replace(source.keys[3], uuid="uuid-9")
        source.roles["ecc_uncorrectable"][3] = 40.0  # of a longer life
        del source.roles["power"]
        register(3, "b", "uuid-9")
        view = await until(lambda: next((v for v in head.views if math.isnan(column(v, "power")[3])), None))
        assert column(view, "power")[:3] == [700.0] * 3
        rounds = len(head.views)
        await until(lambda: len(head.views) > rounds + 1)
        assert column(head.views[-1], "ecc_uncorrectable")[3] == 40.0
        assert head.noted("alert.start") == []


async def test_reasons_for_slow_roles_stay_between_the_rounds_that_ask_for_them(tmp_path: Path) -> None:
    head = AHead(tmp_path, ASource(), slow_interval_s=600)
    head.register()
    async with watching(head) as until:
        await until(lambda: head.views)
        head.supply.source.without.clear()  # type: ignore[union-attr]
        await until(lambda: len(head.views) > 1)
        assert head.views[-1].not_collected == {"health": "not collected by it"}


async def test_an_alert_that_another_head_left_firing_goes_on_without_a_new_start_and_ends_when_it_is_over(
    tmp_path: Path,
) -> None:
    head = AHead(tmp_path, ASource())
    head.register()
    left = AlertRow("power_cap", "node000/gpu0", "warn", time.time() - 100, 0.8, "power cap 80 %", "power cap")
    async with watching(head, [left]) as until:
        (ended,) = await until(lambda: head.noted("alert.end"))
        assert (ended.subject, ended.data["rule"]) == ("node000/gpu0", "power_cap")
        assert head.noted("alert.start") == []


async def test_of_a_source_of_engines_alone_no_gpu_is_missed(tmp_path: Path) -> None:
    source = ASource()
    source.roles, source.profiles = {"kv_use": [0.1] * 4}, ("vllm",)
    head = AHead(tmp_path, source)
    head.register()
    head.gpus._book._by_id["gpus_missing"] = _at_once(next(rule for rule in head.gpus._rules if rule.id == "gpus_missing"))
    async with watching(head) as until:
        await until(lambda: source.rounds >= 3)
        assert head.noted("alert.start") == []
        source.profiles = ("amd-dme", "vllm")
        (entry,) = await until(lambda: head.noted("alert.start"))
        assert (entry.data["rule"], entry.subject) == ("gpus_missing", "fleet")


async def test_every_sample_is_recorded_once(tmp_path: Path) -> None:
    source = ASource()
    source.roles = {"power": [700.0, 710.0, math.nan, 730.0]}
    head = AHead(tmp_path, source)
    head.attempt = SimpleNamespace(number=2, record=SimpleNamespace(notes=[]))
    head.register()
    async with watching(head) as until:
        await until(lambda: len(head.views) >= 2)
    head.writer.flush(final=True)
    rows = Record(head.folder).gpus().collect()
    assert set(rows["slot"]) == {"node000/gpu0", "node000/gpu1", "node001/gpu1"}
    assert set(rows["attempt"]) == {2}
    assert rows.select("slot", "sampled_unix").n_unique() == rows.height


async def test_questions_are_answered_with_curves_names_and_problems_in_words(tmp_path: Path) -> None:
    head = AHead(tmp_path, ASource())
    answer = await head.gpus.curves(inquiry.QueryMetrics("1", "up", most=10))
    assert np.frombuffer(answer.curves[0].values, "<f8").tolist() == [2.0]
    assert (answer.kind, answer.warnings, answer.source) == ("vector", ["careful"], "2 exporters")
    refused = await head.gpus.curves(inquiry.QueryMetrics("2", "up("))
    assert (refused.curves, refused.problem) == ([], "1:5: parse error")
    names = await head.gpus.names(inquiry.GetMetricNames("3"))
    assert [(one.name, one.roles) for one in names.names] == [("gpu_power", ["power"])]


def test_columns_keep_what_a_round_lacks_until_it_is_too_old() -> None:
    columns = GpuColumns(2, stale_after_s=10)
    columns.take("power", np.array([1.0, 2.0], "f4"), np.array([100.0, 100.0]))
    columns.take("power", np.array([3.0, np.nan], "f4"), np.array([108.0, np.nan]))
    assert columns.value("power", 0, 109.0) == 3.0
    assert columns.value("power", 1, 109.0) == 2.0
    values, _ = columns.fresh(112.0)["power"]
    assert values[0] == 3.0
    assert math.isnan(values[1])
    (row,) = columns.rows(112.0)
    assert (row.sampled_unix, row.oldest_unix) == (108.0, 108.0)
    assert columns.rows(200.0) == []


def test_roles_that_are_asked_for_less_often_may_be_older() -> None:
    columns = GpuColumns(1, 90, {"energy": 150})
    for role in ("energy", "power"):
        columns.take(role, np.array([1.0], "f4"), np.array([100.0]))
    assert [row.role for row in columns.rows(220.0)] == ["energy"]
    assert columns.rows(260.0) == []


def test_the_same_sample_again_is_no_news() -> None:
    fresh = {"power": (np.array([1.0, 2.0], "f4"), np.array([100.0, 100.0]))}
    news, before = recorded({}, fresh)
    assert news["power"][0].tolist() == [1.0, 2.0]
    again, before = recorded(before, {"power": (np.array([1.0, 5.0], "f4"), np.array([100.0, 105.0]))})
    assert math.isnan(again["power"][0][0])
    assert again["power"][0][1] == 5.0
    assert recorded(before, {"power": (np.array([1.0, 5.0], "f4"), np.array([100.0, 105.0]))})[0] == {}
    estimated_anew = {"power": (np.array([1.0, 5.0], "f4"), np.array([100.2, 104.9]))}  # by a clock that is not ours
    assert recorded(before, estimated_anew)[0] == {}


@pytest.mark.parametrize("text", ["[metrics]\nx = 1", "groups: 3", "groups: [{name: a, rules: [{alert: A}]}]"])
def test_a_rule_file_that_cannot_be_used_is_refused_before_anything_begins(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"own\.yaml"):
        GpuWatch(SimpleNamespace(spec=a_spec(1, 1, metrics={"rules": str(path)})), ASupply(None), print)  # type: ignore[arg-type]
