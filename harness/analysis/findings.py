"""Did the attempt pass, by how much, where did its tail come from, and what should change: the overview, in sentences to act on.

Findings come in this order: limits that broke, with what the tail is made of; samples that were lost; causes that concern the
whole fleet (saturation, the head's queue, a client that issues late); replicas and nodes that are slow though the limits hold;
replicas with other MoE kernels than their peers; what was dispatched again; LoadGen's figures beside ours; and head-room, where
all is well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.analysis.attribution import findings_of, parts_of, tail_of
from harness.analysis.config import odd_kernels
from harness.analysis.distributions import at, figures_of, margin, short
from harness.analysis.evidence import Evidence
from harness.analysis.fleet import duration_of
from harness.analysis.slow import NAMED, slow_places
from harness.analysis.table import AttemptTable, node_of
from harness.analysis.timeline import counted, left_s, marks_of, stretch
from harness.analysis.views import CALLED, METRICS, Finding, Margin, Metric, Overview, Where
from harness.records.runfile import AttemptRecord

if TYPE_CHECKING:
    from harness.analysis.drill import Drill

_TOKENS_DIFFER: Final = 0.01
_BEFORE_S: Final = 3.0  # a cause comes before its effect
_GREW: Final = 1.3
_STRETCHES: Final = 80  # of the load, in which samples in flight are counted
_LAG_SHARE: Final = 0.2
_LAG_MS: Final = 5.0
_MOMENT: Final = 0.05  # of the load: what is late in so little of it does not hold the run back
_HEAD_SHARE: Final = 0.3


def overview(drill: Drill) -> Overview:
    attempt, run, table = drill.attempt or AttemptRecord(0, "", "", 0.0, 0), drill.run, drill.table
    totals, rates = totals_of(attempt, table), rates_of(attempt, table)
    limits = {metric: limit for metric in METRICS if (limit := drill.limit_ms(metric)) is not None}
    # imported samples may lack first tokens, or token counts: a limit is not held by what was not measured
    margins = [margin(table, metric, limit) for metric, limit in limits.items() if len(table.placed(metric))]
    return Overview(
        run=run.run,
        attempt=attempt.number,
        kind=attempt.kind,
        scenario=attempt.scenario,
        verdict=attempt.verdict,
        reasons=list(attempt.reasons) or (list(run.reasons) if len(run.attempts) < 2 else []),
        notes=list(attempt.notes),
        acts=attempt.acts,
        synthetic=run.synthetic,
        imported=f"{run.imported.kind}: {run.imported.source}" if run.imported is not None else "",
        target_qps=attempt.target_qps or None,
        started_unix=attempt.started_unix or None,
        totals=totals,
        rates=rates,
        loadgen=attempt.loadgen,
        margins=margins,
        findings=findings(drill, attempt, totals, rates, margins),
    )


def totals_of(attempt: AttemptRecord, table: AttemptTable) -> dict[str, int]:
    """The larger of what the head counted and what has a row: each may lack the last moments of a killed process."""
    rows = {
        "issued": table.n,
        "completed": table.completed,
        "failed": table.n - table.completed,
        "redispatched": int(table.again().sum(dtype=np.int64)),
        "tokens": int(table.tokens().sum(dtype=np.int64)),
    }
    totals = {name: max(rows.get(name, 0), attempt.totals.get(name, 0)) for name in {**rows, **attempt.totals}}
    still_open = max(0, totals["issued"] - totals["completed"] - totals["failed"])
    return totals | ({"lost": still_open} if attempt.state in ("ENDED", "") else {"lost": 0, "in_flight": still_open})


def rates_of(attempt: AttemptRecord, table: AttemptTable) -> dict[str, float | None]:
    """As `harness.records.summary` has them; of an attempt without rows what run.json says."""
    if not table.n:
        told = {name: value for name, value in attempt.results.items() if name.endswith(("_qps", "_per_s"))}
        return {**told, **attempt.rates}
    duration_s = duration_of(table)
    scheduled_s, issued_s = float(table.scheduled_s.max()), float(table.issued_s().max())

    def per(count: float, seconds: float | None) -> float | None:
        return count / seconds if seconds and seconds > 0 else None

    return {
        "duration_s": duration_s,
        "scheduled_qps": per(table.n, scheduled_s),
        "issued_qps": per(table.n, issued_s),
        "completed_qps": per(table.completed, duration_s),
        "tokens_per_s": per(float(table.tokens().sum(dtype=np.int64)), duration_s),
    }


def findings(
    drill: Drill, attempt: AttemptRecord, totals: dict[str, int], rates: dict[str, float | None], margins: list[Margin]
) -> list[Finding]:
    table = drill.table
    if not table.n:
        return _without_samples(drill, attempt)
    slow = slow_places(table)
    broken = {one.metric for one in margins if _broken(one)}
    found = [each for one in margins if one.metric in broken for each in _of_broken(drill, one)]
    found += _lost(totals, ended=attempt.state in ("ENDED", ""))
    found += _whole_fleet(table, drill.limit_ms("ttft"))
    for finding in slow:
        if finding.metric in broken:  # a slow decode has no part in a TTFT limit, unless the tail says so
            finding.level = "bad"
    found += slow
    found += odd_kernels(drill.record, attempt)
    found += _again(table, totals)
    found += _loadgen(table, attempt, rates)
    found += [each for one in margins if (each := _too_few(one)) is not None]
    bad = any(finding.level == "bad" for finding in found)
    if not broken and not bad:
        found += _largest_tails(drill, slow, margins)
        found += _head_room(attempt, margins)
    if not found:
        found.append(Finding("info", _no_limits(drill, table), "distributions"))
    evidence = Evidence(drill)
    for finding in found:
        if finding.by == "time":
            finding.text += _then(drill, finding.where)
        elif finding.by in ("replica", "node"):
            finding.text += evidence.of(finding.where) + _done(drill, finding.where)
    return sorted(found, key=lambda finding: _ORDER[finding.level])  # stable


def _then(drill: Drill, where: Where) -> str:
    """What was done, and what happened to replicas, from a little before that time until its end."""
    begin, end = (where.from_s or 0.0) - _BEFORE_S, where.to_s if where.to_s is not None else float("inf")
    marks = [mark.text for mark in marks_of(drill.story)[0] if begin <= mark.at_s < end and mark.kind not in ("phase", "attempt")]
    more = f" and {len(marks) - NAMED} more" if len(marks) > NAMED else ""
    return f" Then: {'; '.join(marks[:NAMED])}{more}." if marks else ""


def _done(drill: Drill, where: Where) -> str:
    """What was done to that replica, or to replicas of that node, in the attempt: advice may come too late."""
    marks = [mark for mark in marks_of(drill.story)[0] if mark.kind == "act" and mark.subject]
    marks = [mark for mark in marks if where.slot == mark.subject or where.node in (mark.subject, node_of(mark.subject))]
    told = "; ".join(f"{mark.text}, at {short(mark.at_s)} s" for mark in marks[:NAMED])
    return f" Done in the attempt: {told}." if told else ""


_ORDER: Final = {"bad": 0, "warn": 1, "info": 2, "good": 2}


def _without_samples(drill: Drill, attempt: AttemptRecord) -> list[Finding]:
    if drill.attempt is None:
        text = (
            drill.unreadable or "The run has no attempt: it ended, or was ended, before a load began. See its journal and logs."
        )
        return [Finding("warn", text)]
    if drill.run.imported is not None:
        missing = "; ".join(drill.run.imported.missing)
        text = "No samples were imported: figures are those of the imported files, and nothing can be taken apart."
        return [Finding("info", f"{text} Not in them: {missing}." if missing else text)]
    if attempt.totals.get("issued"):
        text = (
            f"{attempt.totals['issued']:,} samples were issued, and the record has no row of them: samples/ is missing or broken."
        )
        return [Finding("bad", f"{text} Copy the record again from where the head ran.")]
    return [Finding("warn", "No sample of this attempt completed or failed: see its reasons, journal and logs.", "acts")]


# --- limits -----------------------------------------------------------------------------------------------------------


def _broken(one: Margin) -> bool:
    return one.p99_ms is not None and (
        one.p99_ms > one.limit_ms or (one.allowed_over is not None and one.over > one.allowed_over)
    )


def _of_broken(drill: Drill, one: Margin) -> list[Finding]:
    name, p99_ms = CALLED[one.metric], one.p99_ms or 0.0
    if p99_ms > one.limit_ms:
        text = f"{name} p99 {short(p99_ms)} ms is {p99_ms / one.limit_ms - 1:.1%} over its limit of {one.limit_ms:,g} ms"
        text += f" ({one.over:,} samples over)"
    else:
        text = (
            f"{name} p99 {short(p99_ms)} ms is within its limit of {one.limit_ms:,g} ms, but {one.over:,} samples are over it, "
            f"more than the {one.allowed_over:,} that LoadGen's early stopping allows"
        )
    tail = tail_of(drill.table, one.metric, one.limit_ms, over_limit=True, where=Where())
    parts, _ = parts_of(drill.table, tail)
    origins = findings_of(drill.table, tail, parts)
    told = any(finding.by is not None for finding in origins)
    do = "what its tail comes from follows" if told else "lower the target QPS or add replicas"
    found = [Finding("bad", f"{text}: {do}.", "tail", one.metric)]
    for finding in origins:
        if finding.level == "warn":
            finding.level = "bad"
    return found + origins


def _too_few(one: Margin) -> Finding | None:
    if one.allowed_over is not None or one.p99_ms is None:
        return None
    text = f"Too few samples for a {CALLED[one.metric]} verdict: LoadGen needs 459 with none over the limit."
    return Finding("warn", f"{text} Run longer, or at a higher target QPS.", "distributions", one.metric)


def _head_room(attempt: AttemptRecord, margins: list[Margin]) -> list[Finding]:
    """The smallest of the limits' head-rooms is what the load has left."""
    told = [(one.head_room, one) for one in margins if one.head_room is not None and one.allowed_over is not None]
    if not told:
        return []
    head_room, one = min(told, key=lambda each: each[0])
    words = "; ".join(
        f"{CALLED[each.metric]} p99 {short(each.p99_ms)} of {each.limit_ms:,g} ms"
        + (f" (95 % {short(each.p99_interval_ms[0])} to {short(each.p99_interval_ms[1])})" if each.p99_interval_ms else "")
        + f", {each.over:,} of {each.allowed_over:,} allowed samples over"
        for _, each in told
    )
    text = f"{head_room:.0%} head-room under the {CALLED[one.metric]} limit, the nearer one: {words}."
    if head_room > 0.1 and attempt.target_qps:
        text += (
            f" A higher target QPS than {attempt.target_qps:,g} may hold; p99 rises steeply near saturation: take small steps."
        )
    elif head_room > 0:
        text += " That is close: another run at this rate may fail."
    return [Finding("good", text, "distributions", one.metric)]


def _largest_tails(drill: Drill, slow: list[Finding], margins: list[Margin]) -> list[Finding]:
    """Of an attempt that holds: where its tail comes from, if it comes from somewhere, and is not told yet."""
    metrics: list[Metric] = [one.metric for one in margins] or ["ttft", "tpot"]
    told = {finding.where for finding in slow}
    found = []
    for metric in metrics:
        tail = tail_of(drill.table, metric, None, over_limit=False, where=Where())
        for finding in findings_of(drill.table, tail, [])[:1]:
            if finding.by is not None and finding.where not in told:
                finding.level = "info"
                found.append(finding)
    return found


def _no_limits(drill: Drill, table: AttemptTable) -> str:
    figures = "; ".join(
        f"{CALLED[metric]} p99 {short(value)} ms" for metric in METRICS if (value := at(table.placed(metric), 0.99)) is not None
    )
    kind = drill.attempt.kind if drill.attempt is not None else ""
    if any(drill.limit_ms(metric) is not None for metric in METRICS):
        return f"Nothing that has a limit was measured: {figures or 'no sample completed'}."
    return f"No limit applies to this {kind} attempt: {figures or 'no sample completed'}."


# --- the fleet --------------------------------------------------------------------------------------------------------


def _lost(totals: dict[str, int], *, ended: bool) -> list[Finding]:
    found = []
    if failed := totals.get("failed", 0):
        text = f"{failed:,} of {totals['issued']:,} samples failed: with failures nothing is VALID."
        found.append(Finding("bad", f"{text} See the slowest replicas' logs, and which replica had them.", "fleet"))
    if lost := totals.get("lost", 0):
        text = f"{lost:,} of {totals['issued']:,} samples were issued and have neither completed nor failed."
        found.append(Finding("bad", f"{text} Look at the acts and replica states at the end of the attempt.", "timeline"))
    if not ended:
        text = (
            f"The attempt has not ended: {totals.get('in_flight', 0):,} samples are open, and all figures are of what is written."
        )
        found.append(Finding("warn", f"{text} Look again later, or restart its head.", "timeline"))
    return found


def _whole_fleet(table: AttemptTable, ttft_limit_ms: float | None) -> list[Finding]:
    found = []
    lag_ms, ttft_ms = _p99(table.lag_ms), at(table.placed("ttft"), 0.99) or 0.0
    if lag_ms >= _LAG_MS and lag_ms >= _LAG_SHARE * ttft_ms:
        text = f"Samples were issued late: schedule lag p99 {short(lag_ms)} ms, against a TTFT p99 of {short(ttft_ms)} ms"
        late_s = table.scheduled_s[table.lag_ms >= lag_ms]
        if float(np.ptp(late_s)) <= _MOMENT * float(table.scheduled_s.max()):
            text += (
                f", and all of those at {short(float(late_s.min()))} to {short(float(late_s.max()))} s: the head, not the "
                "replicas, stood still for a moment. Look at what else its machine did then, and give it idle cores."
            )
        else:
            text += ". The head issues, not the replicas: give it idle cores, or lower the target QPS."
        found.append(Finding("bad" if ttft_limit_ms and lag_ms > ttft_limit_ms else "warn", text, "tail", "ttft"))
    quarters = quarters_in_flight(table)
    if quarters and quarters[3] > _GREW * max(quarters[1], 1.0) and quarters[3] > quarters[2] > quarters[1] and _filled(table):
        last_s = float(table.scheduled_s.max())
        slope = (quarters[3] - quarters[1]) / (last_s / 2)
        completed = np.count_nonzero(table.done_s() <= last_s) / last_s
        text = (
            f"The fleet was saturated: samples in flight grew all along, from {quarters[1]:,.0f} in the second quarter of the "
            f"load to {quarters[3]:,.0f} in the last ({short(slope)} a second), with {short(completed)} completed a second of "
            f"{short(table.n / last_s)} scheduled. Lower the target QPS below what completes, or add replicas."
        )
        found.append(Finding("warn", text, "timeline"))
    head = table.head_ms[(table.tries <= 1) & ~np.isnan(table.head_ms)]
    head_ms = _p99(head)
    if ttft_ms and head_ms >= _HEAD_SHARE * ttft_ms and head_ms >= _LAG_MS:
        text = (
            f"Samples waited in the head for a replica: head queue p99 {short(head_ms)} ms of a TTFT p99 of {short(ttft_ms)} ms. "
            "All replicas were at their cap, or too few were ready: add replicas, raise the cap, or lower the target QPS."
        )
        found.append(Finding("warn", text, "tail", "ttft"))
    return found


def quarters_in_flight(table: AttemptTable) -> list[float]:
    """Mean number of samples in flight in each quarter of the load; empty where it took no time."""
    last_s = float(table.scheduled_s.max())
    if last_s <= 0:
        return []
    step_s = last_s / _STRETCHES
    n = int(max(table.end_s(), last_s) / step_s) + 1
    if n > 100 * _STRETCHES:  # a time that is none
        return []
    issued, left = (counted(stretch(at_s, step_s, n), n) for at_s in (table.issued_s(), left_s(table)))
    quarters: list[float] = (np.cumsum(issued) - np.cumsum(left))[:_STRETCHES].reshape(4, -1).mean(axis=1).tolist()
    return quarters


def _filled(table: AttemptTable) -> bool:
    """Whether the load went on for much longer than samples stay: until then those in flight grow in any fleet. Waiting is not
    counted, because in a saturated fleet it grows without end."""
    stayed_ms = _known(table.metric("latency") - np.nan_to_num(table.metric("ttft")))
    return bool(len(stayed_ms)) and float(np.quantile(stayed_ms, 0.9)) / 1e3 <= float(table.scheduled_s.max()) / 4


def _p99(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(np.partition(known, int(len(known) * 0.99))[int(len(known) * 0.99)]) if len(known) else 0.0


def _again(table: AttemptTable, totals: dict[str, int]) -> list[Finding]:
    if not (again := totals.get("redispatched", 0)):
        return []
    hit = table.tries > 1
    n = int(np.count_nonzero(hit))
    where = Where(tries_from=2)
    if not n:
        return [Finding("info", f"{again:,} dispatches were made again. See the acts and replica states.", "timeline")]
    theirs, all_of = figures_of(np.sort(_known(table.metric("ttft")[hit])))["p50"], at(table.placed("ttft"), 0.5)
    text = f"{n:,} samples were dispatched again after their replica was lost, drained or too late"
    if theirs is not None and all_of is not None:
        text += f": TTFT p50 {short(theirs)} ms against {short(all_of)} ms of all"
    share = n / table.n
    if share < 0.001:
        return [Finding("info", f"{text}. They are {share:.2%} of all.", "timeline", "ttft", "tries", where)]
    return [Finding("warn", f"{text}. See which replicas were lost, and why.", "timeline", "ttft", "tries", where)]


def _known(values: Any) -> Any:
    return values[~np.isnan(values)]


def _loadgen(table: AttemptTable, attempt: AttemptRecord, rates: dict[str, float | None]) -> list[Finding]:
    """LoadGen divides all tokens by the time at which the last issued query was complete, we by the last completion."""
    theirs, ours = attempt.loadgen.get("tokens_per_s"), rates.get("tokens_per_s")
    if not isinstance(theirs, int | float) or not theirs or not ours or abs(theirs / ours - 1) <= _TOKENS_DIFFER:
        return []
    far = f"{abs(theirs / ours - 1):.1%} {'above' if theirs > ours else 'below'} ours ({ours:,.0f})"
    text = f"LoadGen's own {theirs:,.0f} tokens/s is {far}"
    completed = np.flatnonzero(table.done)
    done_s = table.done_s()
    end_s = float(done_s[completed].max())
    last_issued_s = float(done_s[completed[np.argmax(table.scheduled_s[completed])]])
    if theirs > ours and last_issued_s > 0 and abs(ours * end_s / last_issued_s / theirs - 1) < _TOKENS_DIFFER:
        straggler = int(table.seq[completed[np.argmax(done_s[completed])]])
        text += (
            f": it divides by the time at which the last issued sample was complete ({last_issued_s:,.1f} s), ours by the last "
            f"completion ({end_s:,.1f} s, sample {straggler}). MLPerf publishes LoadGen's; compare ours."
        )
        return [Finding("info", text, "slowest", "latency")]
    return [
        Finding("warn", f"{text}, and stragglers do not explain it. Compare LoadGen's detail log with the samples.", "slowest")
    ]
