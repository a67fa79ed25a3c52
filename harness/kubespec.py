"""[cluster.kubernetes]: where on a cluster a run is placed, and what its pods ask for. Part of the RunSpec.

Numbers of nodes and replicas are the fleet's: nothing here changes with N.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

GpuResource = Literal["amd.com/gpu", "nvidia.com/gpu", "none"]
_DNS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"^\d+(\.\d+)?(m|k|[KMGTPE]i?)?$")


class TolerationSpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_s: int | None = Field(None, ge=0, description="tolerationSeconds, of NoExecute")


class KubernetesSpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    context: str | None = Field(None, description="Of the kubeconfig; None means its current one")
    namespace: str = "paceline"
    registry: str = Field("", description="Put before the images, as in registry.example.com/team")
    head_image: str = Field("paceline-head:0.1.0", min_length=1)
    worker_image: str = Field("paceline-worker:0.1.0", min_length=1)
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    pull_secret: str | None = Field(None, description="Secret with the registry's credentials")
    gpu_resource: GpuResource = Field("amd.com/gpu", description="none: the worker asks for no accelerator")
    gpus_per_worker: int | None = Field(None, ge=0, le=64, description="None: what the replicas of a node need")
    security: Literal["restricted", "rocm"] = Field(
        "restricted", description="rocm: seccomp Unconfined and group video, as ROCm's device files may want"
    )
    head_cpu: str = "4"
    head_memory: str = "16Gi"
    worker_cpu: str = "2"
    worker_memory: str = "8Gi"
    shm: str = Field("16Gi", description="Size of /dev/shm; the default of 64 MB breaks tensor parallelism")
    grace_s: int = Field(90, ge=1, le=3600, description="From SIGTERM to SIGKILL; also of an eviction")
    startup_s: int = Field(3600, ge=10, description="How long a worker may take to register before its pod is restarted")
    max_evictions: int = Field(2, ge=1, description="Workers that the disruption budget lets go at once: minAvailable = N - this")
    max_failed: int = Field(8, ge=1, description="Workers that may fail for good before the whole Job is failed")
    head_restarts: int = Field(3, ge=0, description="How often a head that died is replaced")
    one_per_node: bool = Field(True, description="Never two workers on a node")
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[TolerationSpec, ...] = ()
    avoid_nodes: tuple[str, ...] = Field((), description="Nodes that get no worker")
    model_claim: str | None = Field(None, description="PVC with the weights, mounted read-only at model_mount")
    model_mount: str = "/models"
    data_claim: str | None = Field(None, description="PVC with the dataset, mounted read-only at data_mount")
    data_mount: str = "/data"
    results_claim: str = Field("paceline-results", description="PVC for the record; it outlives the head")
    results_mount: str = "/results"
    hub_token_secret: str | None = Field("hf-token", description="Secret with key `token`; it may be missing")
    metrics_secret: str | None = Field(
        None, description="Secret with the files that metrics.gpu names (tokens, CA), in the head at /etc/paceline-metrics"
    )
    queue: str | None = Field(None, description="Kueue LocalQueue; used where the cluster has Kueue")
    jobset: bool = Field(False, description="Place both Jobs as one JobSet where the cluster has JobSet")
    gang: bool = Field(False, description="Native gang scheduling where the cluster has it")
    control_port: int = Field(5555, ge=1, le=65535)
    telemetry_port: int = Field(5556, ge=1, le=65535)
    address: str | None = Field(None, description="Host by which a console reaches the head's ports; None means port-forward")
    start_nodes: int | None = Field(None, ge=1, description="Nodes placed at first, of fleet.nodes; `paceline scale` changes it")
    keep_record_s: float = Field(600.0, ge=0, description="How long an ended head waits for somebody to take its record")
    clean_up: bool = Field(True, description="Remove the run's objects once it has ended and its record has been taken")
    env: dict[str, str] = Field(default_factory=dict, description="More environment variables of the workers")

    @field_validator("gpu_resource", mode="before")
    @classmethod
    def _none_is_a_word(cls, value: Any) -> Any:
        return "none" if value is None else value  # on a command line `none` means no value

    @field_validator("head_cpu", "head_memory", "worker_cpu", "worker_memory", "shm")
    @classmethod
    def _is_quantity(cls, value: str) -> str:
        if not _QUANTITY.match(value):
            raise ValueError(f"{value!r} is not a quantity; write it as 4, 500m or 16Gi")
        return value

    @field_validator(
        "namespace", "pull_secret", "model_claim", "data_claim", "results_claim", "hub_token_secret", "metrics_secret", "queue"
    )
    @classmethod
    def _is_name(cls, value: str | None) -> str | None:
        if value is not None and not _DNS.fullmatch(value):
            raise ValueError(f"{value!r} is not a name of Kubernetes: lower-case letters, digits and '-', at most 63")
        return value

    @field_validator("model_mount", "data_mount", "results_mount")
    @classmethod
    def _is_folder(cls, value: str) -> str:
        if not value.startswith("/") or value.strip("/") == "" or ".." in value:
            raise ValueError(f"{value!r} is not a folder of a pod: an absolute path below /")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _ports_differ(self) -> KubernetesSpec:
        if self.control_port == self.telemetry_port:
            raise ValueError(f"control_port {self.control_port} is telemetry_port as well; they must differ")
        return self

    def image(self, which: Literal["head", "worker"]) -> str:
        name = self.head_image if which == "head" else self.worker_image
        return f"{self.registry.rstrip('/')}/{name}" if self.registry else name
