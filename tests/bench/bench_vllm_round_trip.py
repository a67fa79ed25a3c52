"""What a replica's round trip costs a real engine: tokens/s through driver, wire and data plane, against AsyncLLM alone.

One vLLM engine (tiny model with random weights, CPU build), in turn fed by a plain loop of AsyncLLM.generate in its own
process and by a real driver with LoadGen Offline over the wire; the same number of generations of the same lengths, 16 at
once. On a machine of two cores the driver, LoadGen and the engine's three processes share them: what the driver burns is
missing to the engine, so the ratio there is an upper bound.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from harness.engines.tinymodel import write_tiny_model
from harness.spec import RunSpec
from harness.wire.keys import ServerKeys
from tests.bench.driver_rig import run_driver
from tests.bench.rig import Child, Row, children, median, row
from tests.bench.vllm_replica import CONCURRENT

GENERATIONS = 48
ROUNDS, UNSETTLED = 13, 2
LENGTH = 64
#: Steps of some 20 ms, as those of real accelerators: with the tiny model's 5 ms the wait for one of two cores is all one sees.
SIZE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
START_S = 240.0


def spec_for(model: Path) -> RunSpec:
    lengths = {"mean": LENGTH, "sigma": 0.0, "min": LENGTH, "max": LENGTH}
    return RunSpec.model_validate(
        {
            "model": {"name": "tiny-llama (random weights)", "path": str(model), "vocab_size": 250, "eos_token_id": 2},
            "dataset": {"samples": GENERATIONS, "input_tokens": lengths, "output_tokens": lengths},
            "load": {
                "scenario": "Offline",
                "target_qps": 1,
                "duration_s": 0.001,
                "min_queries": GENERATIONS,
                "max_output_tokens": LENGTH,
            },
            "sampling": {"ignore_eos": True, "min_tokens": LENGTH},
            "fleet": {
                "nodes": 1,
                "replicas_per_node": 1,
                "engine": "vllm",
                "outstanding_cap": CONCURRENT,
                "layout": {"device": "cpu"},
                "engine_args": {
                    "max_model_len": 512,
                    "max_num_seqs": 32,
                    "max_num_batched_tokens": 1024,
                    "load_format": "dummy",  # random weights made by vLLM, for a model this size
                    "hf_overrides": SIZE,
                },
            },
        }
    )


def run() -> list[Row]:
    ratios: list[float] = []
    rates: list[float] = []
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place, children() as started:
        folder = Path(place)
        write_tiny_model(folder / "model")
        keys = ServerKeys.fresh()
        keys.save(folder / "keys")
        spec = spec_for(folder / "model")
        replica = started.start("vllm_replica", {"spec": spec.model_dump_json(), "keys": str(folder / "keys")})
        replica.says(START_S)
        alone_before = alone(replica)
        for epoch in range(1, ROUNDS + 1):
            rate = through_the_wire(spec, replica, keys, epoch)
            alone_after = alone(replica)
            ratios.append((alone_before + alone_after) / 2 / rate)
            rates.append(rate)
            alone_before = alone_after
    return [
        row("AsyncLLM alone / through the replica, tokens/s at 16 concurrent", median(ratios[UNSETTLED:]), "ratio", at_most=1.05),
        row("through the replica", median(rates), "token/s"),
    ]


def alone(replica: Child) -> float:
    replica.tell(f'{{"alone": {GENERATIONS}}}')
    said = replica.says(120)
    return float(said["tokens"]) / float(said["seconds"])


def through_the_wire(spec: RunSpec, replica: Child, keys: ServerKeys, epoch: int) -> float:
    """Tokens/s from the first dispatch to the last completion."""

    def join(endpoint: str) -> None:
        replica.tell(json.dumps({"endpoint": endpoint, "epoch": epoch}))

    rows = run_driver(spec, within_s=180, keys=keys, epoch=epoch, join=join).rows
    seconds = float(rows["done_ns"].max() - rows["dispatched_ns"].min()) / 1e9
    return float(rows["n_tokens"].sum()) / seconds
