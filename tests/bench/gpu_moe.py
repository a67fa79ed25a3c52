"""The MoE kernel on this machine's GPU: numerics, ceilings, times beside peers, and a short tuning; 8 minutes are enough on H200.

    python -m tests.bench.gpu_moe [--budget 480] [--out build/gpu_moe.json] [--rehearse]

Needs a GPU, torch 2.11 or newer and triton 3.6 or newer; vLLM's triton_kernels are compared with where they can be imported. The
result file is written again after every step, so that an end in between loses nothing. Peers come last: one whose capture fails,
or that spoils the device's context, takes down what comes after it in this process. What fails is recorded with its error. Exits
with 1 if a result is wrong or a goal is missed, with 2 without a GPU.

--rehearse runs every step on the CPU in triton's interpreter, on tiny layers: it finds out that the script runs, its times mean
nothing, and its file is marked. No part of `make bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.accelerators import TARGETS, accelerator
from kernels.errors import KernelInputError, NotHere
from kernels.identity import KERNEL_NAME, kernel_hash
from kernels.shapes import BYTES_PER_WEIGHT, MoeShape, model
from kernels.tile import LayerConfig, Tile

if TYPE_CHECKING:
    import torch

    from kernels.compiling.job import Job
    from kernels.tuner.measure import Bench, Routing
    from tests.bench.gpu_moe_peers import Peer

ROOT = Path(__file__).parents[2]
MS, TUNED_MS, JUDGED_MS = (1, 4, 16, 64, 256), (16, 64, 256, 4, 1), (16, 64, 256)
REPETITIONS = 30
LEAST_OF_CEILING, MOST_OF_PEER = 0.6, 1.05
LEFT_FOR_PEERS_S = 120.0  # importing vLLM, compiling its kernels, three layers
JUDGED = "gpt-oss-120b"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_moe", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budget", type=float, default=480.0, help="seconds in all (480)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_moe.json", help="the result (build/gpu_moe.json)")
    parser.add_argument("--rehearse", action="store_true", help="every step on the CPU, on tiny layers, timing nothing")
    asked = parser.parse_args(words)
    if asked.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    try:
        import torch
    except ImportError:
        print(
            f"gpu_moe: no torch in {sys.executable}, so no GPU can be looked for; run it with the engine's Python",
            file=sys.stderr,
        )
        return 2
    if not asked.rehearse and not torch.cuda.is_available():
        print("gpu_moe: no GPU here (torch.cuda.is_available() is false); --rehearse runs its steps without one", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu_moe-") as cache:
        os.environ["TRITON_CACHE_DIR"] = str(Path(cache) / "triton")
        os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
        try:
            return Run(asked.budget, asked.out, Path(cache), rehearse=asked.rehearse).all()
        except (NotHere, KernelInputError) as error:
            print(f"gpu_moe: {error}", file=sys.stderr)
            return 2


class Wrong(Exception):
    """A result is off by more than the limit: no time of such a kernel is worth anything."""


class Lost(Exception):
    """The device can be used no more by this process."""


class Run:
    def __init__(self, budget_s: float, out: Path, cache: Path, *, rehearse: bool) -> None:
        from kernels.store import of_accelerator
        from kernels.tuner.measure import device_of
        from kernels.tuner.node import Probe
        from kernels.tuner.worker import probe

        self.began_s, self.budget_s, self.out, self.cache, self.rehearse = time.monotonic(), budget_s, out, cache, rehearse
        self.device = device_of(rehearse=rehearse)
        facts = probe({})
        if rehearse:
            self.on, self.node_class = accelerator("H200"), of_accelerator(accelerator("H200"))
        else:
            from kernels.tuner.tune import as_found

            known = Probe(**{name: value for name, value in facts.items() if name in Probe.__dataclass_fields__})
            self.node_class = known.node_class
            if self.node_class.target not in TARGETS:
                raise NotHere(f"{known.device_name} is {self.node_class.target}; the kernel is made for {', '.join(TARGETS)}")
            self.on = as_found(self.node_class.target, known)
        target = "cpu" if rehearse else self.node_class.target
        self.result: dict[str, Any] = {
            "bench": "gpu_moe", "rehearsal": rehearse, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": {"target": target, **facts, "nvidia_smi": _nvidia_smi()}, "kernel_hash": kernel_hash(),
            "budget_s": budget_s, "steps": [], "ceilings": {}, "numerics": [], "rows": [], "tuned": {}, "errors": [],
            "goals": [],
        }  # fmt: skip
        self.benches: dict[str, Bench] = {}
        self.unfit: set[Job] = set()  # that spill, or do not compile
        self.repetitions = 2 if rehearse else REPETITIONS

    def all(self) -> int:
        device = self.result["device"]
        mark = "REHEARSAL, its times mean nothing: " if self.rehearse else ""
        print(f"{mark}{device.get('device_name', 'CPU')}, triton {device['triton']}, torch {device['torch']}")
        try:
            for name, step in (
                ("ceilings", self.ceilings), ("compile", self.compile), ("numerics", self.numerics), ("times", self.times),
                ("tuning", self.tuning), ("peers", self.beside_peers),
            ):  # fmt: skip
                self.step(name, step)
        except Lost as error:
            self.result["errors"].append({"step": "device", "error": str(error)})
            print(f"STOPPED: {error}; what was found before holds")
        except Wrong as error:
            self.result["errors"].append({"step": "numerics", "error": str(error)})
            print(f"STOPPED: {error}")
        except KeyboardInterrupt:
            self.save()
            raise
        self.goals()
        self.save()
        print(f"\n{self.out}: written after {time.monotonic() - self.began_s:.0f} s")
        missed = [goal for goal in self.result["goals"] if goal["ok"] is False]
        wrong = any(one["step"] == "numerics" for one in self.result["errors"])
        return 1 if wrong or missed else 0

    # --- the frame ------------------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.began_s)

    def step(self, name: str, do: Callable[[], None]) -> None:
        """Its time is recorded; what it raises, but for a wrong result, costs this step only."""
        if self.left_s < 5.0:
            self.result["steps"].append({"step": name, "left_out": "the budget is used up"})
            print(f"-- {name}: left out, the budget is used up")
            return
        print(f"-- {name}", flush=True)
        began_s = time.monotonic()
        try:
            do()
        except (Wrong, Lost, KeyboardInterrupt):
            raise
        except Exception as error:
            self.failed(name, error)
        finally:
            self.result["steps"].append({"step": name, "s": round(time.monotonic() - began_s, 2)})
            self.save()

    def failed(self, what: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
        self.result["errors"].append({"step": what, "error": text})
        print(f"   {what}: {text}", flush=True)
        self.save()
        self.check_device(f"{what}: {text}")

    def check_device(self, after: str) -> None:
        from kernels.tuner.worker import device_lives

        if not device_lives():
            raise Lost(f"the device was lost by {after}")

    def save(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        aside = self.out.with_name(f".{self.out.name}.new")
        aside.write_text(json.dumps(_finite(self.result), indent=1) + "\n")
        aside.replace(self.out)

    # --- layers ---------------------------------------------------------------------------------------------

    def shapes(self) -> dict[str, MoeShape]:
        whole = {
            JUDGED: model("gpt-oss-120b"),
            "DeepSeek-V4-Flash tp8": model("DeepSeek-V4-Flash").split(tp=8),
            "DeepSeek-R1-MXFP4 ep8": model("DeepSeek-R1-MXFP4").split(ep=8),
        }
        if not self.rehearse:
            return whole
        over = {name: 8 if name.endswith("ep8") else 4 for name in whole}
        return {
            name: replace(one, experts=4, top_k=2, hidden=64, intermediate=32, global_experts=over[name])
            for name, one in whole.items()
        }

    def ms(self, of: tuple[int, ...]) -> tuple[int, ...]:
        return of if not self.rehearse else of[:1]

    def bench(self, name: str) -> Bench:
        """Weights of one layer at a time stay on the device."""
        from kernels.tuner.measure import Bench
        from kernels.tuner.ours import Mxfp4Subject

        if name not in self.benches:
            self.benches.clear()
            shape, seed = self.shapes()[name], int(time.time())  # fresh data at each run
            subject = Mxfp4Subject.made(shape, _bf16(), self.device, seed, rehearse=self.rehearse)
            self.benches[name] = Bench(
                subject, self.device, _bf16(), 0 if self.rehearse else self.on.cache_mib * 2**20, seed, rehearse=self.rehearse
            )
        return self.benches[name]

    def shipped(self, name: str) -> dict[int, LayerConfig]:
        """What the store has for this layer, by M; in a rehearsal the default of where there is no table."""
        from kernels.store import lookup

        found = lookup(self.shapes()[name], self.node_class)
        return {m: found.config(m).config for m in self.ms(MS)}

    def tiles_to_tune(self, m: int, which: Any) -> list[Tile]:
        from kernels.compiling.job import gemm_job
        from kernels.tuner.offline import in_turn
        from kernels.tuner.prune import by_rules
        from kernels.tuner.space import tiles

        shape = model(JUDGED)
        ordered = by_rules(tiles(shape, m, self.node_class.target, which), shape, m, which, self.on).kept
        jobs = {tile: gemm_job(self.node_class.target, self.shapes()[JUDGED], tile, "bf16", which) for tile in in_turn(ordered)}
        return [tile for tile, job in jobs.items() if job not in self.unfit][: 1 if self.rehearse else 40]

    # --- steps ----------------------------------------------------------------------------------------------

    def ceilings(self) -> None:
        import torch

        from kernels.tuner.measure import GraphOf, read_ceiling_gb_s

        size_bytes, side = (8 * 10**9, 8192) if not self.rehearse else (2**20, 64)
        found = self.result["ceilings"]
        found["read_gb_s"] = read_ceiling_gb_s(self.device, size_bytes, self.repetitions)
        found["copy_gb_s"] = self.copied_gb_s(size_bytes)
        a, b = (torch.randn(side, side, dtype=torch.bfloat16, device=self.device) for _ in range(2))
        gemm_us = min(GraphOf([lambda: a @ b], self.device).times_us(self.repetitions))
        found["bf16_tflops"] = 2 * side**3 / gemm_us * 1e-6
        print("   " + ", ".join(f"{name} {value:,.0f}" for name, value in found.items()))

    def copied_gb_s(self, size_bytes: int) -> float:
        """Read and written."""
        import torch

        from kernels.tuner.measure import GraphOf

        source = torch.ones(size_bytes // 4, dtype=torch.float32, device=self.device)
        target = torch.empty_like(source)
        us = min(GraphOf([lambda: target.copy_(source)], self.device).times_us(self.repetitions))
        return float(2 * source.numel() * 4 / us * 1e-3)

    def compile(self) -> None:
        """All that is launched later, at once on all cores, into the cache that the launches read."""
        from kernels.compiling.job import Job, gemm_job
        from kernels.compiling.pool import Pool
        from kernels.tuner.space import GEMMS

        target, jobs = self.node_class.target, dict[Job, None]()
        for name, shape in self.shapes().items():
            for config in self.shipped(name).values():
                for which, tile in zip(GEMMS, (config.gate_up, config.down), strict=True):
                    jobs[gemm_job(target, shape, tile, "bf16", which)] = None
        shipped = len(jobs)
        for m in self.ms(TUNED_MS):
            for which in GEMMS:
                for tile in self.tiles_to_tune(m, which):
                    jobs[gemm_job(target, self.shapes()[JUDGED], tile, "bf16", which)] = None
        wanted = list(jobs) if not self.rehearse else [next(iter(jobs))]
        until_s = time.monotonic() + 0.35 * self.left_s
        done = 0
        results = Pool(self.cache, deadline_s=60.0, launches=Path(os.environ["TRITON_CACHE_DIR"])).compile(wanted)
        with contextlib.closing(results):  # a generator, whose end ends the children
            for one in results:
                done += 1
                if one.problems:
                    self.unfit.add(one.job)
                if time.monotonic() > until_s:
                    break
        self.result["compiled"] = {"asked": len(wanted), "shipped": shipped, "done": done, "unfit": len(self.unfit)}
        print(f"   {done} of {len(wanted)}, {len(self.unfit)} of them are not to be launched")

    def numerics(self) -> None:
        """Every shipped tile on every layer against float32 on dequantised weights, on poisoned memory; stops at a wrong one."""
        for name in self.shapes():
            bench, limit = self.bench(name), 1e-2
            for m, config in self.shipped(name).items():
                try:
                    error = bench.error_of(m, config.json())
                except Exception as raised:  # it does not compile here, say: no number that is wrong
                    self.failed(f"ours on {name} at M {m}, {config.gate_up} and {config.down}", raised)
                    continue
                self.result["numerics"].append(
                    {"shape": name, "m": m, "config": config.json(), "error": error, "ok": error <= limit}
                )
                if not error <= limit:
                    raise Wrong(
                        f"{name}, M {m}, {config.gate_up} and {config.down}: relative error {error:.3g} is above {limit:g}"
                    )
            errors = [one["error"] for one in self.result["numerics"] if one["shape"] == name]
            print(f"   {name}: {len(errors)} configurations, worst relative error {max(errors, default=math.nan):.2e}")
            self.save()

    def times(self) -> None:
        for name in self.shapes():
            for m, config in self.shipped(name).items():
                self.ours(name, m, config, "shipped")

    def peers(self, name: str) -> list[Peer]:
        from kernels.tuner.ours import Mxfp4Subject
        from tests.bench.gpu_moe_peers import GroupedMm, TritonKernels

        subject = self.bench(name).subject
        assert isinstance(subject, Mxfp4Subject)
        makers: list[Callable[[], Peer]] = [lambda: TritonKernels(subject), lambda: GroupedMm(subject.shape, self.device)]
        found: list[Peer] = []
        for make in makers:
            try:
                found.append(make())
            except Exception as error:
                self.failed(f"a peer on {name}", error)
        return found

    def ours(self, name: str, m: int, config: LayerConfig, origin: str) -> None:
        from kernels.tuner.halving import Failed

        bench = self.bench(name)
        try:
            twice = [bench.measure(m, "layer", config.json(), self.repetitions) for _ in range(2)]
        except Exception as raised:
            self.failed(f"ours on {name} at M {m}", raised)
            return
        first, second = twice
        if isinstance(first, Failed) or isinstance(second, Failed):
            failed = first if isinstance(first, Failed) else second
            assert isinstance(failed, Failed)
            self.failed(f"ours on {name} at M {m}", RuntimeError(failed.why))
            return
        row = self.row(
            name, m, KERNEL_NAME, BYTES_PER_WEIGHT["mxfp4"], [first.uniform_us, second.uniform_us], first.spread_us, "uniform"
        )
        row |= {"config": config.json(), "origin": origin, "error": first.error, "zipf_us": min(first.zipf_us, second.zipf_us)}
        self.told(row)

    def peer(self, name: str, m: int, peer: Peer, how: Routing) -> None:
        from kernels.tuner.measure import GraphOf, quartile_spread, relative_error

        error = None
        try:
            calls = self.bench(name).calls(m, how)
            if peer.same_weights and how == "uniform":
                tokens, right = self.bench(name).right(m)
                error = relative_error(peer.layer(calls[0])()[tokens], right)
            graph = GraphOf([peer.layer(call) for call in calls], self.device)
            twice = [graph.times_us(self.repetitions) for _ in range(2)]
        except Exception as raised:
            self.failed(f"{peer.name} on {name} at M {m}", raised)
            return
        medians = [statistics.median(one) for one in twice]
        row = self.row(name, m, peer.name, peer.bytes_per_weight, medians, quartile_spread(twice[0]), how)
        self.told(row if error is None else row | {"error": error})

    def row(
        self, name: str, m: int, kernel: str, bytes_per_weight: float, twice: list[float], spread_us: float, how: Routing
    ) -> dict[str, Any]:
        from kernels.roofline import floor
        from kernels.tuner.measure import touched

        shape = self.shapes()[name]
        experts = statistics.mean(len(touched(shape, call.ids)) for call in self.bench(name).calls(m, how))
        us = min(twice)
        gb_s = experts * shape.parameters * bytes_per_weight / us * 1e-3
        ceiling = self.result["ceilings"].get("read_gb_s", math.nan)
        return {
            "kernel": kernel, "shape": name, "m": m, "routing": how, "us": us, "again_us": max(twice), "spread_us": spread_us,
            "touched_experts": experts, "gb_s": gb_s, "of_ceiling": gb_s / ceiling,
            "floor_us": floor(shape, m, self.on, experts).us,
            "experts": shape.experts, "top_k": shape.top_k, "hidden": shape.hidden, "intermediate": shape.intermediate,
            "rehearsal": self.rehearse,
        }  # fmt: skip

    def told(self, row: dict[str, Any]) -> None:
        self.result["rows"].append(row)
        self.save()
        zipf = f", zipf {row['zipf_us']:,.1f} us" if "zipf_us" in row else ""
        print(
            f"   {row['shape']:<22} M {row['m']:>3} {row['routing']:<8} {row['kernel']:<24} {row['us']:>10,.1f} us  "
            f"{row['gb_s']:>7,.0f} GB/s  {row['of_ceiling']:>5.0%} of what was read at most  {row.get('origin', '')}{zipf}",
            flush=True,
        )

    def tuning(self) -> None:
        """gpt-oss's decode steps, in what is left of the budget."""
        from kernels.tuner.halving import halve
        from kernels.tuner.space import GEMMS
        from kernels.tuner.tune import Config, joint

        bench = self.bench(JUDGED)
        ms = self.ms(TUNED_MS)
        for number, m in enumerate(ms):
            until_s = time.monotonic() + (self.left_s - LEFT_FOR_PEERS_S) / (len(ms) - number)

            def on(until_s: float = until_s) -> bool:
                return time.monotonic() < until_s

            rankings = []
            for which in GEMMS:
                candidates = [Config(tile.json()) for tile in self.tiles_to_tune(m, which)]
                rankings.append(halve(candidates, self.measuring(bench, m, which), keep_on=on))
            layers = halve(joint(*rankings), self.measuring(bench, m, "layer"), first=10, keep_on=on)
            tried = sum(len(one.order) + len(one.failed) for one in (*rankings, layers))
            self.result["tuned"][str(m)] = {
                "tried": tried, "complete": layers.complete, "config": layers.order[0][0] if layers.order else None,
                "failed": sorted({why for one in (*rankings, layers) for why in one.failed.values()})[:10],
            }  # fmt: skip
            if layers.order:
                self.ours(JUDGED, m, LayerConfig.of(layers.order[0][0]), "tuned here")

    def measuring(self, bench: Bench, m: int, what: str) -> Callable[[Any, int], Any]:
        from kernels.tuner.halving import Failed

        def measure(config: Any, repetitions: int) -> Any:
            try:
                return bench.measure(m, what, config, 1 if self.rehearse else repetitions)
            except Exception as error:  # of this configuration: it does not compile, or does not fit
                self.check_device(f"{what} {config} at M {m}: {error}")
                return Failed(f"{type(error).__name__}: {error}".splitlines()[0][:200])

        return measure

    def beside_peers(self) -> None:
        """The best of ours once more and the peers, minutes after the tuning, with the same data and clocks."""
        for name in self.shapes():
            for m in self.ms(MS):
                known = [one for one in self.result["rows"] if (one["kernel"], one["shape"], one["m"]) == (KERNEL_NAME, name, m)]
                if known:
                    best = min(known, key=lambda one: float(one["us"]))
                    self.ours(name, m, LayerConfig.of(best["config"]), f"{best['origin']}, again")
            for peer in self.peers(name):
                for m in self.ms(MS):
                    self.peer(name, m, peer, "uniform")
                for m in self.ms(JUDGED_MS) if name == JUDGED else ():
                    self.peer(name, m, peer, "zipf")

    # --- goals ----------------------------------------------------------------------------------------------

    def goals(self) -> None:
        print("\ngoals" + (" (a rehearsal: not judged)" if self.rehearse else ""))
        for m in self.ms(MS):
            rows = [one for one in self.result["rows"] if (one["shape"], one["m"], one["routing"]) == (JUDGED, m, "uniform")]
            ours = min((one for one in rows if one["kernel"] == KERNEL_NAME), key=lambda one: float(one["us"]), default=None)
            peers = min((one for one in rows if one["kernel"] != KERNEL_NAME), key=lambda one: float(one["us"]), default=None)
            if ours is None:
                self.goal(m, "of the read ceiling", None, f">= {LEAST_OF_CEILING}", ok=False)
                continue
            self.goal(
                m, "of the read ceiling", ours["of_ceiling"], f">= {LEAST_OF_CEILING}", ok=ours["of_ceiling"] >= LEAST_OF_CEILING
            )
            if peers is not None:
                ratio = ours["us"] / peers["us"]
                self.goal(m, f"of the time of {peers['kernel']}", ratio, f"<= {MOST_OF_PEER}", ok=ratio <= MOST_OF_PEER)

    def goal(self, m: int, what: str, value: float | None, right: str, *, ok: bool) -> None:
        judged = m in JUDGED_MS and not self.rehearse
        self.result["goals"].append({"m": m, "what": what, "value": value, "goal": right, "ok": ok if judged else None})
        mark = ("ok" if ok else "MISS") if judged else "-"
        print(f"{mark:<5} {JUDGED} M {m:>3}: {'nothing measured' if value is None else f'{value:.2f}'} {what} (goal {right})")


def _bf16() -> torch.dtype:
    import torch

    return torch.bfloat16


def _nvidia_smi() -> str:
    query = "name,driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,memory.used"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return ""


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinities."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
