"""From an act's name to the dialog that asks about it and the commands that a yes means. Knows the store, sends nothing.

`question` answers with a text instead when the act makes no sense now: that is told, and nothing is asked.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, get_args

from console.screens.acts import Prediction, Target, facts_for, guard, target_of, unfit
from console.screens.dialogs import (
    Answer,
    AskAttempt,
    AskChoice,
    AskNodes,
    AskRate,
    AskRemoval,
    ConfirmAct,
    Dialog,
    TypeToConfirm,
)
from console.screens.load_acts import (
    POLICIES,
    abort_facts,
    asked_rate,
    attempt_args,
    kinds_for,
    load_problem,
    new_attempt_facts,
    pause_facts,
    policy_facts,
    rate_facts,
    rate_now,
    rate_step,
    stepped,
    stop_facts,
)
from console.screens.pod_acts import cordon_offer, going_with, nodes_of, one_each
from console.screens.scale_acts import judged_nodes, nodes_now, scale_facts
from console.store.cluster import evicted_whole
from console.store.fleet import FleetStore
from console.typed import typed
from harness.spec import StragglerPolicy

ON_A_REPLICA: Final = ("evict", "drain", "recycle", "readmit", "waive")
_DONE: Final = {"evict": "evicted", "drain": "drained", "recycle": "recycled", "readmit": "readmitted", "waive": "waived"}
_DOING: Final = {"evict": "evicting", "drain": "draining", "recycle": "recycling", "readmit": "readmitting", "waive": "waiving"}


@dataclass(frozen=True, slots=True)
class Order:
    """One command to the head."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    dialog: Dialog
    orders: Callable[[Answer], list[Order]]
    without: Sequence[str] = ()  # slots whose absence the head is asked to foretell …
    prediction: Prediction = field(default_factory=Prediction)  # … and where its answer goes
    doing: str = ""  # what several orders are: `draining`
    goes_on: str = ""  # told at once of an order whose answer takes its time


def question(store: FleetStore, act: str, slots: Sequence[str], value: str = "") -> Question | str:
    if act in ON_A_REPLICA:
        return _on_replicas(store, act, slots)
    if act in ("rate", "rate_up", "rate_down"):
        return _rate(store, value, {"rate": 0, "rate_up": 1, "rate_down": -1}[act])
    if act == "policy":
        return _policy(store, value)
    if act == "scale":
        return _scale(store, value)
    asks = {"pause": _pause, "new_attempt": _new_attempt, "abort": _abort, "stop_run": _stop}
    return asks[act](store)


# --- replicas ----------------------------------------------------------------------------------------------


def _on_replicas(store: FleetStore, act: str, slots: Sequence[str]) -> Question | str:
    unknown = [slot for slot in slots if slot not in store.index]
    if unknown:
        near = difflib.get_close_matches(unknown[0], store.index, 1)
        return f"no replica {unknown[0]!r} in this run" + (f"; did you mean {near[0]}?" if near else "")
    found = [target for slot in slots if (target := target_of(store, slot)) is not None]
    objections = {target.slot: said for target in found if (said := unfit(store, act, target))}
    targets = [target for target in found if target.slot not in objections]
    if not targets:
        said = next(iter(objections.values()), "no replica under the cursor")
        return said if len(found) < 2 else f"none of the {len(found)} can be {_DONE[act]}: {said}"
    prediction, asked = Prediction(), targets
    if act == "evict" and evicted_whole(store):  # their pods go, with all that live in them
        asked, targets = one_each(store, targets), going_with(store, targets)
    dialog = _replica_dialog(store, act, targets, list(objections.values()), prediction, asked)

    def orders(answer: Answer) -> list[Order]:
        return [Order(act, _args(act, target, answer), answer.reason) for target in asked]

    removes = act in ("evict", "drain", "recycle")
    without = [target.slot for target in targets] if removes else []
    return Question(dialog, orders, without, prediction, _DOING[act])


def _replica_dialog(
    store: FleetStore, act: str, targets: list[Target], left_out: list[str], prediction: Prediction, asked: list[Target]
) -> ConfirmAct:
    pods = nodes_of(store, targets) if act == "evict" and evicted_whole(store) else []
    number, what = (len(pods), "pods") if pods else (len(targets), "replicas")
    which = f"the pod of {pods[0]}" if pods else targets[0].slot
    title = f"{act.capitalize()} {which if number == 1 else f'{number} {what}'}?"
    yes = act.capitalize() if number == 1 else f"{act.capitalize()} all {number}"

    def facts() -> list[tuple[str, str]]:
        told = facts_for(store, act, targets, prediction, asked)
        if left_out and told:
            told.insert(min(1, len(targets) - 1), ("left out", _left_out(left_out)))
        return told

    if act not in ("evict", "drain", "recycle"):
        return ConfirmAct(title, facts, yes)
    deadline_s = store.spec.fleet.drain_deadline_s if store.spec is not None and act != "drain" else None
    return AskRemoval(
        title,
        facts,
        yes,
        danger=act != "drain",
        guard=partial(guard, store, act, targets),
        deadline_s=deadline_s,
        modes=act == "evict" and deadline_s is not None,
        cordon=partial(cordon_offer, store, pods) if pods else None,
        reason=_why_removed(store, targets) if act == "evict" else "",
    )


def _why_removed(store: FleetStore, targets: list[Target]) -> str:
    """What alerts say that propose it: the operator need not type it again."""
    infos = [store.slots[store.index[target.slot]] for target in targets if target.slot in store.index]
    told = (row for info in infos for row in store.gpus.alerts_of(info.slot, info.node) if row.act == "evict")
    return "; ".join(dict.fromkeys(row.text or row.cause or row.rule for row in told))


def _left_out(objections: list[str]) -> str:
    return objections[0] if len(objections) == 1 else f"{len(objections)}: {objections[0]}, …"


def _args(act: str, target: Target, answer: Answer) -> dict[str, Any]:
    args: dict[str, Any] = {"slot": target.slot}
    if act != "readmit":  # what is taken back is the slot, whichever life it has by now
        args["incarnation"] = target.incarnation
    if answer.deadline_s is not None:
        args["deadline_s"] = answer.deadline_s
    if answer.force:
        args["force"] = True
    if answer.cordon:
        args["cordon"] = True
    return args


# --- the load ----------------------------------------------------------------------------------------------


def _rate(store: FleetStore, value: str, steps: int) -> Question:
    now = rate_now(store)
    staged, ramp = asked_rate(value, now.qps)
    if steps:
        staged = f"{stepped(now.qps, steps, rate_step(now.qps)):.10g}"

    def problem(qps: float) -> str:
        return load_problem(store, store.snapshot.attempt_kind if store.snapshot is not None else "performance", qps)

    def orders(answer: Answer) -> list[Order]:
        args = {"qps": answer.qps} | ({"ramp_s": answer.ramp_s} if answer.ramp_s else {})
        return [Order("set_rate", args, answer.reason)]

    return Question(AskRate(partial(rate_facts, store), partial(rate_now, store), problem, staged, ramp), orders)


def _pause(store: FleetStore) -> Question:
    name = "resume" if store.snapshot is not None and store.snapshot.paused else "pause"
    dialog = ConfirmAct(f"{name.capitalize()} issuing?", partial(pause_facts, store), name.capitalize())
    return Question(dialog, lambda answer: [Order(name, {}, answer.reason)])


def _policy(store: FleetStore, value: str) -> Question | str:
    policies = get_args(StragglerPolicy)
    value = value.strip().lower()
    if value and value not in policies:
        return f"there is no policy {value!r}: {', '.join(policies)}"

    def present() -> str:
        return store.snapshot.policy if store.snapshot is not None else ""

    dialog = AskChoice(
        "Change the straggler policy?",
        partial(policy_facts, store),
        "Set policy",
        "policy",
        POLICIES,
        present,
        value or present(),
    )
    return Question(dialog, lambda answer: [Order("set_policy", {"policy": answer.value}, answer.reason)])


def _scale(store: FleetStore, value: str) -> Question:
    def orders(answer: Answer) -> list[Order]:
        args: dict[str, Any] = {"nodes": int(answer.value)} | ({"force": True} if answer.force else {})
        return [Order("scale", args, answer.reason)]

    facts = partial(scale_facts, store, f"`{typed(f'scale {store.run} N')}`")
    dialog = AskNodes(facts, partial(judged_nodes, store), nodes_now(store), value.strip())
    return Question(dialog, orders, goes_on="what goes drains first; the answer comes when it is done")


def _new_attempt(store: FleetStore) -> Question:
    load = store.spec.load if store.spec is not None else None
    kind = (load.test or load.kind) if load is not None else "performance"
    qps = store.snapshot.target_qps if store.snapshot is not None and store.snapshot.target_qps > 0 else 1.0
    dialog = AskAttempt(partial(new_attempt_facts, store), kinds_for(store), kind, qps, partial(load_problem, store))

    def orders(answer: Answer) -> list[Order]:
        return [Order("start_attempt", {**attempt_args(answer.value), "qps": answer.qps}, answer.reason)]

    return Question(dialog, orders)


def _abort(store: FleetStore) -> Question:
    number = store.snapshot.attempt if store.snapshot is not None else 0
    dialog = ConfirmAct(f"Abort attempt {number}?", partial(abort_facts, store), "Abort", danger=True)
    return Question(dialog, lambda answer: [Order("abort", {}, answer.reason)])


def _stop(store: FleetStore) -> Question:
    dialog = TypeToConfirm("Stop the run?", partial(stop_facts, store), "Stop run", store.run, "the run's name")
    return Question(dialog, lambda answer: [Order("stop", {}, answer.reason or "stopped from the console")])
