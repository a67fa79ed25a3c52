"""A measuring child without any GPU: it speaks the worker's lines and makes its answers up from a formula with noise.

`python scripted_gpu.py SCRIPT.json`: {"gpu": bool, "crash": […], "hang": […], "wrong": […], "log": FILE, …}; the lists
are of substrings of a configuration's JSON. Every question that is measured is a line of the log; with {"answers": N} those
after the first N hang.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

PROBE: dict[str, Any] = {
    "gpu": True,
    "torch": "2.13.0",
    "triton": "3.9.0",
    "vllm": "0.32.0",
    "python": "3.11",
    "device_name": "NVIDIA H200",
    "arch": "9.0",
    "compute_units": 132,
    "memory_bytes": 150_119_055_360,
    "driver": "580.1",
    "clocks": "1980 MHz, 3201 MHz",
    "runtime": "13.0",
}


def made_up_us(config: dict[str, Any], m: int) -> float:
    """Least at 128 x 256 with 8 warps, for the down GEMM at 64."""
    off = abs(math.log2(config["BLOCK_SIZE_N"] / 128)) + abs(math.log2(config["BLOCK_SIZE_K"] / 256))
    off += 0.5 * abs(math.log2(config["num_warps"] / 8)) + 0.1 * abs(config["num_stages"] - 3)
    if "down" in config:
        down = {"BLOCK_SIZE_M": config["BLOCK_SIZE_M"], **config["down"]}
        return made_up_us({k: v for k, v in config.items() if k != "down"}, m) + made_up_us(down, m)
    return (100.0 + m) * (1.0 + 0.1 * off)


def answer(question: dict[str, Any], script: dict[str, Any]) -> dict[str, Any]:
    if question["do"] == "probe":
        return PROBE if script["gpu"] else {"gpu": False, "torch": "2.13.0+cpu", "triton": "3.9.0"}
    if question["do"] == "setup":
        return {"ready": True, "sets": 3}
    if question["do"] == "ceiling":
        return {"read_gb_s": 4321.0}
    asked = json.dumps(question)
    with Path(script["log"]).open("a") as log:
        log.write(asked + "\n")
    if len(Path(script["log"]).read_text().splitlines()) > script.get("answers", math.inf):
        time.sleep(60)
    config = json.dumps(question["config"])
    if any(part in config for part in script.get("crash", ())):
        sys.stderr.write("illegal memory access\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if any(part in config for part in script.get("hang", ())):
        time.sleep(60)
    if any(part in config for part in script.get("wrong", ())):
        return {"failed": "relative error 0.31 is above 0.01"}
    time.sleep(script.get("takes_s", 0.0))
    us = made_up_us(question["config"], question["m"]) * (1 + 0.002 * random.Random(asked).random())
    return {
        "uniform_us": us, "zipf_us": 0.9 * us, "spread_us": 0.002 * us, "repetitions": question["repetitions"], "error": 3e-3,
        "experts": 0.0, "rehearsal": script.get("rehearsal", False),
    }  # fmt: skip


def main() -> None:
    script = json.loads(Path(sys.argv[1]).read_text())
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line), script)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
