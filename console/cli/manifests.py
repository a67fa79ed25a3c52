"""`paceline manifests`: the Kubernetes objects of a run, for whoever applies them with tools of their own."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from console.cli.errors import OK, BadInput
from console.cli.output import note, say, say_json
from console.cli.start import Overrides


def manifests(
    spec: Annotated[str, Parameter(help="Profile (see `paceline profiles`) or TOML file")],
    /,
    *,
    overrides: Overrides = [],  # noqa: B006 - cyclopts reads it, nobody writes it
    run: Annotated[str | None, Parameter(help="Name of the run, of which the objects' names are made (the spec's name)")] = None,
    with_keys: Annotated[
        bool, Parameter(negative="", help="Also the Secrets, with fresh keys: whoever reads the output can operate the run")
    ] = False,
    only_keys: Annotated[bool, Parameter(negative="", help="Nothing but the Secrets, with fresh keys")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON List instead of YAML")] = False,
) -> int:
    """Print the Kubernetes objects of a run, as `paceline run` would make them; asks no cluster and changes nothing."""
    from harness.specfile import load_spec

    asked = load_spec(spec, ["cluster.kind=kubernetes", *overrides])
    if asked.cluster.kind != "kubernetes":
        raise BadInput(f"manifests: -s cluster.kind={asked.cluster.kind} has no Kubernetes objects; leave it out")
    from harness.cluster.base import ClusterError
    from harness.cluster.kube.render import Features, as_yaml, render
    from harness.wire.keys import ServerKeys

    name = run if run is not None else asked.name
    keys = ServerKeys.fresh() if with_keys or only_keys else None
    try:
        objects = render(asked, name, keys=keys, features=Features.asked_for(asked))
    except ClusterError as error:
        raise BadInput(f"manifests: {error}") from error
    if only_keys:
        objects = [thing for thing in objects if thing["kind"] == "Secret"]
    if json:
        say_json({"apiVersion": "v1", "kind": "List", "items": objects})
    else:
        say(as_yaml(objects).rstrip("\n"))
    if keys is None:
        note(f"{name}: the keys are missing on purpose; `--with-keys` prints their Secrets too, `--only-keys` nothing else")
    return OK
