"""The spec as vLLM's engine arguments, and what of it can be refused before anything starts.

Ours come first, `fleet.engine_args` goes over them as it is: vLLM has hundreds of arguments and gets new ones every two
weeks, so that names are checked against the version that is installed, in the replica, and here only what contradicts the
rest of the spec. How a replica spreads over accelerators is `fleet.layout`'s to say, since placing it needs the same
numbers. KV-transfer connectors are passed through; none has been run on GPUs here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engines.base import ArgumentError, nearest
from harness.engines.vllm import compat
from harness.spec import Role, RunSpec

WHERE = "fleet.engine_args"

_ELSEWHERE = {
    "model": "model.path",
    "tensor_parallel_size": "fleet.layout.tp",
    "pipeline_parallel_size": "fleet.layout.pp",
    "data_parallel_size": "fleet.layout.dp",
    "enable_expert_parallel": "fleet.layout.ep",
}
#: Ranks of one engine as replicas of their own: Paceline counts a whole engine as one.
_SPLIT_ENGINE = ("data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb", "nnodes", "node_rank")
_KV_ROLES: dict[Role, str] = {"both": "kv_both", "prefill": "kv_producer", "decode": "kv_consumer"}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_HEADER_BYTES = 100_000_000  # the format allows no longer one
_CPU_DEFAULTS: dict[str, Any] = {
    "dtype": "bfloat16",
    "enforce_eager": True,
    "max_num_seqs": 64,
    "kv_cache_memory_bytes": 128 * 1024 * 1024,
}
#: First ports of what vLLM listens on, where it would be the same one for all replicas of a node.
_DP_PORT, _NIXL_PORT = 29550, 5600


# --- without vLLM ---------------------------------------------------------------------------------------------------------


def check_args(spec: RunSpec) -> None:
    args = spec.fleet.engine_args
    for name, value in args.items():
        if name in _ELSEWHERE:
            raise ArgumentError(f"{WHERE}.{name} = {value!r}: say {_ELSEWHERE[name]} instead, which sets it")
        if name in _SPLIT_ENGINE:
            raise ArgumentError(f"{WHERE}.{name} = {value!r}: a replica is one engine with all its ranks; use fleet.layout")
        if not name.isidentifier():
            like = name.lstrip("-").replace("-", "_")
            raise ArgumentError(f'{WHERE}.{name} = {value!r}: not the name of an engine argument; did you mean "{like}"?')
    if args.get("enable_prefix_caching") and spec.load.kind != "explore":
        raise ArgumentError(
            f"{WHERE}.enable_prefix_caching = {args['enable_prefix_caching']!r}: MLPerf forbids it; "
            "leave it out, or use load.kind = explore"
        )
    _check_transfer(spec)
    _check_model(spec)


def _check_transfer(spec: RunSpec) -> None:
    config = spec.fleet.engine_args.get("kv_transfer_config")
    if config is None:
        if spec.fleet.split:
            raise ArgumentError(
                f"{WHERE}.kv_transfer_config: needed where fleet.roles split prefill and decode, "
                'a table such as {kv_connector = "NixlConnector"}'
            )
        return
    if not isinstance(config, Mapping):
        raise ArgumentError(f'{WHERE}.kv_transfer_config = {config!r}: must be a table, as {{kv_connector = "NixlConnector"}}')
    if not isinstance(config.get("kv_connector"), str):
        raise ArgumentError(f"{WHERE}.kv_transfer_config = {dict(config)!r}: kv_connector is missing, the connector's name")
    role = config.get("kv_role")
    if spec.fleet.split and role not in (None, "kv_both"):
        raise ArgumentError(
            f"{WHERE}.kv_transfer_config.kv_role = {role!r}: leave it out, fleet.roles says it of every replica; or kv_both"
        )


def _check_model(spec: RunSpec) -> None:
    path = spec.model.path
    if not path:
        raise ArgumentError("model.path: the vllm engine loads a model; give the folder with its config.json and weights")
    file = Path(path).expanduser() / "config.json"
    if spec.cluster.kind == "kubernetes" and not Path(spec.cluster.kubernetes.model_mount).is_dir():
        return  # the volume with the weights is mounted in the workers' pods alone; they look again
    if not file.is_file():
        raise ArgumentError(f"model.path = {path!r}: no folder with a config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"model.path = {path!r}: its config.json cannot be read: {error}") from None
    if not isinstance(config, dict) or not (config.get("model_type") or config.get("architectures")):
        raise ArgumentError(
            f"model.path = {path!r}: its config.json is not a model's: it has neither model_type nor architectures"
        )
    if spec.fleet.engine_args.get("load_format", "auto") in ("auto", "hf", "safetensors", "pt"):
        try:
            weights = sorted(entry for entry in file.parent.iterdir() if entry.suffix in _WEIGHTS)
            broken = next((entry.name for entry in weights if entry.suffix == ".safetensors" and not _is_whole(entry)), "")
        except OSError as error:
            raise ArgumentError(f"model.path = {path!r}: cannot be read: {error.strerror}") from None
        if broken:
            raise ArgumentError(
                f"model.path = {path!r}: {broken} is not whole: it is cut short, or a pointer to a file elsewhere"
            )
        if not weights:
            raise ArgumentError(
                f"model.path = {path!r}: no weights there ({', '.join(f'*{suffix}' for suffix in _WEIGHTS)}); is it the whole "
                f'model? {WHERE}.load_format = "dummy" goes without'
            )
    vocab = vocab_of(config)
    if vocab and spec.model.vocab_size > vocab:
        raise ArgumentError(
            f"model.vocab_size = {spec.model.vocab_size}: the model in {path} has {vocab}; warm-up prompts would name tokens "
            f"that it lacks. Set model.vocab_size = {vocab}"
        )


def _is_whole(file: Path) -> bool:
    """Whether a safetensors file has all that its header says; of its weights nothing is read."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length + 8 > size or length > _HEADER_BYTES:
            return False
        try:
            header = json.loads(stream.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
            return 8 + length + max(ends, default=0) <= size
        except (ValueError, LookupError, TypeError, AttributeError):
            return False


def vocab_of(config: Any) -> int:
    """Vocabulary of a Hugging Face configuration; 0 if it does not say."""
    if not isinstance(config, dict):
        return 0
    text = config.get("text_config")
    found = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return found if isinstance(found, int) and found > 0 else 0


def identity(spec: RunSpec) -> dict[str, Any]:
    """What makes replicas different generators of results, from the spec alone: it is the same wherever it is computed."""
    fleet = spec.fleet
    ours = {"moe": fleet.kernels.moe} if fleet.kernels.moe != "engine" else {}  # tables change times, not tokens
    return {
        **ours,
        "engine_args": fleet.engine_args,
        "layout": fleet.layout.model_dump(mode="json", exclude={"devices_per_node"}),
        "sampling": spec.sampling.model_dump(mode="json"),
        "roles": sorted(set(fleet.roles)),
    }


def devices(spec: RunSpec) -> int:
    layout = spec.fleet.layout
    return 0 if layout.device == "auto" and compat.build() == "cpu" else layout.devices


def environment(spec: RunSpec, gpu: int) -> dict[str, str]:
    """Variables for the process of the replica at this place of its node; what the user has set stays."""
    wanted = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    if spec.model.path:
        wanted["HF_HUB_OFFLINE"] = "1"
    if not spec.fleet.split:
        wanted["VLLM_HOST_IP"] = "127.0.0.1"  # a replica stays on its node; KV transfer needs an address that others reach
    device = spec.fleet.layout.device
    if device == "cpu" or (device == "auto" and compat.build() in ("cpu", "")):  # "": the build of fleet.python, unknown here
        # Left alone, vLLM's CPU build binds every replica to the same first core.
        wanted |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    transfer = spec.fleet.engine_args.get("kv_transfer_config")
    if isinstance(transfer, Mapping) and str(transfer.get("kv_connector", "")).startswith("Nixl"):
        wanted["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(_NIXL_PORT + gpu * max(1, spec.fleet.layout.dp))
    return {name: value for name, value in wanted.items() if name not in os.environ}


# --- in the replica -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arguments:
    values: dict[str, Any]  # for AsyncEngineArgs
    dropped: tuple[str, ...]  # ours, that this version of vLLM does not know


def arguments(spec: RunSpec, args: Mapping[str, Any], role: Role, gpu: int, known: Mapping[str, Any], *, cpu: bool) -> Arguments:
    """`known`: the arguments of the installed version with their defaults. Raises ArgumentError for what is not among them."""
    for name, value in args.items():
        if name not in known:
            hint = nearest(name, list(known), listed=0)
            raise ArgumentError(f"{WHERE}.{name} = {value!r}: not an argument of vLLM {compat.vllm_version()}{hint}")
    ours = _ours(spec, gpu, known, cpu=cpu)
    dropped = tuple(name for name in ours if name not in known)
    values = {name: value for name, value in ours.items() if name in known} | dict(args)
    transfer = values.get("kv_transfer_config")
    if isinstance(transfer, Mapping):
        values["kv_transfer_config"] = {"kv_role": _KV_ROLES[role], **transfer}
    return Arguments(values, dropped)


def _ours(spec: RunSpec, gpu: int, known: Mapping[str, Any], *, cpu: bool) -> dict[str, Any]:
    layout = spec.fleet.layout
    ours: dict[str, Any] = {
        "model": str(Path(spec.model.path or "").expanduser()),
        "skip_tokenizer_init": True,  # ids in, ids out
        "enable_prefix_caching": False,
        "disable_log_stats": True,  # only vLLM's own log lines: our logger turns the statistics themselves on
    }
    if layout.tp > 1:
        ours["tensor_parallel_size"] = layout.tp
    if layout.pp > 1:
        ours["pipeline_parallel_size"] = layout.pp
    if layout.dp > 1:
        ours["data_parallel_size"] = layout.dp
        if known.get("data_parallel_rpc_port") is not None:  # a fixed port; newer versions take a free one
            ours["data_parallel_rpc_port"] = _DP_PORT + gpu
    if layout.ep:
        ours["enable_expert_parallel"] = True
    if cpu:
        ours |= _CPU_DEFAULTS
        if os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
            del ours["kv_cache_memory_bytes"]
        if spec.sampling.seed is not None and spec.sampling.temperature > 0:
            # A prompt in chunks turns its request's random generator back, which the CPU's cannot: the engine core dies.
            ours["enable_chunked_prefill"] = False
    return ours
