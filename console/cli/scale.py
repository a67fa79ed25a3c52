"""`paceline scale`: another number of nodes for a run on Kubernetes, while it goes on.

The head is asked first to let go what goes (it drains and is not waited for), then the worker Job is made smaller with the
rights of whoever asks; growing, the Job comes first. What a replica holds is finished, never cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from console.cli.acts import AsJson, Force, Reason, RunFirst
from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.found import live_run
from console.cli.output import complain, note, plural, say, say_json, typed
from console.cli.remote import cluster_call, remote_spec
from harness.spec import RunSpec, node_name
from harness.wire.client import HeadClient
from harness.wire.control import RunState
from harness.wire.states import DRAINING

_TELL_EVERY_S = 5.0
_LOOK_EVERY_S = 0.5
USAGE = "[RUN] NODES"


def scale(run: RunFirst, nodes: str | None = None, /, *, reason: Reason = "", force: Force = False, json: AsJson = False) -> int:
    """Give a run on Kubernetes another number of nodes, up to the fleet.nodes that it was started with."""
    if not (nodes or run):
        raise BadInput("scale: NODES is needed")
    which, wanted = (None, run) if nodes is None else (run, nodes)
    if not wanted.isascii() or not wanted.isdigit():
        raise BadInput(f"scale: {wanted!r} is not a number of nodes; it is `{typed(f'scale {USAGE}')}`")
    folder = live_run(which)
    spec = remote_spec(folder, "scale")
    count, most = int(wanted), spec.fleet.nodes
    if not 1 <= count <= most:
        raise BadInput(f"scale: {count} is not a size of this fleet: 1 to {most} (fleet.nodes when it was started)")
    tell: Callable[[str], None] = note if json else say
    with HeadClient.of_run(folder.path) as head:
        message = _scaled(head, spec, folder.name, count, reason, force=force, tell=tell)
    if json:
        say_json({"run": folder.name, "act": "scale", "ok": message is not None, "nodes": count, "message": message or ""})
    return OK if message is not None else NOT_VALID


def _scaled(
    head: HeadClient, spec: RunSpec, run: str, count: int, reason: str, *, force: bool, tell: Callable[[str], None]
) -> str | None:
    """What the head said; None when it refused, which has been told."""
    from harness.cluster.kube.names import instance_of
    from harness.cluster.kube.scaling import resize, worker_job

    instance = instance_of(run)
    now = cluster_call(spec, lambda api: worker_job(api, instance)).parallelism
    args = {"nodes": count, "force": True} if force else {"nodes": count}
    grow = count >= now
    if grow:
        cluster_call(spec, lambda api: resize(api, spec, instance, count))
        tell(f"{run}: {plural(count, 'worker pod')} asked for (before: {now})")
    reply = head.command("scale", args, reason=reason)
    if not reply.ok:
        hint = (
            f"; the Job asks for {count} already, `{typed(f'scale {run} {now}')}` takes that back"
            if grow and count != now
            else ""
        )
        complain(f"{run}: scale refused: {reply.message}{hint}")
        return None
    tell(f"{run}: {reply.message}")
    if not grow:
        _until_drained(head, count, run, tell)
        cluster_call(spec, lambda api: resize(api, spec, instance, count))
        tell(f"{run}: {plural(count, 'worker pod')} asked for (before: {now}); the others end")
    return reply.message


def _until_drained(head: HeadClient, count: int, run: str, tell: Callable[[str], None]) -> None:
    going = {node_name(node) for node in range(count)}
    told_s = time.monotonic()
    try:
        while True:
            draining = _draining(head.state(journal_tail=0), going)
            if not draining:
                return
            if time.monotonic() - told_s >= _TELL_EVERY_S:
                told_s = time.monotonic()
                tell(f"{run}: {plural(len(draining), 'replica')} still drain ({', '.join(draining[:3])})")
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        complain(f"{run}: not waited for; the pods stay until `{typed(f'scale {run} {count}')}` is asked again")
        raise


def _draining(state: RunState, staying: set[str]) -> list[str]:
    return [slot.slot for slot in state.slots if slot.node not in staying and slot.state == DRAINING]
