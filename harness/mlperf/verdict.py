"""The verdict on an attempt, ours, with reasons in words. A pure function of what is known at its end.

LoadGen's VALID is one of the conditions, not the verdict: LoadGen says VALID in spite of logged errors (double
completions, missing token counts), and does not know about operators. VALID here needs all of: LoadGen VALID, no error
logged, TTFT and TPOT within limits by our own numbers, settings in effect as asked and as the rules want, every sample
issued and completed, no operator act other than a drain. An accuracy attempt has no limits and needs its gate reached; a
compliance attempt, in which LoadGen's own verdict means nothing, its test passed: `judged` says what is lacking. Drains are
what load balancing may do anyway: they are counted and shown as ACTS n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.mlperf.rules import MODELS, RULES

#: Acts that load balancing would be allowed to do by itself.
BENIGN_ACTS = frozenset({"drain", "readmit"})

Ending = Literal["finished", "superseded", "aborted", "crashed"]


@dataclass(frozen=True, slots=True)
class VerdictInput:
    kind: str  # performance, accuracy, explore, compliance
    scenario: str
    ending: Ending
    ending_reason: str = ""  # in words, for everything that is not "finished"
    loadgen_validity: str | None = None  # None: not in the log
    loadgen_complete: bool = False  # the detail log was written to its end
    loadgen_reasons: list[str] = field(default_factory=list)  # DetailLog.explanations()
    num_errors: int = 0
    ttft_limit_ms: float | None = None
    tpot_limit_ms: float | None = None
    ttft_p99_ms: float = math.nan  # our own, exact, over the whole attempt; NaN = not measured
    tpot_p99_ms: float = math.nan
    settings_diff: list[str] = field(default_factory=list)
    rules_diff: list[str] = field(default_factory=list)
    acts: Mapping[str, int] = field(default_factory=dict)  # operator acts that touched the attempt, by command name
    issued: int = 0
    completed: int = 0
    failed: int = 0
    redispatched: int = 0
    mlperf_name: str | None = None
    min_duration_s: float = 0.0  # as set for the attempt
    synthetic: bool = False
    judged: list[str] = field(default_factory=list)  # why score or test do not let it be VALID (harness.mlperf.judging)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons` say why it is not VALID (empty when it is); `notes` hold for any verdict. `acts` counts operator acts."""

    verdict: str
    reasons: list[str]
    acts: int
    notes: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """As it stands on screens: `VALID · ACTS 2`."""
        return f"{self.verdict} · ACTS {self.acts}" if self.acts else self.verdict


def judge(attempt: VerdictInput) -> Verdict:
    acts = sum(attempt.acts.values())
    notes = _notes(attempt)
    if attempt.ending == "crashed":
        return Verdict("CRASHED", [attempt.ending_reason or "the attempt ended unasked"], acts, notes)
    if attempt.ending == "aborted":
        return Verdict("ABORTED", [attempt.ending_reason or "stopped by an operator"], acts, notes)
    if attempt.ending == "superseded":
        return Verdict("SUPERSEDED", [attempt.ending_reason or "replaced by an attempt at another rate"], acts, notes)
    if attempt.kind == "explore":
        reasons = ["an explore attempt measures, but is not paced by LoadGen: its numbers cannot be VALID"]
        return Verdict("EXPLORATION", [*reasons, *_limit_reasons(attempt), *_sample_reasons(attempt)], acts, notes)
    if not attempt.loadgen_complete:
        return Verdict(
            "CRASHED", ["LoadGen's log is not complete: it did not reach its end", *attempt.loadgen_reasons], acts, notes
        )
    reasons = [
        *_loadgen_reasons(attempt),
        *_limit_reasons(attempt),
        *_sample_reasons(attempt),
        *_settings_reasons(attempt),
        *_act_reasons(attempt),
        *attempt.judged,
    ]
    return Verdict("INVALID" if reasons else "VALID", reasons, acts, notes)


def _loadgen_reasons(attempt: VerdictInput) -> list[str]:
    reasons = []
    if attempt.kind == "performance" and attempt.loadgen_validity != "VALID":
        said = attempt.loadgen_validity or "nothing about validity"
        reasons.append(f"LoadGen says {said}")
    if attempt.num_errors:
        reasons.append(
            f"LoadGen logged {attempt.num_errors} error{'s' * (attempt.num_errors != 1)}; with errors nothing is VALID"
        )
    return reasons + attempt.loadgen_reasons if reasons else []


def _limit_reasons(attempt: VerdictInput) -> list[str]:
    """Limits are those of the Server scenario, and of performance: accuracy and compliance attempts have none."""
    if attempt.scenario != "Server" or attempt.kind in ("accuracy", "compliance"):
        return []
    reasons = []
    for name, limit_ms, p99_ms in (
        ("TTFT", attempt.ttft_limit_ms, attempt.ttft_p99_ms),
        ("TPOT", attempt.tpot_limit_ms, attempt.tpot_p99_ms),
    ):
        if limit_ms is None:
            continue
        if math.isnan(p99_ms):
            reasons.append(f"{name} p99 was not measured (limit {limit_ms:g} ms)")
        elif p99_ms > limit_ms:
            reasons.append(f"{name} p99 {p99_ms:.6g} ms is over the limit of {limit_ms:g} ms")
    return reasons


def _sample_reasons(attempt: VerdictInput) -> list[str]:
    reasons = []
    if attempt.failed:
        reasons.append(f"{attempt.failed} sample{'s' * (attempt.failed != 1)} failed")
    if attempt.issued == 0:
        reasons.append("no sample was issued")
    elif attempt.completed != attempt.issued:
        reasons.append(f"{attempt.issued} samples were issued, {attempt.completed} completed")
    return reasons


def _settings_reasons(attempt: VerdictInput) -> list[str]:
    reasons = [f"settings not as asked: {difference}" for difference in attempt.settings_diff]
    reasons += [f"settings not as the rules want: {difference}" for difference in attempt.rules_diff]
    rules = MODELS.get(attempt.mlperf_name or "")
    wanted_s = rules.min_duration_s if rules else 600.0
    if attempt.mlperf_name and attempt.kind == "performance" and attempt.min_duration_s < wanted_s:
        reasons.append(
            f"not a submission-length run: minimum duration {attempt.min_duration_s:g} s, "
            f"{RULES} wants {wanted_s:g} s for {attempt.mlperf_name}"
        )
    return reasons


def _act_reasons(attempt: VerdictInput) -> list[str]:
    return [
        f"an operator's {name} touched the attempt" + (f" ({count} times)" if count > 1 else "")
        for name, count in attempt.acts.items()
        if count and name not in BENIGN_ACTS
    ]


def _notes(attempt: VerdictInput) -> list[str]:
    notes = []
    drains = sum(count for name, count in attempt.acts.items() if name in BENIGN_ACTS)
    if drains:
        notes.append(f"ACTS {drains}: replicas were drained or readmitted during the attempt, as load balancing may do")
    if attempt.redispatched:
        notes.append(
            f"{attempt.redispatched} sample{'s were' if attempt.redispatched != 1 else ' was'} dispatched again after a loss"
        )
    if attempt.kind == "compliance" and attempt.loadgen_validity == "INVALID":
        notes.append("LoadGen says INVALID, as is normal here: a compliance test is short and has no limits to hold")
    if attempt.synthetic:
        notes.append("synthetic engine: the numbers are a model's, not hardware's")
    return notes
