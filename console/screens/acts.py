"""What is said before an act on replicas: whom it hits as of the key press, what it costs, and the figures of now.

The head decides (harness/head/acts.py); what stands here foretells its answer, so that nobody has to try an act to learn
that a guard forbids it. No Textual, no I/O.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from console.screens.pod_acts import nodes_of, pod_facts, unfit_pod
from console.screens.targets import Fact as Fact
from console.screens.targets import Grave as Grave
from console.screens.targets import Target as Target
from console.screens.targets import target_of as target_of
from console.store import roles, tables
from console.store.causes import reason_of
from console.store.cluster import evicted_whole
from console.store.fleet import READY_CODE, SLOW_CODE, FleetStore
from console.widgets import fmt
from console.widgets.fmt import plural
from harness.spec import StragglersSpec
from harness.wire.inquiry import LatencyDetail, SlaDetail
from harness.wire.states import ALIVE, DRAINED, DRAINING, EVICTED, LOST, REJECTED, SUSPECT

GRAVE_SHARE: Final = 0.25  # more load than that on those that are left is shown as a warning
SERVING: Final = frozenset({"READY", "SLOW"})
_ALIVE: Final = frozenset(ALIVE) | SERVING
_REMOVES: Final = frozenset({"evict", "drain", "recycle"})
#: What load balancing may do by itself anyway: such acts leave the verdict open.
BENIGN: Final = frozenset({"drain", "readmit"})
NAMED: Final = 3  # slots that a sentence names before it only counts


@dataclass(slots=True)
class Prediction:
    """What the head says the latencies would be without the targets; empty until it has answered."""

    sla: SlaDetail | None = None


def unfit(store: FleetStore, act: str, target: Target) -> str:
    """Why the act makes no sense for a replica in that state; empty when it does. Only what the head would refuse too."""
    state, slot = target.state, target.slot
    alive = state in ALIVE or state in SERVING
    if act == "evict" and evicted_whole(store):
        return unfit_pod(store, store.slots[store.index[slot]].node)
    if act in ("evict", "recycle") and not alive:
        return f"{slot} is {state}: no live replica is there" + (
            "; a takes it back" if state in (LOST, EVICTED, REJECTED) else ""
        )
    if act == "drain" and state not in SERVING | {SUSPECT, DRAINING}:
        return f"{slot} is {state}: it holds no samples to drain"
    if act == "readmit" and state not in (DRAINING, DRAINED, LOST, EVICTED, REJECTED):
        does = "serves already" if state in SERVING else "is on its way already"
        return f"{slot} is {state}: it {does}, there is nothing to readmit"
    if act == "waive":
        if state in SERVING:
            return f"{slot} is {state}: only a missing slot can be waived"
        if store.slots[store.index[slot]].waived:
            return f"{slot} is waived already"
    return ""


def facts_for(
    store: FleetStore,
    act: str,
    targets: Sequence[Target],
    prediction: Prediction | None = None,
    asked: Sequence[Target] | None = None,
) -> list[Fact]:
    """The lines of the dialog. The labels depend on the act and on how many are meant, so that figures can change in place.
    `asked`: those that the commands name, where more go than them."""
    at = [store.index[target.slot] for target in targets if target.slot in store.index]
    if not at:
        return []
    facts: list[Fact] = []
    pods = act == "evict" and evicted_whole(store)
    if pods:
        facts += pod_facts(store, targets)
    elif len(targets) > 1:
        facts.append(("which", some_of([target.slot for target in targets], "replicas")))
    facts.append(("why", _condition(store, at[0], targets[0]) if len(targets) == 1 else _conditions(store, at)))
    if act in _REMOVES:
        facts.append(("in flight", _in_flight(store, act, at)))
        facts.append(("effect", _effect(store, at)))
        if all(store.slots[position].role == "prefill" for position in at):
            facts.append(("p99", "cannot be foretold: samples are counted at the decode replica that completes them"))
        else:
            facts.append(_latency(store, prediction, len(targets)))
        facts.append(("quorum", quorum(store, at)[0]))
        if store.split:
            facts.append(("role", roles.left_of_roles(store, at)[0]))
        if act == "evict":
            facts.append(("limit", eviction_limit(store, len(nodes_of(store, targets)) if pods else len(targets))[0]))
    elif act == "waive":
        facts.append(("effect", _waiving(store, len(targets))))
    else:
        facts.append(("effect", _readmitting(targets)))
    facts.append(("verdict", verdict_fact(store, act)))
    facts.append(("acts on", _lives(store, asked or targets)))
    return facts


def some_of(names: Sequence[str], what: str) -> str:
    """`8 replicas: node003/gpu0, node003/gpu1, node003/gpu2 and 5 more`"""
    more = len(names) - NAMED
    return f"{len(names)} {what}: {', '.join(names[:NAMED])}" + (f" and {more} more" if more > 0 else "")


# --- guards of the head ------------------------------------------------------------------------------------


def guard(store: FleetStore, act: str, targets: Sequence[Target]) -> str:
    """What the head would refuse unless it is forced, in words; empty when its guards have no objection."""
    if act not in _REMOVES:
        return ""
    at = [store.index[target.slot] for target in targets if target.slot in store.index]
    objections = [quorum(store, at)[1], roles.left_of_roles(store, at)[1] if store.split else ""]
    if act == "evict":
        wanted = len(nodes_of(store, targets)) if evicted_whole(store) else len(targets)
        objections.append(eviction_limit(store, wanted)[1])
    return " and ".join(objection for objection in objections if objection)


def quorum(store: FleetStore, at: Sequence[int]) -> tuple[str, str]:
    """(the figures, the objection) of the rule that enough READY replicas must remain; the head's own floor."""
    barrier = store.spec.fleet.barrier if store.spec is not None else None
    expected = sum(not info.waived or store.state_name(position) in _ALIVE for position, info in enumerate(store.slots))
    floor = (barrier.min_ready if barrier is not None else None) or max(1, math.ceil(expected / 2))
    serving = _serving(store)
    leaves = sum(store.state_name(position) in SERVING for position in at)
    left = serving - leaves
    text = f"{fmt.count(left)} would be READY, at least {fmt.count(floor)} must be"
    if not leaves or left >= floor:
        return f"{text}: ok", ""
    allowed = max(0, serving - floor)
    refuses = "the head refuses" if len(at) == 1 else f"the head refuses all but {allowed}" if allowed else "the head refuses all"
    return f"{text}: {refuses}", "the quorum"


def eviction_limit(store: FleetStore, wanted: int) -> tuple[str, str]:
    """(the figures, the objection) of the rule that few replicas are evicted in ten minutes."""
    limits = store.spec.stragglers if store.spec is not None else StragglersSpec()
    done = store.snapshot.evictions if store.snapshot is not None else 0
    text = f"{plural(done, 'eviction')} in the last 10 min, at most {limits.max_acts_per_10min}"
    allowed = max(0, limits.max_acts_per_10min - done)
    if wanted <= allowed:
        return f"{text}: ok", ""
    refuses = "the head refuses" if wanted == 1 else f"the head refuses all but {allowed}" if allowed else "the head refuses all"
    return f"{text}: {refuses}", "the eviction limit"


def _serving(store: FleetStore, like: Sequence[int] = ()) -> int:
    """All of them; or, where prefill and decode are split, those of the one role that `like` are of."""
    of = {store.slots[position].role for position in like}
    if store.split and len(of) == 1:
        return roles.ready_of(store, of.pop())
    return int(((store.state == READY_CODE) | (store.state == SLOW_CODE)).sum())


# --- figures -----------------------------------------------------------------------------------------------


def _lives(store: FleetStore, targets: Sequence[Target]) -> str:
    gone = [t.slot for t in targets if store.slots[store.index[t.slot]].incarnation != t.incarnation]
    if len(targets) == 1:
        life = f"incarnation {targets[0].incarnation[:12] or 'none yet'} of {targets[0].slot}"
        return f"{life}, which is gone by now: the head will refuse" if gone else f"{life}, and no other"
    if gone:
        return f"their incarnations of the key press; {some_of(gone, 'are gone by now')}: the head will refuse those"
    return "their incarnations of the key press, and no others"


def _condition(store: FleetStore, at: int, target: Target) -> str:
    parts = [f"{store.state_name(at)} for {fmt.age(store.age_s(at))}"]
    ratio, z = float(store.floats("ratio")[at]), float(store.floats("z")[at])
    if not math.isnan(ratio):
        parts.append(f"step time {ratio:.2f}x the fleet's" + ("" if math.isnan(z) else f" (z {fmt.signed(z)})"))
    tokens, median = float(store.floats("tokens_s")[at]), store.median("tokens_s")
    if target.state in SERVING and not math.isnan(tokens) and median:
        parts.append(f"{fmt.signed_percent(tokens / median - 1)} tok/s against the median")
    if why := reason_of(store, at):
        parts.append(why)
    info = store.slots[at]
    parts += [f"alert: {row.text or row.rule}" for row in store.gpus.alerts_of(info.slot, info.node)[:2]]
    return " · ".join(parts)


def _conditions(store: FleetStore, at: Sequence[int]) -> str:
    counts = Counter(store.state_name(position) for position in at)
    text = ", ".join(f"{number} {state}" for state, number in counts.most_common())
    ratios = {position: float(store.floats("ratio")[position]) for position in at}
    known = {position: ratio for position, ratio in ratios.items() if not math.isnan(ratio)}
    if not known:
        return text
    worst = max(known, key=known.__getitem__)
    return f"{text} · slowest {store.slots[worst].slot}: step time {known[worst]:.2f}x the fleet's"


def _in_flight(store: FleetStore, act: str, at: Sequence[int]) -> str:
    number = int(store.ints("outstanding")[list(at)].sum())
    held = plural(number, "sample")
    if act == "evict":
        return f"{held}; what is not finished goes to others again"
    it, engine = ("it stays", "the engine is") if len(at) == 1 else ("they stay", "the engines are")
    tail = f"then {it} warm" if act == "drain" else f"then {engine} started again in place"
    return f"{held} {'is' if number == 1 else 'are'} finished first, no new ones; {tail}"


def _effect(store: FleetStore, at: Sequence[int]) -> str:
    serving, leaves = _serving(store, at), sum(store.state_name(position) in SERVING for position in at)
    after = serving - leaves
    of = {store.slots[position].role for position in at}
    what = f"{of.pop()} replica" if store.split and len(of) == 1 else "replica"
    if not leaves:
        return "serves nothing now: the others keep their share"
    if after <= 0:
        nobody = f"no {what}" if store.split else "nobody"
        return Grave(f"▲ {nobody} would be left to serve: the attempt would end")
    if store.snapshot is None or not store.snapshot.attempt:
        return f"{plural(after, what)} would serve the next attempt"
    more = serving / after - 1
    text = f"{fmt.rate(store.snapshot.target_qps)} qps over {plural(after, what)}: {fmt.signed(more * 100)}% load each"
    return Grave(f"▲ {text}") if more > GRAVE_SHARE else text


def _latency(store: FleetStore, prediction: Prediction | None, number: int) -> Fact:
    sla = prediction.sla if prediction is not None else None
    window_s = sla.window_s if sla is not None else tables.window_s(store)
    its = "its" if number == 1 else "their"
    parts = [_without("TTFT", sla.ttft if sla else None, its), _without("TPOT", sla.tpot if sla else None, its)]
    return f"p99, {window_s:g} s", "\n".join(parts)


def _without(name: str, detail: LatencyDetail | None, its: str) -> str:
    """A dash says why it is one."""
    if detail is None:
        return f"{name} {fmt.UNKNOWN}: the head has not answered yet"
    now_ms, then_ms = detail.window_ms.get("p99", math.nan), detail.without_p99_ms
    if math.isnan(now_ms):
        return f"{name} {fmt.UNKNOWN}: {plural(detail.window_n, 'sample')} {'is' if detail.window_n == 1 else 'are'} too few"
    few = f"{fmt.UNKNOWN}: too few are left" if math.isnan(then_ms) else fmt.millis(then_ms)
    return f"{name} {fmt.millis(now_ms)}; without {its} samples {few}"


def _readmitting(targets: Sequence[Target]) -> str:
    """A drained one still runs, the others are gone; each case is told only if it is there."""
    warm = sum(target.state in (DRAINING, DRAINED) for target in targets)
    gone = len(targets) - warm
    it, worker = ("it", "its worker starts a new one") if len(targets) == 1 else ("they", "the worker starts new ones")
    serves = f"{it} {'serves' if len(targets) == 1 else 'serve'} again at once: warm already"
    joins = f"{worker}, which {'warms up and joins' if len(targets) == 1 else 'warm up and join'}"
    if warm and gone:
        return f"{plural(warm, 'drained one')} again at once · for {fmt.count(gone)} {joins}"
    return serves if warm else joins


def _waiving(store: FleetStore, number: int) -> str:
    missing = store.snapshot.missing_total if store.snapshot is not None else 0
    left = max(0, missing - number)
    rest = (
        "nobody else is missing: it opens"
        if missing and not left
        else f"{plural(left, 'other slot')} {'is' if left == 1 else 'are'} still missing"
    )
    return f"the barrier no longer waits for {'it' if number == 1 else 'them'}; {rest}"


def verdict_fact(store: FleetStore, act: str) -> str:
    """What the act does to the verdict of the running attempt."""
    snap = store.snapshot
    if snap is None or not snap.attempt or snap.phase not in ("MEASURING", "DRAINING"):
        return "no attempt is running: nothing is at stake"
    if snap.attempt_kind == "explore":
        return "an exploration: no verdict at stake; the act is journalled"
    if act in BENIGN:
        return f"attempt {snap.attempt} stays VALID-able; the act is counted as ACTS ({snap.acts} so far)"
    milder = "; with a drain it could" if act != "drain" and act in _REMOVES else ""
    return f"attempt {snap.attempt} can no longer be VALID{milder}"
