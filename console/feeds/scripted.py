"""SAMPLE DATA, never measurements: a made-up fleet for tests, pictures and the console's own benchmark.

`ScriptedFleet` invents a plausible run (64 nodes x 8 replicas, two stragglers, a lost and an evicted replica) from a
seed and a time in seconds; `ScriptedFeed` plays it into a store and answers commands the way a head would. No command
of the program opens it. The same seed and time give the same numbers.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from console.feeds import answers
from console.feeds.sample_cluster import NO_ROOM, SampleCluster
from console.feeds.sample_gpus import EVERY_S, SampleGpus
from console.store.fleet import FleetStore
from harness.spec import FleetSpec, LimitsSpec, LoadSpec, RunSpec, place_of, slot_name
from harness.wire import control
from harness.wire.inquiry import Answer, GetDescription, GetLogs, GetMetricNames, GetReplica, GetSla, QueryMetrics, Question
from harness.wire.states import REPLICA_CODE

SAMPLE_UNIX = 1_795_000_000.0  # when the sample run "started"
SAMPLE_RUN = "gptoss-120b-20261118-140211"
PAST_S = 60  # that a console opened on it has seen
TTFT_LIMIT_MS = 3000.0
TPOT_LIMIT_MS = 80.0


class ScriptedFleet:
    def __init__(
        self,
        nodes: int = 64,
        gpus: int = 8,
        *,
        seed: int = 7,
        kind: str = "performance",
        phase: str = "MEASURING",
        at_s: float = 462.0,
        roles: str = "",
        on_cluster: bool = False,
        with_gpus: bool = False,
    ) -> None:
        """`roles`: as in `fleet.roles`, like "5P4D"; empty: every replica does both. `on_cluster`: a pod a node. `with_gpus`: a
        source of GPU metrics."""
        self.t_s = at_s
        self.phase = phase
        self.role = "operator"
        self.paused = False
        self.attempt_state = ""  # not empty: stopping or draining
        self.straggler_note = ""
        self.earlier: list[control.AttemptInfo] = []
        self.verdict = ""
        self.reasons: list[str] = []
        self.kind = kind
        self.spec = RunSpec(
            name="gptoss-120b",
            load=LoadSpec(kind=kind, target_qps=4000.0, duration_s=1200.0, min_queries=None),
            limits=LimitsSpec(ttft_p99_ms=TTFT_LIMIT_MS, tpot_p99_ms=TPOT_LIMIT_MS),
            fleet=FleetSpec(nodes=nodes, replicas_per_node=gpus, **({"roles": roles} if roles else {})),
        )
        self.target_qps = 7.8125 * nodes * gpus
        self.names = [slot_name(node, gpu) for node in range(nodes) for gpu in range(gpus)]
        count = len(self.names)
        self._prefill = np.array([self.spec.fleet.role_at(*place_of(name)) == "prefill" for name in self.names])
        self._rng = np.random.default_rng(seed)
        self._skill: NDArray[np.float64] = self._rng.normal(1.0, 0.012, count)
        self.state: NDArray[np.uint8] = np.full(count, REPLICA_CODE["READY"], dtype=np.uint8)
        self.state_since_s: NDArray[np.float64] = np.zeros(count)
        self.incarnation = [f"{position:04x}b7c9d2e1" for position in range(count)]
        self.slow: list[str] = []
        if count >= 128 and phase == "MEASURING":
            self._plant(count)
        if phase in ("PLACING", "REGISTERING", "WARMING"):
            self._start_up(count)
        self.cluster = SampleCluster(self) if on_cluster else None
        self.gpus = SampleGpus(self) if with_gpus else None
        self.acts = 0
        self.journal: list[control.JournalEntry] = []
        self._tell_story()
        self.seq = 0
        self.roster_version = 1

    def _plant(self, count: int) -> None:
        for slot, skill in (("node015/gpu3", 0.59), ("node006/gpu6", 0.78)):
            position = self.names.index(slot)
            self._skill[position] = skill
            self.state_since_s[position] = 210.0
            self.slow.append(slot)
        for slot, state in (("node010/gpu0", "LOST"), ("node012/gpu1", "EVICTED"), ("node008/gpu4", "DRAINING")):
            position = self.names.index(slot)
            self.state[position] = REPLICA_CODE[state]
            self.state_since_s[position] = 420.0
        first = self.names.index("node013/gpu0")
        self._skill[first : first + 8] *= 0.91

    def _start_up(self, count: int) -> None:
        draw = self._rng.random(count)
        for state, below in (("NEW", 0.06), ("REGISTERED", 0.16), ("WARMING", 0.46)):
            chosen = draw < below
            draw[chosen] = 2.0
            self.state[chosen] = REPLICA_CODE[state]

    def _tell_story(self) -> None:
        self.note(-60.0, "head", "run.phase", before="WARMING", after="READY", why="every replica is ready")
        self.note(0.0, "head", "attempt.start", subject="1", why=f"{self.kind} at {self.target_qps:g} qps")
        if self.slow:
            self.note(212.0, "policy", "straggler.slow", "node015/gpu3", why="ratio 1.69, z 18.2", level="warn")
            self.note(300.0, "operator:kim@head", "act.evict", "node012/gpu1", why="thermal throttle", level="warn")
            self.note(
                420.0, "head", "replica.state", "node010/gpu0", "lease over: no heartbeat for 12 s", "READY", "LOST", "error"
            )
            self.acts = 1
        if self.cluster is not None:
            self._tell_of_pods()
        if self.gpus is not None:
            for at_s, entry in self.gpus.story():
                self.note(at_s, "head", **entry)
            self.journal.sort(key=lambda entry: entry.unix)
            self.journal = [msgspec.structs.replace(entry, seq=number) for number, entry in enumerate(self.journal, 1)]

    def _tell_of_pods(self) -> None:
        self.note(0.5, "head", "worker.started", "worker-12", "pod sample-worker-12-x6e4 on mi355x-013")
        if self.phase != "MEASURING":
            self.note(1.0, "head", "worker.pending", "worker-40", NO_ROOM, level="error")
            return
        self.note(409.0, "head", "worker.event", "worker-10", "NodeNotReady: mi355x-011 is not ready", level="warn")
        self.note(
            452.0, "operator:kim@head", "pod.evicted", "node012",
            "pod sample-worker-12-x6e4 is evicted; its successor starts in about 40 s", level="warn",
        )  # fmt: skip
        self.note(454.0, "head", "worker.exited", "worker-12", "evicted through the API (exit code 143)", level="error")

    def note(
        self,
        at_s: float,
        who: str,
        what: str,
        subject: str = "",
        why: str = "",
        before: str = "",
        after: str = "",
        level: str = "info",
        data: dict[str, Any] | None = None,
    ) -> control.JournalEntry:
        seq = len(self.journal) + 1
        entry = control.JournalEntry(seq, SAMPLE_UNIX + at_s, who, what, subject, why, before, after, level, data=data or {})
        self.journal.append(entry)
        return entry

    @property
    def skill(self) -> NDArray[np.float64]:
        """Speed of each replica; 1 is ordinary."""
        return self._skill

    @staticmethod
    def unix_at(second: float) -> float:
        return SAMPLE_UNIX + second

    # --- messages ------------------------------------------------------------------------------------------

    def run_state(self, request_id: str = "") -> control.RunState:
        return control.RunState(
            request_id=request_id, run=SAMPLE_RUN, spec=self.spec.model_dump_json().encode(), head_epoch=1,
            phase=self.phase, roster_version=self.roster_version, slots=[self._info(p) for p in range(len(self.names))],
            attempts=[*self.earlier, self._attempt()], journal=list(self.journal), series=self._series(), role=self.role,
            controller="kim@head", record=f"/sample/{SAMPLE_RUN}", started_unix=SAMPLE_UNIX - 95,
            telemetry="tcp://127.0.0.1:0", synthetic=True, head_versions={"paceline": "0.1.0"},
            cluster=self.cluster.view() if self.cluster is not None else None,
            gpus=self.gpus.view() if self.gpus is not None else None,
        )  # fmt: skip

    def _attempt(self) -> control.AttemptInfo:
        ended = SAMPLE_UNIX + self.t_s if self.verdict else 0.0
        return control.AttemptInfo(
            number=len(self.earlier) + 1, kind=self.kind, scenario="Server", target_qps=self.target_qps, epoch=1,
            started_unix=SAMPLE_UNIX, ended_unix=ended, state="ENDED" if self.verdict else self.attempt_state or "issuing",
            verdict=self.verdict, reasons=self.reasons, acts=self.acts, results=self._results() if self.verdict else {},
            totals={"issued": 4_800_000, "completed": 4_800_000, "redispatched": 118} if self.verdict else {},
        )  # fmt: skip

    def _results(self) -> dict[str, float]:
        tokens_per_s = 10890.0 * len(self.names)
        return {
            "completed_qps": self.target_qps * 0.997,
            "tokens_per_s": tokens_per_s,
            "ttft_p99_ms": 2690.0,
            "tpot_p99_ms": 36.5,
        }

    def _info(self, position: int) -> control.SlotInfo:
        node, gpu = divmod(position, self.spec.fleet.replicas_per_node)
        odd = self.names[position] == "node006/gpu6"  # started with other arguments than the rest
        facts = {"kernel": "triton", "arg.max_num_seqs": "384" if odd else "512", "arg.kv_cache_dtype": "fp8"}
        if self.spec.fleet.split:
            facts |= {"arg.kv_transfer_ms": "2", "arg.kv_transfer_us_per_token": "0.74"}
        pod = self.cluster.pods[node] if self.cluster is not None and self.state[position] else None
        return control.SlotInfo(
            self.names[position], f"node{node:03d}", gpu, self.spec.fleet.role_at(node, gpu), self.incarnation[position], 1,
            worker=f"worker-{node}",
            host=f"sample-host-{node:02d}", pid=4000 + position, engine="synthetic", synthetic=True,
            args_hash="b07e5a13" if odd else "9f2c41d0",
            versions={"python": "3.11.7", "pyzmq": "27.3.0"}, log=f"/sample/{SAMPLE_RUN}/logs/node{node:03d}.log",
            accelerator={"name": "MI355X (synthetic)", "ordinal": str(gpu)},
            facts=facts, pod=pod.pod if pod is not None else "", node_name=pod.host if pod is not None else "",
        )  # fmt: skip

    def _series(self) -> control.FleetSeries:
        seconds = np.arange(max(0.0, self.t_s - 480), self.t_s, 1.0)
        if self.phase != "MEASURING":
            return control.FleetSeries()
        noise = np.random.default_rng(3).normal(0, 1, len(seconds))
        ramp = np.minimum(1.0, 0.25 + seconds / 60)
        p99 = (2350 + 190 * np.sin(seconds / 55) + 45 * noise) * np.minimum(1, 0.4 + seconds / 150)
        target = [self.target_qps] * len(seconds)
        offered = self.target_qps * np.minimum(1.0, ramp * 1.05) * (1 + 0.008 * noise)
        done = self.target_qps * ramp * (1 + 0.012 * np.roll(noise, 3))
        zeros = [0] * len(seconds)
        return control.FleetSeries(
            (SAMPLE_UNIX + seconds).tolist(), target, offered.tolist(), done.tolist(), zeros, zeros, (done * 1400).tolist(),
            (p99 * 0.36).tolist(), p99.tolist(), (p99 / 95).tolist(), (p99 / 66).tolist(), [len(self.names)] * len(seconds),
        )  # fmt: skip

    def snapshot(self) -> control.FleetSnapshot:
        self.seq += 1
        count, rng, t_s = len(self.names), self._rng, self.t_s
        serving = np.isin(self.state, [REPLICA_CODE["READY"], REPLICA_CODE["DRAINING"]])
        measuring = self.phase in ("MEASURING", "DRAINING")
        load = np.where(serving & measuring, 1.0, np.nan)
        speed = self._skill * (1 + rng.normal(0, 0.006, count)) * load
        ratio = np.median(self._skill) / self._skill * (1 + rng.normal(0, 0.004, count)) * load
        ttft = 2550 * ratio**2 * (1 + rng.normal(0, 0.02, count))
        wave = 190 * math.sin(t_s / 55)
        p99 = 2400 + wave + float(rng.normal(0, 20))
        elapsed = max(0.0, t_s) if measuring else 0.0
        issued = int(elapsed * self.target_qps)
        waiting = np.where(serving & measuring, rng.poisson(np.maximum(1, 9 * np.nan_to_num(ratio, nan=1.0) ** 12)), 0)
        running = np.where(serving & measuring, 104 + rng.integers(-5, 6, count), 0)
        missing = [f"{self.names[p]}: {self._why_missing(int(p))}" for p in np.flatnonzero(self.state < 3)]
        prefill = self._prefill
        if prefill.any():
            running, waiting = np.where(prefill, running // 16, running), np.where(prefill, waiting // 4, waiting)
            speed = np.where(prefill, 0.0, speed)
        states, numbers = np.unique(self.state, return_counts=True)
        names = list(REPLICA_CODE)
        return control.FleetSnapshot(
            unix=SAMPLE_UNIX + t_s, seq=self.seq, head_epoch=1, roster_version=self.roster_version, phase=self.phase,
            phase_since_unix=SAMPLE_UNIX + (self.t_s - 165.0 if self.phase == "DRAINING" else 0.0),
            attempt=0 if self.verdict else len(self.earlier) + 1, attempt_kind=self.kind, attempt_state=self._attempt().state,
            scenario="Server", mechanism="at once" if self.kind == "explore" else "new attempt", target_qps=self.target_qps,
            paused=self.paused, elapsed_s=elapsed, duration_s=0.0 if self.kind == "explore" else 1200.0,
            min_queries=0 if self.kind == "explore" else int(1200 * self.target_qps * 0.95), issued=issued,
            completed=max(0, issued - 61204 * count // 512), redispatched=118 if self.acts else 0, failed=0,
            in_flight=int(running.sum() + waiting.sum()), backlog=212 * measuring, backlog_slope=3.1 * measuring,
            offered_qps=self.target_qps * 1.0004 if measuring else 0.0, scheduled_qps=self.target_qps,
            completed_qps=self.target_qps * (0.9967 + float(rng.normal(0, 0.001))) if measuring else 0.0,
            tokens_per_s=float(np.nansum(speed) * 11012), tokens_per_s_whole=float(np.nansum(speed) * 10890),
            issue_lag_p50_ms=0.06, issue_lag_p99_ms=0.41,
            ttft=_view(p99, TTFT_LIMIT_MS, issued, 0.92) if measuring else control.SlaView(TTFT_LIMIT_MS),
            tpot=_view(p99 / 66, TPOT_LIMIT_MS, issued, 0.99) if measuring else control.SlaView(TPOT_LIMIT_MS),
            counts={names[int(code)]: int(number) for code, number in zip(states, numbers, strict=True)},
            missing=missing[:20], missing_total=len(missing), slow=list(self.slow),
            slow_age_s=[250.0 - 80 * number for number in range(len(self.slow))], straggler_note=self.straggler_note,
            slow_nodes=["node013"] if self.slow else [], fleet_slow=False, acts=self.acts, policy="flag", controller="kim@head",
            synthetic=True, head_cpu_percent=21.0, driver_cpu_percent=44.0, state_code=self.state.tobytes(),
            outstanding=_i4(running + waiting), running=_i4(running), waiting=_i4(waiting), restarts=_i4(np.zeros(count)),
            kv_use=_f4(0.62 * load + rng.normal(0, 0.02, count)), tokens_s=_f4(speed * 11012), step_ms=_f4(9.4 * ratio),
            batch=_f4(running * load), ratio=_f4(ratio), z=_f4((ratio - 1) / 0.0375 + rng.normal(0, 0.3, count)),
            ttft_p99_ms=_f4(ttft), tpot_p99_ms=_f4(36.5 * ratio), oldest_s=_f4(9.1 * ratio + rng.random(count)),
            beat_age_s=_f4(rng.random(count) * 1.5), state_age_s=_f4(t_s + 95 - self.state_since_s),
            roles=self._roles(prefill, running + waiting) if prefill.any() else [],
        )  # fmt: skip

    def _why_missing(self, at: int) -> str:
        of_pod = self.cluster.why_missing(at // self.spec.fleet.replicas_per_node) if self.cluster is not None else ""
        why = _WHY if self.cluster is None else {**_WHY, 0: "its worker is registered, no REGISTER from this replica yet"}
        return of_pod or why[int(self.state[at])]

    def _roles(self, prefill: NDArray[np.bool_], held: NDArray[Any]) -> list[control.RoleView]:
        views, load = [], self.phase in ("MEASURING", "DRAINING")
        for role, mine, tokens, waiting in (("prefill", prefill, 1000.0, 41), ("decode", ~prefill, 1344.0, 212)):
            rate = self.target_qps * 0.997 * load
            p50, p99 = (2.71, 9.3) if role == "decode" and load else (math.nan, math.nan)
            ready = int(np.count_nonzero(self.state[mine] == REPLICA_CODE["READY"]))
            views.append(
                control.RoleView(
                    role, int(mine.sum()), ready, int(held[mine].sum()), waiting * load, rate, rate * tokens, p50, p99
                )
            )
        return views


_WHY = {0: "pod pending: 0/64 nodes fit", 1: "loading weights", 2: "warming, round 3 of 30"}


def _view(p99_ms: float, limit_ms: float, n: int, whole: float) -> control.SlaView:
    window = control.Percentiles(n // 8, p99_ms * 0.36, p99_ms * 0.66, p99_ms, p99_ms * 1.6)
    total = control.Percentiles(n, p99_ms * whole * 0.36, p99_ms * whole * 0.66, p99_ms * whole, p99_ms * whole * 1.7)
    projected = p99_ms * whole * 1.02
    return control.SlaView(
        limit_ms, window, total, int(n * 0.007), int(n * 0.0098), 0, projected, projected * 0.97, projected * 1.03
    )


def _f4(values: NDArray[np.float64]) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()


def _i4(values: NDArray[Any]) -> bytes:
    return np.asarray(values, dtype="<i4").tobytes()


class ScriptedFeed:
    """Plays a ScriptedFleet. hz = 0: only `push` moves it (tests that must not wait)."""

    def __init__(self, fleet: ScriptedFleet | None = None, *, hz: float = 4.0) -> None:
        self.fleet = fleet or ScriptedFleet()
        self.sent: list[control.Command] = []
        self.refuse = ""  # not empty: every command is answered with this
        self.silent = False  # questions are not answered
        self.operator = "kim@head"
        self._hz = hz
        self._store: FleetStore | None = None

    async def follow(self, store: FleetStore) -> None:
        self._store = store
        store.apply(self.fleet.run_state())
        now_s = self.fleet.t_s
        store.gpus.forget()  # told again with its past
        for back_s in range(PAST_S, -1, -1):  # a minute of past, so that sparklines have something to show
            self.fleet.t_s = now_s - back_s
            store.apply(self.fleet.snapshot())
            if self.fleet.gpus is not None and back_s % EVERY_S == 0:
                store.apply(self.fleet.gpus.view())
        while True:
            await asyncio.sleep(1 / self._hz if self._hz else 3600)
            self.push(1 / self._hz if self._hz else 0.0)

    def push(self, seconds: float = 0.25) -> None:
        self.fleet.t_s += seconds
        if self._store is not None:
            self._store.apply(self.fleet.snapshot())
            if self.fleet.cluster is not None:
                self._store.apply(self.fleet.cluster.view())
            if self.fleet.gpus is not None and int(self.fleet.t_s // EVERY_S) != int((self.fleet.t_s - seconds) // EVERY_S):
                self._store.apply(self.fleet.gpus.view())

    def tell(self, entry: control.JournalEntry) -> None:
        if self._store is not None:
            self._store.apply(control.JournalNews([entry]))

    async def command(self, name: str, args: dict[str, Any] | None = None, reason: str = "") -> control.CommandReply:
        request = control.Command(uuid.uuid4().hex, "kim@head", name, args or {}, reason)
        self.sent.append(request)
        await asyncio.sleep(0)
        if self.refuse:
            return control.CommandReply(request.request_id, False, self.refuse)
        fleet, slot = self.fleet, str(request.args.get("slot", ""))
        states = {"evict": "EVICTED", "drain": "DRAINING", "recycle": "DRAINING", "readmit": "REGISTERED"}
        if name in states and slot in fleet.names:
            going = [fleet.names.index(slot)]
            if name == "evict" and fleet.cluster is not None:
                going = fleet.cluster.evict(place_of(slot)[0], cordon=bool(request.args.get("cordon", False)))
            for position in going:
                fleet.state[position] = REPLICA_CODE[states[name]]
                fleet.state_since_s[position] = fleet.t_s
            fleet.slow = [other for other in fleet.slow if fleet.names.index(other) not in going]
        if name == "scale" and fleet.cluster is not None:
            fleet.cluster.scale(int(request.args["nodes"]))
        if name == "set_rate":
            fleet.target_qps = float(request.args["qps"])
        if name in ("pause", "resume"):
            fleet.paused = name == "pause"
        if name == "stop":
            fleet.phase, fleet.verdict = "ABORTED", "ABORTED"
        fleet.acts += 1
        self.tell(fleet.note(fleet.t_s, "operator:kim@head", f"act.{name}", slot, why=reason))
        return control.CommandReply(request.request_id, True, f"{name} {slot}".strip() + ": done")

    async def ask(self, question: Question) -> Answer | None:
        """As a head would; `silent`: as one that is gone."""
        if self.silent:
            return None
        if isinstance(question, GetSla):
            return answers.sla_detail(self.fleet, question, TTFT_LIMIT_MS, TPOT_LIMIT_MS)
        if isinstance(question, GetReplica):
            return answers.replica_detail(self.fleet, question)
        if isinstance(question, GetDescription):
            return answers.description(self.fleet, question)
        if isinstance(question, QueryMetrics) and self.fleet.gpus is not None:
            return self.fleet.gpus.curves(question)
        if isinstance(question, GetMetricNames) and self.fleet.gpus is not None:
            return self.fleet.gpus.names(question)
        return answers.log_lines(self.fleet, question) if isinstance(question, GetLogs) else None

    async def close(self) -> None:
        self._store = None
