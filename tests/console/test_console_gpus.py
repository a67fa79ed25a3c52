"""What the store knows of GPUs: columns, ages, alerts, causes; and how heat map, filters and orders use it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from console_helpers import HandClock
from gpu_kit import changed, column, gpus_of, store_of, with_gpus

from console.feeds.sample_gpus import BROKEN, CAPPED, NOT_COLLECTED, STALE_ROLE
from console.feeds.scripted import ScriptedFleet
from console.store import filters, heat
from console.store.causes import likely_cause
from console.store.columns import NUMBERS
from console.store.fleet import FleetStore
from console.store.gpus import COLUMN_OF, ROUNDS, Rounds
from console.store.view import TableView, order_by
from harness.metrics.gpu.roles import ROLES
from harness.wire.gpus import AlertRow, GpuView


@pytest.fixture
def known() -> FleetStore:
    return store_of(with_gpus())


def small(view_of: dict[str, list[float]], *, devices: int, age_s: float = 1.0) -> FleetStore:
    """Two replicas with so many GPUs each."""
    fleet = ScriptedFleet(nodes=1, gpus=2)
    store = store_of(fleet)
    roles = [column(role, values, store.unix - age_s, devices) for role, values in view_of.items()]
    store.apply(GpuView(store.unix, "ok", "promql", "prom", interval_s=5.0, resolution_s=15.0, devices=devices, roles=roles))
    return store


def test_a_replica_of_several_gpus_has_the_value_that_an_operator_looks_for() -> None:
    nan = math.nan
    store = small(
        {
            "gpu_util": [90, 70, nan, 50], "junction_temp": [60, 80, nan, nan], "clock": [2000, 1500, nan, 2100],
            "power": [300, 400, 500, nan], "kv_use": [0.5, nan, 0.7, nan],
        },
        devices=2,
    )  # fmt: skip
    for role, wanted in (("gpu_util", [80, 50]), ("junction_temp", [80, nan]), ("clock", [1500, 2100]), ("kv_use", [0.5, 0.7])):
        np.testing.assert_allclose(store.gpus.column(role, store.unix), wanted, rtol=1e-6, err_msg=role)
    power = store.gpus.column("power", store.unix)
    assert power[0] == 700
    assert math.isnan(power[1])  # the sum without one of its GPUs is another figure


def test_what_is_missing_or_stale_is_unknown_and_never_zero(known: FleetStore) -> None:
    gpus, unix = known.gpus, known.unix
    assert np.isnan(gpus.column("link_down", unix)).all()
    assert gpus.why_missing("link_down") == NOT_COLLECTED["link_down"]
    assert gpus.has(STALE_ROLE)
    assert gpus.stale(STALE_ROLE, unix)
    assert np.isnan(gpus.column(STALE_ROLE, unix)).all()
    assert np.isnan(gpus.of_replica(STALE_ROLE, 0, unix)).all()
    assert (gpus.column("power", unix) > 500).all()


def test_values_grow_old_by_the_heads_clock_and_go_once_they_are_stale() -> None:
    store = small({"power": [300.0, 400.0]}, devices=1)
    gpus, unix = store.gpus, store.unix
    assert not gpus.old("power", unix)
    assert gpus.old("power", unix + 60)  # three times what its source takes
    assert not gpus.stale("power", unix + 60)
    assert gpus.stale("power", unix + 120)
    assert np.isnan(gpus.column("power", unix + 120)).all()


def test_another_roster_forgets_what_was_of_the_last_one(known: FleetStore) -> None:
    known.apply(ScriptedFleet(nodes=2, gpus=2).run_state())
    assert known.gpus.view is None
    assert not known.gpus.roles()
    assert np.isnan(NUMBERS["power"].values(known)).all()


def test_a_column_of_another_length_is_left_out_not_misread(known: FleetStore) -> None:
    view = known.gpus.view
    assert view is not None
    known.apply(changed(view, roles=[column("power", [1.0, 2.0, 3.0], known.unix)]))
    assert not known.gpus.has("power")


def test_charts_keep_a_point_for_each_sample_and_are_bounded() -> None:
    rounds = Rounds(2)
    for number in range(3 * ROUNDS):
        assert rounds.push(1000.0 + 15 * number, np.array([number, 2 * number], dtype=np.float32))
    assert not rounds.push(1000.0, np.zeros(2, dtype=np.float32))  # the same sample again, or an older one
    assert rounds.values.shape == (2, ROUNDS)
    assert len(rounds.unix) == ROUNDS
    assert rounds.unix[-1] == 1000.0 + 15 * (3 * ROUNDS - 1)
    assert rounds.values[1, -1] == 2 * (3 * ROUNDS - 1)


# --- alerts ------------------------------------------------------------------------------------------------


def test_the_likely_cause_of_a_straggler_is_what_an_alert_says_of_it(known: FleetStore) -> None:
    assert likely_cause(known, known.index[CAPPED]) == "power cap"


def test_an_alert_of_the_node_explains_all_its_replicas_after_their_own(known: FleetStore) -> None:
    view = known.gpus.view
    assert view is not None
    of_node = AlertRow("thermal", "node015", "warn", known.unix - 5, cause="hot node")
    known.apply(changed(view, alerts=[of_node, *view.alerts]))
    assert likely_cause(known, known.index["node015/gpu0"]) == "hot node"
    assert likely_cause(known, known.index[CAPPED]) == "power cap"


def test_an_alert_without_a_cause_leaves_the_guess_from_replicas(known: FleetStore) -> None:
    view = known.gpus.view
    assert view is not None
    known.apply(changed(view, alerts=[AlertRow("scrape_stale", "node013/gpu0", "info", known.unix)]))
    assert likely_cause(known, known.index["node013/gpu0"]) == "whole node"


def test_whom_an_alert_proposes_to_evict_comes_first_while_it_is_there(known: FleetStore) -> None:
    view = TableView()
    first = known.slots[int(order_by(known, view.sort)[0])].slot
    assert first == BROKEN
    known.state[known.index[BROKEN]] = known.state[known.index["node012/gpu1"]]  # evicted
    assert known.slots[int(order_by(known, view.sort)[0])].slot != BROKEN


# --- filters, orders, heat -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("power<700", [CAPPED]), ("power<0.7kW", [CAPPED]), ("clock<1.8GHz", [CAPPED]), ("throttle>50%", [CAPPED]),
        ("gpu_util>10 cause~cap", [CAPPED]), ("alert~ecc", [BROKEN]), ("ecc.unc>0", [BROKEN]), ("clock%<80%", [CAPPED]),
        ("nic>=0", []), ("memtemp>0", []),
    ],
)  # fmt: skip
def test_filters_know_every_role(known: FleetStore, text: str, wanted: list[str]) -> None:
    keep = filters.parse(text).keeps(known)
    assert [known.slots[int(at)].slot for at in np.flatnonzero(keep)] == wanted


def test_every_role_has_a_column_of_its_own_name_and_one_can_sort_by_it(known: FleetStore) -> None:
    assert len(set(COLUMN_OF.values())) == len(ROLES)
    view = TableView()
    for role, name in COLUMN_OF.items():
        assert NUMBERS[name].label == ROLES[role].title
        view.sort_by(name)
        assert len(order_by(known, view.sort)) == len(known.slots)
    view.sort_by("power")
    view.turn()
    assert known.slots[int(order_by(known, view.sort, reverse=view.reverse)[0])].slot == CAPPED


def test_the_heat_map_has_a_metric_for_each_gpu_role_that_the_source_has(known: FleetStore) -> None:
    names = heat.names(known)
    assert names[:5] == ["ratio", "tok", "ttft", "batch", "waiting"]
    assert {"util", "power", "temp", "clock", "thr.pwr", "ecc.unc"} <= set(names)
    assert "nic" not in names
    assert "eng.kv" not in names


def test_a_heat_scale_of_watts_ends_at_a_round_figure_with_its_unit(known: FleetStore) -> None:
    metric = heat.named(known, "power")
    assert metric is not None
    assert (metric.low_text, metric.high_text) == ("0 W", "1500 W")
    values = heat.scaled(known, metric)
    assert values[known.index[CAPPED]] == pytest.approx(640 / 1500, abs=0.02)
    temp = heat.named(known, "junction_temp")
    assert temp is not None
    assert (temp.low_text, temp.high_text) == ("30 °C", "105 °C")


def test_a_heat_metric_that_is_not_collected_says_by_whom_and_why(known: FleetStore) -> None:
    assert heat.named(known, "nic") is None
    assert NOT_COLLECTED["link_down"] in heat.missing(known, "nic")
    assert "there are" in heat.missing(known, "nonsense")
    assert "no source" in heat.missing(store_of(ScriptedFleet(nodes=1, gpus=2)), "power")


def test_an_alert_marks_the_replica_and_an_alert_of_the_node_all_of_it(known: FleetStore) -> None:
    places = [(info.slot, info.node) for info in known.slots]
    levels = known.gpus.levels(places)
    assert levels[known.index[BROKEN]] == 3
    assert levels[known.index[CAPPED]] == 2
    assert np.count_nonzero(levels) == 2
    view = known.gpus.view
    assert view is not None
    known.apply(changed(view, alerts=[AlertRow("thermal", "node007", "warn", known.unix)]))
    assert np.count_nonzero(known.gpus.levels(places)) == 8


def test_taking_a_word_of_the_head_is_cheap_at_512_replicas(known: FleetStore) -> None:
    """Bounded loosely: it is numpy, not a loop over replicas."""
    import time

    view = gpus_of(with_gpus()).view()
    began_s = time.process_time()
    for number in range(20):
        known.gpus.take(changed(view, unix=view.unix + number))
    assert (time.process_time() - began_s) / 20 < 0.02


def test_a_run_without_any_word_of_a_source_has_no_figures_and_no_alerts(hand_clock: HandClock) -> None:
    store = store_of(ScriptedFleet(nodes=2, gpus=2), hand_clock)
    assert store.gpus.view is None
    assert not store.gpus.there
    assert not store.gpus.proposals()
    assert math.isnan(store.gpus.newest_age_s(store.unix))
