"""`paceline doctor`: will this machine carry a run?"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from console import locations
from console.cli.errors import NOT_VALID, OK
from console.cli.output import plural, say, say_json
from harness.cluster.kube.kubeconfig import has_kubeconfig
from harness.doctor import Check

_MARKS = {True: "ok  ", False: "FAIL", None: "note"}


def doctor(*, json: Annotated[bool, Parameter(name="--json", negative="", help="Print a list of checks")] = False) -> int:
    """Check this machine: versions, LoadGen, open files, ports, disk, clock, terminal, engines. Exits with 1 if one fails."""
    from harness.doctor import examine

    checks = [*examine(locations.runs()), *_cluster()]
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


def _cluster() -> list[Check]:
    """One line, only for those who have a kubeconfig: the others need not wait for the import."""
    if not has_kubeconfig():
        return []
    from harness.cluster.kube.preflight import reachable

    found = reachable()
    return [found] if found is not None else []
