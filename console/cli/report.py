"""The end of a run: one object for programs, one page for people, both read from the record alone.

Figures come from the samples on disk; of an attempt that is still going, the head's own counts where they are ahead.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from console.cli.alerts import alerts_of, say_alerts
from console.cli.errors import BadInput
from console.cli.output import clean, clock, number, plural, say, table, typed, when
from console.cli.placed import cluster_lines, pods_of
from console.cli.story import act_in_words
from harness.cluster.local import head_alive
from harness.records.clusterlog import last_view
from harness.records.errors import RecordError
from harness.records.labels import Labels, read_labels
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, plain
from harness.spec import node_name, place_of
from harness.wire.control import JournalEntry
from harness.wire.states import RUN_ENDED

if TYPE_CHECKING:
    from harness.records.reader import Record

#: Ids of the definitions that explain the page.
FIGURES: Final = (
    "target_qps", "issued_qps", "completed_qps", "tokens_per_s", "duration_s", "loadgen_samples_per_s", "loadgen_tokens_per_s",
    "ttft_ms", "tpot_ms", "latency_ms", "ttft_p99_ms", "head_room", "allowed_over", "tokens_per_user_system",
    "tokens_per_user_p90", "tokens_per_user_turns", "tokens_per_user_median",
)  # fmt: skip
_SHOWN = ("min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max")


def result_of(folder: RunFolder, *, killed: bool = False, number: int | None = None) -> dict[str, Any]:
    """What `--json` prints. The figures are those of attempt `number` (default: the last); all stand in `attempts`."""
    import msgspec

    from harness.metrics.gpu.summary import summarise_gpus
    from harness.records.reader import Record, summarise

    record = Record(folder.path)
    try:
        run = record.run
    except RecordError as error:
        return _without_run_json(folder, str(error), killed)
    shown = _attempt(run, number)
    summary = msgspec.to_builtins(summarise(record, shown.number if shown else 0))
    if run.imported is not None and shown is not None:
        _add_told(summary, shown)
    verdict, reasons = verdict_of(run, folder, killed)
    told = _drilled(record, shown)
    view = last_view(folder.cluster)
    hosts = {node_name(row.node): row.host for row in view.pods if row.host} if view is not None else {}
    journal = record.journal()
    result = {
        "run": folder.name,
        "verdict": verdict,
        "reasons": reasons,
        "phase": run.phase,
        "synthetic": run.synthetic,
        "attempt": shown.number if shown else None,
        "totals": _totals(summary["totals"], shown, live=head_alive(folder)),
        "rates": {"target_qps": shown.target_qps if shown else None} | summary["rates"],
        "ttft_ms": summary["ttft_ms"],
        "tpot_ms": summary["tpot_ms"],
        "latency_ms": summary["latency_ms"],
        **told,
        "loadgen": shown.loadgen if shown else {},
        "replicas": [row | {"host": _host_of(row["slot"], hosts)} for row in summary["replicas"]],
        "cluster": pods_of(view),
        "gpu_metrics": [asdict(one) for one in summarise_gpus(record, shown.number if shown else None)],
        "alerts": alerts_of(journal, goes_on=head_alive(folder)),
        "acts": [act(entry) for entry in journal if entry.what.startswith("act.")],
        "attempts": [attempt_row(attempt) for attempt in run.attempts],
        "imported": run.imported,
        "labels": _labels(record),
        "record": str(folder.path),
        "problems": record.problems,
    }
    return clean(msgspec.to_builtins(result, enc_hook=plain))  # type: ignore[no-any-return]


def _add_told(summary: dict[str, Any], attempt: AttemptRecord) -> None:
    """Of somebody else's run the samples may be missing, or their tokens: then its files' own figures stand."""
    tokens = summary["totals"]["tokens"]
    summary["totals"]["lost"] = 0  # what its files call so is in the attempt's totals
    for name, known in (("rates", attempt.rates), *((f"{one}_ms", getattr(attempt, f"{one}_ms")) for one in _LATENCIES)):
        summary[name] |= {key: value for key, value in known.items() if summary[name].get(key) is None}
    if not tokens:
        summary["rates"]["tokens_per_s"] = attempt.rates.get("tokens_per_s")


_LATENCIES: Final = ("ttft", "tpot", "latency")


def _host_of(slot: str, hosts: dict[str, str]) -> str | None:
    """None for the name that an import gave to what served it."""
    try:
        return hosts.get(node_name(place_of(slot)[0]))
    except ValueError:
        return None


_NOT_DRILLED: Final[dict[str, Any]] = {"margins": [], "findings": [], "ttft_parts": [], "tokens_per_user": [], "kernels": []}


def _drilled(record: Record, attempt: AttemptRecord | None) -> dict[str, Any]:
    """How far from its limits, what to look at, and what TTFT is made of."""
    from harness.analysis.drill import Drill
    from harness.analysis.users import tokens_per_user
    from harness.imports.endpoints_summary import CONCURRENCY

    if attempt is None:
        return _NOT_DRILLED
    drill = Drill(record, attempt.number)
    seen = drill.overview()
    parts = drill.tail("ttft").parts
    fixed = attempt.settings_effective.get(CONCURRENCY)  # of a run of mlcommons/endpoints
    per_user = tokens_per_user(attempt, float(fixed) if isinstance(fixed, int | float) else None)
    said = {"margins": seen.margins, "findings": seen.findings, "ttft_parts": parts, "tokens_per_user": per_user}
    return {**said, "kernels": [asdict(one) for one in drill.kernels()]}


def _labels(record: Record) -> Labels:
    try:
        return read_labels(record.folder)
    except RecordError as error:
        record.problems.append(str(error))
        return Labels()


def _attempt(run: RunFile, number: int | None) -> AttemptRecord | None:
    if number is None:
        return run.attempts[-1] if run.attempts else None
    for attempt in run.attempts:
        if attempt.number == number:
            return attempt
    there = ", ".join(str(attempt.number) for attempt in run.attempts) or "none"
    raise BadInput(f"{run.run} has no attempt {number}; it has {there}")


def _totals(counted: dict[str, int], attempt: AttemptRecord | None, *, live: bool) -> dict[str, int]:
    """Rows reach the disk a little after the head has counted them. What is issued and neither completed nor failed is
    in flight while the attempt goes on, and lost after it."""
    if attempt is None:
        return counted
    totals = {name: max(n, attempt.totals.get(name, 0)) for name, n in counted.items()}
    open_samples = max(0, totals["issued"] - totals["completed"] - totals["failed"])
    if attempt.state != "ENDED":
        return totals | ({"lost": 0, "in_flight": open_samples} if live else {"lost": open_samples})
    # what only lacks its row, in a chunk that cannot be read, was not lost
    return totals | {"lost": min(totals["lost"], max(open_samples, attempt.totals.get("lost", 0)))}


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
        f"`{typed(f'restart-head {folder.name}')}` takes it up again",
    ]


def _without_run_json(folder: RunFolder, why: str, killed: bool) -> dict[str, Any]:
    empty: dict[str, Any] = {}
    return {
        "run": folder.name, "verdict": "ABORTED" if killed else "CRASHED", "reasons": [why], "phase": "", "synthetic": None,
        "attempt": None, "totals": empty, "rates": empty, "ttft_ms": empty, "tpot_ms": empty, "latency_ms": empty, **_NOT_DRILLED,
        "loadgen": empty, "replicas": [], "cluster": None, "gpu_metrics": [], "alerts": [], "acts": [], "attempts": [],
        "imported": None, "labels": {"tags": [], "note": "", "pinned": False},
        "record": str(folder.path), "problems": [why],
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
        "completed_qps": attempt.rates.get("completed_qps", attempt.results.get("completed_qps")),
        "tokens_per_s": attempt.rates.get("tokens_per_s", attempt.results.get("tokens_per_s")),
        "ttft_p99_ms": attempt.ttft_ms.get("p99", attempt.results.get("ttft_p99_ms")),
        "tpot_p99_ms": attempt.tpot_ms.get("p99", attempt.results.get("tpot_p99_ms")),
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
        "before": entry.before,
        "after": entry.after,
        "why": entry.why,
        "attempt": entry.attempt,
        "data": entry.data,
    }


def say_result(result: dict[str, Any]) -> None:
    synthetic = "  SYNTHETIC: simulated replicas, no hardware was measured" if result["synthetic"] else ""
    counted = sum(attempt["acts"] for attempt in result["attempts"])
    acts = f"  ACTS {counted}" if counted else ""
    say(f"{result['run']}: {result['verdict'] or result['phase'] or 'no verdict'}{acts}{synthetic}")
    for reason in result["reasons"]:
        say(f"  {reason}")
    _say_beside(result["labels"], result["imported"])
    for attempt in result["attempts"]:
        say(f"  {_attempt_line(attempt, result['reasons'])}")
    for line in cluster_lines(result["cluster"]):
        say(line)
    if result["totals"].get("issued"):
        if len(result["attempts"]) > 1:
            say(f"\nattempt {result['attempt']} (--attempt N shows another)")
        _say_figures(result)
        _say_drilled(result)
        _say_replicas(result["replicas"])
    if result["kernels"]:
        from console.cli.view_words import kernel_lines

        say("\n" + "\n".join(kernel_lines(result["kernels"])))
    _say_gpus(result["gpu_metrics"], result["run"])
    say_alerts(result["alerts"], result["run"])
    _say_acts(result["acts"], counted)
    for problem in result["problems"]:
        say(f"record: {problem}")
    say(f"\nrecord    {result['record']}")


def _say_beside(labels: dict[str, Any], imported: dict[str, Any] | None) -> None:
    said = [*(["pinned"] if labels["pinned"] else []), *(f"#{tag}" for tag in labels["tags"]), labels["note"]]
    if any(said):
        say(f"  {' '.join(said).strip()}")
    if imported:
        say(f"  imported from {imported['kind']} files: {imported['source']}")
        for missing in imported["missing"]:
            say(f"    not known: {missing}")


def _attempt_line(attempt: dict[str, Any], told: list[str]) -> str:
    why = f": {'; '.join(attempt['reasons'])}" if attempt["reasons"] and attempt["reasons"] != told else ""
    asked = f"{attempt['kind']} {attempt['scenario']} {attempt['target_qps']:g} QPS"
    acts = f" ACTS {attempt['acts']}" if attempt["acts"] else ""
    figures = [
        f"{name} {number(attempt[key], digits)} {unit}".strip()
        for name, key, digits, unit in _LINE_FIGURES
        if attempt[key] is not None
    ]
    said = f"  ({', '.join(figures)})" if figures else ""
    return f"attempt {attempt['number']} {asked}  {attempt['verdict'] or attempt['state']}{acts}{said}{why}"


_LINE_FIGURES = (
    ("completed", "completed_qps", 1, "q/s"),
    ("output", "tokens_per_s", 0, "tokens/s"),
    ("TTFT p99", "ttft_p99_ms", 1, "ms"),
    ("TPOT p99", "tpot_p99_ms", 1, "ms"),
)


def _say_figures(result: dict[str, Any]) -> None:
    totals, rates, loadgen = result["totals"], result["rates"], result["loadgen"]
    counted = [name for name in ("issued", "completed", "in_flight", "failed", "lost", "redispatched") if name in totals]
    ended = next((a["verdict"] for a in result["attempts"] if a["number"] == result["attempt"]), "")
    # what an attempt leaves behind that was ended on purpose is not lost
    called = {"in_flight": "in flight", "lost": "unfinished" if ended in ("SUPERSEDED", "ABORTED") else "lost"}
    say("\nsamples   " + "  ".join(f"{called.get(name, name)} {number(totals[name])}" for name in counted))
    say(
        f"rates     target {number(rates['target_qps'])}  issued {number(rates['issued_qps'])}  "
        f"completed {number(rates['completed_qps'])} q/s  {number(rates['tokens_per_s'], 0)} output tokens/s "
        f"over {clock(rates['duration_s'])}, to the last completion"
    )
    if loadgen.get("samples_per_s") is not None:
        tokens = f"  {number(loadgen['tokens_per_s'], 0)} output tokens/s" if loadgen.get("tokens_per_s") is not None else ""
        say(f"LoadGen   completed {number(float(loadgen['samples_per_s']))} samples/s{tokens} by its own log")
    say()
    headings = ["ms", *(name.replace("_", ".") for name in _SHOWN)]
    say(table(headings, [_latency_row(result, name) for name in ("ttft", "tpot", "latency")], right=range(1, 9)))


def _say_drilled(result: dict[str, Any]) -> None:
    """What the views say in more words (`--view`)."""
    import msgspec

    from console.cli.view_words import finding_lines, margin_lines, part_words
    from harness.analysis.views import Finding, Margin, PartShare

    margins, findings, parts = (
        msgspec.convert(result[key], list[kind])  # type: ignore[valid-type]
        for key, kind in (("margins", Margin), ("findings", Finding), ("ttft_parts", PartShare))
    )
    for line in margin_lines(margins):
        say(line)
    if parts:
        say(f"\nTTFT      {part_words(parts)}")
    users = [one for one in result["tokens_per_user"] if one["value"] is not None]
    if users:
        say("output tokens/s/user, by definition (--explain says more)")
        for one in users:
            remark = f"  ({one['remark']})" if one["remark"] else ""
            say(f"  {number(one['value']):>8}  {one['title'].partition(': ')[2] or one['title']}{remark}")
    for line in finding_lines(findings, result["run"]):
        say(line)


#: Those of which a result says a word; `paceline metrics` has all.
_GPU_ROLES = ("power", "junction_temp", "clock_ratio", "throttle_power", "throttle_thermal", "ecc_uncorrectable")


def _say_gpus(roles: list[dict[str, Any]], run: str) -> None:
    """A line for each role that an operator looks at first, without what did not happen."""
    from console.cli.metric_pages import figure, unit_of

    told = [row for row in roles if row["role"] in _GPU_ROLES and not _uneventful(row)]
    if not told:
        return
    gpus = max(row["gpus"] for row in told)
    say(f"\nGPUs      {plural(gpus, 'GPU')} with metrics ({typed(f'metrics {run}')} has all of them)")
    for row in told:
        unit = unit_of(row["unit"])
        if row["count"]:
            said = f"{figure(row['grew'], row['unit'])} new"
        else:
            p50, low, high = (figure(row[key], row["unit"]) for key in ("p50", "min", "max"))
            said = f"p50 {p50} {unit}, {low} to {high}"
        worst = "  ".join(f"{slot} {figure(value, row['unit'])}" for slot, value in row["worst"])
        say(f"  {row['title']}: {said}" + (f"; worst {worst}" if worst else ""))


def _uneventful(row: dict[str, Any]) -> bool:
    return not row["grew"] if row["count"] else row["role"].startswith("throttle") and row["max"] < 0.005


def _say_acts(acts: list[dict[str, Any]], counted: int) -> None:
    if not acts:
        return
    say("\nacts")
    for entry in acts:
        at = f"attempt {entry['attempt']}  " if entry["attempt"] else ""
        told = {name: entry[name] for name in ("subject", "why", "before", "after", "data")}
        say(f"  {when(entry['unix'])}  {at}{act_in_words(entry['act'], entry['who'], **told)}")
    if counted:
        say(
            f"  ACTS {counted}: {plural(counted, 'act')} touched attempts. Drains and readmits leave VALID possible, as load "
            "balancing may do them; every other act rules it out for its attempt."
        )


def _latency_row(result: dict[str, Any], name: str) -> list[str]:
    return [name.upper() if name != "latency" else name, *(number(result[f"{name}_ms"].get(key), 2) for key in _SHOWN)]


def _say_replicas(replicas: list[dict[str, Any]], shown: int = 8) -> None:
    """All of a small fleet, else those whose TPOT p99 is worst."""
    if not replicas:
        return
    on_hosts = any(row["host"] for row in replicas)
    worst = sorted(replicas, key=lambda row: (-(row["tpot_p99_ms"] or 0.0), row["slot"]))[:shown]
    rows = [
        [
            r["slot"],
            *([r["host"] or "-"] if on_hosts else []),
            number(r["samples"]),
            number(r["tokens"]),
            number(r["tokens_s"], 0),
            number(r["ttft_p99_ms"]),
            number(r["tpot_p99_ms"], 2),
        ]
        for r in worst
    ]
    say(f"\n{plural(len(replicas), 'replica')}" + (f", the {shown} with the worst TPOT p99:" if len(replicas) > shown else ":"))
    texts = ["slot", *(["host"] if on_hosts else [])]
    figures = ["samples", "tokens", "tokens/s", "TTFT p99 ms", "TPOT p99 ms"]
    say(table([*texts, *figures], rows, right=range(len(texts), len(texts) + len(figures))))
