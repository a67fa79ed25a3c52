"""A RunSpec turned into LoadGen's settings, with a list of what was asked that the log is later compared with.

One attempt is one process, because LoadGen reads its configuration once per process: a second FromConfig silently skips
the embedded mlperf.conf (seeds 0, token latencies off). A model that MLPerf knows (`model.mlperf_name`) takes seeds, limits
and counts from there; user.conf, written beside the logs, carries what a submission must state, and the same values are
set as attributes. A model without rules does not read any configuration: everything is set here, with the v6.1 seeds.

mlperf_loadgen is imported only when settings are built, so that consoles and heads never load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.mlperf.compliance.audits import AUDITS
from harness.mlperf.rules import MODELS, SEEDS_V61, ModelRules, Seeds
from harness.spec import RunSpec

__all__ = ["MODELS", "NO_LIMIT_NS", "SEEDS_V61", "ModelRules", "Settings", "SettingsError", "build", "seeds_of"]

#: Stands for "no limit": LoadGen always compares with one. 10 hours, longer than any attempt.
NO_LIMIT_NS = 36_000 * 1_000_000_000

Asked = str | int | float | bool

_config_was_read = False


class SettingsError(Exception):
    """This RunSpec cannot be given to LoadGen; the text says why and what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`test_settings` and `log_settings` are LoadGen's objects. `asked` has the log's names without effective_ or
    requested_; its keys that begin with `note.` are remarks for people and are not compared."""

    test_settings: Any
    log_settings: Any
    asked: dict[str, Asked]
    performance_count: int  # for ConstructQSL
    audit_path: str  # for StartTestWithLogSettings: but for compliance a name that does not exist, lest a stray file counts
    schedule_seed: int  # for ServerSchedule
    workdir: Path


def seeds_of(spec: RunSpec) -> Seeds:
    """The seeds that this spec runs with, whoever sets them."""
    if spec.load.seeds == "mlperf":
        return SEEDS_V61
    return Seeds(spec.load.seeds.qsl, spec.load.seeds.sample_index, spec.load.seeds.schedule)


def build(spec: RunSpec, n_samples: int, workdir: Path) -> Settings:
    """Settings for one attempt over `n_samples` samples; creates `workdir`, where LoadGen's logs will lie."""
    import mlperf_loadgen as lg

    if spec.load.kind == "explore":
        raise SettingsError("an explore attempt does not run LoadGen; use load.kind = performance, accuracy or compliance")
    if n_samples < 1:
        raise SettingsError("the dataset has no samples")
    workdir.mkdir(parents=True, exist_ok=True)  # LoadGen does not create it: it returns without a word and crashes at exit
    test = lg.TestSettings()
    user_conf, audit_path = workdir / "user.conf", workdir / "no-audit.config"
    user_conf.write_text(_user_conf(spec, n_samples))
    if spec.model.mlperf_name:
        _read_config(test, user_conf, spec.model.mlperf_name, spec.load.scenario)
    test.scenario = getattr(lg.TestScenario, spec.load.scenario)
    mode = "AccuracyOnly" if spec.load.kind == "accuracy" else "PerformanceOnly"
    test.mode = getattr(lg.TestMode, mode)
    asked: dict[str, Asked] = {"scenario": spec.load.scenario, "test_mode": mode}
    _set_seeds(test, spec, asked)
    _set_load(test, spec, asked)
    _set_limits(test, spec, asked)
    performance_count = _set_counts(test, spec, n_samples, asked)
    if spec.load.test is not None:
        audit_path = workdir / "audit.config"
        audit_path.write_text(AUDITS[spec.load.test].config())
        _set_audit(test, spec.load.test, spec.load.scenario, asked)
    return Settings(
        test_settings=test,
        log_settings=_log_settings(lg, workdir),
        asked=asked,
        performance_count=performance_count,
        audit_path=str(audit_path),
        schedule_seed=seeds_of(spec).schedule,
        workdir=workdir,
    )


def settings_diff(asked: Mapping[str, Asked], effective: Mapping[str, Any]) -> list[str]:
    """Where the log's settings are not what was asked, in words. `effective`: the keys of the detail log.

    LoadGen's `effective_` value counts; some settings (the token limits) appear only as `requested_`.
    """
    differences = []
    for name, value in asked.items():
        if name.startswith("note."):
            continue
        for key in (f"effective_{name}", f"requested_{name}"):
            if key in effective:
                if not _same(value, effective[key]):
                    differences.append(f"{name}: asked {_shown(value)}, in effect {_shown(effective[key])}")
                break
        else:
            differences.append(f"{name}: asked {_shown(value)}, not found in LoadGen's log")
    return differences


def _same(asked: Asked, found: Any) -> bool:
    if isinstance(asked, bool) or isinstance(found, bool) or isinstance(asked, str):
        return bool(asked == found)
    if isinstance(asked, int) and isinstance(found, int):
        return asked == found
    # The log prints numbers with six digits.
    return isinstance(found, int | float) and abs(asked - found) <= 1e-5 * abs(asked)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _read_config(test: Any, user_conf: Path, model: str, scenario: str) -> None:
    global _config_was_read
    if _config_was_read:
        raise SettingsError("LoadGen reads its configuration once per process: start a new process for the next attempt")
    if model not in MODELS:
        raise SettingsError(f"model.mlperf_name {model!r} has no rules here; known are {', '.join(sorted(MODELS))}")
    _config_was_read = True
    if test.FromConfig(str(user_conf), model, scenario) != 0:
        raise SettingsError(f"LoadGen could not read {user_conf}")


def _user_conf(spec: RunSpec, n_samples: int) -> str:
    load, model = spec.load, spec.model.mlperf_name or "*"
    lines = [
        "# Written for this attempt; the same values are in effect.",
        f"{model}.{load.scenario}.target_qps = {load.target_qps!r}",
        f"{model}.{load.scenario}.min_duration = {round(load.duration_s * 1000)}",
    ]
    if load.min_queries is not None:
        lines.append(f"{model}.{load.scenario}.min_query_count = {load.min_queries}")
    if load.max_queries is not None:
        lines.append(f"{model}.{load.scenario}.max_query_count = {load.max_queries}")
    if load.test is not None and AUDITS[load.test].unique:
        # The model's own count may be larger than this dataset: LoadGen would crash in Offline (see audits.py).
        count = load.performance_samples or min(AUDITS[load.test].performance_samples, n_samples)
        lines.append(f"{model}.*.performance_sample_count_override = {count}")
    return "\n".join(lines) + "\n"


def _set_seeds(test: Any, spec: RunSpec, asked: dict[str, Asked]) -> None:
    seeds = seeds_of(spec)
    if not (spec.load.seeds == "mlperf" and spec.model.mlperf_name):  # else the embedded configuration has set them
        test.qsl_rng_seed = seeds.qsl
        test.sample_index_rng_seed = seeds.sample_index
        test.schedule_rng_seed = seeds.schedule
    asked["qsl_rng_seed"] = seeds.qsl
    asked["sample_index_rng_seed"] = seeds.sample_index
    asked["schedule_rng_seed"] = seeds.schedule


def _set_load(test: Any, spec: RunSpec, asked: dict[str, Asked]) -> None:
    load = spec.load
    if load.scenario == "Server":
        test.server_target_qps = load.target_qps
    else:
        test.offline_expected_qps = load.target_qps
    asked["target_qps"] = load.target_qps
    test.min_duration_ms = asked["min_duration_ms"] = round(load.duration_s * 1000)
    test.max_duration_ms = asked["max_duration_ms"] = 0
    if load.min_queries is not None:
        test.min_query_count = load.min_queries
    elif not spec.model.mlperf_name:
        test.min_query_count = 1  # else a short attempt at a low rate would be stretched to LoadGen's default of 100
    test.max_query_count = asked["max_query_count"] = load.max_queries or 0
    if load.scenario == "Server":
        asked["min_query_count"] = int(test.min_query_count)
    else:  # Offline is one query; LoadGen takes this number as the least samples in it and logs 1
        asked["note.min_samples"] = f"at least {int(test.min_query_count)} samples in the one Offline query"


def _set_limits(test: Any, spec: RunSpec, asked: dict[str, Asked]) -> None:
    test.use_token_latencies = asked["use_token_latencies"] = True
    for name, limit_ms in (("ttft", spec.limits.ttft_p99_ms), ("tpot", spec.limits.tpot_p99_ms)):
        limit_ns = NO_LIMIT_NS if limit_ms is None else round(limit_ms * 1e6)
        setattr(test, f"{name}_latency", limit_ns)
        if spec.load.scenario == "Server":
            asked[f"server_{name}_latency"] = limit_ns
        if limit_ms is None:
            asked[f"note.{name}"] = f"no {name.upper()} limit: LoadGen is given {NO_LIMIT_NS // 3_600_000_000_000} hours"


def _set_counts(test: Any, spec: RunSpec, n_samples: int, asked: dict[str, Asked]) -> int:
    """Never more than the dataset has: LoadGen would ask for samples that do not exist."""
    wanted = spec.load.performance_samples
    if wanted is not None and wanted > n_samples:
        raise SettingsError(f"load.performance_samples {wanted} is more than the dataset has ({n_samples} samples)")
    if spec.load.kind == "accuracy":
        performance_count = wanted or n_samples  # one part, so one schedule
    else:
        performance_count = wanted or min(int(test.performance_sample_count_override) or n_samples, n_samples)
    test.performance_sample_count_override = performance_count
    asked["performance_sample_count"] = performance_count
    if int(test.accuracy_sample_count_override) > n_samples:
        asked["note.accuracy_samples"] = (
            f"the rules want {int(test.accuracy_sample_count_override)} accuracy samples, the dataset has {n_samples}"
        )
        test.accuracy_sample_count_override = n_samples
    asked["accuracy_sample_count"] = int(test.accuracy_sample_count_override) or n_samples
    return performance_count


def _set_audit(test: Any, name: str, scenario: str, asked: dict[str, Asked]) -> None:
    """What LoadGen will take from audit.config, set beforehand too, so that what is planned here is what it will do."""
    audit = AUDITS[name]
    test.min_duration_ms = asked["min_duration_ms"] = 0
    test.min_query_count = audit.min_queries
    test.sample_concatenate_permutation = asked["sample_concatenate_permutation"] = False
    test.performance_issue_unique = asked["performance_issue_unique"] = audit.unique
    for key in ("accuracy_log_rng_seed", "accuracy_log_sampling_target"):
        asked[key] = audit.settings[key]
        setattr(test, key, audit.settings[key])
    if scenario == "Server":
        asked["min_query_count"] = audit.min_queries
    else:
        asked["note.min_samples"] = f"at least {audit.min_queries} samples in the one Offline query"
    asked["note.audit"] = f"{name}: audit.config is given to LoadGen"


def _log_settings(lg: Any, workdir: Path) -> Any:
    output = lg.LogOutputSettings()
    output.outdir = str(workdir)
    output.copy_summary_to_stdout = False
    output.copy_detail_to_stdout = False
    log = lg.LogSettings()
    log.log_output = output
    log.enable_trace = False  # a kilobyte a query on disk, and 1.7 times the cost of a sample
    return log
