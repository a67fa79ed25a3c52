"""The end of a run: one object for programs, one page for people, both read from the record alone."""

from __future__ import annotations

from typing import Any

from console.cli.output import clean, number, say, table
from harness.cluster.local import head_alive
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile
from harness.wire.control import JournalEntry
from harness.wire.states import RUN_ENDED

_SHOWN = ("min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max")


def result_of(folder: RunFolder, *, killed: bool = False) -> dict[str, Any]:
    """What `--json` prints. The figures are those of the last attempt; the others stand in `attempts`."""
    import msgspec

    from harness.records.reader import Record, summarise

    record = Record(folder.path)
    try:
        run = record.run
    except RecordError as error:
        return _without_run_json(folder, str(error), killed)
    last = run.attempts[-1] if run.attempts else None
    summary = msgspec.to_builtins(summarise(record, last.number if last else 0))
    rates = {"target_qps": last.target_qps if last else None} | summary["rates"]
    verdict, reasons = verdict_of(run, folder, killed)
    result = {
        "run": folder.name,
        "verdict": verdict,
        "reasons": reasons,
        "phase": run.phase,
        "synthetic": run.synthetic,
        "attempt": last.number if last else None,
        "totals": summary["totals"],
        "rates": rates,
        "ttft_ms": summary["ttft_ms"],
        "tpot_ms": summary["tpot_ms"],
        "latency_ms": summary["latency_ms"],
        "replicas": summary["replicas"],
        "acts": [act(entry) for entry in record.journal() if entry.what.startswith("act.")],
        "attempts": [attempt_row(attempt) for attempt in run.attempts],
        "record": str(folder.path),
        "problems": record.problems,
    }
    return clean(result)  # type: ignore[no-any-return]


def verdict_of(run: RunFile, folder: RunFolder, killed: bool = False) -> tuple[str, list[str]]:
    """The record's verdict; for a run that was never ended, what that means."""
    if run.phase in RUN_ENDED and run.verdict:
        return run.verdict, list(run.reasons)
    if killed:
        return "ABORTED", ["ended at once by a second Ctrl-C; the record holds what was measured until then"]
    if head_alive(folder):
        return run.verdict, list(run.reasons)
    if run.phase in RUN_ENDED:
        return ("ABORTED" if run.phase == "ABORTED" else "CRASHED"), [*run.reasons] or [f"the run ended as {run.phase}"]
    return "CRASHED", [
        *run.reasons,
        f"the head ended in phase {run.phase} without ending the run (its log: {folder.log('head')}); "
        f"`paceline restart-head {folder.name}` takes it up again",
    ]


def _without_run_json(folder: RunFolder, why: str, killed: bool) -> dict[str, Any]:
    empty: dict[str, Any] = {}
    return {
        "run": folder.name, "verdict": "ABORTED" if killed else "CRASHED", "reasons": [why], "phase": "", "synthetic": None,
        "attempt": None, "totals": empty, "rates": empty, "ttft_ms": empty, "tpot_ms": empty, "latency_ms": empty, "replicas": [],
        "acts": [], "attempts": [], "record": str(folder.path), "problems": [why],
    }  # fmt: skip


def attempt_row(attempt: AttemptRecord) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "kind": attempt.kind,
        "scenario": attempt.scenario,
        "target_qps": attempt.target_qps,
        "state": attempt.state,
        "verdict": attempt.verdict,
        "reasons": attempt.reasons,
        "acts": attempt.acts,
        "supersedes": attempt.supersedes or None,
        "started_unix": attempt.started_unix or None,
        "ended_unix": attempt.ended_unix or None,
        "totals": attempt.totals,
        "settings_diff": attempt.settings_diff,
    }


def act(entry: JournalEntry) -> dict[str, Any]:
    return {
        "unix": entry.unix,
        "who": entry.who,
        "act": entry.what.removeprefix("act."),
        "subject": entry.subject,
        "why": entry.why,
        "attempt": entry.attempt,
    }


def say_result(result: dict[str, Any]) -> None:
    synthetic = "  SYNTHETIC: simulated replicas, no hardware was measured" if result["synthetic"] else ""
    acts = f"  ACTS {len(result['acts'])}" if result["acts"] else ""
    say(f"{result['run']}: {result['verdict'] or result['phase'] or 'no verdict'}{acts}{synthetic}")
    for reason in result["reasons"]:
        say(f"  {reason}")
    for attempt in result["attempts"]:
        say(f"  {_attempt_line(attempt, result['reasons'])}")
    if result["totals"].get("issued"):
        _say_figures(result)
        _say_replicas(result["replicas"])
    for problem in result["problems"]:
        say(f"record: {problem}")
    say(f"\nrecord    {result['record']}")


def _attempt_line(attempt: dict[str, Any], told: list[str]) -> str:
    why = f": {'; '.join(attempt['reasons'])}" if attempt["reasons"] and attempt["reasons"] != told else ""
    asked = f"{attempt['kind']} {attempt['scenario']} {attempt['target_qps']:g} QPS"
    return f"attempt {attempt['number']} {asked}  {attempt['verdict'] or attempt['state']}{why}"


def _say_figures(result: dict[str, Any]) -> None:
    totals, rates = result["totals"], result["rates"]
    counted = ("issued", "completed", "failed", "lost", "redispatched")
    say("\nsamples   " + "  ".join(f"{name} {number(totals.get(name))}" for name in counted))
    say(
        f"rates     target {number(rates['target_qps'])}  issued {number(rates['issued_qps'])}  "
        f"completed {number(rates['completed_qps'])} q/s  {number(rates['tokens_per_s'], 0)} tokens/s\n"
    )
    headings = ["ms", *(name.replace("_", ".") for name in _SHOWN)]
    say(table(headings, [_latency_row(result, name) for name in ("ttft", "tpot", "latency")], right=range(1, 9)))


def _latency_row(result: dict[str, Any], name: str) -> list[str]:
    return [name.upper() if name != "latency" else name, *(number(result[f"{name}_ms"].get(key), 2) for key in _SHOWN)]


def _say_replicas(replicas: list[dict[str, Any]], shown: int = 8) -> None:
    """All of a small fleet, else those whose TPOT p99 is worst."""
    if not replicas:
        return
    worst = sorted(replicas, key=lambda row: (-(row["tpot_p99_ms"] or 0.0), row["slot"]))[:shown]
    rows = [
        [
            r["slot"],
            number(r["samples"]),
            number(r["tokens"]),
            number(r["tokens_s"], 0),
            number(r["ttft_p99_ms"]),
            number(r["tpot_p99_ms"], 2),
        ]
        for r in worst
    ]
    say(f"\n{len(replicas)} replicas" + (f", the {shown} with the worst TPOT p99:" if len(replicas) > shown else ":"))
    say(table(["slot", "samples", "tokens", "tokens/s", "TTFT p99 ms", "TPOT p99 ms"], rows, right=range(1, 6)))
