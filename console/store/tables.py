"""The data of each screen as plain rows: for exports, for `--json` and for the text pages of `paceline attach --once`.

Numbers keep all their digits and carry their unit in the name of their key; what is not known is None, never 0 or NaN.
A screen and its twin read the same store through the same functions, so they cannot come to disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from console.store import clustered, gpu_tables, roles
from console.store.causes import likely_cause
from console.store.columns import NUMBERS, host_of, pod_of
from console.store.fleet import READY_CODE, SHOWN_STATES, SLOW_CODE, STOPPED_CODE, FleetStore
from console.store.nodes import NodeRows
from console.store.rings import SERIES_FIELDS
from harness.metrics.kernels import Odd
from harness.metrics.rates import RATE_WINDOW_S
from harness.wire.control import AttemptInfo, FleetSnapshot, JournalEntry, RoleView, SlaView
from harness.wire.inquiry import LogLine, ReplicaDetail

if TYPE_CHECKING:
    from console.store.record import ByReplica

Row = dict[str, Any]
Tables = dict[str, list[Row]]

NEAR_FRACTION: Final = 0.9  # of a limit
WINDOW_S: Final = 60.0  # before the spec is known

#: Number of a replica (`columns.NUMBERS`) → its name in a row.
_REPLICA_NUMBERS: Final = {
    "tok/s": "tokens_per_s", "step": "step_ms", "batch": "batch_sequences", "ratio": "step_ratio", "z": "step_z",
    "ttft": "ttft_p99_ms", "tpot": "tpot_p99_ms", "kv": "kv_use_fraction", "oldest": "oldest_in_flight_s",
    "beat": "heartbeat_age_s",
}  # fmt: skip
_REPLICA_COUNTS: Final = {"inflight": "in_flight", "run": "running", "wait": "waiting", "restarts": "restarts"}
#: Column of `NodeRows` → its name in a row of a node, which says what it is made of.
_NODE_NUMBERS: Final = {
    "tok/s": "tokens_per_s", "dmed": "tokens_against_median_fraction_mean", "ratio": "step_ratio_max", "z": "step_z_max",
    "ttft": "ttft_p99_ms_max", "tpot": "tpot_p99_ms_max", "kv": "kv_use_fraction_mean", "oldest": "oldest_in_flight_s_max",
}  # fmt: skip
_NODE_COUNTS: Final = {
    "slow": "slow", "missing": "missing", "run": "running", "wait": "waiting", "inflight": "in_flight",
    "restarts": "restarts_max",
}  # fmt: skip
#: Column of a snapshot → its name in a row of a replica's history.
_REPLICA_FLOATS: Final = {
    "tokens_s": "tokens_per_s", "step_ms": "step_ms", "batch": "batch_sequences", "ratio": "step_ratio", "z": "step_z",
    "ttft_p99_ms": "ttft_p99_ms", "tpot_p99_ms": "tpot_p99_ms", "kv_use": "kv_use_fraction", "oldest_s": "oldest_in_flight_s",
    "beat_age_s": "heartbeat_age_s",
}  # fmt: skip
_REPLICA_INTS: Final = {"outstanding": "in_flight", "running": "running", "waiting": "waiting", "restarts": "restarts"}


def known(value: float | None) -> float | None:
    """None for what is not a number."""
    return None if value is None or not math.isfinite(value) else float(value)


def judged(value_ms: float | None, limit_ms: float | None) -> str:
    """ok, near (above 90 % of the limit) or over; empty without a value or a limit."""
    if value_ms is None or limit_ms is None or math.isnan(value_ms):
        return ""
    if value_ms > limit_ms:
        return "over"
    return "near" if value_ms > NEAR_FRACTION * limit_ms else "ok"


def window_s(store: FleetStore) -> float:
    """Of latencies; rates are told over harness.metrics.rates.RATE_WINDOW_S."""
    return store.spec.metrics.window_s if store.spec is not None else WINDOW_S


# --- 1 Live ------------------------------------------------------------------------------------------------


def live(store: FleetStore) -> Tables:
    """run and load have one row; series has one a second."""
    snap, running = store.snapshot, store.snapshot is not None and not store.ended
    states = [{"state": name, "replicas": number} for name, number in store.count_states().items()]
    tables: Tables = {
        "run": [_run(store)],
        "load": [_load(store, snap)] if snap is not None and running else [],
        "sla": sla_rows(store),
        "states": states,
        "stragglers": _stragglers(store),
        "attempts": [_attempt(attempt) for _, attempt in sorted(store.attempts.items())],
        "series": _series(store),
    }
    tables |= clustered.whole(store) | gpu_tables.whole(store)
    if views := roles.views(store):
        tables["roles"] = [_role(view) for view in views]
    return tables


def _role(view: RoleView) -> Row:
    return {
        "role": view.role, "replicas": view.replicas, "ready": view.ready, "in_flight": view.outstanding,
        "waiting": None if view.waiting == roles.UNTOLD else view.waiting, "rate_window_s": RATE_WINDOW_S,
        "samples_per_s": known(view.samples_per_s), "tokens_per_s": known(view.tokens_per_s),
        "kv_transfer_p50_ms": known(view.transfer_p50_ms), "kv_transfer_p99_ms": known(view.transfer_p99_ms),
    }  # fmt: skip


def _run(store: FleetStore) -> Row:
    snap, link, attempt = store.snapshot, store.link(), store.attempt
    progress = store.progress()
    row: Row = {
        "run": store.run, "phase": store.phase, "link": link.kind, "heard_s_ago": None if store.ended else known(link.age_s),
        "synthetic": store.synthetic, "controller": store.controller, "record": store.record, "replicas": len(store.slots),
        "attempt": attempt.number if attempt else None, "kind": attempt.kind if attempt else "",
        "scenario": attempt.scenario if attempt else "", "verdict": attempt.verdict if attempt else "",
        "reasons": list(attempt.reasons) if attempt else [], "acts": attempt.acts if attempt else 0,
        "attempt_state": attempt.state if attempt else "", "other_kernels": other_kernels(store.odd_kernels),
        "split_kernels": store.split_kernels,
    }  # fmt: skip
    if snap is None or store.ended:
        return row
    return row | {
        "attempt_state": snap.attempt_state, "acts": snap.acts, "policy": snap.policy, "unix": snap.unix,
        "elapsed_s": snap.elapsed_s, "duration_s": snap.duration_s or None, "planned_s": known(progress.planned_s),
        "duration_done_fraction": known(progress.duration), "queries_done_fraction": known(progress.queries),
        "eta_s": known(progress.eta_s), "min_queries": snap.min_queries or None, "rate_mechanism": snap.mechanism,
        "paused": snap.paused, "straggler_note": snap.straggler_note, "slow_nodes": list(snap.slow_nodes),
        "fleet_slow": snap.fleet_slow, "missing": list(snap.missing), "missing_total": snap.missing_total,
        "evictions_last_10min": snap.evictions,
    }  # fmt: skip


def other_kernels(odd: Mapping[str, Odd]) -> list[Row]:
    """Replicas that run another MoE kernel or table than most of their node class."""
    return [
        {
            "slot": one.slot, "node_class": one.node_class, "differs_in": one.what, "own": one.own, "usual": one.usual,
            "agree": one.agree, "compared": one.of,
        }
        for one in odd.values()
    ]  # fmt: skip


def _load(store: FleetStore, snap: FleetSnapshot) -> Row:
    return {
        "rate_window_s": RATE_WINDOW_S, "target_qps": snap.target_qps, "offered_qps": known(snap.offered_qps),
        "scheduled_qps": known(snap.scheduled_qps), "completed_qps": known(snap.completed_qps),
        "tokens_per_s": known(snap.tokens_per_s), "tokens_per_s_whole": known(snap.tokens_per_s_whole),
        "issued": snap.issued, "completed": snap.completed, "failed": snap.failed, "redispatched": snap.redispatched,
        "in_flight": snap.in_flight, "backlog": snap.backlog, "backlog_slope_per_s": known(snap.backlog_slope),
        "backlog_window_s": window_s(store),
        "oldest_in_flight_s": known(store.oldest_s()), "issue_lag_p50_ms": known(snap.issue_lag_p50_ms),
        "issue_lag_p99_ms": known(snap.issue_lag_p99_ms), "ramp_to_qps": snap.ramp_to_qps or None,
        "ramp_left_s": snap.ramp_left_s if snap.ramp_to_qps else None, "head_cpu_percent": known(snap.head_cpu_percent),
        "driver_cpu_percent": known(snap.driver_cpu_percent),
    }  # fmt: skip


def sla_rows(store: FleetStore) -> list[Row]:
    """TTFT and TPOT against their limits: while it runs both windows, at the end what the attempt came to."""
    snap = store.snapshot
    if snap is not None and not store.ended:
        return [_sla("TTFT", snap.ttft, window_s(store)), _sla("TPOT", snap.tpot, window_s(store))]
    attempt, limits = store.attempt, store.spec.limits if store.spec is not None else None
    if attempt is None or not attempt.results:
        return []
    rows = []
    for name, key, limit_ms in (
        ("TTFT", "ttft_p99_ms", limits.ttft_p99_ms if limits else None),
        ("TPOT", "tpot_p99_ms", limits.tpot_p99_ms if limits else None),
    ):
        value_ms = attempt.results.get(key)
        rows.append({"metric": name, "limit_ms": limit_ms, "whole_p99_ms": value_ms, "whole_judged": judged(value_ms, limit_ms)})
    return rows


def _sla(name: str, view: SlaView, width_s: float) -> Row:
    row: Row = {"metric": name, "limit_ms": known(view.limit_ms), "window_s": width_s}
    for label, figures in (("window", view.window), ("whole", view.whole)):
        row |= {
            f"{label}_n": figures.n, f"{label}_p50_ms": known(figures.p50), f"{label}_p90_ms": known(figures.p90),
            f"{label}_p99_ms": known(figures.p99), f"{label}_p99_9_ms": known(figures.p99_9),
            f"{label}_judged": judged(figures.p99, view.limit_ms),
        }  # fmt: skip
    return row | {
        "over_whole_n": view.over, "over_allowed_n": view.over_allowed, "needed_n": view.needed,
        "projected_p99_ms": known(view.projected_ms), "projected_low_ms": known(view.projected_low_ms),
        "projected_high_ms": known(view.projected_high_ms),
    }  # fmt: skip


def faults(store: FleetStore) -> list[int]:
    """Positions of those that want a look: flagged slow (worst first), beyond the limits but not flagged, gone."""
    flagged = [store.index[slot] for slot in (store.snapshot.slow if store.snapshot else []) if slot in store.index]
    slow = [at for at in flagged if int(store.state[at]) != STOPPED_CODE]
    beyond = [int(at) for at in np.flatnonzero(store.outliers() & (store.state == READY_CODE))]
    slow += sorted((at for at in beyond if at not in slow), key=lambda at: -float(store.floats("z")[at]))
    gone = [at for at in range(len(store.slots)) if store.state_name(at) in ("LOST", "REJECTED", "SUSPECT", "EVICTED")]
    return slow + [at for at in gone if at not in slow]


def _stragglers(store: FleetStore) -> list[Row]:
    kept = ("slot", "node", "gpu", "state", "state_age_s", "step_ratio", "step_z", "tokens_per_s", "ttft_p99_ms", "reason")
    replicas, rows = _Replicas(store), []
    for at in faults(store):
        row, code = replicas.at(at), int(store.state[at])
        cause = likely_cause(store, at) if code in (SLOW_CODE, READY_CODE) else ""  # of who is gone the reason is known
        rows.append({name: row[name] for name in kept} | {"likely_cause": cause, "flagged": code == SLOW_CODE})
    return rows


def _attempt(attempt: AttemptInfo) -> Row:
    row: Row = {
        "attempt": attempt.number, "kind": attempt.kind, "scenario": attempt.scenario, "target_qps": attempt.target_qps,
        "state": attempt.state, "verdict": attempt.verdict, "reasons": list(attempt.reasons), "acts": attempt.acts,
        "started_unix": attempt.started_unix or None, "ended_unix": attempt.ended_unix or None,
    }  # fmt: skip
    return row | {name: known(value) for name, value in attempt.results.items()} | dict(attempt.totals)


def _series(store: FleetStore) -> list[Row]:
    columns = {name: store.series.column(name) for name in SERIES_FIELDS}
    return [{name: known(float(column[at])) for name, column in columns.items()} for at in range(len(store.series))]


# --- 2 Fleet -----------------------------------------------------------------------------------------------


def fleet(store: FleetStore, positions: Iterable[int] | None = None) -> Tables:
    """Replicas in the given order (default: roster order)."""
    chosen = range(len(store.slots)) if positions is None else positions
    rows = _Replicas(store)
    return {"replicas": [rows.at(int(at)) for at in chosen]} | clustered.whole(store) | gpu_tables.whole(store)


class _Replicas:
    """Rows of replicas with the numbers that the Fleet screen has: of who serves nothing, none."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store
        self._numbers = {key: NUMBERS[name].values(store) for name, key in _REPLICA_NUMBERS.items()}
        self._counts = {key: NUMBERS[name].values(store) for name, key in _REPLICA_COUNTS.items()}
        self._gpus = gpu_tables.OfReplicas(store)

    def at(self, at: int) -> Row:
        store, info = self._store, self._store.slots[at]
        row: Row = {
            "slot": info.slot, "node": info.node, "gpu": info.gpu, "role": info.role, "state": store.state_name(at),
            "state_age_s": known(store.age_s(at)), "reason": info.reason,
        }  # fmt: skip
        row |= {key: known(float(values[at])) for key, values in self._numbers.items()}
        row |= {key: _count(float(values[at])) for key, values in self._counts.items()}
        return row | {
            "incarnation": info.incarnation, "worker": info.worker, "pod": pod_of(store, info), "host": host_of(store, info),
            "log": info.log,
        } | clustered.of_replica(store, info.node) | self._of_gpus(at)  # fmt: skip

    def _of_gpus(self, at: int) -> Row:
        """With the likely cause of those that are slow or about to be called so."""
        found = self._gpus.at(at)
        return found | {"likely_cause": likely_cause(self._store, at)} if found else {}


def _count(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


def ended_fleet(store: FleetStore, positions: Iterable[int], summary: ByReplica) -> Tables:
    """Replicas of a run that has ended: what their samples of one attempt add up to, from the record."""
    measured, replicas = {row.slot: row for row in summary.replicas}, _Replicas(store)
    rows = []
    for at in positions:
        row, found = replicas.at(int(at)), measured.get(store.slots[at].slot)
        if found is not None:
            row |= {
                "attempt": summary.attempt, "samples": found.samples, "failed": found.failed, "tokens": found.tokens,
                "tokens_per_s": known(found.tokens_s), "ttft_p99_ms": known(found.ttft_p99_ms),
                "tpot_p99_ms": known(found.tpot_p99_ms), "redispatched": found.redispatched,
            }  # fmt: skip
        rows.append(row)
    return {"replicas": rows}


def nodes(store: FleetStore, summed: NodeRows | None = None) -> Tables:
    """One row a node, as the Fleet screen has it: how many of its replicas are in which state; of those that serve the sums of
    rates and counts, the worst ratio and p99, the means of shares. On a cluster with its pod and Kubernetes node."""
    rows = summed or NodeRows(store)
    found = [_node(rows, at) | clustered.of_node(store, name) for at, name in enumerate(rows.names)]
    return {"nodes": found} | clustered.whole(store) | clustered.hosts(store) | gpu_tables.whole(store)


def _node(rows: NodeRows, at: int) -> Row:
    states = {SHOWN_STATES[code]: int(number) for code, number in enumerate(rows.states[at]) if number}
    row: Row = {"node": rows.names[at], "replicas": int(rows.states[at].sum()), "states": states}
    row |= {key: _count(float(rows.columns[name][at])) for name, key in _NODE_COUNTS.items()}
    row |= {key: known(float(rows.columns[name][at])) for name, key in _NODE_NUMBERS.items()}
    return row | gpu_tables.of_node(rows, at)


# --- Replica -----------------------------------------------------------------------------------------------


def replica(store: FleetStore, slot: str, detail: ReplicaDetail | None = None) -> Tables:
    """Empty when the fleet has no such slot (any more)."""
    at = store.index.get(slot)
    if at is None:
        return {}
    info = store.slots[at]
    own = _Replicas(store).at(at) | {
        "incarnations": info.incarnations, "engine": info.engine, "synthetic": info.synthetic, "args_hash": info.args_hash,
        "versions": dict(info.versions), "accelerator": dict(info.accelerator), "facts": dict(info.facts),
        "pid": info.pid or None,
    }  # fmt: skip
    tables: Tables = {"replica": [own], "series": _history(store, at), **events(store.history_of(slot))}
    tables |= gpu_tables.of_replica(store, slot)
    if detail is not None and detail.slot == slot:
        tables["in_flight"] = [
            {
                "seq": one.seq,
                "age_s": known(one.age_s),
                "prompt_tokens": one.n_prompt,
                "tries": one.tries,
                "first_token": one.first,
            }
            for one in detail.in_flight
        ]
        tables["log"] = [{"line": line} for line in detail.log_lines]
    return tables


def _history(store: FleetStore, at: int) -> list[Row]:
    """The last minute at 1 Hz, of all that the store remembers of every replica."""
    if store.snapshot is None:
        return []
    names = _REPLICA_FLOATS | _REPLICA_INTS
    columns = {names[column]: history.values[at] for column, history in store.histories.items()}
    points = len(next(iter(columns.values())))
    first_unix = int(store.snapshot.unix) - points + 1
    return [
        {"unix": first_unix + second} | {name: known(float(column[second])) for name, column in columns.items()}
        for second in range(points)
    ]


# --- 4 Events ----------------------------------------------------------------------------------------------


def events(entries: Iterable[JournalEntry | LogLine]) -> Tables:
    """The journal and lines of logs, oldest first; of a log line `who` is where it comes from and `why` what it says."""
    return {"events": [_event(entry) for entry in sorted(entries, key=lambda entry: entry.unix)]}


def _event(entry: JournalEntry | LogLine) -> Row:
    if isinstance(entry, LogLine):
        return {"unix": entry.unix, "level": entry.level, "source": "log", "who": entry.source, "why": entry.text}
    return {
        "unix": entry.unix, "level": entry.level, "source": "journal", "who": entry.who, "why": entry.why, "what": entry.what,
        "subject": entry.subject, "before": entry.before, "after": entry.after, "attempt": entry.attempt or None,
        "data": dict(entry.data),
    }  # fmt: skip
