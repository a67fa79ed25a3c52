"""MLPerf Inference v6.1, datacenter, as data: what a closed-division attempt of a model must have in effect.

Source: the mlperf.conf embedded in LoadGen 6.0.17 and the v6.1 submission checker. Where the text of the rules says
otherwise, the configuration that LoadGen applies is kept: Interactive TPOT of gpt-oss-120b is 15 ms there and 20 ms in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

RULES: Final = "MLPerf Inference v6.1"


@dataclass(frozen=True, slots=True)
class Seeds:
    qsl: int
    sample_index: int
    schedule: int


SEEDS_V61: Final = Seeds(qsl=2085463073848966840, sample_index=2747215439041700203, schedule=16159082839903944936)


@dataclass(frozen=True, slots=True)
class ModelRules:
    """One LoadGen model name. There is no Interactive scenario: it is Server under a name that ends in -interactive."""

    name: str
    ttft_p99_ms: float
    tpot_p99_ms: float
    performance_samples: int
    accuracy_samples: int
    min_duration_s: float = 600.0
    equal_issue: bool = True


MODELS: Final[Mapping[str, ModelRules]] = {
    rules.name: rules
    for rules in (
        ModelRules("gpt-oss-120b", 3000.0, 80.0, 6396, 4395),
        ModelRules("gpt-oss-120b-interactive", 2000.0, 15.0, 6396, 4395),
        ModelRules("deepseek-r1", 2000.0, 80.0, 4388, 4388),
        ModelRules("deepseek-r1-interactive", 1500.0, 15.0, 4388, 4388),
    )
}


def rules_diff(model: str, scenario: str, kind: str, effective: Mapping[str, Any]) -> list[str]:
    """What in a LoadGen log is not as the rules want it, in words. `effective`: the keys of the detail log.

    Empty also for a model that has no rules here. The minimum duration is judged by the verdict, which knows why it matters.
    """
    rules = MODELS.get(model)
    if rules is None:
        return []
    wanted: dict[str, Any] = {
        "effective_qsl_rng_seed": SEEDS_V61.qsl,
        "effective_sample_index_rng_seed": SEEDS_V61.sample_index,
        "effective_schedule_rng_seed": SEEDS_V61.schedule,
        "requested_use_token_latencies": True,
    }
    if kind == "accuracy":
        wanted["effective_accuracy_sample_count"] = rules.accuracy_samples
    else:
        wanted["effective_performance_sample_count"] = rules.performance_samples
        wanted["effective_sample_concatenate_permutation"] = rules.equal_issue
        if scenario == "Server":
            wanted["requested_server_ttft_latency"] = int(rules.ttft_p99_ms * 1e6)
            wanted["requested_server_tpot_latency"] = int(rules.tpot_p99_ms * 1e6)
    differences = []
    for key, value in wanted.items():
        found = effective.get(key)
        if found != value:
            name = key.partition("_")[2]
            shown = "not in the log" if found is None else f"in effect {found}"
            differences.append(f"{name}: {RULES} wants {value} for {model}, {shown}")
    return differences
