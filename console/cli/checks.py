"""`paceline doctor`: will this machine carry a run?"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from console import locations
from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.output import plural, say, say_json
from harness.cluster.kube.kubeconfig import has_kubeconfig
from harness.doctor import Check

_MARKS = {True: "ok  ", False: "FAIL", None: "note"}


def doctor(
    spec: Annotated[str | None, Parameter(help="Check its engine and its source of GPU metrics too")] = None,
    /,
    *,
    overrides: Annotated[
        list[str],
        Parameter(name=["--set", "-s"], negative="", help="Override a field of SPEC: -s metrics.gpu.url=http://HOST:9090"),
    ] = [],  # noqa: B006 - cyclopts reads it, nobody writes it
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print a list of checks")] = False,
) -> int:
    """Check this machine: versions, LoadGen, open files, ports, disk, clock, terminal, engines; with a SPEC (a profile, or a TOML
    file) also whether its engine can start and its GPU metrics are there. Exits with 1 if one fails."""
    from harness.doctor import examine
    from harness.metrics.gpu.preflight import prometheus

    if overrides and spec is None:
        raise BadInput("doctor: -s goes with a SPEC, whose fields it overrides")
    of_spec = _of_spec(spec, overrides) if spec is not None else []
    checks = [*examine(locations.runs()), prometheus(), *_cluster(), *of_spec]
    if json:
        say_json([{"name": c.name, "ok": c.ok, "detail": c.detail, "fix": c.fix} for c in checks])
    else:
        width = max(len(c.name) for c in checks)
        for check in checks:
            say(f"{_MARKS[check.ok]}  {check.name:<{width}}  {check.detail}")
            if check.fix and check.ok is not True:
                say(f"{'':<{width + 6}}  → {check.fix}")
        failed = [c.name for c in checks if c.ok is False]
        say(f"\n{plural(len(checks), 'check')}, {len(failed)} failed" + (f": {', '.join(failed)}" if failed else ""))
    return NOT_VALID if any(check.ok is False for check in checks) else OK


def _of_spec(which: str, overrides: list[str]) -> list[Check]:
    from harness import doctor as examiner
    from harness.metrics.gpu.preflight import gpu_metrics, own_page
    from harness.specfile import load_spec

    spec = load_spec(which, overrides)
    own = []
    if spec.cluster.kind != "kubernetes":
        kernels = examiner.kernels(spec.fleet.kernels, spec.fleet.python)
        own = [examiner.engine(spec.fleet.engine, spec.fleet.python), *([kernels] if kernels is not None else [])]
    page = own_page(spec)
    return [*own, gpu_metrics(spec), *([page] if page is not None else [])]


def _cluster() -> list[Check]:
    """One line, only for those who have a kubeconfig: the others need not wait for the import."""
    if not has_kubeconfig():
        return []
    from harness.cluster.kube.preflight import reachable

    found = reachable()
    return [found] if found is not None else []
