"""`paceline status`: one look at a run, from its head where it lives, else from its record."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from console.cli.errors import NOT_VALID, OK
from console.cli.found import any_run, phase_in_words
from console.cli.output import clean, say, say_json, typed, when
from console.cli.remote import copied_until_unix, is_followed, why_gone
from console.cli.story import in_words
from harness.cluster.local import head_alive, placed_on
from harness.records.layout import RunFolder
from harness.records.runfile import RunFile, read_run
from harness.wire.states import ALIVE, RUN_ENDED

_LISTEN_S = 3.0


def status(
    run: str | None = None,
    /,
    *,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object")] = False,
) -> int:
    """Phase, ready replicas and rates of a run now; of one that has ended, how. Exits with 1 if its head is gone."""
    folder = any_run(run)
    if head_alive(folder):
        _live(folder, json)
        return OK
    run_file = read_run(folder.path)
    _without_head(folder, run_file, json)
    return OK if run_file.phase in RUN_ENDED else NOT_VALID


def _without_head(folder: RunFolder, run: RunFile, as_json: bool) -> None:
    phase = phase_in_words(run, folder)
    if as_json:
        facts = {"run": folder.name, "live": False, "phase": phase, "verdict": run.verdict, "reasons": run.reasons}
        facts |= {"link": "dead" if is_followed(folder) else "ended"} if placed_on(folder) == "kubernetes" else {}
        say_json(facts | {"started_unix": run.started_unix, "ended_unix": run.ended_unix or None, "record": str(folder.path)})
        return
    say(f"{folder.name}: {phase}{f' {run.verdict}' if run.verdict not in ('', phase) else ''}")
    for reason in run.reasons:
        say(f"  {reason}")
    show = typed(f"show {folder.name}")
    if run.phase in RUN_ENDED:
        say(f"  started {when(run.started_unix)}, ended {when(run.ended_unix)}; `{show}` has the figures")
    elif is_followed(folder):
        copied = when(copied_until_unix(folder))
        say(f"  its link to the cluster is dead, the record is copied until {copied}; the run may go on without it")
        say(f"  `{typed(f'attach {folder.name}')}` starts it again from there; `{show}` has the figures until then")
    elif placed_on(folder) == "kubernetes":
        say(f"  no longer on its cluster{why_gone(folder)}; `{show}` has what was copied of its figures")
    else:
        say(f"  head gone; `{typed(f'restart-head {folder.name}')}` starts a new one on the warm fleet")
        say(f"  started {when(run.started_unix)}; `{show}` has the figures until then")


def _live(folder: RunFolder, as_json: bool) -> None:
    from console.cli.progress import eta_s, progress_line, role_line
    from console.cli.view_words import kernel_lines
    from console.store.compare import as_told
    from console.store.tables import other_kernels
    from harness.metrics.kernels import in_use, odd_ones, splits, summary
    from harness.wire.client import HeadClient, HeadUnreachable, Telemetry
    from harness.wire.control import FleetSnapshot

    with HeadClient.of_run(folder.path) as head:
        state = head.state(journal_tail=5)
    telemetry = Telemetry.of_run(folder.path, timeout_s=0.5)
    until_s = time.monotonic() + _LISTEN_S
    fleet: FleetSnapshot | None = None
    try:
        for message in telemetry:
            if isinstance(message, FleetSnapshot):
                fleet = message
                break
            if time.monotonic() > until_s:
                raise HeadUnreachable(f"{folder.name}: the head answers, but published nothing for {_LISTEN_S:g} s")
    finally:
        telemetry.close()
    assert fleet is not None
    replicas = [as_told(info) for info in state.slots if info.state in ALIVE]
    odd, kernels = odd_ones(replicas), [asdict(one) for one in in_use(one.facts for one in replicas)]
    if as_json:
        told = {"kernels": kernels, "other_kernels": other_kernels(odd), "split_kernels": splits(replicas), "eta_s": eta_s(fleet)}
        say_json(_facts(folder, fleet, state.controller) | told)
        return
    synthetic = "  SYNTHETIC" if fleet.synthetic else ""
    say(f"{folder.name}{synthetic}  started {when(state.started_unix)}  controller {state.controller or 'nobody'}")
    say(f"  {progress_line(fleet, shutil.get_terminal_size().columns - 2 if sys.stdout.isatty() else None)}")
    for view in fleet.roles:
        say(f"  {role_line(view)}")
    for line in kernel_lines(kernels):
        say(f"  {line}")
    for line, first in summary(odd).items():
        say(f"  {line}; first {first.slot}: {first.cause}")
    for line in splits(replicas):
        say(f"  {line}")
    for entry in state.journal:
        say(f"  {when(entry.unix)}  {in_words(entry)}")


def _facts(folder: RunFolder, fleet: Any, controller: str) -> dict[str, Any]:
    import msgspec

    same = (
        "phase", "attempt", "attempt_kind", "attempt_state", "scenario", "mechanism", "target_qps", "paused", "elapsed_s",
        "duration_s", "min_queries", "straggler_note", "issued", "completed", "redispatched", "failed", "in_flight", "backlog",
        "offered_qps", "completed_qps", "tokens_per_s", "counts", "missing", "missing_total", "slow", "slow_nodes",
        "fleet_slow", "acts", "policy", "synthetic",
    )  # fmt: skip
    facts = {name: getattr(fleet, name) for name in same}
    facts |= {"roles": msgspec.to_builtins(fleet.roles)} if fleet.roles else {}
    watched = {"ttft": msgspec.to_builtins(fleet.ttft), "tpot": msgspec.to_builtins(fleet.tpot)}
    whole = {"run": folder.name, "live": True, **facts, **watched, "controller": controller, "record": str(folder.path)}
    return clean(whole)  # type: ignore[no-any-return]
