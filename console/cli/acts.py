"""Acts on a run that is going on: one command to its head each, and the head's answer.

The head decides (roles, guards, incarnations); here is only the asking. A refusal is told on stderr and exits with 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from cyclopts import Parameter

from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.found import headless_run, live_run
from console.cli.output import complain, note, say, say_json, typed
from harness.records.layout import RunFolder

Reason = Annotated[str, Parameter(help="Why; written into the journal")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print the head's answer as JSON")]
Force = Annotated[
    bool, Parameter(negative="", help="In spite of the quorum, of the eviction limit and of being the last of its role")
]
Incarnation = Annotated[str, Parameter(help="Act only if the slot still holds this incarnation (a prefix is enough)")]

RunFirst = Annotated[str, Parameter(help="May be left out: then the newest that is going on")]

_FORCE_IT = "force to do it anyway"  # the head's words, which a console answers with a tick
_WAIT_STOP_S = 60.0
_LONGEST_RAMP_S = 3600.0


def rate(
    run: RunFirst,
    qps: str | None = None,
    /,
    *,
    ramp: Annotated[float, Parameter(help="Exploration only: seconds over which the rate moves there in a straight line")] = 0.0,
    reason: Reason = "",
    json: AsJson = False,
) -> int:
    """Change the offered rate: at once (or as a ramp) in an exploration; in a LoadGen attempt by starting the next one at the
    new rate."""
    which, wanted = _run_and("QPS", run, qps)
    try:
        rate_qps = float(wanted)
    except ValueError:
        raise BadInput(f"rate: {wanted!r} is not a number of queries per second") from None
    if not 0 < rate_qps <= 1_000_000:
        raise BadInput(
            f"rate: {wanted} must be more than 0 and at most 1,000,000 queries per second (`{typed('pause')}` stops issuing)"
        )
    if not 0 <= ramp <= _LONGEST_RAMP_S:
        raise BadInput(f"rate: --ramp {ramp:g} is not a time for a ramp: 0 (at once) to {_LONGEST_RAMP_S:,.0f} seconds")
    args = {"qps": rate_qps, "ramp_s": ramp} if ramp else {"qps": rate_qps}
    return _act(live_run(which), "set_rate", args, reason, json)


def drain(
    run: RunFirst,
    slot: str | None = None,
    /,
    *,
    reason: Reason = "",
    incarnation: Incarnation = "",
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Send a replica no new samples; it finishes what it has and stays warm."""
    return _on_slot("drain", run, slot, reason, json, incarnation, force)


def recycle(
    run: RunFirst,
    slot: str | None = None,
    /,
    *,
    reason: Reason = "",
    incarnation: Incarnation = "",
    force: Force = False,
    json: AsJson = False,
) -> int:
    """Drain a replica, then restart its engine in place."""
    return _on_slot("recycle", run, slot, reason, json, incarnation, force)


def evict(
    run: RunFirst,
    slot: str | None = None,
    /,
    *,
    reason: Reason = "",
    incarnation: Incarnation = "",
    force: Force = False,
    cordon: Annotated[
        bool, Parameter(negative="", help="Cluster: cordon the node as well, so that the replacement lands elsewhere")
    ] = False,
    json: AsJson = False,
) -> int:
    """Drain a replica to a deadline, dispatch its remaining samples again, and end it. On a cluster its whole pod goes, with
    every replica in it, through the eviction API."""
    return _on_slot("evict", run, slot, reason, json, incarnation, force, {"cordon": True} if cordon else None)


def readmit(run: RunFirst, slot: str | None = None, /, *, reason: Reason = "", json: AsJson = False) -> int:
    """Take a drained or evicted replica back."""
    return _on_slot("readmit", run, slot, reason, json)


def waive(run: RunFirst, slot: str | None = None, /, *, reason: Reason = "", json: AsJson = False) -> int:
    """Do not wait for this replica at the barrier any more."""
    return _on_slot("waive", run, slot, reason, json)


def pause(run: str | None = None, /, *, reason: Reason = "", json: AsJson = False) -> int:
    """Stop issuing in an exploration; what is in flight finishes."""
    return _act(live_run(run), "pause", {}, reason, json)


def resume(run: str | None = None, /, *, reason: Reason = "", json: AsJson = False) -> int:
    """Issue again after a pause."""
    return _act(live_run(run), "resume", {}, reason, json)


def abort(run: str | None = None, /, *, reason: Reason = "", json: AsJson = False) -> int:
    """End the attempt that is being measured as ABORTED; the fleet stays warm."""
    return _act(live_run(run), "abort", {}, reason, json)


def take_control(run: str | None = None, /, *, reason: Reason = "", json: AsJson = False) -> int:
    """Take control over from another operator, whose acts are then refused."""
    return _act(live_run(run), "take_control", {}, reason, json)


def _end_headless(folder: RunFolder, reason: str) -> int:
    """Nobody is left to ask: end the workers that wait for a head, and say so in the record."""
    from harness.cluster.local import kill_run
    from harness.records.runfile import close_run

    kill_run(folder)
    close_run(folder.path, "ABORTED", "ABORTED", f"stopped after its head had died{f': {reason}' if reason else ''}")
    note(f"{folder.name} had lost its head: its workers are ended; record: {folder.path}")
    return OK


def stop(
    run: str | None = None,
    /,
    *,
    reason: Reason = "",
    wait: Annotated[bool, Parameter(negative="--no-wait", help="Return when the run has ended")] = True,
    json: AsJson = False,
) -> int:
    """End a run: its load, its fleet and its head, and no other process. The record stays."""
    left = headless_run(run) if run is not None else None
    if left is not None:
        return _end_headless(left, reason)
    folder = live_run(run)
    code = _act(folder, "stop", {}, reason, json)
    if code == OK and wait:
        from console.starting import wait_for_head_to_end

        if not wait_for_head_to_end(folder, _WAIT_STOP_S):
            complain(
                f"{folder.name} is still ending after {_WAIT_STOP_S:g} s; `{typed(f'status {folder.name}')}` shows how far it is"
            )
            return NOT_VALID
        note(f"{folder.name} has ended; record: {folder.path}")
    return code


COMMANDS: tuple[Callable[..., int], ...] = (rate, drain, recycle, evict, readmit, waive, pause, resume, take_control, abort, stop)
_SLOT = "[RUN] SLOT"
USAGE = {
    "rate": "[RUN] QPS",
    **dict.fromkeys(("drain", "recycle", "evict", "readmit", "waive"), _SLOT),
    **dict.fromkeys(("pause", "resume", "take_control", "abort", "stop"), "[RUN]"),
}


def _run_and(what: str, first: str, second: str | None) -> tuple[str | None, str]:
    """RUN may be left out, and what follows it then comes first."""
    if not (second or first):
        raise BadInput(f"{what} is needed")
    return (None, first) if second is None else (first, second)


def _on_slot(
    act: str,
    run: str,
    slot: str | None,
    reason: str,
    as_json: bool,
    incarnation: str | None = None,
    force: bool = False,
    more: dict[str, Any] | None = None,
) -> int:
    which, where = _run_and("SLOT", run, slot)
    if "/" not in where or where.startswith(("/", ".")):
        raise BadInput(f"{act}: {where!r} is not a slot; slots are written node003/gpu1 ({typed(act)} [RUN] SLOT)")
    args: dict[str, Any] = {"slot": where} if incarnation is None else {"slot": where, "incarnation": incarnation}
    if force:
        args["force"] = True
    return _act(live_run(which), act, args | (more or {}), reason, as_json)


def _act(folder: RunFolder, name: str, args: dict[str, Any], reason: str, as_json: bool) -> int:
    from harness.wire.client import HeadClient

    with HeadClient.of_run(folder.path) as head:
        reply = head.command(name, args, reason=reason)
    if as_json:
        say_json({"run": folder.name, "act": name, "ok": reply.ok, "message": reply.message, "data": reply.data})
    elif reply.ok:
        say(f"{folder.name}: {reply.message}")
    else:
        complain(f"{folder.name}: {name} refused: {reply.message.replace(_FORCE_IT, 'with --force it is done anyway')}")
    return OK if reply.ok else NOT_VALID
