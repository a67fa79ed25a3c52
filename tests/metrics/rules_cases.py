"""Unit tests of the alert rules, as `promtool test rules` takes them: each rule fires when it must, and none does in a healthy
benchmark, with a whole fleet at its power cap, idle, or while half of it still loads its weights.

Made here because written out they are 2,000 lines of series. A fleet is two nodes of four GPUs, a sample every 15 s; where one
of them is bad, it is GPU 3 of node n2. What fires is read from Prometheus' own series ALERTS, so texts may change freely.
Values are in promtool's notation: "5+1x60" is 5, 6, … 65; "3x12 4+0x60" changes after three minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Series = list[tuple[str, str]]
Labels = Callable[[int, int], str]

SYSTEM = ', clock_type="system", clock_index="0"'
BUSY = "gpu_gfx_activity"
CAPPED, LOOKS = "gpu_violation_ppt_residency_accumulated", "gpu_violation_current_accumulated_counter"


@dataclass(frozen=True)
class Case:
    name: str
    series: Series
    fires: Sequence[str | tuple[str, int]]  # ids of rules, with the number of alerts where it is not 1
    at: str = "5m"
    more: Sequence[tuple[str, dict[str, float]]] = ()  # expression → labels and value


def amd(node: int, gpu: int) -> str:
    return f'hostname="n{node}", gpu_id="{gpu}", gpu_uuid="u{node}{gpu}", gpu_partition_id="0", pod=""'


def nvidia(node: int, gpu: int) -> str:
    return f'hostname="n{node}", gpu="{gpu}", UUID="GPU-{node}{gpu}"'


def fleet(metric: str, good: str, bad: str | None = None, labels: Labels = amd, more: str = "") -> Series:
    return [
        (f"{metric}{{{labels(node, gpu)}{more}}}", bad if bad is not None and (node, gpu) == (2, 3) else good)
        for node in (1, 2)
        for gpu in range(4)
    ]


def dcgm(metric: str, good: str, bad: str | None = None) -> Series:
    return fleet(f"DCGM_FI_DEV_{metric}", good, bad, nvidia)


def changed(series: Series, part: str, values: str) -> Series:
    assert any(part in name for name, _ in series), part
    return [(name, values if part in name else value) for name, value in series]


def amd_fleet(
    busy: str = "96 94 97 95 96+0x60", capped: str = "0+50x60", power: str = "900+0x60", clock: str = "2280+0x60",
    junction: str = "72+0x60", used: str = "270000+0x60",
) -> Series:  # fmt: skip
    heat = [
        f"gpu_violation_{what}_residency_accumulated" for what in ("socket_thermal", "hbm_thermal", "vr_thermal", "processor_hot")
    ]
    steady = {
        "gpu_ecc_uncorrect_total": "3+0x60", "gpu_ecc_correct_total": "40+1x60", "gpu_health": "1+0x60",
        "gpu_afid_errors": "0+0x60", "pcie_replay_count": "5+0x60", "gpu_total_vram": "294896+0x60",
    }  # fmt: skip
    return [
        *fleet(BUSY, busy), *fleet(LOOKS, "100000+15000x60"), *fleet(CAPPED, capped), *fleet("gpu_package_power", power),
        *fleet("gpu_junction_temperature", junction), *fleet("gpu_clock", clock, more=SYSTEM),
        *fleet("gpu_max_clock", "2400+0x60", more=SYSTEM), *fleet("gpu_used_vram", used),
        *(one for name in heat for one in fleet(name, "7+0x60")), *(one for name, v in steady.items() for one in fleet(name, v)),
    ]  # fmt: skip


def nvidia_fleet(capped: str = "0+30000000x60") -> Series:
    steady = {
        "GPU_UTIL": "96+0x60", "POWER_VIOLATION": capped, "THERMAL_VIOLATION": "5+0x60", "POWER_USAGE": "690+0x60",
        "GPU_TEMP": "66+0x60", "SM_CLOCK": "1755+0x60", "ECC_DBE_VOL_TOTAL": "0+0x60", "ECC_SBE_VOL_TOTAL": "2+0x60",
        "UNCORRECTABLE_REMAPPED_ROWS": "1+0x60", "ROW_REMAP_FAILURE": "0+0x60", "XID_ERRORS": "43+0x60",
        "PCIE_REPLAY_COUNTER": "9+0x60", "FB_USED": "73000+0x60", "FB_FREE": "7000+0x60",
    }  # fmt: skip
    return [one for name, values in steady.items() for one in dcgm(name, values)]


ENGINES: Series = [
    ('vllm:kv_cache_usage_perc{instance="n1:8000", engine="0"}', "0.9+0x60"),
    ('vllm:num_requests_waiting{instance="n1:8000", engine="0"}', "3 5 2 6 3+0x60"),
    ('vllm:num_requests_running{instance="n1:8000", engine="0"}', "200+0x60"),
    ('vllm:num_preemptions_total{instance="n1:8000", engine="0"}', "4+0x60"),
    ('sglang:token_usage{instance="n2:30000"}', "0.9+0x60"),
    ('sglang:num_queue_reqs{instance="n2:30000"}', "2+0x60"),
    ('sglang:num_running_reqs{instance="n2:30000"}', "200+0x60"),
    ('sglang:num_retracted_requests_total{instance="n2:30000"}', "4+0x60"),
]
_CLAIM = '{namespace="paceline", persistentvolumeclaim="paceline-results"}'
_ROOT = 'instance="n1:9100", mountpoint="/"'
CLUSTER: Series = [
    ('nic_port_status_link_down_count{hostname="n1", port="1"}', "2+0x60"),
    ('node_network_carrier_changes_total{instance="n1:9100", device="eth0"}', "4+0x60"),
    ('node_network_carrier_changes_total{instance="n1:9100", device="veth12"}', "4+1x60"),
    ('kube_pod_container_status_restarts_total{namespace="paceline", pod="r-worker-0-x1", container="worker"}', "1+0x60"),
    ('kube_pod_container_status_restarts_total{namespace="other", pod="db-0", container="db"}', "1+1x60"),
    (f"kubelet_volume_stats_available_bytes{_CLAIM}", "800+0x60"),
    (f"kubelet_volume_stats_capacity_bytes{_CLAIM}", "1000+0x60"),
    (f'node_filesystem_avail_bytes{{{_ROOT}, fstype="ext4"}}', "800+0x60"),
    (f'node_filesystem_size_bytes{{{_ROOT}, fstype="ext4"}}', "1000+0x60"),
    (f'node_filesystem_avail_bytes{{{_ROOT}, fstype="overlay"}}', "1+0x60"),
    (f'node_filesystem_size_bytes{{{_ROOT}, fstype="overlay"}}', "1000+0x60"),
    ('up{job="paceline", instance="head:9464"}', "1+0x60"),
    ('up{job="something-else", instance="x:1"}', "0+0x60"),
]
EXPECTED: Series = [('paceline_gpus_expected{instance="head"}', "8+0x60")]
_HEAD = 'instance="head", run="r"'


def latencies(metric: str, to_1s: int, to_4s: int) -> Series:
    """So many samples each 15 s, cumulative as buckets are; the limit is 3 s."""
    counts = (("1", to_1s), ("4", to_4s), ("+Inf", to_4s))
    buckets = [(f'paceline_{metric}_seconds_bucket{{{_HEAD}, le="{le}"}}', f"0+{count}x60") for le, count in counts]
    limit = (f'paceline_limit_seconds{{{_HEAD}, metric="{metric}"}}', "3+0x60")
    return [*buckets, (f"paceline_{metric}_seconds_count{{{_HEAD}}}", f"0+{to_4s}x60"), limit]


_BEAT = "paceline_heartbeat_age_seconds{" + _HEAD + ', replica="node000/gpu'
HEAD: Series = [
    (f'{_BEAT}0"}}', "0.4+0x60"),
    (f'paceline_replica_state{{{_HEAD}, replica="node000/gpu0", state="READY"}}', "1+0x60"),
    (f'{_BEAT}1"}}', "90+0x60"),
    (f'paceline_replica_state{{{_HEAD}, replica="node000/gpu1", state="DEAD"}}', "1+0x60"),
    (f"paceline_queries_failed_total{{{_HEAD}}}", "0+0x60"),
    (f"paceline_scheduler_lag_seconds{{{_HEAD}}}", "0.002+0x60"),
]
OWN: Series = [*latencies("ttft", 1000, 1005), *latencies("tpot", 1000, 1005), *HEAD]
OTHERS: Series = [*ENGINES, *CLUSTER, *EXPECTED, *OWN]
WORKING: Series = fleet(BUSY, "95+0x60")
NV_WORKING: Series = dcgm("GPU_UTIL", "95+0x60")
BOTH = ["straggler_util", "straggler_node_peers"]


def quiet_cases() -> list[Case]:
    at_rest = amd_fleet("0+0x60", "0+0x60", "165+0x60", "132+0x60", "38+0x60", "284+0x60")
    loading = [(name, "0+0x60" if name.startswith(BUSY) and '"n2"' in name else value) for name, value in amd_fleet()]
    at_cap = amd_fleet(capped="0+14400x60", clock="1700+0x60", junction="97+0x60", power="1390+0x60")
    return [
        Case("a healthy benchmark on AMD GPUs", [*amd_fleet(), *OTHERS], [], "14m"),
        Case("a healthy benchmark on NVIDIA GPUs", [*nvidia_fleet(), *OTHERS], [], "14m"),
        Case("a whole fleet at its power cap, hot and with low clocks", at_cap, [], "14m"),
        Case("a whole fleet of NVIDIA GPUs at its power cap", nvidia_fleet("0+14400000000x60"), [], "14m"),
        Case("a fleet at rest", at_rest, [], "14m"),
        Case("a fleet of which half still loads its weights", loading, [], "14m"),
    ]


def amd_cases() -> list[Case]:
    looks = fleet(LOOKS, "100000+15000x60")
    subject = 'gpu_id="3", gpu_uuid="u23", hostname="n2"'
    told = f'ALERTS{{alertname="AmdGpuLessBusyThanFleet", alertstate="firing", {subject}, id="{BOTH[0]}", severity="warn"}}'
    slow_node = [(series, "60+0x60" if '"n2"' in series else value) for series, value in WORKING]
    slow_node += [(f"{BUSY}{{{amd(3, gpu)}}}", "95+0x60") for gpu in range(4)]
    share = f"max(delta({CAPPED}[1m]) / delta({LOOKS}[1m]))"
    low_power = fleet("gpu_package_power", "1390+0x60", "900+0x60")

    def clocks(bad: str) -> Series:
        return [*fleet("gpu_clock", "2280+0x60", bad, more=SYSTEM), *fleet("gpu_max_clock", "2400+0x60", more=SYSTEM)]

    stopped = [(series, "95x8" if '"n2"' in series else value) for series, value in WORKING]
    heat = ("socket_thermal", "hbm_thermal", "vr_thermal", "processor_hot")
    return [
        Case(
            "less busy than fleet and node",
            fleet(BUSY, "95+0x60", "60+0x60"),
            BOTH,
            more=[(f'ALERTS{{id="{BOTH[0]}"}}', {told: 1})],
        ),
        Case("a whole node less busy: not told against its own GPUs", slow_node, [("straggler_util", 4)]),
        Case(
            "at the cap while the median is 0",
            [*looks, *fleet(CAPPED, "0+0x60", "0+12450x60")],
            ["power_cap"],
            more=[(share, {"{}": 0.83})],
        ),
        Case(
            "at a lower cap than its peers at theirs",
            [*looks, *fleet(CAPPED, "0+14000x60", "0+15000x60"), *low_power],
            ["power_cap"],
        ),
        Case("a little more time at the cap than others: quiet", [*looks, *fleet(CAPPED, "0+3000x60", "0+6000x60")], []),
        *(
            Case(
                f"throttled, {what}",
                [*looks, *fleet(f"gpu_violation_{what}_residency_accumulated", "3+0x60", "3+3000x60")],
                ["thermal_throttle"],
            )
            for what in heat
        ),
        Case("hotter than the fleet", fleet("gpu_junction_temperature", "72+0x60", "90+0x60"), ["hot_gpu"]),
        Case("hotter than a fleet at rest, yet cool: quiet", fleet("gpu_junction_temperature", "38+0x60", "55+0x60"), []),
        Case("a blank temperature: quiet", fleet("gpu_junction_temperature", "72+0x60", "65535+0x60"), []),
        Case("busy with a low clock", [*clocks("1500+0x60"), *WORKING], ["clock_drop"]),
        Case("at rest with a low clock: quiet", [*clocks("132+0x60"), *fleet(BUSY, "0+0x60")], []),
        Case(
            "a new uncorrectable error",
            fleet("gpu_ecc_uncorrect_total", "3+0x60", "3x12 4+0x60"),
            ["ecc_uncorrectable"],
            more=[
                ('count(ALERTS{id="ecc_uncorrectable", act="evict", severity="crit"})', {"{}": 1}),
            ],
        ),
        Case("old errors, and a counter that began anew: quiet", fleet("gpu_ecc_uncorrect_total", "3+0x60", "3x12 0+0x60"), []),
        Case("called unhealthy", fleet("gpu_health", "1+0x60", "1x10 0+0x60"), ["gpu_unhealthy"]),
        Case("a new field error", fleet("gpu_afid_errors", "0+0x60", "0x12 24+0x60"), ["afid"]),
        Case("an old field error: quiet", fleet("gpu_afid_errors", "0+0x60", "24+0x60"), []),
        Case("a burst of corrected errors", fleet("gpu_ecc_correct_total", "5+1x60", "5+20x60"), ["ecc_corr_burst"]),
        Case("PCIe replays", fleet("pcie_replay_count", "5+0x60", "5x12 7+0x60"), ["pcie_replays"]),
        Case(
            "memory nearly full",
            [*fleet("gpu_used_vram", "270000+0x60", "294000+0x60"), *fleet("gpu_total_vram", "294896+0x60")],
            ["hbm_pressure"],
        ),
        Case("a node whose samples have stopped", stopped, ["scrape_stale"], "6m"),
    ]


def nvidia_cases() -> list[Case]:
    by_code = [
        (f'DCGM_FI_DEV_XID_ERRORS{{{nvidia(2, 3)}, err_code="0"}}', "0x12 stale"),
        (f'DCGM_FI_DEV_XID_ERRORS{{{nvidia(2, 3)}, err_code="79"}}', "_x13 79+0x60"),
    ]
    old_label = [(name.replace("hostname=", "Hostname="), value) for name, value in dcgm("GPU_UTIL", "95+0x60", "60+0x60")]
    stopped = [(series, "95x8" if '"n2"' in series else value) for series, value in NV_WORKING]
    at_caps = [*dcgm("POWER_VIOLATION", "0+14000000000x60", "0+15000000000x60"), *dcgm("POWER_USAGE", "690+0x60", "450+0x60")]
    blank = "9223372036854775794+0x60"
    return [
        Case("NVIDIA: less busy than fleet and node", dcgm("GPU_UTIL", "95+0x60", "60+0x60"), BOTH),
        Case("NVIDIA: the same from an exporter that says Hostname", old_label, BOTH),
        Case("NVIDIA: at the cap while the median is 0", dcgm("POWER_VIOLATION", "0+0x60", "0+12450000000x60"), ["power_cap"]),
        Case("NVIDIA: at a lower cap than its peers at theirs", at_caps, ["power_cap"]),
        Case("NVIDIA: throttled by heat", dcgm("THERMAL_VIOLATION", "5+0x60", "0+3000000000x60"), ["thermal_throttle"]),
        Case("NVIDIA: hotter than the fleet", dcgm("GPU_TEMP", "64+0x60", "82+0x60"), ["hot_gpu"]),
        Case(
            "NVIDIA: blank values: quiet",
            [*dcgm("GPU_TEMP", "64+0x60", blank), *dcgm("FB_USED", "7+0x60", blank), *dcgm("FB_FREE", "73+0x60")],
            [],
        ),
        Case("NVIDIA: busy with a low clock", [*dcgm("SM_CLOCK", "1755+0x60", "1200+0x60"), *NV_WORKING], ["clock_drop"]),
        Case("NVIDIA: a new double-bit error", dcgm("ECC_DBE_VOL_TOTAL", "0+0x60", "0x12 1+0x60"), ["ecc_uncorrectable"]),
        Case("NVIDIA: a newly remapped row", dcgm("UNCORRECTABLE_REMAPPED_ROWS", "0+0x60", "0x12 1+0x60"), ["ecc_uncorrectable"]),
        Case("NVIDIA: remapping failed", dcgm("ROW_REMAP_FAILURE", "0+0x60", "0x12 1+0x60"), ["row_remap_failed"]),
        *(
            Case(f"NVIDIA: XID {code} is critical", dcgm("XID_ERRORS", "0+0x60", f"0x12 {code}+0x60"), ["xid_critical"])
            for code in (48, 63, 64, 74, 79, 94, 95)
        ),
        Case("NVIDIA: XID 79 of series that are labelled by code", by_code, ["xid_critical"]),
        Case(
            "NVIDIA: a repeat that only the count shows",
            [(f'DCGM_EXP_XID_ERRORS_COUNT{{{nvidia(2, 3)}, xid="94"}}', "1+0x60")],
            ["xid_critical"],
        ),
        Case("NVIDIA: XID 31 is a warning", dcgm("XID_ERRORS", "0+0x60", "0x12 31+0x60"), ["xid"]),
        Case("NVIDIA: an old XID: quiet", dcgm("XID_ERRORS", "0+0x60", "79+0x60"), []),
        Case("NVIDIA: a burst of corrected errors", dcgm("ECC_SBE_VOL_TOTAL", "0+0x60", "0+20x60"), ["ecc_corr_burst"]),
        Case("NVIDIA: PCIe replays", dcgm("PCIE_REPLAY_COUNTER", "0+0x60", "0x12 3+0x60"), ["pcie_replays"]),
        Case(
            "NVIDIA: memory nearly full",
            [*dcgm("FB_USED", "73000+0x60", "79500+0x60"), *dcgm("FB_FREE", "7000+0x60", "500+0x60")],
            ["hbm_pressure"],
        ),
        Case("NVIDIA: a node whose samples have stopped", stopped, ["scrape_stale"], "6m"),
    ]


def engine_cases() -> list[Case]:
    full = changed(ENGINES, "vllm:kv_cache", "0.99+0x60")
    return [
        Case("vLLM: KV cache full, requests waiting", full, ["kv_saturation"]),
        Case("SGLang: KV cache full, requests waiting", changed(ENGINES, "sglang:token_usage", "0.99+0x60"), ["kv_saturation"]),
        Case("a full KV cache that nobody waits for: quiet", changed(full, "requests_waiting", "0+0x60"), []),
        Case("vLLM: queues grow", changed(ENGINES, "requests_waiting", "300+40x60"), ["queue_growth"]),
        Case("SGLang: queues grow", changed(ENGINES, "queue_reqs", "300+40x60"), ["queue_growth"]),
        Case("a long queue that shrinks: quiet", changed(ENGINES, "requests_waiting", "4000-40x60"), []),
        Case("vLLM: preemptions", changed(ENGINES, "num_preemptions", "0+6x60"), ["preemptions"]),
        Case("SGLang: retractions", changed(ENGINES, "num_retracted", "0+6x60"), ["preemptions"]),
    ]


def cluster_cases() -> list[Case]:
    return [
        Case("a GPU without metrics", [*EXPECTED, *WORKING[:-1]], ["gpus_missing"]),
        Case("no GPU has metrics any more", EXPECTED, ["gpus_missing"]),
        Case("all GPUs of a run on NVIDIA GPUs are there: quiet", [*EXPECTED, *NV_WORKING], []),
        Case("a fleet without GPUs expects none: quiet", changed(EXPECTED, "expected", "0+0x60"), []),
        Case("a link of an AMD NIC went down", changed(CLUSTER, "nic_port", "2x12 3+0x60"), ["nic_flap"]),
        Case("a network device changed its carrier", changed(CLUSTER, "eth0", "4x12 6+0x60"), ["nic_flap"]),
        Case("a worker's container restarted", changed(CLUSTER, "r-worker-0", "1x12 2+0x60"), ["pod_restart"]),
        Case("the results claim is nearly full", changed(CLUSTER, "stats_available", "30+0x60"), ["disk"]),
        Case(
            "a node's file system is nearly full", changed(CLUSTER, f'avail_bytes{{{_ROOT}, fstype="ext4"', "30+0x60"), ["disk"]
        ),
        Case("one of our targets is down", changed(CLUSTER, 'up{job="paceline"', "1x4 0+0x60"), ["target_down"]),
    ]


def own_cases() -> list[Case]:
    return [
        Case("TTFT over the limit", [*latencies("ttft", 900, 1000), *HEAD], ["ttft_over_limit"]),
        Case("TPOT over the limit", [*latencies("tpot", 900, 1000), *HEAD], ["tpot_over_limit"]),
        Case("too few samples for a p99: quiet", [*latencies("ttft", 90, 100), *HEAD], []),
        Case("a READY replica of which nothing is heard", changed(OWN, f'{_BEAT}0"', "0.4x10 5+15x60"), ["replica_silent"]),
        Case("samples that failed for good", changed(OWN, "queries_failed", "0x12 3+0x60"), ["samples_failed"]),
        Case("samples that are issued late", changed(OWN, "scheduler_lag", "0.4+0x60"), ["issued_late"]),
    ]


def all_cases() -> list[Case]:
    return [*quiet_cases(), *amd_cases(), *nvidia_cases(), *engine_cases(), *cluster_cases(), *own_cases()]


def unit_tests(rules: Path, cases: Sequence[Case]) -> dict[str, Any]:
    return {"rule_files": [str(rules)], "evaluation_interval": "15s", "tests": [_as_promtool_has_it(case) for case in cases]}


def _as_promtool_has_it(case: Case) -> dict[str, Any]:
    ids = [one if isinstance(one, tuple) else (one, 1) for one in case.fires]
    firing = {f'{{id="{name}"}}': float(count) for name, count in ids}
    checks = [('count by (id) (ALERTS{alertstate="firing"})', firing), *case.more]
    return {
        "name": case.name,
        "interval": "15s",
        "input_series": [{"series": series, "values": values} for series, values in case.series],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": case.at,
                "exp_samples": [{"labels": name, "value": value} for name, value in samples.items()],
            }
            for expr, samples in checks
        ],
    }
