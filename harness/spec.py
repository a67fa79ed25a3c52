"""RunSpec: everything that decides what a run does, in one validated object.

Read from TOML (`harness.specfile` does the reading and the error texts); imported by everything, imports nothing of ours
but its own parts for Kubernetes and metrics. Units are in the names; `None` means "not limited" or "decided elsewhere", as
each field says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from harness.kubespec import KubernetesSpec
from harness.metricspec import MetricsSpec

Scenario = Literal["Server", "Offline"]
Kind = Literal["performance", "accuracy", "explore", "compliance"]
Test = Literal["TEST06", "TEST07", "TEST09"]
Role = Literal["both", "prefill", "decode"]
Balance = Literal["least_outstanding", "round_robin", "least_tokens", "session"]
Device = Literal["auto", "cuda", "rocm", "cpu"]
StragglerPolicy = Literal["flag", "drain", "recycle"]
MoeKernel = Literal["engine", "paceline"]


#: Which models' compliance tests these are, by what model.mlperf_name begins with. All of them are for Server and Offline.
TESTS: Mapping[str, str] = {"TEST06": "deepseek-r1", "TEST07": "gpt-oss-120b", "TEST09": "gpt-oss-120b"}

_MOST_QUERIES = 50_000_000
_MOST_TOKENS = 1_000_000_000


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LengthSpec(_Table):
    """A lognormal length distribution in tokens, rescaled until its mean holds after clipping."""

    mean: float = Field(1000, gt=0)
    sigma: float = Field(0.8, ge=0, le=3)
    min: int = Field(2, ge=1)
    max: int = Field(8000, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> LengthSpec:
        if not self.min <= self.mean <= self.max:
            raise ValueError(f"mean {self.mean:g} must lie between min {self.min} and max {self.max}")
        return self


class ModelSpec(_Table):
    name: str = Field("synthetic", min_length=1, description="Shown, recorded and hashed into REGISTER")
    mlperf_name: str | None = Field(None, description="LoadGen model name; takes its embedded mlperf.conf entries")
    path: str | None = Field(None, description="Local weights folder for engines that load one")
    vocab_size: int = Field(32000, ge=16)
    eos_token_id: int = Field(2, ge=0)


class DatasetSpec(_Table):
    kind: Literal["lengths", "jsonl", "parquet", "mlperf-pickle"] = "lengths"
    path: str | None = Field(None, description="File of samples; not used by kind = lengths")
    tokenizer: str | None = Field(None, description="Folder or tokenizer.json, for files that hold text only")
    samples: int | None = Field(None, ge=1, le=10_000_000, description="How many samples to use (lengths: to make)")
    input_tokens: LengthSpec = LengthSpec(mean=1000, sigma=0.8, min=16, max=8000)
    output_tokens: LengthSpec = LengthSpec(mean=1344, sigma=1.0, min=2, max=10240)
    seed: int = Field(1, ge=0)

    @model_validator(mode="after")
    def _has_path(self) -> DatasetSpec:
        if self.kind != "lengths" and not self.path:
            raise ValueError(f"path is needed by kind = {self.kind}")
        return self


class SeedSpec(_Table):
    qsl: int = Field(..., ge=0, lt=2**64)
    sample_index: int = Field(..., ge=0, lt=2**64)
    schedule: int = Field(..., ge=0, lt=2**64)


class LoadSpec(_Table):
    scenario: Scenario = "Server"
    kind: Kind = "performance"
    test: Test | None = Field(None, description="Which compliance test, in a compliance attempt")
    target_qps: float = Field(10.0, ge=0.001, le=1_000_000)
    duration_s: float = Field(600.0, ge=0, le=604_800, description="Minimum duration; 0 in an explore attempt means no end")
    min_queries: int | None = Field(
        None, ge=1, le=50_000_000, description="LoadGen's min_query_count; None leaves it to its configuration"
    )
    max_queries: int | None = Field(
        None, ge=1, le=50_000_000, description="LoadGen's max_query_count; such an attempt may be INVALID"
    )
    seeds: Literal["mlperf"] | SeedSpec = "mlperf"
    performance_samples: int | None = Field(None, ge=1, description="QSL performance count; None means all samples")
    max_output_tokens: int = Field(10240, ge=2)
    max_output_tokens_accuracy: int | None = Field(None, ge=2, description="In accuracy mode; None means max_output_tokens")
    sample_deadline_s: float = Field(300.0, gt=0, description="From dispatch to COMPLETE; then the sample is dispatched again")
    max_tries: int = Field(3, ge=1, le=100, description="Dispatches of one sample before the attempt ends")

    @property
    def what(self) -> str:
        """In words: `performance`, `compliance TEST09`."""
        return f"{self.kind} {self.test}" if self.test else self.kind

    @property
    def output_limit(self) -> int:
        """Most output tokens of a sample in this kind of attempt."""
        return (self.kind == "accuracy" and self.max_output_tokens_accuracy) or self.max_output_tokens


class SamplingSpec(_Table):
    """How real engines choose tokens; the synthetic one does not look at it."""

    temperature: float = Field(0.0, ge=0, le=2, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 is off")
    seed: int | None = Field(None, ge=0)
    min_tokens: int = Field(0, ge=0, description="Before this many the end of text is not chosen; TPOT needs 2")
    ignore_eos: bool = Field(False, description="Go on to the output limit")
    stop_token_ids: tuple[int, ...] = ()


class LimitsSpec(_Table):
    ttft_p99_ms: float | None = Field(None, gt=0)
    tpot_p99_ms: float | None = Field(None, gt=0)


class BarrierSpec(_Table):
    min_ready: int | None = Field(None, ge=1, description="Replicas that must be READY; None means all but waived ones")
    max_missing_nodes: int | None = Field(None, ge=0)
    deadline_s: float = Field(600.0, gt=0, description="From start; then min_ready and max_missing_nodes decide")


class WarmupSpec(_Table):
    rounds: int = Field(3, ge=1, le=100, description="Rounds whose step times must agree")
    max_rounds: int = Field(30, ge=1, le=1000)
    batch: int = Field(8, ge=1, description="Generations at once in a round: the target batch")
    input_tokens: int = Field(64, ge=1)
    output_tokens: int = Field(8, ge=2)
    tolerance: float = Field(0.25, gt=0, le=5, description="Spread of round times that counts as settled")


class LayoutSpec(_Table):
    """How one replica spreads over accelerators: tp x pp x dp of them, experts split over all when `ep`."""

    tp: int = Field(1, ge=1, le=1024, description="Tensor parallel")
    pp: int = Field(1, ge=1, le=1024, description="Pipeline parallel")
    dp: int = Field(1, ge=1, le=1024, description="Data parallel (attention)")
    ep: bool = Field(False, description="Expert parallel: experts are split, not copied")
    device: Device = Field("auto", description="auto takes what the node has")
    devices_per_node: int | None = Field(None, ge=1, le=64, description="Accelerators of a node; None means what a worker finds")

    @property
    def devices(self) -> int:
        """Accelerators of one replica; on the CPU none is counted."""
        return 0 if self.device == "cpu" else self.tp * self.pp * self.dp


class KernelsSpec(_Table):
    """Kernels of the replicas' mixture-of-experts layers, where an engine can be given ours (kernels/README.md)."""

    moe: MoeKernel = Field("engine", description="engine: its own choice; paceline: ours for MXFP4 weights, by a plugin")
    store: str | None = Field(
        None, min_length=1, description="Folder of tuned tables, ours and vLLM's, on the replicas' node; None: shipped ones"
    )
    required: bool = Field(False, description="Refuse a replica whose engine fell back to a kernel of its own")

    @property
    def asked(self) -> bool:
        """Whether an engine has to be told anything."""
        return self.moe != "engine" or self.store is not None

    @model_validator(mode="after")
    def _goes_with_ours(self) -> KernelsSpec:
        if self.moe == "engine" and self.required:
            raise ValueError('required = true goes with moe = "paceline"; of moe = "engine" every kernel is right')
        return self


class FleetSpec(_Table):
    nodes: int = Field(1, ge=1, le=4096)
    replicas_per_node: int = Field(8, ge=1, le=64)
    engine: str = "synthetic"
    engine_args: dict[str, Any] = Field(default_factory=dict)
    python: str | None = Field(None, description="Interpreter of replicas, of an environment with the engine; None: our own")
    layout: LayoutSpec = LayoutSpec()
    kernels: KernelsSpec = KernelsSpec()
    roles: tuple[Role, ...] = Field(
        ("both",),
        min_length=1,
        description='Repeated over a node, or over the fleet where a node has fewer; "5P4D" is short for 9',
    )
    balance: Balance = "least_outstanding"
    prefill_policy: Balance = Field("least_outstanding", description="Which prefill replica, where roles are split")
    decode_policy: Balance = Field("least_outstanding", description="Which decode replica takes over from it")
    outstanding_cap: int = Field(1024, ge=1, description="Samples at one replica; the rest waits in the head, in order")
    slots_per_process: int | None = Field(None, ge=1, description="Replicas a process carries; None lets the engine decide")
    barrier: BarrierSpec = BarrierSpec()
    warmup: WarmupSpec = WarmupSpec()
    heartbeat_s: float = Field(1.5, gt=0.05, le=60)
    lease_s: float = Field(10.0, gt=0.1, le=600)
    drain_deadline_s: float = Field(240.0, gt=0, description="Evict drains this long, then dispatches the rest again")
    restart_backoff_s: float = Field(1.0, gt=0, description="First delay; doubles up to restart_backoff_max_s")
    restart_backoff_max_s: float = Field(60.0, gt=0)
    keep_warm_s: float = Field(0.0, ge=0, description="After the last attempt: how long the warm fleet waits for another")
    max_restarts: int = Field(20, ge=0, description="Per slot; then it stays LOST with its reason")
    no_ready_grace_s: float = Field(30.0, gt=0, description="An attempt without any READY replica ends after this long")
    orphan_s: float = Field(900.0, gt=0, description="Workers without a head end themselves after this long")

    @field_validator("roles", mode="before")
    @classmethod
    def _short_roles(cls, value: Any) -> Any:
        short = re.fullmatch(r"([1-9]\d{0,2})P([1-9]\d{0,2})D", value) if isinstance(value, str) else None
        if short:
            return ("prefill",) * int(short[1]) + ("decode",) * int(short[2])
        if isinstance(value, str) and value != "both":
            raise ValueError(f'{value!r} is neither a list of both, prefill and decode nor like "5P4D"')
        return (value,) if value == "both" else value

    @model_validator(mode="after")
    def _roles_pair_up(self) -> FleetSpec:
        there = {self.role_at(node, gpu) for node in range(self.nodes) for gpu in range(self.replicas_per_node)}
        if len(there) == 1 and there != {"both"}:
            raise ValueError(f"roles make every replica {there.pop()}; prefill and decode need each other")
        if "both" in there and len(there) > 1:
            raise ValueError('roles mix "both" with prefill or decode; a fleet is split as a whole or not at all')
        return self

    @model_validator(mode="after")
    def _layout_fits(self) -> FleetSpec:
        layout, have = self.layout, self.layout.devices_per_node
        if have is not None and layout.devices * self.replicas_per_node > have:
            raise ValueError(
                f"replicas_per_node {self.replicas_per_node} x {layout.devices} accelerators each "
                f"(tp {layout.tp} x pp {layout.pp} x dp {layout.dp}) do not fit into layout.devices_per_node {have}"
            )
        return self

    @model_validator(mode="after")
    def _engine_takes_kernels(self) -> FleetSpec:
        instead = {
            "synthetic": "the synthetic engine computes nothing",
            "openai": "for engine = openai set PACELINE_MOE and PACELINE_KERNEL_STORE in the servers' environment",
        }
        if self.kernels.asked and self.engine in instead:  # other names are no engines, which is said elsewhere
            what = 'kernels.moe = "paceline"' if self.kernels.moe == "paceline" else f"kernels.store = {self.kernels.store}"
            raise ValueError(f"{what} goes with engine = vllm; {instead[self.engine]}")
        return self

    @model_validator(mode="after")
    def _lease_outlasts_beats(self) -> FleetSpec:
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError(f"lease_s {self.lease_s:g} must be at least twice heartbeat_s {self.heartbeat_s:g}")
        expected = self.nodes * self.replicas_per_node
        if self.barrier.min_ready is not None and self.barrier.min_ready > expected:
            raise ValueError(
                f"barrier.min_ready {self.barrier.min_ready} is more than the fleet has "
                f"({self.nodes} nodes x {self.replicas_per_node} replicas = {expected})"
            )
        return self

    def role_at(self, node: int, gpu: int) -> Role:
        """Every node alike where it has room for all roles; else one after the other through the fleet."""
        at = gpu if len(self.roles) <= self.replicas_per_node else node * self.replicas_per_node + gpu
        return self.roles[at % len(self.roles)]

    @property
    def split(self) -> bool:
        """Prefill and decode are done by different replicas."""
        return self.roles[0] != "both"


class ClusterSpec(_Table):
    kind: Literal["local", "kubernetes"] = "local"
    bind: str | None = Field(None, description="Address the head listens on; None: 127.0.0.1, in a pod all of its addresses")
    advertise: str | None = Field(None, description="Address others reach it by; None means bind, in a pod the pod's")
    nodes_per_worker: int = Field(1, ge=1, description="local only: how many nodes one worker process stands for")
    kubernetes: KubernetesSpec = KubernetesSpec()

    @property
    def listen(self) -> str:
        """A port-forward arrives at the pod's loopback address, workers at its own: there it is all of them."""
        return self.bind or ("127.0.0.1" if self.kind == "local" else "0.0.0.0")


class StragglersSpec(_Table):
    policy: StragglerPolicy = "flag"
    z: float = Field(3.5, gt=0)
    ratio: float = Field(1.08, gt=1)
    window_s: float = Field(10.0, gt=0)
    windows: int = Field(4, ge=1, le=60, description="Windows looked at")
    windows_slow: int = Field(3, ge=1, le=60, description="Windows that must be slow")
    min_steps: int = Field(20, ge=1, description="Steps a window needs to count")
    grace_s: float = Field(60.0, ge=0, description="Start of an attempt that is not judged")
    max_fraction: float = Field(0.02, gt=0, le=1, description="More suspects than this: the fleet is slow, not a replica")
    max_acts_per_10min: int = Field(4, ge=0, description="Automatic acts and evictions")

    @model_validator(mode="after")
    def _windows(self) -> StragglersSpec:
        if self.windows_slow > self.windows:
            raise ValueError(f"windows_slow {self.windows_slow} is more than windows {self.windows}")
        return self


class RecordSpec(_Table):
    dir: str | None = Field(None, description="Folder of runs; None means $PACELINE_RUNS, else ./runs")
    chunk_s: float = Field(1.0, gt=0.05, le=60, description="A killed head loses at most this much")
    min_free_gb: float = Field(0.2, ge=0, description="Refuse to start below this")


class RunSpec(_Table):
    """What to run. Every field can be overridden on the command line: `-s fleet.nodes=8`."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    model: ModelSpec = ModelSpec()
    dataset: DatasetSpec = DatasetSpec()
    load: LoadSpec = LoadSpec()
    sampling: SamplingSpec = SamplingSpec()
    limits: LimitsSpec = LimitsSpec()
    fleet: FleetSpec = FleetSpec()
    cluster: ClusterSpec = ClusterSpec()
    stragglers: StragglersSpec = StragglersSpec()
    metrics: MetricsSpec = MetricsSpec()
    record: RecordSpec = RecordSpec()

    @model_validator(mode="after")
    def _combinations(self) -> RunSpec:
        load = self.load
        if load.kind != "explore" and load.duration_s == 0:
            raise ValueError("load.duration_s = 0 (no end) is only for load.kind = explore")
        if load.kind == "explore" and load.scenario == "Offline":
            raise ValueError("load.kind = explore paces a rate and needs load.scenario = Server")
        if load.kind == "accuracy" and (load.max_queries or load.min_queries):
            raise ValueError("load.kind = accuracy sends every sample once; load.min_queries and load.max_queries do not apply")
        self._check_test()
        planned = load.target_qps * load.duration_s
        if load.kind != "explore" and planned > _MOST_QUERIES:
            raise ValueError(
                f"load.target_qps {load.target_qps:g} x load.duration_s {load.duration_s:g} = {planned:,.0f} queries: "
                f"LoadGen keeps about 480 bytes for each before it starts; at most {_MOST_QUERIES:,d}"
            )
        if self.dataset.kind == "lengths" and (self.dataset.samples or 0) * self.dataset.input_tokens.mean > _MOST_TOKENS:
            raise ValueError(
                f"dataset.samples {self.dataset.samples:,d} x {self.dataset.input_tokens.mean:g} input tokens "
                f"do not fit into memory; at most {_MOST_TOKENS:,d} tokens"
            )
        return self

    def _check_test(self) -> None:
        load, model = self.load, self.model.mlperf_name
        if load.kind != "compliance":
            if load.test is not None:
                raise ValueError(f"load.test = {load.test} goes with load.kind = compliance; load.kind is {load.kind}")
            return
        if load.test is None:
            raise ValueError(f"load.kind = compliance needs load.test: {', '.join(TESTS)}")
        if model is not None and model.removesuffix("-interactive") != TESTS[load.test]:
            fitting = ", ".join(test for test, name in TESTS.items() if model.removesuffix("-interactive") == name) or "none here"
            raise ValueError(f"load.test = {load.test} is for {TESTS[load.test]}; for model.mlperf_name = {model}: {fitting}")
        if load.max_queries or load.min_queries:
            raise ValueError(f"load.test = {load.test} says how many samples; load.min_queries and load.max_queries do not apply")

    @model_validator(mode="after")
    def _placeable(self) -> RunSpec:
        kube, fleet = self.cluster.kubernetes, self.fleet
        if kube.start_nodes is not None and kube.start_nodes > fleet.nodes:
            raise ValueError(
                f"cluster.kubernetes.start_nodes {kube.start_nodes} is more than fleet.nodes {fleet.nodes}, "
                "which is the most that the run can be scaled to"
            )
        return self

    @property
    def gpus_per_worker(self) -> int:
        """Accelerators that a worker pod asks for; 0: none."""
        kube = self.cluster.kubernetes
        if kube.gpu_resource == "none" or self.fleet.engine == "synthetic":
            return 0
        if kube.gpus_per_worker is not None:
            return kube.gpus_per_worker
        return self.fleet.layout.devices * self.fleet.replicas_per_node

    @property
    def expected_replicas(self) -> int:
        return self.fleet.nodes * self.fleet.replicas_per_node

    def slots(self) -> list[str]:
        """Slot names in order: `node000/gpu0` … A slot outlives the incarnations that fill it."""
        return [slot_name(n, g) for n in range(self.fleet.nodes) for g in range(self.fleet.replicas_per_node)]


def place_of(slot: str) -> tuple[int, int]:
    """Node and place on it, of a slot's name; ValueError from anything else."""
    node, _, gpu = slot.removeprefix("node").partition("/gpu")
    return int(node), int(gpu)


def node_name(node: int) -> str:
    return f"node{node:03d}"


def slot_name(node: int, gpu: int) -> str:
    return f"{node_name(node)}/gpu{gpu}"
