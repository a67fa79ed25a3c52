"""One real vLLM replica for a bench: the engine, and the replica's own data plane in front of it.

`python -m tests.bench.vllm_replica JSON` with spec (RunSpec as JSON) and keys (folder). Says {"ready": …} when the engine
has generated something. Then, for each JSON line on stdin:
  {"alone": n}                    n generations straight at the AsyncLLM, CONCURRENT at once; says tokens and seconds
  {"endpoint": …, "epoch": …}     joins that attempt's driver and serves it until the next line
Ends with its parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from harness.engines import registry
from harness.engines.base import EngineContext, Events, Key, Request
from harness.spec import RunSpec
from harness.wire import control, sockets
from harness.wire.keys import load_client_keys
from harness.wire.states import READY
from harness.worker.dataplane import DataPlane
from harness.worker.incarnation import Incarnation
from tests.bench.rig import child_config

CONCURRENT = 16
SLOT, INCARNATION = "node000/gpu0", "bench"


class Serving:
    """Implements Events: to the data plane, except for the generation that shows that the engine works."""

    def __init__(self) -> None:
        self.plane: DataPlane | None = None
        self.warm: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None:
        if self.plane is not None:
            self.plane.first(key, token, queue_us, prefill_us)

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None:
        if self.plane is not None:
            self.plane.complete(key, tokens, queue_us, prefill_us, decode_us)
        elif not self.warm.done():
            self.warm.set_result(None)

    def failed(self, key: Key, reason: str) -> None:
        raise RuntimeError(f"{key}: {reason}")

    def died(self, reason: str) -> None:
        raise RuntimeError(reason)

    def loading(self, note: str) -> None:
        pass


async def alone(llm: Any, spec: RunSpec, count: int) -> dict[str, float]:
    """What a program without Paceline does: AsyncLLM.generate, token ids in and out."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    n_out = spec.load.max_output_tokens
    params = SamplingParams(
        temperature=0.0,
        max_tokens=n_out,
        min_tokens=n_out,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    n_in = int(spec.dataset.input_tokens.mean)
    prompts = np.random.default_rng(1).integers(10, 250, (count, n_in)).tolist()
    tokens = 0

    async def one_after_the_other(mine: list[tuple[int, list[int]]]) -> None:
        nonlocal tokens
        for number, prompt in mine:
            ids: list[int] = []
            async for output in llm.generate(tokens_input(prompt), params, f"alone-{time.monotonic_ns()}-{number}"):
                ids += output.outputs[0].token_ids
            tokens += len(ids)

    work = list(enumerate(prompts))
    began_s = time.monotonic()
    await asyncio.gather(*(one_after_the_other(work[part::CONCURRENT]) for part in range(CONCURRENT)))
    return {"tokens": tokens, "seconds": time.monotonic() - began_s}


async def main(config: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    spec = RunSpec.model_validate_json(config["spec"])
    serving = Serving()
    context = EngineContext(spec, SLOT, 0, 0, 0, INCARNATION, 0, args=dict(spec.fleet.engine_args))
    engine: Any = registry.factory("vllm")(context, cast(Events, serving))
    await engine.start()
    engine.submit(Request(Key(0, 0, 1), np.full(8, 20, "<i4").tobytes(), 8))
    await serving.warm
    replica = SimpleNamespace(slot=SLOT, id=INCARNATION, state=READY, engine=engine)
    keys = load_client_keys(Path(config["keys"]), "worker")
    slots = cast(dict[str, Incarnation], {SLOT: replica})
    serving.plane = DataPlane(loop, sockets.context(), keys, slots, random.Random(1))
    say({"ready": True})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        told = json.loads(line)
        if "alone" in told:
            say(await alone(engine.llm, spec, told["alone"]))
        else:
            serving.plane.open(control.DataEndpoint(told["epoch"], told["endpoint"], keys.server_public.decode()))


def say(what: dict[str, Any]) -> None:
    os.write(SAYS, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    SAYS = os.dup(1)  # vLLM's processes print to stdout
    os.dup2(2, 1)
    asyncio.run(main(child_config()))
