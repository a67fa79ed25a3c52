"""A run told in sentences: one for each thing that happens, one status every so often. For screen readers and for logs.

Words only: no glyph, no colour, nothing that is drawn over. What befalls many replicas in one moment is one sentence with
their number. Pure: it is given the store and the seconds, and returns lines.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from console.store import roles
from console.store.fleet import FleetStore, LinkKind
from console.store.tables import judged, window_s
from console.widgets import fmt, pods
from harness.metrics.rates import RATE_WINDOW_S
from harness.wire.control import FleetSnapshot, JournalEntry, RoleView, SlaView

#: The same thing of more replicas than this in one moment is told with a number.
ONE_BY_ONE: Final = 3
#: How long a latency must be on the other side of its limit before that is news: percentiles of a window jitter.
SETTLED_S: Final = 3.0

_STATES: Final = {
    "READY": "is ready", "LOST": "is lost", "SUSPECT": "is suspect", "DRAINING": "is draining", "DRAINED": "is drained",
    "EVICTED": "is evicted", "REJECTED": "is rejected",
}  # fmt: skip
_ACTS: Final = {
    "act.evict": "evicted", "act.drain": "drained", "act.recycle": "recycled", "act.readmit": "readmitted", "act.waive": "waived",
    "act.abort": "aborted the attempt", "act.stop": "stopped the run", "act.pause": "paused issuing",
    "act.resume": "resumed issuing", "act.take_control": "took control", "act.release_control": "released control",
    "act.start_attempt": "asked for another attempt",
}  # fmt: skip


class Narrator:
    """Remembers what it has told of one run."""

    def __init__(self, every_s: float = 30.0) -> None:
        self._every_s = every_s
        self._seq = -1
        self._next_status_s = -math.inf
        self._link: LinkKind = "connecting"
        self._blind = False
        self._said: set[str] = set()  # of the cluster as a whole, by the journal
        self._told: dict[str, str] = {}  # metric → how it stands against its limit, as last told
        self._since: dict[str, tuple[str, float]] = {}  # metric → how it stands now, since when

    def tell(self, store: FleetStore, now_s: float) -> list[str]:
        """What is new since the last call. The first call tells who and where the run is, not its past."""
        if self._seq < 0 and (store.journal or store.snapshot is not None):
            self._seq = store.journal[-1].seq if store.journal else 0
            lines = [opening(store)]
        else:
            lines = self._news(store)
        lines += self._connection(store)
        lines += self._cluster(store)
        if store.snapshot is not None and not store.ended and store.link().trusted:
            lines += self._limits(store.snapshot, store, now_s)
            if now_s >= self._next_status_s:
                self._next_status_s = now_s + self._every_s
                lines.append(status(store))
        return [stamped(line) for line in lines if line]

    def _news(self, store: FleetStore) -> list[str]:
        fresh = [entry for entry in store.journal if entry.seq > self._seq]
        if fresh:
            self._seq = fresh[-1].seq
        problem = store.cluster.view.problem if self._blind and store.cluster.view is not None else ""
        fresh = [entry for entry in fresh if not problem or entry.why != problem]  # told as what cannot be seen
        self._said |= {entry.why for entry in fresh if entry.what == "worker.event" and entry.subject == "cluster"}
        return sentences(fresh)

    def _connection(self, store: FleetStore) -> list[str]:
        link, before = store.link(), self._link
        self._link = link.kind
        if link.kind == "stale" and before == "live":
            return [f"The head is silent: nothing was heard for {link.age_s:.0f} seconds. Figures are old until it answers."]
        if link.kind == "lost" and before != "lost":
            return [f"The head is lost: silent for {link.age_s:.0f} seconds{f'; {link.detail}' if link.detail else ''}."]
        if link.kind == "live" and before in ("stale", "lost"):
            return ["The head answers again."]
        return []

    def _cluster(self, store: FleetStore) -> list[str]:
        """That something of the cluster cannot be seen, once; and that it can be again."""
        told = pods.trouble(store) if store.link().trusted else ""
        before, self._blind = self._blind, bool(told) if store.link().trusted else self._blind
        problem = store.cluster.view.problem if store.cluster.view is not None else ""
        if told and not before and problem not in self._said:
            return [f"{told[:1].upper()}{told[1:]}. The run goes on; what is said of pods and nodes is old."]
        if before and not self._blind and not store.ended:
            self._said.clear()
            return ["The cluster can be seen again."]
        return []

    def _limits(self, snap: FleetSnapshot, store: FleetStore, now_s: float) -> list[str]:
        lines = []
        for name, view in (("TTFT", snap.ttft), ("TPOT", snap.tpot)):
            word = judged(view.window.p99, view.limit_ms)
            before, since_s = self._since.get(name, ("", now_s))
            if before != word:
                since_s = now_s
            self._since[name] = (word, since_s)
            settled = now_s - since_s >= SETTLED_S
            if word and settled and word != self._told.get(name, "ok"):
                lines.append(against(name, view, window_s(store)) + ".")
            if word and settled:
                self._told[name] = word
        return lines


def stamped(line: str) -> str:
    return f"{time.strftime('%H:%M:%S')} {line}"


def opening(store: FleetStore) -> str:
    synthetic = " with synthetic engines, which say nothing about hardware" if store.synthetic else ""
    return f"Run {store.run}, phase {store.phase}, {_count(len(store.slots), 'replica')}{synthetic}."


def against(name: str, view: SlaView, width_s: float) -> str:
    """`TTFT p99 over the last 60 s is 3.12 s, over its limit of 3.00 s`; empty while there are too few samples for a p99."""
    value_ms = view.window.p99
    if math.isnan(value_ms):
        return ""
    figure = f"{name} p99 over the last {width_s:.0f} s is {fmt.millis(value_ms)}"
    if view.limit_ms is None:
        return figure
    limit = fmt.millis(view.limit_ms)
    place = {"over": f"over its limit of {limit}", "near": f"near its limit of {limit}", "ok": f"within its limit of {limit}"}
    return f"{figure}, {place[judged(value_ms, view.limit_ms)]}"


def status(store: FleetStore) -> str:
    """One sentence about the whole run now."""
    snap = store.snapshot
    if snap is None:
        return f"Phase {store.phase}."
    parts = [f"Phase {store.phase}"]
    if snap.attempt and snap.attempt_state not in ("", "ENDED"):
        of = f" of {fmt.clock(store.progress().planned_s)}" if not math.isnan(store.progress().planned_s) else ""
        paused = ", paused" if snap.paused else ""
        parts.append(f"attempt {snap.attempt} {snap.attempt_state}{paused}, {fmt.clock(snap.elapsed_s)}{of}")
        parts.append(
            f"{fmt.rate(snap.completed_qps)} of {fmt.rate(snap.target_qps)} target QPS completed over the last "
            f"{RATE_WINDOW_S:.0f} s, {_count(snap.in_flight, 'sample')} in flight, {fmt.count(snap.backlog)} held in the head"
        )
        parts += [
            text for name, view in (("TTFT", snap.ttft), ("TPOT", snap.tpot)) if (text := against(name, view, window_s(store)))
        ]
    if not math.isnan(store.progress().eta_s):
        parts.append(f"about {fmt.clock(store.progress().eta_s)} left")
    parts += [role(view) for view in roles.views(store)]
    parts.append(replicas(store))
    if store.cluster.view is not None and not store.ended:
        parts.append(pods.pods_now(store).replace(" · ", ", "))
    return "; ".join(parts) + "."


def role(view: RoleView) -> str:
    """`prefill: 5 of 5 ready, 23 samples in flight, 4 waiting, 12,104 tokens a second in`"""
    text = f"{view.role}: {view.ready} of {view.replicas} ready, {_count(view.outstanding, 'sample')} in flight"
    if view.waiting != roles.UNTOLD:
        text += f", {fmt.count(view.waiting)} waiting"
    if not math.isnan(view.tokens_per_s):
        text += f", {fmt.count(view.tokens_per_s)} tokens a second {'in' if view.role == 'prefill' else 'out'}"
    if not math.isnan(view.transfer_p50_ms):
        text += f", half of the KV transfers took at most {fmt.millis(view.transfer_p50_ms)}"
    return text


def replicas(store: FleetStore) -> str:
    """`508 of 512 replicas ready, 2 slow, 1 lost`."""
    counts = store.count_states()
    ready = counts.pop("READY", 0) + counts.get("SLOW", 0)
    others = [f"{number} {state.lower()}" for state, number in counts.items()]
    return ", ".join([f"{ready} of {_count(len(store.slots), 'replica')} ready", *others])


def ended(store: FleetStore) -> str:
    """The last sentence."""
    attempt = store.attempt
    if attempt is None:
        return f"The run has ended: {store.phase}."
    why = f": {'; '.join(attempt.reasons)}" if attempt.reasons else ""
    figures = [
        f"{name} p99 of the whole attempt {fmt.millis(attempt.results[key])}"
        for name, key in (("TTFT", "ttft_p99_ms"), ("TPOT", "tpot_p99_ms"))
        if key in attempt.results
    ]
    if "completed_qps" in attempt.results:
        figures.insert(0, f"{fmt.rate(attempt.results['completed_qps'])} QPS completed")
    measured = f" {', '.join(figures)}." if figures else ""
    return (
        f"The run has ended, phase {store.phase}: attempt {attempt.number} {attempt.verdict or 'has no verdict'}{why}.{measured}"
    )


# --- the journal -------------------------------------------------------------------------------------------


def sentences(entries: Iterable[JournalEntry]) -> list[str]:
    """One for each entry that a listener needs; alike ones of many replicas together."""
    told = [(entry, text) for entry in entries if (text := sentence(entry))]
    kinds = Counter(_kind(entry) for entry, _ in told)
    lines: list[str] = []
    summed: set[tuple[str, str]] = set()
    for entry, text in told:
        kind = _kind(entry)
        if kinds[kind] <= ONE_BY_ONE or not entry.subject or entry.what.startswith(("act.", "attempt.", "run.")):
            lines.append(text)
        elif kind not in summed:
            summed.add(kind)
            lines.append(f"{_about_many(entry, kinds[kind])}, {entry.subject} first{_because(entry.why)}.")
    return lines


def _rule(entry: JournalEntry) -> str:
    return str(entry.data.get("rule") or "without a name").replace("_", " ")


def sentence(entry: JournalEntry) -> str:
    """Empty for what only programs need: registrations, warm-up, the head's own start."""
    subject, why = entry.subject, _because(entry.why)
    if entry.what.startswith("act."):
        return _act(entry)
    if entry.what == "replica.state":
        state = _STATES.get(entry.after, "")
        before = f" (was {entry.before})" if entry.before and entry.after in ("LOST", "SUSPECT") else ""
        return f"Replica {subject} {state}{before}{why}." if state else ""
    fixed = {
        "run.phase": f"Phase {entry.after}, after {entry.before}{why}." if entry.before else f"Phase {entry.after}{why}.",
        "attempt.start": f"Attempt {subject} starts{why}.",
        "attempt.phase": f"Attempt {subject} is {entry.after}." if entry.after in ("issuing", "draining", "stopping") else "",
        "attempt.judged": f"Attempt {subject} is {entry.after} by its answers{why}.",
        "attempt.end": f"Attempt {subject} ended {entry.after or 'without a verdict'}{why}.",
        "straggler.slow": f"Replica {subject} is slow{why}.",
        "straggler.recovered": f"Replica {subject} is no longer slow.",
        "straggler.node": f"Node {subject} is slow{why}.",
        "straggler.fleet": f"The whole fleet is slow{why}.",
        "replica.exit": f"The process of replica {subject} ended{why}.",
        "alert.start": f"Alert {_rule(entry)} of {subject}{why}.",
        "alert.end": f"Alert {_rule(entry)} of {subject} is over.",
        "metrics.source": f"GPU metrics of {subject} are {entry.after or 'unknown'}{why}.",
        "pod.evicted": f"The pod of {subject} is evicted{why}.",
        "pod.not_evicted": f"The pod of {subject} could not be evicted{why}.",
        "worker.event": f"{subject}{why}." if entry.level != "info" else "",
        "worker.pending": f"{subject} waits for its place{why}.",
    }
    if entry.what in fixed:
        return fixed[entry.what]
    if entry.level == "info":
        return ""
    change = " ".join(filter(None, (f"from {entry.before}" if entry.before else "", f"to {entry.after}" if entry.after else "")))
    name = entry.what.replace(".", " ").replace("_", " ")
    level = "Error" if entry.level == "error" else "Warning"
    return f"{level}: {' '.join(filter(None, (name, subject, change)))}{why}."


def _act(entry: JournalEntry) -> str:
    who = entry.who.removeprefix("operator:") or "somebody"
    who = "The straggler policy" if who == "policy" else f"Operator {who}"
    change = f" from {entry.before} to {entry.after}" if entry.before and entry.after else ""
    if entry.what == "act.set_rate":
        change = change or (f" to {entry.data['qps']:g} QPS" if isinstance(entry.data.get("qps"), int | float) else "")
        return f"{who} changed the target rate{change}{_because(entry.why)}."
    if entry.what == "act.set_policy":
        return f"{who} changed the straggler policy{change}{_because(entry.why)}."
    done = _ACTS.get(entry.what, entry.what.removeprefix("act.").replace("_", " "))
    return f"{who} {done}{f' {entry.subject}' if entry.subject else ''}{_because(entry.why)}."


def _about_many(entry: JournalEntry, number: int) -> str:
    if entry.what == "replica.state":
        return f"{number:,d} replicas are {_STATES.get(entry.after, entry.after).removeprefix('is ')}"
    if entry.what == "straggler.slow":
        return f"{number:,d} replicas are slow"
    if entry.what == "straggler.recovered":
        return f"{number:,d} replicas are no longer slow"
    return f"{number:,d} times {entry.what.replace('.', ' ').replace('_', ' ')}"


def _kind(entry: JournalEntry) -> tuple[str, str]:
    return entry.what, entry.after


def _because(why: str) -> str:
    return f": {why.rstrip('.')}" if why else ""


def _count(number: int, thing: str) -> str:
    return f"{number:,d} {thing}" if number == 1 else f"{number:,d} {thing}s"
