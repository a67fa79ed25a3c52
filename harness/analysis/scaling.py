"""How a fleet scales: one point a number of nodes, against linear from the smallest, beside published results.

Read from run.json alone, so a hundred runs cost a hundred small files. Runs are put together by model and scenario, a model's
numbers (synthetic) apart from hardware's. At each N the VALID performance run with the most tokens/s counts; others are listed.
Where no run at an N is VALID its best stands there all the same, marked as not counting, and nothing is measured against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from harness.analysis.published import ReferencePoint, ReferenceSet
from harness.analysis.shape import number, shape_of
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run

#: What a scaling view shows, by the names of their definitions.
FIGURES: Final = (
    "tokens_per_s", "tokens_per_s_node", "tokens_per_s_gpu", "completed_qps", "efficiency", "ttft_p99_ms", "tpot_p99_ms",
)  # fmt: skip
FORMULA: Final = "efficiency = (tokens/s at N / N) / (tokens/s at N0 / N0), N0 = the smallest N that counts; 100 % is linear"


class ScaledRun(msgspec.Struct):
    """One run's best attempt. `gpus` is 0 where the record does not say."""

    name: str
    record: str
    attempt: int
    model: str
    scenario: str
    synthetic: bool
    engine: str
    nodes: int
    replicas: int
    gpus: int
    verdict: str
    target_qps: float
    tokens_per_s: float
    tokens_per_s_node: float
    tokens_per_s_gpu: float | None
    completed_qps: float | None
    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    started_unix: float

    @property
    def counts(self) -> bool:
        return self.verdict == "VALID"


class ScalePoint(msgspec.Struct):
    """`efficiency` in per cent; None where there is nothing to measure it against. `others`: more runs at that N, best first."""

    nodes: int
    counts: bool
    best: ScaledRun
    efficiency: float | None
    speedup: float | None  # tokens/s over those of the smallest N
    others: list[ScaledRun]


class Beside(msgspec.Struct):
    """A published point of the group's model and scenario. `share_per_gpu`: the group's largest point a GPU, over this one's."""

    title: str
    source: str
    point: ReferencePoint
    tokens_per_s_node: float
    tokens_per_s_gpu: float
    share_per_gpu: float | None


class ScaleGroup(msgspec.Struct):
    model: str
    scenario: str
    synthetic: bool
    points: list[ScalePoint]  # by N
    references: list[Beside]
    remarks: list[str]


class Scaling(msgspec.Struct):
    formula: str
    groups: list[ScaleGroup]
    left_out: list[tuple[str, str]]  # run, why


def scaling(folders: Iterable[RunFolder], references: Sequence[ReferenceSet] = ()) -> Scaling:
    """Blocking. What cannot be used is left out, with the reason."""
    groups: dict[tuple[str, str, bool], list[ScaledRun]] = {}
    left_out: list[tuple[str, str]] = []
    for folder in folders:
        try:
            found = _scaled(folder, read_run(folder.path))
        except RecordError as error:
            found = error.reason
        if isinstance(found, str):
            left_out.append((folder.name, found))
        else:
            groups.setdefault((found.model, found.scenario, found.synthetic), []).append(found)
    made = [_group(key, runs, references) for key, runs in sorted(groups.items(), key=lambda item: (item[0][2], *item[0][:2]))]
    return Scaling(FORMULA, made, left_out)


def _scaled(folder: RunFolder, run: RunFile) -> ScaledRun | str:
    """Or why not, in words."""
    shape = shape_of(run.spec)
    measured = [
        (tokens_per_s, attempt)
        for attempt in run.attempts
        if attempt.kind == "performance" and (tokens_per_s := _tokens_per_s(attempt)) is not None
    ]
    if not measured:
        kinds = ", ".join(sorted({attempt.kind for attempt in run.attempts})) or "no"
        return f"no performance attempt with tokens/s ({kinds} attempts)"
    if not shape.nodes:
        return "its record does not say on how many nodes it ran"
    tokens_per_s, attempt = max(measured, key=lambda one: (one[1].verdict == "VALID", one[0]))
    return ScaledRun(
        name=folder.name, record=str(folder.path), attempt=attempt.number, model=shape.model or "unnamed model",
        scenario=attempt.scenario, synthetic=run.synthetic, engine=shape.engine, nodes=shape.nodes, replicas=shape.replicas,
        gpus=shape.gpus, verdict=attempt.verdict or attempt.state or run.phase, target_qps=attempt.target_qps,
        tokens_per_s=tokens_per_s, tokens_per_s_node=tokens_per_s / shape.nodes,
        tokens_per_s_gpu=tokens_per_s / shape.gpus if shape.gpus else None,
        completed_qps=_figure(attempt, attempt.rates.get("completed_qps"), "completed_qps"),
        ttft_p99_ms=_figure(attempt, attempt.ttft_ms.get("p99"), "ttft_p99_ms"),
        tpot_p99_ms=_figure(attempt, attempt.tpot_ms.get("p99"), "tpot_p99_ms"), started_unix=attempt.started_unix,
    )  # fmt: skip


def _tokens_per_s(attempt: AttemptRecord) -> float | None:
    found = _figure(attempt, attempt.rates.get("tokens_per_s"), "tokens_per_s")
    return found if found is not None and found > 0 else None


def _figure(attempt: AttemptRecord, value: float | None, name: str) -> float | None:
    """Older records have some figures among `results` only."""
    own = number(value)
    return own if own is not None else number(attempt.results.get(name))


def _group(key: tuple[str, str, bool], runs: Sequence[ScaledRun], references: Sequence[ReferenceSet]) -> ScaleGroup:
    by_nodes: dict[int, list[ScaledRun]] = {}
    for run in sorted(runs, key=lambda run: (not run.counts, -run.tokens_per_s)):
        by_nodes.setdefault(run.nodes, []).append(run)
    best = {nodes: ordered[0] for nodes, ordered in sorted(by_nodes.items())}
    base = next((run for run in best.values() if run.counts), None)
    points = []
    for nodes, run in best.items():
        measured = base is not None and run.counts
        points.append(
            ScalePoint(
                nodes=nodes,
                counts=run.counts,
                best=run,
                efficiency=100.0 * run.tokens_per_s_node / base.tokens_per_s_node if base is not None and measured else None,
                speedup=run.tokens_per_s / base.tokens_per_s if base is not None and measured else None,
                others=by_nodes[nodes][1:],
            )
        )
    return ScaleGroup(*key, points, _beside(key, points, references), _remarks(points))


def _beside(key: tuple[str, str, bool], points: Sequence[ScalePoint], references: Sequence[ReferenceSet]) -> list[Beside]:
    largest = next((point.best for point in reversed(points) if point.counts), None)
    own = largest.tokens_per_s_gpu if largest is not None and not key[2] else None  # a model's numbers are no share of hardware's
    found = []
    for one in references:
        for point in one.points:
            if (point.model.lower(), point.scenario.lower()) == (key[0].lower(), key[1].lower()):
                per_gpu = point.tokens_per_s / point.gpus
                share = own / per_gpu if own is not None and math.isfinite(per_gpu) else None
                found.append(Beside(one.title, one.source, point, point.tokens_per_s / point.nodes, per_gpu, share))
    return found


def _remarks(points: Sequence[ScalePoint]) -> list[str]:
    counting = [point.best for point in points if point.counts]
    found = []
    if not counting:
        found.append("no run here is VALID: figures are shown, efficiency is not")
    elif len(counting) == 1:
        found.append(f"only N = {counting[0].nodes} has a VALID run: efficiency needs a second N")
    for what, values in (
        ("engine", {run.engine for run in counting}),
        ("replicas a node", {f"{run.replicas / run.nodes:g}" for run in counting}),
        ("GPUs a node", {f"{run.gpus / run.nodes:g}" for run in counting}),
    ):
        if len(values) > 1:
            found.append(f"{what} differ between the points: {', '.join(sorted(values))}")
    return found


def rows_of(found: Scaling) -> list[dict[str, Any]]:
    """A row a run and a row a published point: for CSV, exports and reports."""
    rows: list[dict[str, Any]] = []
    for group in found.groups:
        for point in group.points:
            for run in (point.best, *point.others):
                kind = "other" if run is not point.best else "point" if point.counts else "best, not counted"
                efficiency = point.efficiency if run is point.best else None
                rows.append({"row": kind, **msgspec.to_builtins(run), "efficiency_pct": efficiency, "source": run.record})
        for one in group.references:
            point_of = one.point
            rows.append(
                {
                    "row": "published", "name": one.title, "model": group.model, "scenario": group.scenario, "synthetic": False,
                    "engine": point_of.engine, "nodes": point_of.nodes, "replicas": point_of.replicas, "gpus": point_of.gpus,
                    "verdict": "published", "target_qps": point_of.target_qps, "tokens_per_s": point_of.tokens_per_s,
                    "tokens_per_s_node": one.tokens_per_s_node, "tokens_per_s_gpu": one.tokens_per_s_gpu,
                    "completed_qps": point_of.samples_per_s, "ttft_p99_ms": point_of.ttft_p99_ms,
                    "tpot_p99_ms": point_of.tpot_p99_ms, "source": one.source,
                }
            )  # fmt: skip
    return rows
