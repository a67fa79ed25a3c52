"""What a drill-down tells: the shape of every view, as plain data for screens, tables, JSON and reports alike.

Times of a run are seconds since the attempt's time zero (`_s`), durations are milliseconds (`_ms`); None where the record
does not say. A figure's formula and window stand in `harness.analysis.definitions` under its field's name.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Metric = Literal["ttft", "tpot", "latency"]
METRICS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "latency")
CALLED: Final[dict[Metric, str]] = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}
#: By what the samples of a tail are put together.
By = Literal["replica", "node", "time", "prompt length", "output length", "tries"]
BYS: Final[tuple[By, ...]] = ("replica", "node", "time", "prompt length", "output length", "tries")

Figures = dict[str, float | None]  # min, avg, p50, p90, p95, p99, p99_9, max
Interval = tuple[float, float] | None  # 95 % unless said otherwise; None where there are too few values for one


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which samples: all that are given must hold; bounds are inclusive below and exclusive above."""

    slot: str | None = None
    node: str | None = None
    from_s: float | None = None  # of the scheduled time
    to_s: float | None = None
    prompt_from: int | None = None
    prompt_to: int | None = None
    output_from: int | None = None
    output_to: int | None = None
    tries_from: int | None = None
    tries_to: int | None = None

    @property
    def words(self) -> str:
        """`node003 · 60–70 s · prompt 512–1,023 tokens`; "all samples" without any bound."""
        said = [name for name in (self.slot, self.node) if name]
        said += _span(self.from_s, self.to_s, "{} s", "")
        said += _span(self.prompt_from, self.prompt_to, "{} tokens", "prompt ", whole=True)
        said += _span(self.output_from, self.output_to, "{} tokens", "output ", whole=True)
        said += _span(self.tries_from, self.tries_to, "{}", "tries ", whole=True)
        return " · ".join(said) or "all samples"

    def within(self, outer: Where) -> Where:
        """Those of them that `outer` says too: the tighter of two bounds; where both name a replica or a node, this one's."""
        told: dict[str, Any] = {}
        for name in self.__struct_fields__:
            own, other = getattr(self, name), getattr(outer, name)
            if own is not None and other is not None and name not in ("slot", "node"):
                own = max(own, other) if name.endswith("_from") or name == "from_s" else min(own, other)
            told[name] = other if own is None else own
        return Where(**told)


def _span(low: float | None, high: float | None, form: str, before: str, *, whole: bool = False) -> list[str]:
    if low is None and high is None:
        return []
    last = high - 1 if high is not None and whole else high
    if low is None:
        text = f"up to {_count(last)}"
    elif last is None:
        text = f"from {_count(low)}"
    else:
        text = _count(low) if low == last else f"{_count(low)}–{_count(last)}"
    return [before + form.format(text)]


def _count(value: float | None) -> str:
    """Never as a power of ten: prompts of a million tokens exist."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"


class Finding(msgspec.Struct):
    """A sentence that a person can act on, and where to look further."""

    level: Literal["good", "info", "warn", "bad"]
    text: str
    view: Literal["", "timeline", "distributions", "tail", "fleet", "slowest", "acts", "config"] = ""
    metric: Metric | None = None
    by: By | None = None
    where: Where = Where()


class Margin(msgspec.Struct):
    """A limit and how far the attempt was from it. `head_room`: 1 - value / limit, negative when it is broken."""

    metric: Metric
    limit_ms: float
    p99_ms: float | None
    p99_interval_ms: Interval
    head_room: float | None
    over: int  # samples over the limit
    allowed_over: int | None  # that early stopping allows at this number of samples; None: too few samples for any


class Overview(msgspec.Struct):
    """Did it pass, by how much, where did the tail come from, what should change."""

    run: str
    attempt: int
    kind: str
    scenario: str
    verdict: str
    reasons: list[str]
    notes: list[str]
    acts: int
    synthetic: bool
    imported: str  # "" = recorded by Paceline; else what it was read from
    target_qps: float | None
    started_unix: float | None
    totals: dict[str, int]
    rates: dict[str, float | None]
    loadgen: dict[str, Any]  # LoadGen's own figures
    margins: list[Margin]
    findings: list[Finding]  # the most important first


class Distribution(msgspec.Struct):
    """`edges_ms` has one more entry than `counts`. `cdf`: (ms, share of samples at or below), dense at the upper end."""

    metric: Metric
    n: int
    figures: Figures
    p99_interval_ms: Interval
    limit_ms: float | None
    over: int
    allowed_over: int | None
    edges_ms: list[float]
    counts: list[int]
    cdf: list[tuple[float, float]]


class TailGroup(msgspec.Struct):
    """Samples of one replica, node, stretch of time, … `lift`: its share of the tail over its share of all samples."""

    by: By
    key: str
    n: int
    tail: int
    share_of_tail: float
    lift: float
    p50_ms: float | None
    p99_ms: float | None
    where: Where


class PartShare(msgspec.Struct):
    """One part of a sample's time. `share_of_excess`: of what the tail's mean is above everybody's mean."""

    name: str
    mean_ms: float
    p50_ms: float | None
    p99_ms: float | None
    tail_mean_ms: float | None
    share_of_excess: float | None


class Tail(msgspec.Struct):
    """`rule` says in words which samples the tail is: "slowest 1 %" or "over the limit of 3,000 ms"."""

    metric: Metric
    rule: str
    threshold_ms: float | None
    n: int
    tail_n: int
    groups: dict[By, list[TailGroup]]  # the largest lift (of groups that matter) first; lengths and time in their own order
    parts: list[PartShare]
    without_parts: int  # samples of which only the sum is known
    findings: list[Finding]


class SampleRow(msgspec.Struct):
    """One sample. `seq` names it within its attempt; `index` is its place in the dataset."""

    seq: int
    index: int
    slot: str | None
    prefill_slot: str | None
    incarnation: int
    tries: int
    n_prompt: int
    n_tokens: int
    scheduled_s: float
    ttft_ms: float | None
    tpot_ms: float | None
    latency_ms: float | None
    failed: bool


class Segment(msgspec.Struct):
    """A part of a sample's life. `usual_ms`: the median of that part over the attempt; `rank`: the share of samples whose
    part was shorter."""

    name: str
    start_ms: float  # since it was scheduled
    end_ms: float
    at: Literal["head", "replica", "network"]
    usual_ms: float | None
    rank: float | None


class Life(msgspec.Struct):
    """One sample from its scheduled time to its last token, and what its replica and the run were doing then."""

    sample: SampleRow
    scheduled_unix: float | None
    segments: list[Segment]
    remarks: list[str]  # "dispatched 2 times", "its replica was draining", …
    replica: list[dict[str, Any]]  # the replica's rows of the timeline from a little before until a little after
    journal: list[dict[str, Any]]  # entries of that time: unix, at_s, who, what, subject, why, level
    gpus: dict[str, float]  # role → worst value on that replica's GPUs during that time


class FleetRow(msgspec.Struct):
    """One replica or node over the whole attempt. z: robust z (median and MAD over the fleet) of its medians."""

    name: str
    host: str | None
    replicas: int
    samples: int
    failed: int
    tokens: int
    tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    step_ms: float | None  # median of the timeline
    over_ttft: int
    over_tpot: int
    redispatched: int
    z_ttft: float | None
    z_tpot: float | None
    z_step: float | None


class Tick(msgspec.Struct):
    """A stretch of the attempt. Rates by the time of the event itself: completed by completion, scheduled by schedule."""

    from_s: float
    to_s: float
    scheduled_qps: float
    issued_qps: float
    completed_qps: float
    tokens_per_s: float
    in_flight: int  # at its end: issued, and neither completed nor failed
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    ready: int | None  # replicas, from the timeline


class Mark(msgspec.Struct):
    at_s: float
    unix: float
    kind: Literal["act", "alert", "phase", "attempt", "replica", "straggler"]
    level: str
    text: str
    until_s: float | None = None  # of an alert that ended
    subject: str = ""


class Timeline(msgspec.Struct):
    step_s: float
    ticks: list[Tick]
    marks: list[Mark]
    cut: int = 0  # marks left out because there were too many


class Change(msgspec.Struct):
    """A figure in the windows before and after an act. `told`: "better", "worse", "no clear change" or "too few samples"."""

    figure: str
    unit: str
    before: float | None
    before_interval: Interval
    after: float | None
    after_interval: Interval
    difference_interval: Interval
    told: str


class Effect(msgspec.Struct):
    """One act, and what was measured in equal windows before and after it (the settling time between is left out)."""

    at_s: float
    unix: float
    who: str
    act: str
    subject: str
    why: str
    window_s: float
    settle_s: float
    before_n: int
    after_n: int
    changes: list[Change]
    remark: str  # why there are no windows; ""


class Variant(msgspec.Struct):
    value: str
    slots: list[str]


class Difference(msgspec.Struct):
    """A setting in which replicas are not alike; the variant that most have comes first."""

    field: str
    variants: list[Variant]


class LogLine(msgspec.Struct):
    unix: float | None
    process: str  # head, driver-1, node003, node003-gpu1
    text: str
    level: str
