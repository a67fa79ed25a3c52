"""`paceline metrics`: a run's GPU metrics from its record, more of them from a Prometheus, and any PromQL over its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from console.cli.errors import BadInput
from console.cli.found import any_run
from harness.metrics.gpu.roles import ROLES

Overrides = Annotated[
    list[str],
    Parameter(
        name=["--set", "-s"], negative="", help="Another value for a field of the run's metrics.gpu: -s bearer_file=~/token"
    ),
]


def metrics(
    run: str | None = None,
    /,
    *,
    attempt: Annotated[int | None, Parameter(help="Of this attempt only (default: the whole run)")] = None,
    fetch: Annotated[
        bool, Parameter(negative="", help="Fetch the run's time from its Prometheus (or --url) into the record first")
    ] = False,
    url: Annotated[str | None, Parameter(help="The Prometheus to ask (the run's metrics.gpu.url)")] = None,
    overrides: Overrides = [],  # noqa: B006 - cyclopts reads it, nobody writes it
    query: Annotated[str | None, Parameter(help="PromQL to ask over the run's time")] = None,
    start: Annotated[
        str | None, Parameter(help="From when: 2026-11-30T10:00:00, seconds since 1970, or +90s after the start")
    ] = None,
    end: Annotated[str | None, Parameter(help="Until when, likewise (the end)")] = None,
    step: Annotated[float | None, Parameter(help="Seconds between two points")] = None,
    role: Annotated[str | None, Parameter(help="The course of this role: power, junction_temp, …")] = None,
    slot: Annotated[str | None, Parameter(help="With --role: of this replica, as in node003/gpu1 (all)")] = None,
    out: Annotated[str | None, Parameter(help="Write what was found to this file: .csv, .parquet or .json")] = None,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object")] = False,
) -> int:
    """GPU metrics of a run: power, clocks, temperature, throttling, memory and errors, from its record.

    With --fetch what the record lacks is fetched from the Prometheus that has it, for runs that nobody watched. With --query
    any PromQL is asked over the run's time. Every other option says of which part, and where to.
    """
    _fit(fetch=fetch, url=url, overrides=overrides, query=query, start=start, end=end, step=step, role=role, slot=slot)
    from console.cli import metric_pages, promql
    from console.cli.asked_for import out_file, source_of
    from harness.records.runfile import read_run

    target = None if out is None else out_file(out)
    folder = any_run(run)
    file = read_run(folder.path)
    done = None
    if fetch or query is not None:
        first, last = metric_pages.span(file, attempt, start, end)
        source = source_of(file, url, overrides)
        if query is not None:
            return promql.ask(folder, source, query, first, last, step, target, as_json=json)
        done = metric_pages.fetch(folder, source, first, last, step)
    elif attempt is not None:
        metric_pages.span(file, attempt, None, None)  # refuses one that is not there
    if role is not None:
        return metric_pages.course(folder, role, slot, attempt, target, as_json=json)
    return metric_pages.overview(folder, file, attempt, done, target, as_json=json)


def _fit(
    *, fetch: bool, url: str | None, overrides: Sequence[str], query: str | None, start: str | None, end: str | None,
    step: float | None, role: str | None, slot: str | None,
) -> None:  # fmt: skip
    asking = fetch or query is not None
    if fetch and query is not None:
        raise BadInput("metrics: --fetch puts roles into the record, --query asks a question: use one or the other")
    for name, given in (("--url", url), ("-s", overrides), ("--start", start), ("--end", end), ("--step", step)):
        if given and not asking:
            raise BadInput(f"metrics: {name} goes with --fetch or --query")
    if query is not None and not query.strip():
        raise BadInput("metrics: --query is empty; it takes PromQL, as in 'sum(gpu_package_power)'")
    if query is not None and role is not None:
        raise BadInput("metrics: --role shows what is recorded, --query asks a Prometheus: use one or the other")
    if slot is not None and role is None:
        raise BadInput("metrics: --slot goes with --role, as in --role power --slot node003/gpu1")
    if role is not None and role not in ROLES:
        raise BadInput(f"metrics: there is no role {role!r}; roles are {', '.join(ROLES)}")
    if step is not None and not 0 < step <= 86_400:
        raise BadInput(f"metrics: --step {step:g} must be more than 0 and at most 86400 seconds")
