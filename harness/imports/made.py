"""What an importer makes, and the spec that such a record carries: the smallest that is valid, so that everything opens it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from harness.records.runfile import AttemptRecord
from harness.spec import RunSpec

#: Stands where a spec names what serves; nothing starts it.
ENGINE: Final = "imported"


@dataclass(slots=True)
class Made:
    """`name` is a proposal. `phase` is one of those in which a run ends."""

    kind: str
    name: str
    spec: RunSpec
    attempts: list[AttemptRecord]
    verdict: str
    reasons: list[str]
    phase: str = "DONE"
    versions: dict[str, str] = field(default_factory=dict)


def minimal_spec(
    *,
    model: str,
    mlperf_name: str | None = None,
    scenario: str = "Server",
    kind: str = "performance",
    test: str = "",
    target_qps: float = 0.0,
    duration_s: float = 0.0,
    ttft_p99_ms: float | None = None,
    tpot_p99_ms: float | None = None,
) -> RunSpec:
    """What a spec cannot hold (a foreign scenario, a rate of 0) is left at its default: attempts have it as it was."""
    load: dict[str, Any] = {"kind": kind}
    if scenario in ("Server", "Offline") and kind != "explore":
        load["scenario"] = scenario
    if kind == "compliance" and test:
        load["test"] = test
    if 0.001 <= target_qps <= 1_000_000:
        load["target_qps"] = target_qps
    if 0 < duration_s <= 604_800:
        load["duration_s"] = duration_s
    tables: dict[str, Any] = {
        "name": ENGINE,
        "model": {"name": model[:200] or "unknown", "mlperf_name": mlperf_name},
        "limits": {name: ms for name, ms in (("ttft_p99_ms", ttft_p99_ms), ("tpot_p99_ms", tpot_p99_ms)) if ms},
        "fleet": {"nodes": 1, "replicas_per_node": 1, "engine": ENGINE},
    }
    try:
        return RunSpec.model_validate({**tables, "load": load})
    except ValidationError:
        return RunSpec.model_validate(tables)
