"""Any PromQL over a run's time: asked of its Prometheus, or of the one that only its head knows; shown, or written to a file."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.output import clean, note, number, say, say_json, table
from harness.cluster.local import head_alive
from harness.metrics.gpu.base import Curve, QueryAnswer, SourceError
from harness.records.layout import RunFolder

if TYPE_CHECKING:
    import polars as pl

    from harness.metricspec import GpuSourceSpec

_SERIES_SHOWN: Final = 20
_CHART_POINTS: Final = 300  # of a range without --step


def in_words(error: Exception) -> Exception:
    """As bad input, where something has to be asked or set differently; as it is, where a server does not answer."""
    return error if isinstance(error, SourceError) and error.trouble not in ("setup", "bad_query") else BadInput(str(error))


def ask(
    folder: RunFolder, gpu: GpuSourceSpec, query: str, first: float, last: float, step: float | None, target: Path | None, *,
    as_json: bool,
) -> int:  # fmt: skip
    step_s = step if step is not None else max(1.0, (last - first) / _CHART_POINTS)
    try:
        if gpu.url is not None:
            from harness.metrics.gpu.pastprom import PastProm

            with PastProm(gpu) as client:
                whom, answer = client.name, client.range(query, first, last, step_s)
        else:
            whom, answer = _ask_the_head(folder, query, first, last, step_s)
    except SourceError as error:
        raise in_words(error) from error
    for warning in answer.warnings:
        note(f"{whom}: {warning}")
    if answer.left_out:
        note(f"{whom}: {answer.left_out:,d} more series are left out; aggregate them (sum by, topk)")
    told = {"query": query, "source": whom, "start_unix": first, "end_unix": last, "step_s": answer.step_s}
    if target is not None:
        series = [_as_json(curve) for curve in answer.curves] if target.suffix == ".json" else []
        write_out(target, _long(answer.curves) if target.suffix != ".json" else None, told | {"series": series})
        say(f"{target}: {len(answer.curves):,d} series, a point every {answer.step_s:g} s")
    elif as_json:
        say_json(told | {"series": [_as_json(curve) for curve in answer.curves]})
    else:
        _say_curves(answer, whom)
    return OK if answer.curves else NOT_VALID


def _ask_the_head(folder: RunFolder, query: str, first: float, last: float, step_s: float) -> tuple[str, QueryAnswer]:
    """A run that goes on may have a Prometheus of its own, which only its head knows."""
    if not head_alive(folder):
        raise BadInput(
            "metrics: --query needs a Prometheus that has the run's time; this run's spec names none (metrics.gpu.url): "
            "give --url http://HOST:9090"
        )
    import numpy as np

    from harness.wire.client import HeadClient
    from harness.wire.inquiry import MetricCurves, QueryMetrics

    with HeadClient.of_run(folder.path) as head:
        said = head.ask(QueryMetrics(uuid.uuid4().hex, query, first, last, step_s), timeout_s=30.0)
    if not isinstance(said, MetricCurves):
        raise SourceError("bad_answer", f"the head answered {type(said).__name__}")
    if said.problem:
        raise SourceError("bad_query", said.problem)
    curves = [Curve(one.labels, np.frombuffer(one.unix, "<f8"), np.frombuffer(one.values, "<f8")) for one in said.curves]
    return said.source, QueryAnswer(curves, "matrix", said.step_s, said.text, tuple(said.warnings), said.left_out)


def _say_curves(answer: QueryAnswer, whom: str) -> None:
    if not answer.curves:
        say(f"{whom} has nothing of that in this span")
        return
    rows = []
    for curve in answer.curves[:_SERIES_SHOWN]:
        known = curve.values[[math.isfinite(value) for value in curve.values]]
        ends = [f"{value:,.6g}" for value in (known.min(), known.max(), known[-1])] if len(known) else ["-", "-", "-"]
        rows.append([_labels(curve.labels), number(len(curve.values)), *ends])
    say(table(["series", "points", "min", "max", "last"], rows, right=range(1, 5)))
    if len(answer.curves) > _SERIES_SHOWN:
        say(f"and {len(answer.curves) - _SERIES_SHOWN:,d} more series; --out FILE.csv has all")


def _labels(labels: Mapping[str, str]) -> str:
    rest = ", ".join(f"{name}={value}" for name, value in labels.items() if name != "__name__" and value)
    return " ".join(filter(None, (labels.get("__name__", ""), rest))) or "(no labels)"


def _as_json(curve: Curve) -> dict[str, Any]:
    points = zip(curve.unix.tolist(), curve.values.tolist(), strict=True)
    return {"labels": curve.labels, "points": [[unix, value] for unix, value in points]}


def _long(curves: Sequence[Curve]) -> pl.DataFrame:
    """A row a point, a column a label."""
    import polars as pl

    names = list(dict.fromkeys(name for curve in curves for name in curve.labels))
    schema = {"unix": pl.Float64(), "value": pl.Float64(), **{_column(name): pl.String() for name in names}}
    frames = [
        pl.DataFrame({"unix": curve.unix, "value": curve.values}).with_columns(
            pl.lit(curve.labels.get(name), dtype=pl.String).alias(_column(name)) for name in names
        )
        for curve in curves
    ]
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)


def _column(label: str) -> str:
    """A label may be called as our own columns are."""
    return f"label_{label}" if label in ("unix", "value") else label


def write_out(target: Path, frame: pl.DataFrame | None, whole: Mapping[str, Any]) -> None:
    import json

    if target.suffix == ".json" or frame is None:
        target.write_text(json.dumps(clean(whole), ensure_ascii=False) + "\n", encoding="utf-8")
    elif target.suffix == ".csv":
        frame.write_csv(target)
    else:
        frame.write_parquet(target)
