"""Ending a run on a cluster from its local folder, without asking its head."""

from __future__ import annotations

import contextlib

from pydantic import ValidationError

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.access import access
from harness.cluster.kube.api import ApiProblem, once
from harness.cluster.kube.linkfile import LinkFile, read_link, write_link
from harness.cluster.kube.removal import ask_to_go
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.spec import RunSpec


def spec_of(folder: RunFolder) -> RunSpec:
    """Raises ClusterError."""
    try:
        return RunSpec.model_validate_json(folder.spec_json.read_bytes())
    except OSError as error:
        raise ClusterError(f"{folder.spec_json} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ClusterError(f"{folder.spec_json}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def remove_at_once(folder: RunFolder) -> None:
    """One request; the cluster does the rest, within the pods' grace. Raises ClusterError: the run may go on."""
    about = read_link(folder)
    if about is not None and about.cleaned:
        return
    kube = spec_of(folder).cluster.kubernetes
    instance = names.instance_of(folder.name)
    try:
        once(access(kube.context), lambda api: ask_to_go(api, instance), namespace=kube.namespace)
    except ApiProblem as problem:
        raise ClusterError(
            f"{problem}; the run may still go on in namespace {kube.namespace}: `paceline clean-up {folder.name}` removes it"
        ) from problem
    why = "ended at once, before its record was whole"
    with contextlib.suppress(RecordError):  # a full disk must not hide why the run was ended
        write_link(folder, LinkFile("gone", about is None or about.started_here, why))
