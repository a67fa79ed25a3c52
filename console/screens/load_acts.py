"""What is said before an act on the load or on the run: rate, pause, policy, attempts, stop, control. No Textual, no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from console.screens.acts import SERVING, Fact, verdict_fact
from console.store.fleet import FleetStore
from console.widgets import fmt
from harness.metrics.rates import RATE_WINDOW_S
from harness.spec import TESTS

STEP_SHARE: Final = 0.025  # of the present target: large enough to see, small enough for a fleet near its limit
KINDS: Final = (
    ("performance", "LoadGen's schedule; the verdict counts"),
    ("explore", "our pacing; the rate can change while it runs"),
    ("accuracy", "every sample of the data set once"),
)
#: What a model's compliance tests look at; offered where the model has them.
_TESTS: Final = {
    "TEST06": "compliance: outputs are consistent",
    "TEST07": "compliance: accuracy over the GPQA set",
    "TEST09": "compliance: mean output length",
}
POLICIES: Final = (
    ("flag", "named on screens and in the journal, not touched"),
    ("drain", "gets no new samples, stays warm until readmitted"),
    ("recycle", "drained, then its engine is started again in place"),
)


@dataclass(frozen=True, slots=True)
class RateNow:
    """What the rate dialog needs to know of the moment."""

    qps: float
    serving: int
    no_ramp: str  # why a ramp is not possible; empty when it is


# --- rate --------------------------------------------------------------------------------------------------


def rate_now(store: FleetStore) -> RateNow:
    snap = store.snapshot
    states = store.count_states()
    serving = sum(states.get(name, 0) for name in SERVING)
    if snap is None:
        return RateNow(0.0, serving, "the head has not answered yet")
    no_ramp = {"at once": "", "new attempt": "not here: LoadGen fixes its schedule at the start"}
    return RateNow(snap.target_qps, serving, no_ramp.get(snap.mechanism, "not yet: nothing is being issued"))


def rate_step(qps: float) -> float:
    """2.5 % of the rate, rounded to 1, 2, 2.5 or 5 times a power of ten."""
    if qps <= 0:
        return 1.0
    share = qps * STEP_SHARE
    power = 10.0 ** math.floor(math.log10(share))
    return min((1 * power, 2 * power, 2.5 * power, 5 * power, 10 * power), key=lambda step: abs(math.log(step / share)))


def stepped(qps: float, steps: int, step: float) -> float:
    """That many steps up or down, never to 0 or below: pausing is another act."""
    wanted = qps + steps * step
    return float(f"{wanted if wanted > 0 else min(qps, step):.10g}")


def asked_rate(text: str, now_qps: float) -> tuple[str, str]:
    """What `:rate` was given, as the dialog's fields take it: the new rate and the seconds of a ramp. `+100` and `-5%` are
    counted from the present rate; what is no number goes on as it stands, for the dialog to say what is wrong with it."""
    qps, _, ramp = text.strip().partition(" ")
    ramp = ramp.strip().removesuffix("s").strip()
    if qps[:1] not in ("+", "-") or now_qps <= 0:
        return qps, ramp
    try:
        change = float(qps.removesuffix("%"))
    except ValueError:
        return qps, ramp
    if not math.isfinite(change):
        return qps, ramp
    return f"{now_qps * (1 + change / 100) if qps.endswith('%') else now_qps + change:.10g}", ramp


def rate_facts(store: FleetStore) -> list[Fact]:
    snap = store.snapshot
    if snap is None:
        return []
    now = f"target {fmt.rate(snap.target_qps)} qps, {fmt.rate(snap.completed_qps)} done (last {RATE_WINDOW_S:g} s)"
    if snap.ramp_to_qps:
        now = f"{fmt.rate(snap.target_qps)} qps, on its way to {fmt.rate(snap.ramp_to_qps)} (ramp, {snap.ramp_left_s:.0f} s left)"
    return [("now", now), ("how", _how(store)), ("one step", f"{rate_step(snap.target_qps):g} qps: + and -, or ↑ and ↓")]


def _how(store: FleetStore) -> str:
    snap = store.snapshot
    if snap is None:
        return fmt.UNKNOWN
    if snap.mechanism == "at once":
        again = "issuing, paused now, starts again with it; " if snap.paused else ""
        return f"at once (exploration); {again}the verdict can only be EXPLORATION"
    if snap.mechanism == "new attempt":
        return (
            f"LoadGen's schedule is fixed: this ends attempt {snap.attempt} as SUPERSEDED and starts the next one "
            "on the same warm replicas"
        )
    return "no attempt runs yet: the next one starts at this rate, its verdict is not touched"


def load_problem(store: FleetStore, kind: str, qps: float) -> str:
    """What the run's own specification says against such an attempt, in its words; the head applies the same rules."""
    if store.spec is None:
        return ""
    raw = store.spec.model_dump()
    raw["load"] |= {"test": None, **attempt_args(kind), "target_qps": qps}
    try:
        type(store.spec).model_validate(raw)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return ""


# --- attempts ----------------------------------------------------------------------------------------------


def kinds_for(store: FleetStore) -> list[tuple[str, str]]:
    """Kinds of attempts, and below them the compliance tests of the run's model; a model without a name there may try any."""
    model = store.spec.model.mlperf_name if store.spec is not None else None
    tests = [test for test, of in TESTS.items() if model is None or model.removesuffix("-interactive") == of]
    return [*KINDS, *((test, _TESTS[test]) for test in tests)]


def attempt_args(choice: str) -> dict[str, str]:
    """What was chosen there, as start_attempt and the spec's load table name it."""
    return {"kind": "compliance", "test": choice} if choice in TESTS else {"kind": choice}


def why_no_new_attempt(store: FleetStore) -> str:
    snap, spec = store.snapshot, store.spec
    if snap is None or spec is None:
        return "the head has not answered yet"
    if snap.attempt:
        ends = "it is ending" if store.ending else "X ends it, = changes its rate"
        return f"attempt {snap.attempt} is running: {ends}"
    if store.at_barrier:
        return "the first attempt begins by itself once every replica is ready; = changes its rate"
    if not spec.fleet.keep_warm_s:
        return "this run ends with its last attempt (fleet.keep_warm_s = 0): no fleet is kept warm for another"
    return ""


def new_attempt_facts(store: FleetStore) -> list[Fact]:
    snap, spec = store.snapshot, store.spec
    if snap is None or spec is None:
        return []
    ready = rate_now(store).serving
    facts = [("fleet", f"{fmt.count(ready)} of {fmt.count(len(store.slots))} replicas are warm and READY")]
    left_s = max(0.0, spec.fleet.keep_warm_s - (snap.unix - snap.phase_since_unix))
    facts.append(("kept", f"warm for another {fmt.clock(left_s)}, then the run ends"))
    last = store.attempt
    if last is not None:
        facts.append(("last", f"attempt {last.number}: {last.kind} at {fmt.rate(last.target_qps)} qps, {last.verdict or 'open'}"))
    return facts


def abort_facts(store: FleetStore) -> list[Fact]:
    snap = store.snapshot
    if snap is None:
        return []
    in_flight = f"{fmt.plural(snap.in_flight, 'sample')} in flight {'is' if snap.in_flight == 1 else 'are'}"
    explore = snap.attempt_kind == "explore"
    load = f"{in_flight} finished, 10 s at most" if explore else f"{in_flight} given up"
    warm_s = store.spec.fleet.keep_warm_s if store.spec is not None else 0.0
    kept = f"the fleet stays warm for {fmt.clock(warm_s)}: B begins the next attempt"
    return [
        ("effect", f"attempt {snap.attempt} issues nothing more; {load}"),
        ("verdict", f"attempt {snap.attempt} becomes ABORTED; its samples so far stay in the record"),
        ("then", kept if warm_s else "the run ends with it: fleet.keep_warm_s is 0"),
    ]


# --- run ---------------------------------------------------------------------------------------------------


def pause_facts(store: FleetStore) -> list[Fact]:
    snap = store.snapshot
    if snap is None:
        return []
    if snap.paused:
        effect = f"issuing starts again at {fmt.rate(snap.target_qps)} qps"
    else:
        effect = f"no new samples; the {fmt.count(snap.in_flight)} in flight are finished. p starts it again"
    return [("effect", effect), ("verdict", verdict_fact(store, "pause"))]


def policy_facts(store: FleetStore) -> list[Fact]:
    snap, spec = store.snapshot, store.spec
    if snap is None or spec is None:
        return []
    limits = spec.stragglers
    who = f"step time over {limits.ratio:g}x the fleet's and z over {limits.z:g}"
    return [
        ("straggler", f"{who}, in {limits.windows_slow} of {limits.windows} windows of {limits.window_s:g} s"),
        ("now", f"{snap.policy}; {len(snap.slow)} flagged"),
        ("limit", f"at most {fmt.plural(limits.max_acts_per_10min, 'act')} by itself in 10 min; then it only flags"),
        ("verdict", verdict_fact(store, "set_policy")),
    ]


def stop_facts(store: FleetStore) -> list[Fact]:
    snap = store.snapshot
    number = snap.in_flight if snap is not None else 0
    in_flight = f"{fmt.plural(number, 'sample')} in flight"
    if snap is None or not snap.attempt:
        end = "no load is running; all replicas are stopped and the run ends"
    elif snap.attempt_kind == "explore":
        end = f"issuing ends, {in_flight} {'is' if number == 1 else 'are'} finished, all replicas are stopped"
    else:
        end = f"the load ends ({in_flight}), the attempt becomes ABORTED, all replicas are stopped"
    return [
        ("effect", end),
        ("record", f"stays complete in {store.record}" if store.record else "stays complete"),
    ]


def control_facts(holder: str, mine: str, act: str) -> list[Fact]:
    then = f"next: {act}" if act else "each act from here keeps it for another minute"
    return [
        ("holder", f"{holder} holds control: one operator at a time acts on a run"),
        ("effect", f"control passes to {mine} at once; {then}"),
        ("record", "the take-over is journalled; acts already done stay done"),
    ]
