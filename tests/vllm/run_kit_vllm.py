"""What the real runs on vLLM's CPU build share: small specs, the processes of a replica, a stray replica, a second opinion.

Run as a program it is the second opinion: `run_kit_vllm.py MODEL`, prompts as JSON on stdin, vLLM's own greedy answers as
JSON in the last line of stdout, from an engine without any of our code, in one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from environment import HERMETIC

from harness.datasets.load import load
from harness.spec import RunSpec
from harness.wire.client import HeadAddress
from harness.worker.launch import LaunchConfig, SlotLife

if TYPE_CHECKING:
    from run_kit import RunHandle

VOCAB = 512
OUTPUT_TOKENS = 160  # long enough for some to be in flight whenever one looks
ENGINE_ARGS = {
    "max_model_len": 512,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 512,
    "kv_cache_memory_bytes": 64 * 1024 * 1024,
}


def vllm_spec(model: Path, load_table: dict[str, Any], **fleet: Any) -> RunSpec:
    """Two replicas on the CPU, a few seconds of load, every answer as long as the output limit."""
    args = {**ENGINE_ARGS, **fleet.pop("engine_args", {})}
    return RunSpec.model_validate(
        {
            "name": "vllm",
            "model": {"name": "tiny model (random weights)", "path": str(model), "vocab_size": VOCAB},
            "dataset": {
                "samples": 24,
                "input_tokens": {"mean": 40, "sigma": 0.5, "min": 8, "max": 128},
                "output_tokens": {"mean": OUTPUT_TOKENS, "sigma": 0, "min": 2, "max": OUTPUT_TOKENS},
            },
            "load": {"max_output_tokens": OUTPUT_TOKENS, "sample_deadline_s": 240, "max_tries": 5, **load_table},
            "sampling": {"ignore_eos": True},
            "fleet": {
                "nodes": 1,
                "replicas_per_node": 2,
                "engine": "vllm",
                "engine_args": args,
                "layout": {"device": "cpu"},
                "warmup": {"rounds": 2, "max_rounds": 6, "batch": 2, "input_tokens": 16, "output_tokens": 4, "tolerance": 2},
                "heartbeat_s": 0.5,
                "lease_s": 10,
                "restart_backoff_s": 0.2,
                "keep_warm_s": 240,
                "orphan_s": 60,
                "barrier": {"deadline_s": 300},
                **fleet,
            },
            "record": {"chunk_s": 0.5, "min_free_gb": 0},
        }
    )


# --- processes -----------------------------------------------------------------------------------------------------


def group_of(leader: int) -> dict[int, str]:
    """Processes of the group that a replica leads, with their command lines; those that have ended are left out."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader and fields[0] not in ("Z", "X"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def engine_core_of(leader: int) -> int:
    return next(pid for pid, title in group_of(leader).items() if title.startswith("VLLM::EngineCore"))


def pss_mb(pids: list[int]) -> float:
    """Memory with what is shared counted in parts."""
    total_kb = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total_kb += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kb / 1024


# --- a replica that nobody asked for -------------------------------------------------------------------------------


@dataclass
class Stray:
    """A replica process started by hand, for a slot of a run, with a spec of its own."""

    process: subprocess.Popen[bytes]
    status_fd: int

    def death(self, within_s: float) -> dict[str, Any]:
        """What it tells its worker when its incarnation is over."""
        deadline, text = time.monotonic() + within_s, b""
        while b'"died"' not in text or not text.endswith(b"\n"):
            ready, _, _ = select.select([self.status_fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"not within {within_s:g} s: its end; told: {text!r}"
            text += os.read(self.status_fd, 65536)
        return json.loads(text.splitlines()[-1])  # type: ignore[no-any-return]

    def end(self) -> None:
        os.close(self.status_fd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def start_stray(run: RunHandle, spec: RunSpec, slot: str = "node000/gpu0") -> Stray:
    read, write = os.pipe()
    life = SlotLife(slot, 0, 0, 0, "stray0123456", 0)
    head = HeadAddress.read(run.folder).control
    config = LaunchConfig(spec.model_dump_json(), (life,), head, str(run.folder.keys), "stray", os.getpid(), write, guarded=True)
    with (run.folder.logs / "stray.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.worker.replica"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            process_group=0,
            env={**os.environ, **HERMETIC, "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        )
    os.close(write)
    assert process.stdin is not None
    process.stdin.write(json.dumps(config.line()).encode() + b"\n")
    process.stdin.flush()
    return Stray(process, read)


# --- a second opinion ----------------------------------------------------------------------------------------------


def prompts_of(spec: RunSpec) -> list[list[int]]:
    dataset = load(spec)
    return [np.frombuffer(dataset.prompt(index), "<i4").tolist() for index in range(len(dataset))]


def start_second_opinion(spec: RunSpec) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, str(spec.model.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **HERMETIC, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(prompts_of(spec)))
    process.stdin.close()
    process.stdin = None
    return process


def _second_opinion(model: str) -> None:
    from vllm import EngineArgs, SamplingParams
    from vllm.inputs import tokens_input
    from vllm.v1.engine.llm_engine import LLMEngine

    prompts = json.load(sys.stdin)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype="float32",
            enforce_eager=True,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            distributed_executor_backend="uni",
            **ENGINE_ARGS,  # type: ignore[arg-type]
        )
    )
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):  # one after the other: no batch but the prompt's own
        engine.add_request(str(number), tokens_input(prompt), params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    answers[output.request_id.partition("-")[0]] = list(output.outputs[0].token_ids)
    print(json.dumps(answers))


if __name__ == "__main__":
    _second_opinion(sys.argv[1])
