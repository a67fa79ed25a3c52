"""Whose GPU a series is of: by UUID, PCI address and number, whatever hosts are called; engines; and what finds no partner."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pace_kit import times_slower

from harness.metrics.gpu.base import Reading, RoleReading, SeriesKey
from harness.metrics.gpu.join import GpuPlace, Joined, Joiner, host_forms, number_form, pci_form

NAN = float("nan")


def reading(role: str, *series: tuple[SeriesKey, float], unix: float = 100.0) -> Reading:
    keys, values = [key for key, _ in series], np.array([value for _, value in series])
    return Reading(unix, {role: RoleReading(keys, values, np.full(len(keys), unix))})


def fleet(nodes: int = 2, each: int = 2) -> list[GpuPlace]:
    return [
        GpuPlace(f"node{n}/gpu{g}", 0, (f"node{n}", f"gpu-{n}.example.net"), str(g), f"uuid-{n}-{g}", f"0000:{g:02x}:00.0")
        for n in range(nodes)
        for g in range(each)
    ]


def values(joined: Joined, role: str = "power") -> list[float]:
    return [float(value) for value in joined.columns[role]]


def test_the_uuid_decides_before_the_address_and_that_before_the_number() -> None:
    joiner = Joiner(fleet())
    joined = joiner.place(
        reading(
            "power",
            (SeriesKey(uuid="GPU-UUID-1-1", host="elsewhere", gpu="0"), 1),
            (SeriesKey(host="node0", pci="00000000:01:00.0", gpu="0"), 2),
            (SeriesKey(host="node0", gpu="0"), 3),
        )
    )
    np.testing.assert_equal(values(joined), [3, 2, NAN, 1])
    assert (joined.matched, joined.gpus_unmatched, joined.series_unmatched) == (3, 1, 0)
    assert joined.examples == ("node1/gpu0 (GPU 0, UUID uuid-1-0, 0000:00:00.0 on node1 or gpu-1.example.net) has no series",)


@pytest.mark.parametrize(
    "host", ["node1", "NODE1", "gpu-1.example.net", "gpu-1", "GPU-1.EXAMPLE.NET.", "gpu-1.other:9400", "as-told"]
)
def test_hosts_are_known_by_all_their_names(host: str) -> None:
    joiner = Joiner(fleet(), {"As-Told": "node1"})
    assert values(joiner.place(reading("power", (SeriesKey(host=host, gpu="1"), 5))))[3] == 5
    assert joiner.same_host(host) == 2


def test_the_first_part_of_a_name_serves_only_where_it_means_one_machine() -> None:
    joiner = Joiner([GpuPlace("a/gpu0", 0, ("gpu-1.east",), "0"), GpuPlace("b/gpu0", 0, ("gpu-1.west",), "0")])
    joined = joiner.place(reading("power", (SeriesKey(host="gpu-1", gpu="0"), 5)))
    assert "power" not in joined.columns
    assert joined.series_unmatched == 1
    assert values(joiner.place(reading("power", (SeriesKey(host="gpu-1.west", gpu="0"), 5))))[1] == 5


def test_a_number_does_not_count_where_both_uuids_or_addresses_are_known_and_differ() -> None:
    """Somebody else's GPU of the same node, which its exporter numbers otherwise than the machine does."""
    joiner = Joiner(fleet(1))
    others = (SeriesKey("node0", "0", uuid="uuid-9-9"), 7.0), (SeriesKey("node0", "1", pci="0000:77:00.0"), 8.0)
    joined = joiner.place(reading("power", *others))
    assert "power" not in joined.columns
    assert (joined.gpus_unmatched, joined.series_unmatched) == (2, 2)
    spelled_otherwise = joiner.place(reading("power", (SeriesKey("node0", "0", uuid="another form of a UUID"), 7.0)))
    assert values(spelled_otherwise)[0] == 7.0


def test_a_stranger_is_counted_and_told_with_what_to_do() -> None:
    joined = Joiner(fleet()).place(
        reading("power", (SeriesKey(host="other", gpu="0"), 1), (SeriesKey(host="node0", gpu="7"), 1), (SeriesKey(gpu="3"), 1))
    )
    assert (joined.matched, joined.gpus_unmatched, joined.series_unmatched) == (0, 4, 3)
    assert joined.examples[3:] == (
        "GPU 0 on other: that host is not in the fleet (metrics.gpu.hosts can name its node)",
        "GPU 7 on node0 is no replica's",
        "GPU 3 of an unnamed host is no replica's",
    )
    assert len(joined.examples) == 6


def test_a_replica_with_several_gpus_has_a_cell_for_each() -> None:
    places = [GpuPlace(f"n/gpu{slot}", i, ("n",), str(2 * slot + i)) for slot in range(2) for i in range(2)]
    joiner = Joiner(places, slots=["n/gpu0", "n/gpu1", "n/gpu2"])
    joined = joiner.place(reading("power", *((SeriesKey(host="n", gpu=str(gpu)), gpu) for gpu in range(4))))
    np.testing.assert_equal(values(joined), [0, 1, 2, 3, NAN, NAN])
    assert joiner.devices == 2
    assert [place.slot for place in joined.places] == ["n/gpu0", "n/gpu0", "n/gpu1", "n/gpu1", "n/gpu2", "n/gpu2"]
    assert (joined.matched, joined.gpus_unmatched) == (4, 0)


@pytest.mark.parametrize(("role", "expected"), [("power", 60), ("gpu_util", 20), ("junction_temp", 30), ("clock", 10)])
def test_partitions_of_a_gpu_are_put_together_as_the_role_says(role: str, expected: float) -> None:
    parts = [(SeriesKey(host="node0", gpu="1", partition=str(i)), 10.0 * (i + 1)) for i in range(3)]
    assert values(Joiner(fleet()).place(reading(role, *parts)), role)[1] == expected


def test_a_replica_on_a_partition_gets_that_one_only() -> None:
    places = [GpuPlace(f"n/gpu{i}", 0, ("n",), "0", partition=str(i)) for i in range(2)]
    parts = [(SeriesKey(host="n", gpu="0", partition=str(i)), 10.0 * (i + 1)) for i in range(3)]
    joined = Joiner(places).place(reading("power", *parts))
    assert values(joined) == [10, 20]
    assert joined.series_unmatched == 1


def test_replicas_that_share_a_gpu_both_show_it() -> None:
    places = [GpuPlace(f"n/gpu{i}", 0, ("n",), "0") for i in range(2)]
    assert values(Joiner(places).place(reading("power", (SeriesKey(host="n", gpu="0"), 7)))) == [7, 7]


def test_a_gpu_with_an_old_and_a_new_pod_is_one_gpu() -> None:
    keys = [SeriesKey(host="node0", gpu="0", pod="new"), SeriesKey(host="node0", gpu="0", pod="old")]
    of_role = RoleReading(keys, np.array([500.0, 900.0]), np.array([200.0, 100.0]))
    joined = Joiner(fleet()).place(Reading(200.0, {"power": of_role}))
    assert values(joined)[0] == 500
    assert joined.matched == 1
    np.testing.assert_equal(joined.unix["power"], [200, NAN, NAN, NAN])


def test_what_is_of_a_whole_node_stands_at_the_first_gpu_of_each_of_its_replicas() -> None:
    places = [GpuPlace(f"n/gpu{slot}", i, ("n",), str(2 * slot + i)) for slot in range(2) for i in range(2)]
    joined = Joiner(places).place(reading("link_down", (SeriesKey(host="n"), 3)))
    np.testing.assert_equal(values(joined, "link_down"), [3, NAN, 3, NAN])
    assert (joined.matched, joined.series_unmatched) == (0, 0)


def test_engines_are_joined_by_slot_pod_rank_or_a_host_of_their_own() -> None:
    by_pod = [GpuPlace(f"n/gpu{i}", 0, ("n",), str(i), pod="worker-0") for i in range(2)]
    alone = [GpuPlace(f"m{i}/gpu0", 0, (f"m{i}",), "0", pod=f"worker-{i + 1}") for i in range(3)]
    joiner = Joiner([*by_pod, *alone])
    series = (
        (SeriesKey(pod="worker-0", engine="1"), 11),
        (SeriesKey(pod="worker-0", engine="0"), 10),
        (SeriesKey(pod="worker-1", engine="0", host="10.0.0.1"), 3),
        (SeriesKey(pod="worker-1", engine="1", host="10.0.0.1"), 4),
        (SeriesKey(host="M1", engine="0"), 30),
        (SeriesKey(slot="m2/gpu0"), 40),
        (SeriesKey(pod="somebody", engine="0"), 99),
    )
    joined = joiner.place(reading("running", *series))
    assert values(joined, "running") == [10, 11, 7, 30, 40]
    assert joined.series_unmatched == 0  # an engine is no GPU


def test_an_engine_whose_replica_cannot_be_told_is_nobodys() -> None:
    joiner = Joiner([GpuPlace(f"n/gpu{i}", 0, ("n",), str(i), pod="worker-0") for i in range(2)])
    assert "running" not in joiner.place(reading("running", (SeriesKey(pod="worker-0", engine="0"), 9))).columns


def test_what_an_engine_says_itself_is_not_added_to_our_own_page() -> None:
    joiner = Joiner([GpuPlace("n/gpu0", 0, ("n",), "0", pod="worker-0")])
    joined = joiner.place(reading("running", (SeriesKey(pod="worker-0", engine="0"), 9), (SeriesKey(slot="n/gpu0"), 8)))
    assert values(joined, "running") == [9]


def test_alerts_find_the_place_of_a_series_and_of_a_host() -> None:
    joined = Joiner(fleet()).place(reading("power"))
    assert joined.locate(SeriesKey(host="node1", gpu="1")) == 3
    assert joined.locate(SeriesKey(slot="node1/gpu0")) == 2
    assert joined.locate(SeriesKey(host="node1")) is None
    assert joined.locate(SeriesKey(host="elsewhere", gpu="1")) is None
    assert joined.same_host("elsewhere") is None


def test_keys_that_change_are_joined_anew() -> None:
    joiner = Joiner(fleet())
    first = joiner.place(reading("power", (SeriesKey(host="node0", gpu="0"), 1)))
    second = joiner.place(reading("power", (SeriesKey(host="node0", gpu="1"), 2)))
    assert [joined.matched for joined in (first, second)] == [1, 1]
    np.testing.assert_equal(values(second), [NAN, 2, NAN, NAN])


def test_a_fleet_without_gpus_has_nothing_to_join() -> None:
    joined = Joiner([]).place(reading("power", (SeriesKey(host="n", gpu="0"), 1)))
    assert (joined.columns, joined.matched, joined.gpus_unmatched, joined.series_unmatched) == ({}, 0, 0, 1)


def test_a_round_of_512_gpus_and_16_roles_is_quick() -> None:
    joiner = Joiner(fleet(64, 8))
    keys = [SeriesKey(host=f"gpu-{n}", gpu=str(g)) for n in range(64) for g in range(8)]
    of_role = RoleReading(keys, np.arange(512.0), np.full(512, 1.0))
    names = ("power", "gpu_util", "clock", "health", "energy", "hbm_used", "hbm_total", "mem_bw")
    whole = Reading(1.0, dict.fromkeys(names, of_role))
    joiner.place(whole)
    began_s = time.thread_time()
    assert joiner.place(whole).matched == 512
    assert time.thread_time() - began_s < 0.05 * times_slower()


def test_forms_to_compare() -> None:
    assert host_forms("Node-3.Example:9400") == ("node-3.example", "node-3")
    assert host_forms("10.0.0.7:9400") == ("10.0.0.7",)
    assert host_forms("[fe80::1]:9400") == ("fe80::1",)
    assert host_forms(" ") == ()
    assert pci_form("00000000:C1:00.0") == pci_form("c1:00.0") == "0000:c1:00.0"
    assert pci_form("nonsense") == "nonsense"
    assert [number_form(text) for text in ("3", "03", "gpu3", "nvidia3", "MIG-1")] == ["3", "3", "3", "3", "mig-1"]
