"""GPU metrics, alerts and causes of a run in its replay: from the record's values and its journal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from console_helpers import HandClock
from recorded_kit import SECONDS_BEFORE, T0, a_spec, recorded_run

from console.feeds.recorded import RecordedRun, read_recorded
from console.feeds.replay import ReplayFeed
from console.store.causes import likely_cause
from console.store.fleet import FleetStore
from harness.records.journal import JournalWriter, read_journal
from harness.records.layout import RunFolder
from harness.records.writer import RecordWriter
from harness.wire.control import JournalEntry

SECONDS = 240
ROUND_S = 10
SLOT = "node000/gpu1"
ALERT_FROM_S, ALERT_TO_S = 60.0, 120.0
SILENT_FROM_S = 150  # the source falls silent


def with_gpu_metrics(path: Path) -> Path:
    """Power of every GPU each round; of one of them less while the alert fires. Uncorrectable errors once a minute."""
    folder, spec = RunFolder(path), a_spec(seconds=SECONDS)
    slots = spec.slots()
    entries = list(read_journal(folder.journal))
    source = {
        "kind": "scrape", "profiles": ["amd-dme"], "interval_s": 10.0, "resolution_s": 15.0, "devices": 1, "matched": 4,
        "gpus_unmatched": 0, "not_collected": {"link_down": "no NIC exporter"},
    }  # fmt: skip
    alert = {"rule": "power_cap", "severity": "warn", "value": 0.9, "cause": "power cap", "act": ""}
    entries += [
        JournalEntry(0, T0 + 4, "head", "metrics.source", "4 exporters", after="ok", data=source),
        JournalEntry(0, T0 + ALERT_FROM_S, "head", "alert.start", SLOT, "90 % at the cap", level="warn", data=alert),
        JournalEntry(0, T0 + ALERT_TO_S, "head", "alert.end", SLOT, data=alert),
        JournalEntry(0, T0 + SILENT_FROM_S + 8, "head", "metrics.source", "4 exporters", "no answer", after="down", data=source),
    ]
    folder.journal.unlink()
    journal = JournalWriter(folder.journal)
    for entry in sorted(entries, key=lambda entry: entry.unix):
        journal.append(entry)
    journal.close()
    writer = RecordWriter(folder)
    for second in range(0, SILENT_FROM_S, ROUND_S):
        power = np.full(4, 500.0, dtype=np.float32) + second
        if ALERT_FROM_S <= second < ALERT_TO_S:
            power[1] = 200.0
        power[3] = np.nan  # has no series
        roles = {"power": (power, np.full(4, T0 + second - 2.0))}
        if second % 60 == 0:
            roles["ecc_uncorrectable"] = (np.zeros(4, dtype=np.float32), np.full(4, T0 + second - 2.0))
        writer.gpus(1, T0 + second, roles, slots, 1)
    writer.flush(final=True)
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    path = recorded_run(tmp_path_factory.mktemp("runs"), seconds=SECONDS, spec=a_spec(seconds=SECONDS))
    return read_recorded(with_gpu_metrics(path), lambda text: None)


def at(recorded: RecordedRun, second: float) -> FleetStore:
    store = FleetStore(HandClock())
    store.apply(recorded.state(second))
    store.apply(recorded.snapshot(second, 1))
    return store


def test_a_replayed_moment_has_the_values_that_were_known_then(recorded: RecordedRun) -> None:
    store = at(recorded, 95.0)
    power = store.gpus.column("power", store.unix)
    assert power[:3].tolist() == [590.0, 200.0, 590.0]
    assert np.isnan(power[3])
    assert store.gpus.age_s("power", store.unix) == pytest.approx(7.0)
    assert store.gpus.column("ecc_uncorrectable", store.unix)[:3].tolist() == [0.0, 0.0, 0.0]
    assert store.gpus.view is not None
    assert (store.gpus.view.kind, store.gpus.view.source, store.gpus.resolution_s) == ("scrape", "4 exporters", 15.0)
    assert store.gpus.why_missing("link_down") == "no NIC exporter"


def test_alerts_and_the_cause_are_those_of_the_moment(recorded: RecordedRun) -> None:
    for second, cause in ((50.0, ""), (70.0, "power cap"), (125.0, "")):
        store = at(recorded, second)
        assert store.gpus.cause_of(SLOT, "node000") == cause, second
    store = at(recorded, 70.0)
    assert likely_cause(store, store.index[SLOT]) == "power cap"
    (row,) = store.gpus.alerts
    assert (row.rule, row.severity, row.value, row.text) == ("power_cap", "warn", 0.9, "90 % at the cap")


def test_when_the_source_fell_silent_values_grow_old_and_then_unknown(recorded: RecordedRun) -> None:
    store = at(recorded, 170.0)
    assert store.gpus.view is not None
    assert store.gpus.view.state == "down"
    assert store.gpus.column("power", store.unix)[0] == 640.0
    late = at(recorded, 238.0)
    assert np.isnan(late.gpus.column("power", late.unix)).all()


def test_before_anybody_looked_for_a_source_there_is_none(recorded: RecordedRun) -> None:
    assert at(recorded, 2.0).gpus.view is not None
    assert recorded.gpus.at(T0 - 5) is None


def test_a_step_tells_only_what_is_new(recorded: RecordedRun) -> None:
    def told(before_s: float, after_s: float) -> list[str]:
        return [type(message).__name__ for message in recorded.news(before_s, after_s)]

    assert "GpuView" not in told(91.0, 92.0)
    assert "GpuView" in told(99.0, 100.0)  # a round
    assert "GpuView" in told(59.0, 60.0)
    assert "GpuView" in told(157.0, 158.0)  # its state


async def test_a_jump_fills_the_charts_with_the_rounds_before_it(recorded: RecordedRun) -> None:
    feed, store = ReplayFeed(recorded.path), FleetStore(HandClock())
    feed._show(store, recorded, 130)
    rounds = store.gpus.rounds["power"]
    known = rounds.values[0][~np.isnan(rounds.values[0])]
    assert known.tolist() == [500.0 + second for second in range(0, 131, ROUND_S)]
    feed._shown_s = -1  # wound back
    feed._show(store, recorded, 40)
    assert np.nanmax(store.gpus.rounds["power"].values) == 540.0


def test_a_record_without_gpu_metrics_replays_as_before(tmp_path: Path) -> None:
    plain = read_recorded(recorded_run(tmp_path, seconds=20, spec=a_spec(seconds=20)), lambda text: None)
    assert plain.state(SECONDS_BEFORE + 5).gpus is None
    assert at(plain, 10.0).gpus.view is None
