"""What mlcommons/endpoints says about a run as a whole: result_summary.json, final_snapshot.json, config.yaml.

Read by name and without trust: what is missing or of another type is left out. Times in these files are ns.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from harness.imports.errors import ImportProblem
from harness.imports.pieces import json_file

_MOST_JSON: Final = 64 << 20
_MOST_YAML: Final = 256 << 10
_MOST_SETTINGS: Final = 500
_PERCENTILES: Final = {"50": "p50", "90": "p90", "95": "p95", "99": "p99", "99.9": "p99_9"}
_SERIES: Final = {"ttft": "ttft_ns", "tpot": "tpot_ns", "latency": "sample_latency_ns", "output_sequence_lengths": "osl",
                  "input_sequence_lengths": "isl"}  # fmt: skip
_COUNTS: Final = ("issued", "completed", "failed")
#: The setting, by its name in `Config.settings`, of how many requests are kept in flight.
CONCURRENCY: Final = "settings.load_pattern.target_concurrency"

Figures = dict[str, float | None]


@dataclass(slots=True)
class Summary:
    """`counts` by issued, completed, failed; the client counts a failed request as completed, too. Tokens are of all requests."""

    state: str = ""
    version: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    duration_s: float | None = None
    qps: float | None = None
    tps: float | None = None
    ttft_ms: Figures = field(default_factory=dict)
    tpot_ms: Figures = field(default_factory=dict)
    latency_ms: Figures = field(default_factory=dict)
    output_tokens: int | None = None
    input_tokens: int | None = None


@dataclass(slots=True)
class Config:
    model: str = ""
    pattern: str = ""  # poisson, concurrency, max_throughput, agentic_inference
    target_qps: float | None = None
    concurrency: int | None = None
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)


def read_summary(path: Path) -> Summary | None:
    """result_summary.json; None if there is no such file. Raises ImportProblem."""
    found = _table(path)
    if found is None:
        return None
    if not any(key.startswith("n_samples_") for key in found) and not {"ttft", "latency", "qps"} & found.keys():
        raise ImportProblem(f"{path}: has none of n_samples_issued, ttft, latency and qps: not a summary of mlcommons/endpoints")
    return Summary(
        state=_text(found.get("state")),
        version=_text(found.get("version")),
        counts=_counts({name: found.get(f"n_samples_{name}") for name in _COUNTS}),
        duration_s=_scaled(found.get("duration_ns"), 1e9),
        qps=_scaled(found.get("qps"), 1),
        tps=_scaled(found.get("tps"), 1),
        ttft_ms=_figures(found.get("ttft")),
        tpot_ms=_figures(found.get("tpot")),
        latency_ms=_figures(found.get("latency")),
        output_tokens=_total(found.get("output_sequence_lengths")),
        input_tokens=_total(found.get("input_sequence_lengths")),
    )


def read_snapshot(path: Path) -> Summary | None:
    """final_snapshot.json: the counters and series that the summary is made of. Raises ImportProblem."""
    found = _table(path)
    if found is None:
        return None
    metrics = found.get("metrics")
    if not isinstance(metrics, list):
        raise ImportProblem(f"{path}: has no list of metrics: not a snapshot of mlcommons/endpoints")
    by_name = {stat["name"]: stat for stat in metrics if isinstance(stat, dict) and isinstance(stat.get("name"), str)}
    series = {name: by_name.get(theirs) for name, theirs in _SERIES.items()}
    counts = _counts({name: (by_name.get(f"tracked_samples_{name}") or {}).get("value") for name in _COUNTS})
    duration_s = _scaled((by_name.get("tracked_duration_ns") or {}).get("value"), 1e9)
    output_tokens = _total(series["output_sequence_lengths"])
    return Summary(
        state=_text(found.get("state")),
        counts=counts,
        duration_s=duration_s,
        qps=counts["completed"] / duration_s if duration_s and "completed" in counts else None,
        tps=output_tokens / duration_s if duration_s and output_tokens else None,
        ttft_ms=_figures(series["ttft"]),
        tpot_ms=_figures(series["tpot"]),
        latency_ms=_figures(series["latency"]),
        output_tokens=output_tokens,
        input_tokens=_total(series["input_sequence_lengths"]),
    )


def read_config(path: Path) -> Config | None:
    """config.yaml; None if there is no such file. Raises ImportProblem."""
    try:
        if path.stat().st_size > _MOST_YAML:
            raise ImportProblem(f"{path}: {path.stat().st_size:,d} bytes are more than a configuration has; not read")
        found = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ImportProblem(f"{path}: cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, OverflowError) as error:
        raise ImportProblem(f"{path}: is not YAML: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    if not isinstance(found, dict):
        raise ImportProblem(f"{path}: is not a configuration of mlcommons/endpoints, which is a table")
    load = _inner(_inner(found, "settings"), "load_pattern")
    concurrency = _scaled(load.get("target_concurrency"), 1)
    kept = {name: found[name] for name in ("model_params", "settings") if name in found}
    return Config(
        model=_text(_inner(found, "model_params").get("name")),
        pattern=_text(load.get("type")),
        target_qps=_scaled(load.get("target_qps"), 1),
        concurrency=None if concurrency is None else int(concurrency),
        settings=dict(list_of(kept)),
    )


def list_of(value: object) -> Iterator[tuple[str, str | int | float | bool]]:
    """Dotted names and values, bounded: YAML lets a few lines stand for millions."""
    left = [_MOST_SETTINGS]

    def walk(inner: object, dotted: str, deep: int) -> Iterator[tuple[str, str | int | float | bool]]:
        if left[0] <= 0 or deep > 8:
            return
        if isinstance(inner, dict):
            for key, below in inner.items():
                yield from walk(below, f"{dotted}.{key}" if dotted else str(key), deep + 1)
        elif isinstance(inner, str | bool) or (isinstance(inner, int | float) and _scaled(inner, 1) is not None):
            left[0] -= 1
            yield dotted[:200], inner[:200] if isinstance(inner, str) else inner
        else:
            left[0] -= 1

    return walk(value, "", 0)


def _table(path: Path) -> dict[str, Any] | None:
    found = json_file(path, _MOST_JSON)
    if found is None and not path.exists():
        return None
    if not isinstance(found, dict):
        raise ImportProblem(f"{path}: is not an object, as the files of mlcommons/endpoints are")
    return found


def _figures(series: Any) -> Figures:
    """Of a rollup in ns; empty for none."""
    if not isinstance(series, Mapping):
        return {}
    count = _scaled(series.get("count"), 1)
    total = _scaled(series.get("total"), 1e6)
    average = _scaled(series.get("avg"), 1e6)
    if average is None and count and total is not None:
        average = total / count
    figures: Figures = {"min": _scaled(series.get("min"), 1e6), "avg": average}
    percentiles = series.get("percentiles")
    by_share: dict[str, float | None] = {}
    if isinstance(percentiles, Mapping):
        for key, value in percentiles.items():
            with contextlib.suppress(ValueError):
                by_share[f"{float(key):g}"] = _scaled(value, 1e6)
    figures |= {ours: by_share.get(share) for share, ours in _PERCENTILES.items()}
    figures["max"] = _scaled(series.get("max"), 1e6)
    return figures if any(value is not None for value in figures.values()) else {}


def _total(series: Any) -> int | None:
    total = _scaled(series.get("total"), 1) if isinstance(series, Mapping) else None
    return None if total is None else int(total)


def _counts(values: Mapping[str, Any]) -> dict[str, int]:
    numbers = {name: _scaled(value, 1) for name, value in values.items()}
    return {name: int(value) for name, value in numbers.items() if value is not None and 0 <= value < 1e15}


def _scaled(value: Any, by: float) -> float | None:
    """None for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        scaled = float(value) / by
    except OverflowError:
        return None
    return scaled if math.isfinite(scaled) and abs(scaled) < 1e18 else None


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""


def _inner(table: Mapping[Any, Any], name: str) -> Mapping[Any, Any]:
    found = table.get(name)
    return found if isinstance(found, Mapping) else {}
