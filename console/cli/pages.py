"""A screen's tables as a page of text: aligned, as wide as it may be, readable without colour.

Made from the same rows as `--json`, not from what a terminal shows. Where the width is short whole columns go, least
needed first; no number is ever cut, and no path. Escape codes (bold headings) only when asked for.
"""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from console.cli.gpu_pages import GPU_COLUMNS, NODE_GPU_COLUMNS, gpu_lines, gpus_of_replica
from console.cli.page import Column, Page
from console.cli.pod_pages import cluster_lines, nodes_in_trouble, on_cluster, why
from console.cli.story import in_words
from console.store.tables import Row, Tables
from console.widgets import fmt
from harness.wire.control import JournalEntry

FAULTS_SHOWN: Final = 12

# --- what stands in a cell ---------------------------------------------------------------------------------


def _number(row: Row, key: str) -> float:
    value = row.get(key)
    return math.nan if value is None else float(value)


def _as(key: str, write: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: write(_number(row, key))


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(key) or "")


def _decimals(digits: int) -> Callable[[float], str]:
    return lambda value: fmt.UNKNOWN if math.isnan(value) else f"{value:,.{digits}f}"


def _at(key: str, pattern: str) -> Callable[[Row], str]:
    return lambda row: time.strftime(pattern, time.localtime(row[key])) if row.get(key) else fmt.UNKNOWN


# --- pages -------------------------------------------------------------------------------------------------


def heading(page: Page, run: Row) -> None:
    """Which run, how it stands, how old the picture is."""
    synthetic = "  SYNTHETIC" if run["synthetic"] else ""
    page.title(f"{run['run']}{synthetic}  {run['phase']}")
    if run["attempt"] is not None:
        verdict = run["verdict"] or run["attempt_state"] or "without a verdict"
        page.line(f"attempt {run['attempt']} {run['kind']} {run['scenario']}: {verdict}", _acts(run["acts"]), *_clock(run))
    for reason in run["reasons"]:
        page.prose(reason)
    heard = run["heard_s_ago"]
    silent = {"stale": "HEAD SILENT", "lost": "HEAD LOST"}.get(run["link"], "")
    page.line(
        f"{silent}, heard {heard:.0f} s ago".lstrip(", ") if heard is not None and run["link"] != "connecting" else "",
        f"controller {run['controller'] or 'nobody'}" if run["link"] != "ended" else "",
        f"record {run['record']}" if run["record"] else "",
    )


def _acts(number: int) -> str:
    return f"ACTS {number}" if number else ""


def _clock(run: Row) -> list[str]:
    if run.get("elapsed_s") is None or run["attempt_state"] in ("", "ENDED"):
        return []
    of = f" of {fmt.clock(run['planned_s'])}" if run["planned_s"] else ""
    left = f"about {fmt.clock(run['eta_s'])} left" if run["eta_s"] else ""
    fractions = [
        f"minimum {name} {fmt.percent(run[key])}"
        for name, key in (("duration", "duration_done_fraction"), ("queries", "queries_done_fraction"))
        if run[key] is not None
    ]
    return [f"{fmt.clock(run['elapsed_s'])}{of}", left, *fractions, "PAUSED" if run["paused"] else ""]


def live_page(page: Page, tables: Tables) -> None:
    run = tables["run"][0]
    heading(page, run)
    cluster_lines(page, tables)
    if tables["sla"]:
        page.title("SLA")
        page.table(SLA_COLUMNS, tables["sla"])
    for load in tables["load"]:
        page.title(f"Load, last {load['rate_window_s']:.0f} s")
        _load_lines(page, load)
    if tables.get("roles"):
        page.title(f"Roles, last {tables['roles'][0]['rate_window_s']:.0f} s")
        page.table(ROLE_COLUMNS, tables["roles"])
    page.title("Replicas")
    page.line(f"{run['replicas']:,d} in all", *(f"{row['replicas']:,d} {row['state']}" for row in tables["states"]))
    missing = [] if tables.get("waiting") else run.get("missing") or []  # those are told by their reasons
    for text in missing:
        page.line(f"missing {text}")
    if run.get("missing_total", 0) > len(missing) and not tables.get("waiting"):
        page.line(f"and {run['missing_total'] - len(missing):,d} more are missing")
    page.line(run.get("straggler_note") or "")
    for node in run.get("slow_nodes") or []:
        page.line(f"{node}: its replicas are slow together")
    for row in (run.get("other_kernels") or [])[:FAULTS_SHOWN]:
        page.line(f"{row['slot']}: another MoE {row['differs_in']}: {row['own']} instead of {row['usual']}")
    if (more := len(run.get("other_kernels") or []) - FAULTS_SHOWN) > 0:
        page.line(f"and {more:,d} more run another MoE kernel or table than most of their node class")
    for line in run.get("split_kernels") or []:
        page.line(line)
    gpu_lines(page, tables)
    if run.get("fleet_slow"):
        page.line("the whole fleet is slow: no replica is singled out")
    if tables["stragglers"]:
        page.title("Slow, odd or gone") if tables.get("gpu_source") else None
        page.table(FAULT_COLUMNS, tables["stragglers"][:FAULTS_SHOWN])
        if len(tables["stragglers"]) > FAULTS_SHOWN:
            page.line(f"and {len(tables['stragglers']) - FAULTS_SHOWN:,d} more")
    if len(tables["attempts"]) > 1 or run["link"] == "ended":
        page.title("Attempts, whole")
        page.table(ATTEMPT_COLUMNS, tables["attempts"], "none was begun")


def _load_lines(page: Page, load: Row) -> None:
    qps = [f"{name} {fmt.rate(_number(load, f'{name}_qps'))}" for name in ("target", "offered", "completed")]
    slope = fmt.signed(_number(load, "backlog_slope_per_s"))
    ramp = f"ramp to {fmt.rate(load['ramp_to_qps'])} in {fmt.age(load['ramp_left_s'])}" if load["ramp_to_qps"] else ""
    page.line(f"{'  '.join(qps)} QPS", ramp, f"{fmt.count(_number(load, 'tokens_per_s'))} tok/s")
    page.line(
        f"in flight {load['in_flight']:,d}, oldest {fmt.age(_number(load, 'oldest_in_flight_s'))}",
        f"backlog {load['backlog']:,d} ({slope}/s over {load['backlog_window_s']:.0f} s)",
        f"issue lag p99 {fmt.millis(_number(load, 'issue_lag_p99_ms'))}",
    )
    again = f"re-dispatched {load['redispatched']:,d}" if load["redispatched"] else ""
    failed = f"failed {load['failed']:,d}" if load["failed"] else ""
    page.line(f"whole attempt: issued {load['issued']:,d}  completed {load['completed']:,d}", again, failed)


def _window(row: Row) -> str:
    return f"{row['window_s']:.0f} s" if row.get("window_s") else ""


def _over_budget(row: Row) -> str:
    return f"{row['over_whole_n']:,d} / {row['over_allowed_n']:,d}" if row.get("over_allowed_n") else ""


def _projected(row: Row) -> str:
    low, high = _number(row, "projected_low_ms"), _number(row, "projected_high_ms")
    if math.isnan(_number(row, "projected_p99_ms")):
        return ""
    return f"{fmt.millis(_number(row, 'projected_p99_ms'))} [{fmt.millis(low)} to {fmt.millis(high)}]"


ROLE_COLUMNS: Final = (
    Column("ROLE", _text("role"), right=False),
    Column("READY", _as("ready", fmt.count)),
    Column("OF", _as("replicas", fmt.count)),
    Column("AT THEM", _as("in_flight", fmt.count)),
    Column("WAITING", _as("waiting", fmt.count)),
    Column("SAMPLES/S", _as("samples_per_s", fmt.rate), keep=6),
    Column("TOK/S", _as("tokens_per_s", fmt.count)),
    Column("KV p50", _as("kv_transfer_p50_ms", fmt.millis), keep=5),
    Column("KV p99", _as("kv_transfer_p99_ms", fmt.millis), keep=4),
)
SLA_COLUMNS: Final = (
    Column("p99", _text("metric"), right=False),
    Column("LIMIT", _as("limit_ms", fmt.millis)),
    Column("WINDOW", _window, keep=4),
    Column("VALUE", _as("window_p99_ms", fmt.millis)),
    Column("IS", _text("window_judged"), right=False),
    Column("SAMPLES", _as("window_n", fmt.count), keep=3),
    Column("WHOLE", _as("whole_p99_ms", fmt.millis)),
    Column("IS", _text("whole_judged"), right=False),
    Column("SAMPLES", _as("whole_n", fmt.count), keep=2),
    Column("OVER/ALLOWED", _over_budget, keep=6),
    Column("AT THE END", _projected, keep=5),
)

_PLACE: Final = (
    Column("REPLICA", _text("slot"), right=False),
    Column("STATE", _text("state"), right=False),
    Column("FOR", _as("state_age_s", fmt.age), keep=6),
)


_REASON: Final = Column("REASON", why, right=False, keep=5)


def _cause(row: Row) -> str:
    return f"likely {row['likely_cause']}" if row.get("likely_cause") else ""


FAULT_COLUMNS: Final = (
    Column("REPLICA", _text("slot"), right=False),
    Column("STATE", lambda row: "outlier" if row["state"] == "READY" else row["state"], right=False),
    Column("FOR", lambda row: fmt.UNKNOWN if row["state"] == "READY" else fmt.age(_number(row, "state_age_s")), keep=6),
    Column("RATIO", _as("step_ratio", _decimals(2))),
    Column("Z", _as("step_z", fmt.signed)),
    Column("TOK/S", _as("tokens_per_s", fmt.count)),
    Column("TTFT p99", _as("ttft_p99_ms", fmt.millis)),
    Column("REASON", lambda row: _cause(row) if row["state"] in ("READY", "SLOW") else str(row["reason"]), right=False, keep=5),
)

FLEET_COLUMNS: Final = (
    *_PLACE,
    Column("HOST", on_cluster("host"), right=False, keep=8),
    Column("RACK", on_cluster("rack"), right=False, keep=1),
    Column("POD", on_cluster("pod"), right=False, keep=1),
    Column("PHASE", on_cluster("pod_phase"), right=False, keep=2),
    Column("TOK/S", _as("tokens_per_s", fmt.count)),
    Column("RATIO", _as("step_ratio", _decimals(2))),
    Column("Z", _as("step_z", fmt.signed), keep=8),
    Column("TTFT p99", _as("ttft_p99_ms", fmt.millis)),
    Column("TPOT p99", _as("tpot_p99_ms", fmt.millis)),
    Column("FLIGHT", _as("in_flight", fmt.count), keep=7),
    Column("WAIT", _as("waiting", fmt.count), keep=6),
    Column("BATCH", _as("batch_sequences", fmt.big), keep=4),
    Column("KV", _as("kv_use_fraction", fmt.percent), keep=4),
    Column("OLDEST", _as("oldest_in_flight_s", fmt.age), keep=3),
    Column("RESTARTS", _as("restarts", fmt.count), keep=2),
    *GPU_COLUMNS,
    Column("SAMPLES", _as("samples", fmt.count), keep=8),
    Column("RE-DISPATCHED", _as("redispatched", fmt.count), keep=7),
    Column("FAILED", _as("failed", fmt.count), keep=7),
    _REASON,
)


NODE_COLUMNS: Final = (
    Column("NODE", _text("node"), right=False),
    Column("STATES", lambda row: " ".join(f"{number} {state}" for state, number in row["states"].items()), right=False),
    Column("HOST", on_cluster("host"), right=False, keep=8),
    Column("RACK", on_cluster("rack"), right=False, keep=2),
    Column("PHASE", on_cluster("pod_phase"), right=False, keep=8),
    Column("POD", on_cluster("pod"), right=False, keep=1),
    Column("SLOW", _as("slow", fmt.count), keep=6),
    Column("MISSING", _as("missing", fmt.count), keep=6),
    Column("TOK/S", _as("tokens_per_s", fmt.count)),
    Column("RATIO", _as("step_ratio_max", _decimals(2))),
    Column("TTFT p99", _as("ttft_p99_ms_max", fmt.millis)),
    Column("TPOT p99", _as("tpot_p99_ms_max", fmt.millis)),
    Column("KV", _as("kv_use_fraction_mean", fmt.percent), keep=7),
    Column("RUN", _as("running", fmt.count), keep=3),
    Column("WAIT", _as("waiting", fmt.count), keep=4),
    Column("FLIGHT", _as("in_flight", fmt.count), keep=7),
    Column("OLDEST", _as("oldest_in_flight_s_max", fmt.age), keep=5),
    *NODE_GPU_COLUMNS,
)

ATTEMPT_COLUMNS: Final = (
    Column("#", _text("attempt")),
    Column("KIND", _text("kind"), right=False),
    Column("VERDICT", lambda row: row["verdict"] or row["state"] or fmt.UNKNOWN, right=False),
    Column("TARGET", _as("target_qps", fmt.rate)),
    Column("COMPLETED", _as("completed_qps", fmt.rate)),
    Column("TOK/S", _as("tokens_per_s", fmt.count)),
    Column("TTFT p99", _as("ttft_p99_ms", fmt.millis)),
    Column("TPOT p99", _as("tpot_p99_ms", fmt.millis)),
    Column("ACTS", _as("acts", fmt.count), keep=7),
)


def fleet_page(page: Page, run: Row, tables: Tables, order: str) -> None:
    heading(page, run)
    cluster_lines(page, tables)
    gpu_lines(page, tables)
    rows = tables["replicas"]
    window = "figures of the whole attempt" if run["link"] == "ended" else "latencies of the last window"
    page.title(f"{len(rows):,d} of {fmt.plural(run['replicas'], 'replica')}, {order}; {window}")
    page.table(FLEET_COLUMNS, rows, "none fits the filter" if run["replicas"] else "no replica is known yet")


def nodes_page(page: Page, run: Row, tables: Tables) -> None:
    heading(page, run)
    cluster_lines(page, tables)
    known = fmt.plural(len(tables["nodes"]), "node")
    page.title(f"{known}; of a node's serving replicas the sums, the worst ratio and p99 (last window), the mean KV")
    page.table(NODE_COLUMNS, tables["nodes"], "no node is known yet")
    nodes_in_trouble(page, tables)


def events_page(page: Page, run: Row, entries: Sequence[JournalEntry]) -> None:
    heading(page, run)
    page.title(f"Events, the last {len(entries):,d}")
    for entry in entries:
        day = time.strftime("%m-%d %H:%M:%S", time.localtime(entry.unix))
        level = {"warn": "warn ", "error": "ERROR"}.get(entry.level, "     ")
        words = in_words(entry).removeprefix("ERROR ").removeprefix("WARN ")
        lead = f"  {day} {level} "
        page.lines += textwrap.wrap(lead + words, page.width, subsequent_indent=" " * len(lead), break_on_hyphens=False)
    if not entries:
        page.line("nothing has happened yet")


def sla_page(page: Page, run: Row, tables: Tables, summary: Iterable[Row]) -> None:
    """`summary` is what every snapshot has; `tables` may be empty when the head gives no detail."""
    heading(page, run)
    page.title("Against the limits")
    page.table(SLA_COLUMNS, list(summary), "no latency has been measured")
    if tables.get("percentiles"):
        page.title("Percentiles")
        page.table(PERCENTILE_COLUMNS, tables["percentiles"])
    if tables.get("ttft_parts"):
        first = tables["ttft_parts"][0]
        slowest = f"SLOWEST 1% the mean over the {first['slowest_n']:,d} slowest"
        page.title(f"Parts of TTFT, last window, {fmt.plural(first['n'], 'sample')}; {slowest}")
        page.table(PART_COLUMNS, tables["ttft_parts"])
    if tables.get("tail"):
        whole = sum(row["ttft_over_whole_n"] or 0 for row in tables["tail"])
        page.title(f"Where the tail comes from: samples over the limit (TTFT, whole attempt: {whole:,d})")
        page.table(TAIL_COLUMNS, [row | {"of": whole} for row in tables["tail"][:FAULTS_SHOWN]])
        if len(tables["tail"]) > FAULTS_SHOWN:
            page.line(f"and {len(tables['tail']) - FAULTS_SHOWN:,d} more replicas")


PERCENTILE_COLUMNS: Final = (
    Column("METRIC", _text("metric"), right=False),
    Column("", _text("quantile"), right=False),
    Column("WINDOW", _as("window_ms", fmt.millis)),
    Column("SAMPLES", _as("window_n", fmt.count), keep=6),
    Column("WHOLE", _as("whole_ms", fmt.millis)),
    Column("SAMPLES", _as("whole_n", fmt.count), keep=6),
    Column("LIMIT", _as("limit_ms", fmt.millis), keep=8),
)
PART_COLUMNS: Final = (
    Column("PART", _text("part"), right=False),
    Column("MEAN", _as("mean_ms", fmt.millis)),
    Column("p50", _as("p50_ms", fmt.millis)),
    Column("p99", _as("p99_ms", fmt.millis)),
    Column("SLOWEST 1%", _as("mean_of_slowest_1_percent_ms", fmt.millis)),
)
TAIL_COLUMNS: Final = (
    Column("REPLICA", _text("slot"), right=False),
    Column("TTFT WINDOW", _as("ttft_over_window_n", fmt.count)),
    Column("WHOLE", _as("ttft_over_whole_n", fmt.count)),
    Column("SHARE", lambda row: fmt.percent(row["ttft_over_whole_n"] / row["of"]) if row["of"] else fmt.UNKNOWN),
    Column("TPOT WINDOW", _as("tpot_over_window_n", fmt.count), keep=7),
    Column("WHOLE", _as("tpot_over_whole_n", fmt.count), keep=7),
    Column("OF SAMPLES", _as("samples_whole_n", fmt.count), keep=6),
)


def replica_page(page: Page, run: Row, tables: Tables) -> None:
    heading(page, run)
    own = tables["replica"][0]
    page.title(f"{own['slot']}  {own['state']} for {fmt.age(_number(own, 'state_age_s'))}")
    page.prose(why(own))
    page.table([column for column in FLEET_COLUMNS[3:-1] if column.heading not in ("HOST", "RACK", "POD", "PHASE")], [own])
    for name in ("incarnation", "worker", "pod", "host", "pid", "engine", "args_hash", "log"):
        page.line(f"{name} {own[name]}" if own[name] else "")
    page.line(*(f"{name} {own[key]}" for name, key in (("rack", "rack"), ("phase", "pod_phase")) if own.get(key)))
    for name in ("versions", "accelerator", "facts"):
        told = [f"{key} {_short(value)}" for key, value in own[name].items() if not isinstance(value, dict | list)]
        if told:
            page.line(name, *told)
    gpus_of_replica(page, tables)
    if tables.get("in_flight"):
        page.title(f"In flight, oldest first, {len(tables['in_flight'])}")
        page.table(IN_FLIGHT_COLUMNS, tables["in_flight"][:FAULTS_SHOWN])
    if tables.get("log"):
        page.title("Log, its end")
        page.lines += [f"  {row['line']}" for row in tables["log"]]


IN_FLIGHT_COLUMNS: Final = (
    Column("SAMPLE", _text("seq")),
    Column("AGE", _as("age_s", fmt.age)),
    Column("PROMPT TOKENS", _as("prompt_tokens", fmt.count)),
    Column("TRIES", _as("tries", fmt.count)),
    Column("FIRST TOKEN", lambda row: "yes" if row["first_token"] else "no", right=False),
)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
