"""MLPerf Inference v6.1, datacenter, as data: what a closed-division attempt of a model must have in effect.

Source: the mlperf.conf embedded in LoadGen 6.0.17, the v6.1 submission checker and the reference's accuracy scripts. Where the
text of the rules says otherwise, the configuration that LoadGen applies is kept: Interactive TPOT of gpt-oss-120b is 15 ms
there and 20 ms in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from harness.mlperf.compliance.audits import AUDITS

RULES: Final = "MLPerf Inference v6.1"


@dataclass(frozen=True, slots=True)
class Seeds:
    qsl: int
    sample_index: int
    schedule: int


SEEDS_V61: Final = Seeds(qsl=2085463073848966840, sample_index=2747215439041700203, schedule=16159082839903944936)


@dataclass(frozen=True, slots=True)
class ModelRules:
    """One LoadGen model name. There is no Interactive scenario: it is Server under a name that ends in -interactive.

    `accuracy_gate` is the least exact_match in percent, 99 % of the reference's. `repeats`: how often each subset's questions
    are asked; their correct answers count so much less. `tokens_per_sample`: mean output tokens an accuracy attempt may have.
    """

    name: str
    ttft_p99_ms: float
    tpot_p99_ms: float
    performance_samples: int
    accuracy_samples: int
    accuracy_gate: float
    tokens_per_sample: tuple[float, float]
    repeats: Mapping[str, int] = field(default_factory=dict)
    min_duration_s: float = 600.0
    equal_issue: bool = True


_GPT_OSS: Final = {"aime25": 8, "gpqa_diamond": 5, "livecodebench_v6": 3}
_GPT_OSS_TOKENS: Final = (0.0, 1.1 * 9999)
_R1_TOKENS: Final = (3497.6, 4274.85)

MODELS: Final[Mapping[str, ModelRules]] = {
    rules.name: rules
    for rules in (
        ModelRules("gpt-oss-120b", 3000.0, 80.0, 6396, 4395, 82.2987, _GPT_OSS_TOKENS, _GPT_OSS),
        ModelRules("gpt-oss-120b-interactive", 2000.0, 15.0, 6396, 4395, 82.2987, _GPT_OSS_TOKENS, _GPT_OSS),
        ModelRules("deepseek-r1", 2000.0, 80.0, 4388, 4388, 80.5446, _R1_TOKENS),
        ModelRules("deepseek-r1-interactive", 1500.0, 15.0, 4388, 4388, 80.5446, _R1_TOKENS),
    )
}


def rules_diff(model: str, scenario: str, kind: str, effective: Mapping[str, Any], test: str | None = None) -> list[str]:
    """What in a LoadGen log is not as the rules want it, in words. `effective`: the keys of the detail log; `test`: which test
    a compliance attempt is of, whose audit has its own counts.

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
        audit = AUDITS.get(test or "")
        wanted["effective_performance_sample_count"] = audit.performance_samples if audit else rules.performance_samples
        wanted["effective_sample_concatenate_permutation"] = rules.equal_issue and audit is None
        if audit is not None:
            wanted["effective_accuracy_log_rng_seed"] = audit.settings["accuracy_log_rng_seed"]
            wanted["effective_accuracy_log_sampling_target"] = audit.log_target
            wanted["effective_performance_issue_unique"] = audit.unique
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
