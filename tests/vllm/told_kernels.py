"""The vllm engine started as a worker starts it with fleet.kernels, and its facts about kernels as JSON (test_kernel_facts.py).

    python told_kernels.py MODEL LOGS KERNELS     KERNELS: the table as JSON

A process of its own: vLLM reads its plugins once in a process, and triton once whether it interprets.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from engine_kit import Listener, context_of, prepare_environment, spec_of

from harness.engines.vllm import VllmEngine
from harness.spec import RunSpec
from harness.worker.slots import Slot
from harness.worker.surroundings import Maker


async def told(model: Path, logs: Path, kernels: str) -> dict[str, str]:
    raw = spec_of(model).model_dump()
    raw["fleet"]["kernels"] = json.loads(kernels)
    spec = RunSpec.model_validate(raw)
    environ = Maker([sys.executable], logs).of(spec, [Slot("node000/gpu0", 0, 0, 0)]).environ
    os.environ.update({name: value for name, value in environ.items() if name.startswith("PACELINE_")})
    sys.path[:0] = environ["PYTHONPATH"].split(os.pathsep)[:1]
    prepare_environment(spec)
    engine = VllmEngine(context_of(spec), Listener())
    try:
        await engine.start()
        return {name: str(value) for name, value in engine.facts().items() if name.startswith("kernel")}
    finally:
        await engine.stop()


if __name__ == "__main__":
    print("facts:" + json.dumps(asyncio.run(told(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))))
