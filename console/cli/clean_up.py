"""`paceline clean-up`: what is left of runs on a cluster, and its removal. Touches only what carries a run's labels."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from msgspec import structs

from console import locations
from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.output import note, say, say_json, typed
from console.cli.remote import check_namespace
from harness.cluster.local import head_alive, placed_on
from harness.records.layout import NoSuchRun, RunFolder, find_run

if TYPE_CHECKING:
    from harness.cluster.kube.api import Api
    from harness.cluster.kube.removal import Thing

_REMOVED_WITHIN_S = 600.0


def clean_up(
    run: str | None = None,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="", help="Remove without asking")] = False,
    namespace: Annotated[str | None, Parameter(help="Of the cluster (that of the run's spec, else paceline)")] = None,
    context: Annotated[str | None, Parameter(help="Of the kubeconfig (that of the run's spec, else its current one)")] = None,
    json: Annotated[bool, Parameter(name="--json", negative="", help="List as JSON and remove nothing without --yes")] = False,
) -> int:
    """List what a run has left on its cluster and, once confirmed, remove it. Without RUN: list the runs that are there."""
    if run is None:
        from console.cli.remote import say_remote_runs

        if yes:
            raise BadInput("clean-up: --yes needs the RUN whose objects are to be removed")
        return say_remote_runs(namespace, context, as_json=json)
    if not run:  # "$RUN" of a variable that is not set must not mean any run
        raise BadInput("clean-up: RUN is empty; name the run whose objects are to be listed or removed")
    check_namespace(namespace)
    from harness.cluster.base import ClusterError
    from harness.cluster.kube.access import access
    from harness.cluster.kube.api import once

    instance, folder, space, ctx = _meant(run, namespace, context)
    way = access(ctx)

    async def listed(api: Api) -> tuple[list[Thing], list[str]]:
        from harness.cluster.kube.removal import things_of

        return await things_of(api, instance)

    things, denied = once(way, listed, namespace=space)
    if denied and not things:
        raise ClusterError(f"it is not known what of {instance} is in namespace {space}: {denied[0]}")
    for why in denied:
        note(f"note: {why}")
    if json and not yes:
        say_json({"run": instance, "namespace": space, "objects": [{"kind": t.kind, "name": t.name} for t in things]})
        return OK
    if not things:
        if folder is None:
            _whole_name_needed(run, namespace, ctx)
        _remember(folder)
        say(f"nothing of {instance} is in namespace {space} of {way.server}")
        return OK
    if not yes and not _confirmed(instance, things, folder, f"namespace {space} of {way.server}"):
        say("nothing was removed")
        return NOT_VALID

    async def removed(api: Api) -> bool:
        from harness.cluster.kube.removal import remove

        return await remove(api, instance, say=note, within_s=_REMOVED_WITHIN_S)

    gone = once(way, removed, namespace=space)
    if gone:
        _remember(folder)
    if json:
        say_json({"run": instance, "namespace": space, "removed": gone})
    return OK if gone else NOT_VALID


def _meant(run: str, namespace: str | None, context: str | None) -> tuple[str, RunFolder | None, str, str | None]:
    """The run's label, its folder where it has one here, and where it is."""
    from harness.cluster.kube.ending import spec_of
    from harness.cluster.kube.names import instance_of
    from harness.kubespec import KubernetesSpec

    try:
        folder: RunFolder | None = find_run(run, locations.runs())
    except NoSuchRun:
        folder = None
    if folder is None or placed_on(folder) != "kubernetes":
        return instance_of(run), None, namespace or KubernetesSpec().namespace, context
    kube = spec_of(folder).cluster.kubernetes
    return instance_of(folder.name), folder, namespace or kube.namespace, context or kube.context


def _remember(folder: RunFolder | None) -> None:
    """That nothing is left there, in the run's link: only then may its record be deleted without force."""
    from harness.cluster.kube.linkfile import read_link, write_link

    about = read_link(folder) if folder is not None else None
    if folder is not None and about is not None and not about.cleaned and not head_alive(folder):
        write_link(folder, structs.replace(about, cleaned=True))


def _whole_name_needed(run: str, namespace: str | None, context: str | None) -> None:
    """Elsewhere a part of a name will do. What removes objects of a run that is not known here wants all of it."""
    from console.cli.remote import runs_there

    fitting = [there.run for there in runs_there(namespace, context) if run in there.run]
    if fitting:
        raise BadInput(f"clean-up: no run on the cluster is named {run!r}; give the whole name of one: {', '.join(fitting[:5])}")


def _confirmed(instance: str, things: list[Thing], folder: RunFolder | None, where: str) -> bool:
    say(f"{instance} in {where}:")
    for thing in things:
        say(f"  {thing}{' (going already)' if thing.going else ''}")
    if folder is not None and head_alive(folder):
        say(f"This run is going on: `{typed(f'stop {folder.name}')}` ends it in order and keeps its record.")
    if not sys.stdin.isatty():
        raise BadInput("clean-up: there is no terminal to ask on; --yes removes without asking")
    return input("Remove all of it? (y/N) ").strip().lower() in ("y", "yes")
