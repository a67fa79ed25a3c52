"""A query in PromQL without its screen: what is wrong with it, over which time, what its answer says, and what was asked before.

Checked by promql-parser before it is sent, where that is installed; its messages seldom say where, so the place is looked for
here: the first word with which no query could begin so.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import platformdirs
from numpy.typing import NDArray

from console.store.fleet import FleetStore
from harness.metrics.gpu.roles import GPU_ROLES
from harness.wire.inquiry import MetricCurves, MetricName

Span = Literal["now", "15 min", "attempt", "run"]
SPANS: Final[tuple[Span, ...]] = ("now", "15 min", "attempt", "run")
QUARTER_S: Final = 900.0
DRAWN: Final = 20  # series in a chart; the table has them all
_KEPT: Final = 200
_HISTORY_FILE: Final = "promql-history"
_LEAST_SPAN_S: Final = 60.0

# --- is it a query? ----------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"""\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`|[A-Za-z_:][A-Za-z0-9_:.]*|[0-9][0-9A-Za-z_.]*|[=!~<>]+|."""
)
_CLOSING: Final = {"(": ")", "{": "}", "[": "]"}
#: Labels that repeat at length what host and number say.
_IDENTITY: Final = re.compile(r"uuid|serial|pci", re.IGNORECASE)
#: With what a query that was cut off could go on, before its brackets are closed.
_GOES_ON: Final = ("", "x", '="x"', '"x"', "1", "5m", "[5m]", "(x)", "by (x) (x)", "x[5m]", "m", ":5m", 'x="x"', "0.5, x")


def problem_of(query: str) -> str:
    """Why the source would refuse it, with where; empty when it is a query, or when nothing here can tell."""
    if not query.strip():
        return "there is no query yet"
    try:
        import promql_parser
    except ImportError:
        return ""
    parse: Callable[[str], object] = promql_parser.parse
    try:
        parse(query)
    except ValueError as error:
        said = str(error).strip() or "not a query"
        at, what = _place(query, said, parse)
        return f"at {at + 1}, {what}: {said}"
    return ""


def _place(query: str, said: str, parse: Callable[[str], object]) -> tuple[int, str]:
    """Where it goes wrong, counted from 0, and the words there."""
    named = re.search(r"function '(\w+)'", said)
    if named is not None and (at := query.find(named[1])) >= 0:
        return at, repr(named[1])
    tokens = [match for match in _TOKEN.finditer(query) if not match[0].isspace()]
    brackets: list[tuple[int, str]] = []
    for token in tokens:
        if token[0] in _CLOSING:
            brackets.append((token.start(), token[0]))
        elif token[0] in _CLOSING.values():
            if not brackets or _CLOSING[brackets[-1][1]] != token[0]:
                return token.start(), f"{token[0]!r} closes nothing"
            brackets.pop()
        closing = "".join(_CLOSING[opened] for _, opened in reversed(brackets))
        if not _could_go_on(query[: token.end()], closing, parse):
            return token.start(), repr(token[0])
    if brackets:
        return brackets[-1][0], f"{brackets[-1][1]!r} is not closed"
    return max(0, len(query.rstrip()) - 1), "the end"


def _could_go_on(begun: str, closing: str, parse: Callable[[str], object]) -> bool:
    """Whether some query begins so. Tried with what usually follows, which is enough: a wrong guess only moves the place."""
    tails = (closing, f"{closing} (x)", closing.replace(")", ", x)", 1), closing.replace(")", ") (x)", 1))
    for rest in _GOES_ON:
        for tail in dict.fromkeys(tails):
            for query in (f"{begun}{rest}{tail}", f"{begun} {rest}{tail}"):
                with contextlib.suppress(ValueError):
                    parse(query)
                    return True
    return False


# --- what was asked before ---------------------------------------------------------------------------------


def earlier() -> list[str]:
    """This user's queries, oldest first; none when they cannot be read."""
    try:
        path = platformdirs.user_state_path("paceline") / _HISTORY_FILE
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        return []


def remember(query: str) -> None:
    """As the newest; a home that cannot be written to has no history, and that is all."""
    line = " ".join(query.split())
    lines = [one for one in earlier() if one != line][-_KEPT + 1 :]
    with contextlib.suppress(OSError):
        folder = platformdirs.user_state_path("paceline", ensure_exists=True)
        (folder / _HISTORY_FILE).write_text("\n".join([*lines, line]) + "\n", encoding="utf-8")


# --- over which time ---------------------------------------------------------------------------------------


def times_of(store: FleetStore, span: Span) -> tuple[float, float]:
    """Start and end for the head, by its clock; both 0: now."""
    snap, attempt, now = store.snapshot, store.attempt, store.unix
    if span == "now" or math.isnan(now):
        return 0.0, 0.0
    starts = {
        "15 min": now - QUARTER_S,
        "attempt": attempt.started_unix if attempt is not None and attempt.started_unix else now - QUARTER_S,
        "run": _run_started(store, now),
    }
    if span == "attempt" and snap is not None and attempt is not None and not attempt.started_unix and snap.elapsed_s > 0:
        starts["attempt"] = now - snap.elapsed_s
    return min(starts[span], now - _LEAST_SPAN_S), now


def _run_started(store: FleetStore, now: float) -> float:
    known = [entry.unix for entry in store.journal][:1] + [store.started_unix] * bool(store.started_unix)
    return min(known, default=now - QUARTER_S)


# --- what its answer says ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer. `label`: what tells it from the others."""

    label: str
    labels: dict[str, str]
    unix: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def last(self) -> float:
        return float(self.values[-1]) if len(self.values) else math.nan


def series_of(answer: MetricCurves) -> list[Series]:
    """The largest last value first; what is not known comes last."""
    names = legend([curve.labels for curve in answer.curves])
    found = [
        Series(name, curve.labels, np.frombuffer(curve.unix, dtype="<f8"), np.frombuffer(curve.values, dtype="<f8"))
        for name, curve in zip(names, answer.curves, strict=True)
    ]
    return sorted(found, key=lambda one: (math.isnan(one.last), -one.last if not math.isnan(one.last) else 0.0))


def legend(all_labels: Sequence[dict[str, str]]) -> list[str]:
    """Of each series the labels in which they differ, the long ones only where it takes them; of a single one its name or all
    it has."""
    names = list(dict.fromkeys(name for labels in all_labels for name in labels))
    differing = [name for name in names if len({labels.get(name, "") for labels in all_labels}) > 1]
    if not differing:
        return [labels.get("__name__") or ", ".join(f"{name}={value}" for name, value in labels.items()) or "value"
                for labels in all_labels]  # fmt: skip
    telling = [name for name in differing if not _IDENTITY.search(name)]
    if len({tuple(labels.get(name, "") for name in telling) for labels in all_labels}) == len(all_labels):
        differing = telling
    return [" ".join(_told(name, labels[name]) for name in differing if labels.get(name)) or "–" for labels in all_labels]


def _told(name: str, value: str) -> str:
    """`hostname=node003 gpu_id=1`; a metric's name and a host's speak for themselves."""
    return value if name in ("__name__", "hostname", "Hostname", "node", "instance") else f"{name}={value}"


def together(series: Sequence[Series]) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """All on one axis of time: NaN where a series has no point."""
    if not series:
        return np.zeros(0), []
    first = series[0].unix
    if all(len(one.unix) == len(first) and np.array_equal(one.unix, first) for one in series[1:]):
        return first, [one.values for one in series]
    unix = np.unique(np.concatenate([one.unix for one in series]))
    rows = []
    for one in series:
        row = np.full(len(unix), np.nan)
        row[np.searchsorted(unix, one.unix)] = one.values
        rows.append(row)
    return unix, rows


# --- every metric by name ----------------------------------------------------------------------------------


def matching(names: Sequence[MetricName], text: str) -> list[MetricName]:
    """Those that have every word somewhere: in name, help, type or role. Metrics of roles first. Who is used to `/` types it."""
    words = text.lower().removeprefix("/").split()
    found = [
        one for one in names if all(word in f"{one.name} {one.type} {one.help} {' '.join(one.roles)}".lower() for word in words)
    ]
    return sorted(found, key=lambda one: (not one.roles, one.name))


def query_for(metric: MetricName) -> str:
    """What one would ask of it first: of a GPU one value each, of a counter how fast it grows."""
    if any(role in GPU_ROLES for role in metric.roles):
        labels = "Hostname, gpu" if metric.name.startswith("DCGM_") else "hostname, gpu_id"
        return f"max by ({labels}) ({metric.name})"
    if metric.type == "counter":
        return f"rate({metric.name}[1m])"
    if metric.type == "histogram" and not metric.name.endswith(("_bucket", "_sum", "_count")):
        return f"histogram_quantile(0.99, sum by (le) (rate({metric.name}_bucket[1m])))"
    return metric.name
