"""The tuning of one layer on one node: candidates of the offline part, measured by successive halving, written as a table.

For each M of our kernel: tiles of the gate/up GEMM, then of the down GEMM, each launched alone; then the best few of both
together as a layer, which is what the table has. vLLM's kernel has one configuration for both GEMMs, and one halving.

Everything is kept in a journal as it is found, so a tuning that was ended goes on where it was. A table that is there already for
the same kernel, compiler and class of node keeps its other keys.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kernels.accelerators import TARGETS, Accelerator, accelerator, accelerators
from kernels.compiling.pool import Pool, triton_version
from kernels.errors import NotHere
from kernels.identity import kernel_hash
from kernels.moe.launch import Gemm
from kernels.roofline import floor
from kernels.shapes import MoeShape
from kernels.tile import LayerConfig, Tile
from kernels.tuner import vllm_moe
from kernels.tuner.found_table import write
from kernels.tuner.halving import Ranking, Step, halve
from kernels.tuner.journal import Journal
from kernels.tuner.node import Node, Probe
from kernels.tuner.offline import Candidates, candidates
from kernels.tuner.plan import Chosen, Kernel, Plan, Progress, Told, Tuned
from kernels.tuner.predict import least_us
from kernels.tuner.worker import shape_json

_JOINT_OF_EACH: Final = 2  # best tiles of each GEMM that are tried together, for each BLOCK_SIZE_M
_JOINT_AT_MOST: Final = 9


# --- offline ------------------------------------------------------------------------------------------------


def offline(plan: Plan, told: Told) -> tuple[str, dict[int, Candidates]]:
    """Enumerated and pruned for every M, and kept; the triton version that they hold for. Needs triton, no GPU."""
    version = triton_version(plan.python)
    with Journal(plan.folder / "journal.jsonl") as journal:
        return version, _candidates(plan, journal, version, told)


def _candidates(plan: Plan, journal: Journal, triton: str, told: Told) -> dict[int, Candidates]:
    """Those that are kept in the journal, and the others made now."""
    journal.use({
        "stage": "offline", "kernel_hash": kernel_hash(), "triton": triton, "target": plan.target, "shape": _key(plan.shape),
        "dtype": plan.dtype,
    })  # fmt: skip
    found: dict[int, Candidates] = {}
    pool: Pool | None = None
    for m in plan.ms:
        name = f"candidates {m} {plan.candidates}"
        kept = journal.fact(name)
        if kept is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # damaged: made again
                found[m] = Candidates.of(kept)
                continue
        pool = pool or Pool(plan.cache, python=plan.python)
        found[m] = candidates(
            plan.shape, m, accelerator(plan.target), plan.dtype, plan.candidates, pool,
            lambda which, done, of, m=m: told(Progress("compile", m, done=done, of=of, gemm=which)),  # type: ignore[misc]
        )  # fmt: skip
        journal.keep_fact(name, found[m].json())
    return found


def _key(shape: MoeShape) -> dict[str, Any]:
    return {name: value for name, value in shape_json(shape).items() if name not in ("model", "layers")}


# --- on the node --------------------------------------------------------------------------------------------


def gpu_of(python: str, kernel: Kernel, target: str | None, node: Node) -> Probe:
    """NotHere where no GPU is, or not the one that is tuned for: at once, before anything is compiled. `target` None: any."""
    found = node.probe(kernel)
    if not found.gpu:
        offline_too = "" if kernel == "vllm" else "; --offline compiles and prunes here what the node then measures"
        looked = f"torch.cuda.is_available() is false in {python} (torch {found.torch})"
        if not found.torch:
            looked = f"{python} has no torch to look for one; --python names the engine's Python"
        raise NotHere(f"tune: no GPU here, and nothing is timed without one: {looked}{offline_too}")
    if target is not None and found.node_class.target != target:
        raise NotHere(
            f"tune: --target is {target}, the device here is {found.device_name} ({found.node_class.target}); leave --target out "
            "to tune for this one"
        )
    if found.node_class.target not in TARGETS:
        raise NotHere(f"tune: {found.device_name} ({found.node_class.target}) is none of what is known: {', '.join(TARGETS)}")
    if not found.triton:
        raise NotHere(f"tune: {python} has no triton; name a Python that has with --python")
    if kernel == "vllm" and not found.vllm:
        raise NotHere(f"tune: {python} has no vLLM, whose kernel is to be tuned; name the engine's Python with --python")
    return found


def tune_on(plan: Plan, node: Node, probe: Probe, told: Told, keep_on: Callable[[], bool] = lambda: True) -> Tuned:
    began_s = time.monotonic()
    on = as_found(plan.target, probe)
    with Journal(plan.folder / "journal.jsonl") as journal:
        offered = _candidates(plan, journal, probe.triton, told) if plan.kernel == "paceline" else {}
        journal.use(_identity(plan, probe))
        read_gb_s = journal.fact("read_gb_s")
        if not isinstance(read_gb_s, int | float) or not 0 < read_gb_s < 1e6:
            read_gb_s = node.ceiling_gb_s()
            journal.keep_fact("read_gb_s", read_gb_s)
        found = Tuned(plan, probe.node_class, probe, float(read_gb_s))
        node.use({
            "kernel": plan.kernel, "shape": shape_json(plan.shape), "dtype": plan.dtype, "rehearse": False, "seed": plan.seed,
            "cache_bytes": on.cache_mib * 2**20,
        })  # fmt: skip
        for number, m in enumerate(plan.ms, 1):
            until_s = began_s + plan.budget_s * number / len(plan.ms)
            _AtM(plan, node, journal, on, m, told, lambda until_s=until_s: keep_on() and time.monotonic() < until_s).into(  # type: ignore[misc]
                found, offered.get(m)
            )
        found.measured, found.reused = node.measured, node.reused
    if found.chosen:
        found.table = write(found)
    return found


def as_found(target: str, probe: Probe) -> Accelerator:
    """The accelerator of this name; of an unknown name that of the target, with the compute units that are here."""
    known = [one for one in accelerators().values() if one.target == target]
    node = probe.node_class
    named = [one for one in known if node.device_name in one.device_names]
    return replace((named or known)[0], compute_units=node.compute_units)


def _identity(plan: Plan, probe: Probe) -> dict[str, Any]:
    """What a time is of: of anything else it says nothing."""
    return {
        "stage": "node", "kernel": plan.kernel, "kernel_hash": kernel_hash() if plan.kernel == "paceline" else "",
        "vllm": probe.vllm if plan.kernel == "vllm" else "", "triton": probe.triton, "torch": probe.torch, "driver": probe.driver,
        "node_class": probe.node_class.slug, "shape": _key(plan.shape), "dtype": plan.dtype, "seed": plan.seed,
    }  # fmt: skip


class _AtM:
    """One M: its halvings, and what came of them."""

    def __init__(
        self, plan: Plan, node: Node, journal: Journal, on: Accelerator, m: int, told: Told, keep_on: Callable[[], bool]
    ) -> None:
        self.plan, self.node, self.journal, self.on, self.m, self.told, self.keep_on = plan, node, journal, on, m, told, keep_on
        self.last_failure, self.stopped = "", False

    def into(self, found: Tuned, offered: Candidates | None) -> None:
        self.found = found
        if self.plan.kernel == "vllm":
            best = self._vllm()
        else:
            assert offered is not None
            best = self._ours(offered)
        if best.order:
            config, measured = best.order[0]
            touched = floor(self.plan.shape, self.m, self.on, measured.experts or None)
            found.chosen[self.m] = Chosen(dict(config), measured, touched.us, not self.stopped)
        elif best.complete and not self.stopped:
            found.without[self.m] = f"no configuration passed: {self.last_failure or 'no candidate was left'}"
        else:
            found.without[self.m] = "the time was up before a layer was measured"

    def _ours(self, offered: Candidates) -> Ranking[Config]:
        def of_gemm(which: Gemm) -> Ranking[Config]:
            tiles: tuple[Tile, ...] = getattr(offered, which)
            shape, m, on = self.plan.shape, self.m, self.on
            return self._halved(
                which, [Config(tile.json()) for tile in tiles], lambda tile: least_us(shape, m, Tile.of(tile), which, on)
            )

        gate_up, down = of_gemm("gate_up"), of_gemm("down")
        return self._halved("layer", joint(gate_up, down))

    def _vllm(self) -> Ranking[Config]:
        shape, m, on = self.plan.shape, self.m, self.on
        configs = [Config(config) for config in vllm_moe.space(shape, m, on)]
        return self._halved("layer", configs, lambda config: vllm_moe.least_us(config, shape, m, on))

    def _halved(
        self, what: str, configs: Sequence[Config], least_us: Callable[[Mapping[str, Any]], float] = lambda _: 0.0
    ) -> Ranking[Config]:
        floor_us = floor(self.plan.shape, self.m, self.on).us

        def step(at: Step) -> None:
            best = at.best
            of_floor = floor_us / best.uniform_us if best is not None and what == "layer" else None
            self.told(Progress(what, self.m, at.round, at.done, at.of, None if best is None else best.us, of_floor))

        found = halve(
            configs,
            lambda config, repetitions: self.node.measure(self.journal, self.m, what, config, repetitions),
            least_us=least_us,
            keep_on=self.keep_on,
            told=step,
        )
        self.stopped = self.stopped or not found.complete
        self.found.skipped += len(found.skipped)
        for why in found.failed.values():
            self.found.failed[kind_of(why)] += 1
            self.last_failure = why
        return found


def kind_of(why: str) -> str:
    """What failures that differ in figures only have in common."""
    return re.sub(r"\d[\d.e+-]*", "…", why.partition(":")[0])


class Config(dict[str, Any]):
    """A configuration in JSON's words that can be a key; not changed once made."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items(), key=str)))


def joint(gate_up: Ranking[Config], down: Ranking[Config]) -> list[Config]:
    """Layers of the best tiles of both GEMMs, by the sum of their times; both have one BLOCK_SIZE_M."""
    pairs: list[tuple[float, Config]] = []
    for block_m in {config["BLOCK_SIZE_M"] for config, _ in gate_up.order}:
        ups, downs = (
            [(config, measured) for config, measured in ranking.order if config["BLOCK_SIZE_M"] == block_m][:_JOINT_OF_EACH]
            for ranking in (gate_up, down)
        )
        for up, up_measured in ups:
            for below, down_measured in downs:
                layer = LayerConfig(Tile.of(up), Tile.of(below))
                pairs.append((up_measured.us + down_measured.us, Config(layer.json())))
    return [config for _, config in sorted(pairs, key=lambda pair: pair[0])[:_JOINT_AT_MOST]]
