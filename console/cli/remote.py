"""Runs on a Kubernetes cluster as the command line meets them: those of this machine whose link has ended, and those that
were started elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeVar

from console import locations
from console.cli.errors import BadInput, HeadDied
from console.cli.output import note, say, say_json, table, typed, when
from harness.cluster.base import ClusterError
from harness.cluster.kube.kubeconfig import has_kubeconfig
from harness.cluster.local import head_alive, placed_on
from harness.records.layout import NoSuchRun, RunFolder

if TYPE_CHECKING:
    from harness.cluster.kube.access import Access
    from harness.cluster.kube.api import Api
    from harness.cluster.kube.discover import RemoteRun
    from harness.doctor import Check
    from harness.spec import RunSpec

_LOOK_TIMEOUT_S = 5.0
_CLEAN_UP_WITHIN_S = 900.0
#: Of a copied record, what this machine writes itself.
_OWN_FILES = ("link.log", "link.json", "head.json", "spec.json", "lock")
Role = Literal["operator", "viewer"]
T = TypeVar("T")


def is_followed(folder: RunFolder) -> bool:
    """Whether a run of a cluster can still be taken up: its record is not whole here, and its objects were there last."""
    from harness.cluster.kube.linkfile import read_link

    about = read_link(folder)
    return placed_on(folder) == "kubernetes" and (about is None or about.state == "following")


def dead_links() -> list[RunFolder]:
    """Runs of this machine that may go on on their cluster although their link has ended, newest first."""
    return [folder for folder in _folders() if is_followed(folder) and not head_alive(folder)]


def copied_until_unix(folder: RunFolder) -> float:
    """When the newest of the copied files was written by the head."""
    files = (path for path in folder.path.rglob("*") if path.is_file() and path.name not in _OWN_FILES)
    return max((path.stat().st_mtime for path in files), default=0.0)


def why_gone(folder: RunFolder) -> str:
    """For the end of a sentence."""
    from harness.cluster.kube.linkfile import read_link

    about = read_link(folder)
    return f": {about.why}" if about is not None and about.why else ""


def revived(folder: RunFolder) -> bool:
    """The link of a run on a cluster ends with this machine, the run does not: start another one. False: not such a run."""
    if not is_followed(folder):
        return False
    note(f"{folder.name}: the link to its cluster had ended and is started again")
    _start_link(folder)
    return True


def folder_or_remote(run: str | None, namespace: str | None, context: str | None) -> tuple[RunFolder, Role]:
    """A run of this machine that is going on, else one of that name on the cluster, made a folder here and linked."""
    from console.cli.found import live_run

    if namespace is None and context is None:
        try:
            folder = live_run(run)
            return folder, best_role(folder)
        except NoSuchRun as unknown:
            return unknown_here(run, unknown)
    return _take(run, namespace, context)


def unknown_here(run: str | None, unknown: NoSuchRun) -> tuple[RunFolder, Role]:
    """Looked for on the kubeconfig's cluster, where there is one. Raises NoSuchRun."""
    if not run or not has_kubeconfig() or any(run in found.name for found in _folders()):
        raise unknown  # one that is here has ended, or lost its head
    try:
        return _take(run, None, None)
    except ClusterError as error:
        raise NoSuchRun(f"{unknown}; the cluster of the kubeconfig cannot be asked: {error}") from error


def best_role(folder: RunFolder) -> Role:
    return "operator" if (folder.keys / "operator.key").is_file() or placed_on(folder) == "local" else "viewer"


def runs_there(namespace: str | None, context: str | None) -> list[RemoteRun]:
    return _ask(_way(context), _namespace(namespace), _remote_runs)


def say_remote_runs(namespace: str | None, context: str | None, *, as_json: bool) -> int:
    runs = runs_there(namespace, context)
    if as_json:
        keys = ("run", "namespace", "head", "nodes", "ready", "created_unix")
        say_json([{key: getattr(run, key) for key in keys} for run in runs])
        return 0
    if not runs:
        say(f"no runs in namespace {_namespace(namespace)} of {_way(context).server}")
        return 0
    rows = [(run.run, run.head, f"{run.ready}/{run.nodes}", when(run.created_unix)) for run in runs]
    say(table(("run", "head", "workers", "started"), rows, right=(2,)))
    return 0


def wait_for_clean_up(folder: RunFolder) -> None:
    """Whoever waited for a run is told whether its record is whole here, and when its objects are gone from the cluster.
    Ctrl-C leaves that to the link."""
    from harness.cluster.kube.linkfile import read_link
    from harness.records.lock import is_held

    if placed_on(folder) != "kubernetes":
        return
    if is_held(folder):
        note(f"{folder.name}: its objects are being removed (Ctrl-C: goes on without waiting; {folder.log('link')})")
    until_s = time.monotonic() + _CLEAN_UP_WITHIN_S
    try:
        while is_held(folder) and time.monotonic() < until_s:
            time.sleep(0.2)
    except KeyboardInterrupt:
        return
    about = read_link(folder)
    if about is not None and about.why:
        note(f"{folder.name}: the record is not whole here: {about.why}")
    if about is not None and about.cleaned:
        note(f"{folder.name}: nothing of it is left on the cluster")
    elif is_followed(folder):
        note(f"{folder.name}: its link has ended, the run may go on there; `{typed(f'attach {folder.name}')}` follows it again")
    else:
        note(f"{folder.name}: its objects are still on the cluster; `{typed(f'clean-up {folder.name}')}` shows and removes them")


def check_cluster(spec: RunSpec) -> None:
    """All that a cluster has against a run, before anything is made. Raises BadInput with every finding."""
    from harness.cluster.kube.preflight import preflight

    checks = preflight(spec)
    failed = [check for check in checks if check.ok is False]
    if failed:  # what merely deserves a look waits until these are gone
        found = "\n".join(f"  {_in_words(check)}" for check in failed)
        raise BadInput(f"{spec.name} cannot be placed, nothing was made:\n{found}")
    for check in checks:
        if check.ok is None:
            note(f"note  {_in_words(check)}")


def _in_words(check: Check) -> str:
    return f"{check.name}: {check.detail}" + (f" → {check.fix}" if check.fix else "")


def new_remote_head(folder: RunFolder) -> None:
    """The head's Job made anew, after one that failed for good; the workers stay. Raises ClusterError."""
    from harness.cluster.kube.scaling import new_head

    spec = remote_spec(folder, "restart-head")
    cluster_call(spec, lambda api: new_head(api, spec, folder.name, say=note))


# --- details -----------------------------------------------------------------------------------------------


def _take(run: str | None, namespace: str | None, context: str | None) -> tuple[RunFolder, Role]:
    from harness.cluster.kube.discover import keys_of, make_local

    way, where = _way(context), _namespace(namespace)
    remote = _chosen(run, _ask(way, where, _remote_runs), f"namespace {where} of {way.server}")
    folder = RunFolder(locations.runs() / remote.run)
    new = not folder.path.exists()
    if head_alive(folder):
        return folder, best_role(folder)
    if remote.head in ("ended", "none"):
        raise NoSuchRun(f"{remote.run} is in namespace {where}, but its head has ended: there is nothing to attach to")
    role, keys = _ask(way, where, lambda api: keys_of(api, remote.instance))
    if not is_followed(folder) or not any((folder.keys / f"{one}.key").is_file() for one in ("operator", "viewer")):
        folder = make_local(locations.runs(), remote, keys, way)
    if role == "viewer":
        note(f"{remote.run}: only the viewers' keys can be read, so acts are refused")
    note(f"{remote.run}: found in namespace {where} of {way.server}; its record is copied to {folder.path}")
    try:
        _start_link(folder)
    except BaseException:
        if new:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder, role


def _start_link(folder: RunFolder) -> None:
    """Of two commands that start one at the same time, the link of one ends at once; the other's serves both."""
    from console.starting import START_DEADLINE_S, start_head
    from harness.records.lock import is_held

    try:
        start_head(folder)
    except HeadDied:
        until_s = time.monotonic() + START_DEADLINE_S
        while not head_alive(folder):
            if not is_held(folder) or time.monotonic() > until_s:
                raise
            time.sleep(0.1)


def _chosen(run: str | None, runs: list[RemoteRun], where: str) -> RemoteRun:
    if run is None:
        going_on = [one for one in runs if one.head in ("running", "pending")]
        if not going_on:
            raise NoSuchRun(f"no run is going on in {where}")
        return going_on[0]
    hits = [one for one in runs if run in (one.run, one.instance)] or [one for one in runs if run in one.run]
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise NoSuchRun(
            f"{run!r} fits {len(hits)} runs in {where}: {', '.join(one.run for one in hits[:5])}; give more of the name"
        )
    there = f"there are {', '.join(one.run for one in runs[:5])}" if runs else "there is none"
    raise NoSuchRun(f"no run named {run!r}, neither in {locations.runs()} nor in {where}; there, {there}")


async def _remote_runs(api: Api) -> list[RemoteRun]:
    from harness.cluster.kube.discover import remote_runs

    return await remote_runs(api)


def _way(context: str | None) -> Access:
    from harness.cluster.kube.access import access

    return access(context)


def check_namespace(namespace: str | None) -> None:
    from harness.kubespec import is_namespace

    if namespace is not None and not is_namespace(namespace):
        raise BadInput(f"--namespace {namespace!r}: is no namespace: lower-case letters, digits and '-', at most 63")


def _namespace(namespace: str | None) -> str:
    from harness.kubespec import KubernetesSpec

    check_namespace(namespace)
    return namespace or KubernetesSpec().namespace


def _ask(way: Access, namespace: str, do: Callable[[Api], Awaitable[T]]) -> T:
    from harness.cluster.kube.api import once

    return once(way, do, namespace=namespace, timeout_s=_LOOK_TIMEOUT_S)


def _folders() -> list[RunFolder]:
    from harness.records.layout import list_runs

    return list_runs(locations.runs())


def remote_spec(folder: RunFolder, what: str) -> RunSpec:
    """The spec of a run that is on a cluster. Raises BadInput for any other."""
    from harness.cluster.kube.ending import spec_of

    if placed_on(folder) != "kubernetes":
        raise BadInput(
            f"{what}: the workers of {folder.name} are processes of this machine; {what} is for cluster.kind = kubernetes"
        )
    return spec_of(folder)


def cluster_call(spec: RunSpec, do: Callable[[Api], Awaitable[T]], *, timeout_s: float = 10.0) -> T:
    """Raises ClusterError."""
    from harness.cluster.kube.api import once

    kube = spec.cluster.kubernetes
    return once(_way(kube.context), do, namespace=kube.namespace, timeout_s=timeout_s)
