"""[cluster.kubernetes]: where on a cluster a run is placed, and what its pods ask for. Part of the RunSpec.

Numbers of nodes and replicas are the fleet's: nothing here changes with N.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

GpuResource = Literal["amd.com/gpu", "nvidia.com/gpu", "none"]
_DNS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # unlike other names without dots
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|Ki|[MGTPE]i?)?")
_CPU = re.compile(r"\d+(\.\d+)?|\d+m")
_UNITS = {"m": 1e-3, "": 1.0} | {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)}
_UNITS |= {unit: 1000.0**power for power, unit in enumerate("kMGTPE", 1)}
_WORD = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_WORD}")
_VALUE = re.compile(rf"({_WORD})?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]?")
_LEAST_BYTES = 1 << 20
#: Folders of the head's and the worker's image, without which neither starts.
_OF_THE_IMAGE = (
    "/bin", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/var",
)  # fmt: skip


class TolerationSpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_s: int | None = Field(None, ge=0, description="tolerationSeconds, of NoExecute")

    @model_validator(mode="after")
    def _fits_together(self) -> TolerationSpec:
        if self.key is not None and not _KEY.fullmatch(self.key):
            raise ValueError(f"key {self.key!r} is not the key of a taint: one like team or amd.com/gpu")
        if self.value is not None and not _VALUE.fullmatch(self.value):
            raise ValueError(f"value {self.value!r} is not the value of a taint: letters, digits, '.', '_' and '-', at most 63")
        if self.value and self.operator == "Exists":
            raise ValueError(f"value {self.value!r} goes with operator = Equal; Exists tolerates every value")
        if self.key is None and self.operator == "Equal":
            raise ValueError("operator Equal needs a key; without key, Exists tolerates every taint")
        if self.toleration_s is not None and self.effect != "NoExecute":
            raise ValueError(f"toleration_s {self.toleration_s} goes with effect = NoExecute only")
        return self


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
    startup_s: int = Field(
        3600, ge=10, le=604_800, description="How long a worker may take to register before its pod is restarted"
    )
    max_evictions: int = Field(
        2, ge=1, le=100_000, description="Workers that the disruption budget lets go at once: minAvailable = N - this"
    )
    max_failed: int = Field(8, ge=1, le=100_000, description="Workers that may fail for good before the whole Job is failed")
    head_restarts: int = Field(3, ge=0, le=1000, description="How often a head that died is replaced")
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
    keep_record_s: float = Field(
        600.0, ge=0, le=31_536_000, description="How long an ended head waits for somebody to take its record"
    )
    clean_up: bool = Field(True, description="Remove the run's objects once it has ended and its record has been taken")
    env: dict[str, str] = Field(default_factory=dict, description="More environment variables of the workers")

    @field_validator("gpu_resource", mode="before")
    @classmethod
    def _none_is_a_word(cls, value: Any) -> Any:
        return "none" if value is None else value  # on a command line `none` means no value

    @field_validator("head_cpu", "worker_cpu")
    @classmethod
    def _is_cpu(cls, value: str) -> str:
        if not _CPU.fullmatch(value):
            raise ValueError(f"{value!r} is not an amount of CPUs; write it as 4 or 500m (half of one)")
        if not 0 < quantity(value) <= 100_000:
            raise ValueError(f"{value!r} is no amount that a pod can ask for; write it as 4 or 500m (half of one)")
        return value

    @field_validator("head_memory", "worker_memory", "shm")
    @classmethod
    def _is_memory(cls, value: str) -> str:
        if not _QUANTITY.fullmatch(value):
            raise ValueError(f"{value!r} is not an amount of memory; write it as 16Gi or 512Mi")
        if quantity(value) < _LEAST_BYTES:
            raise ValueError(f"{value!r} is less than 1Mi, in which nothing can run; write it as 16Gi or 512Mi")
        return value

    @field_validator("namespace")
    @classmethod
    def _is_namespace(cls, value: str) -> str:
        if not is_namespace(value):
            raise ValueError(f"{value!r} is not a namespace: lower-case letters, digits and '-', at most 63")
        return value

    @field_validator("address")
    @classmethod
    def _is_host(cls, value: str | None) -> str | None:
        if value and not _HOST.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a host: a name or an IP address alone; the ports are control_port and telemetry_port"
            )
        return value or None

    @field_validator("node_selector")
    @classmethod
    def _are_labels(cls, found: dict[str, str]) -> dict[str, str]:
        for key, value in found.items():
            if not _KEY.fullmatch(key):
                raise ValueError(f"{key!r} is not the key of a label: one like team or example.com/team")
            if not _VALUE.fullmatch(value):
                raise ValueError(f"{key}: {value!r} is not the value of a label: letters, digits, '.', '_' and '-', at most 63")
        return found

    @field_validator("avoid_nodes")
    @classmethod
    def _are_nodes(cls, found: tuple[str, ...]) -> tuple[str, ...]:
        for node in found:
            if len(node) > 253 or not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", node):
                raise ValueError(f"{node!r} is not the name of a node, as `kubectl get nodes` lists them")
        return found

    @field_validator("env")
    @classmethod
    def _are_variables(cls, found: dict[str, str]) -> dict[str, str]:
        for name, value in found.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} cannot be the name of a variable; use one like NCCL_DEBUG")
            if "\0" in value:
                raise ValueError(f"{name}: a value without NUL is needed")
        return found

    @field_validator("pull_secret", "model_claim", "data_claim", "results_claim", "hub_token_secret", "metrics_secret", "queue")
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
        path = "/" + "/".join(part for part in value.split("/") if part not in ("", "."))
        if path in _OF_THE_IMAGE:
            raise ValueError(f"{value!r} would hide what the image has there; use one like /mnt{path}")
        return path

    @model_validator(mode="after")
    def _ports_differ(self) -> KubernetesSpec:
        if self.control_port == self.telemetry_port:
            raise ValueError(f"control_port {self.control_port} is telemetry_port as well; they must differ")
        return self

    def image(self, which: Literal["head", "worker"]) -> str:
        name = self.head_image if which == "head" else self.worker_image
        return f"{self.registry.rstrip('/')}/{name}" if self.registry else name


def is_namespace(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


def quantity(text: str) -> float:
    """`500m` → 0.5, `16Gi` → bytes; 0 for what is none."""
    found = _QUANTITY.fullmatch(text)
    return float(found[1]) * _UNITS[found[2] or ""] if found else 0.0
