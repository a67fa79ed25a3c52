"""The processes of a run: entry points that a head or a cluster starts, seldom a person."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from console.cli.errors import BadInput


def head(
    *,
    run: Annotated[Path, Parameter(help="Run folder with a spec.json")],
    spec: Annotated[Path | None, Parameter(help="In a pod: the spec to put into a run folder that is made if need be")] = None,
    keys: Annotated[Path | None, Parameter(help="In a pod: folder with the run's keys, mounted from a Secret")] = None,
) -> int:
    """Supervise the run of a folder until it ends."""
    from harness.head.main import run_head
    from harness.head.podfolder import CannotUse, make_folder

    if (spec is None) != (keys is None):
        raise BadInput("head: --spec and --keys go together; a run folder of this machine holds both itself")
    if spec is not None and keys is not None:
        try:
            make_folder(run, spec, keys)
        except CannotUse as error:
            raise BadInput(f"head: {error}") from error
    if not (run / "spec.json").is_file():
        raise BadInput(f"head: {run} is not a run folder (spec.json is missing)")
    return run_head(run)


def worker(
    *,
    head: Annotated[str, Parameter(help="Control endpoint of the head, tcp://host:port")],
    keys: Annotated[Path, Parameter(help="Folder with worker.key")],
    nodes: Annotated[str, Parameter(help="Nodes this worker stands for: 3 or 0-15 or 0,2,5-7")],
    name: Annotated[str, Parameter(help="Its name in the roster and the journal")],
    logs: Annotated[Path, Parameter(help="Folder for the logs of its replicas")],
    echo_logs: Annotated[bool, Parameter(negative="", help="In a pod: its replicas' lines on its own output too")] = False,
    ready_file: Annotated[Path | None, Parameter(help="In a pod: a file that is there while the head knows it")] = None,
) -> int:
    """Run the replicas of one or more nodes for a head."""
    numbers = parse_nodes(nodes)
    from harness.worker.main import run_worker

    return run_worker(head=head, keys=keys, nodes=numbers, name=name, logs=logs, echo_logs=echo_logs, ready_file=ready_file)


def parse_nodes(text: str) -> list[int]:
    """`0,2,5-7` → [0, 2, 5, 6, 7]."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise BadInput(f"--nodes: {part.strip()!r} is neither a node number nor a range like 0-15")
        numbers.update(range(int(first), int(last or first) + 1))
    return sorted(numbers)
