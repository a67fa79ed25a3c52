"""`paceline kernels tune`: configurations of the MoE kernel, pruned offline and measured on a node, as a table of the store."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import platformdirs
from cyclopts import Parameter

from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.output import clock, note, number, plural, say, say_json, table, typed
from console.cli.waiting import ended_in_order, told_if_slow

if TYPE_CHECKING:
    from kernels.shapes import MoeShape
    from kernels.tuner.offline import Candidates
    from kernels.tuner.plan import Plan, Progress, Tuned

DEFAULT_M = "1,2,4,8,16,32,64,128,256,512"
MOST_TOKENS = 16384
EVERY_S, EVERY_ON_TERMINAL_S = 2.0, 0.25
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Kinds of reasons why a tile is left out before it is timed.
_WHY = {
    "warps": "more than its matrix instructions occupy",
    "grid": "too few programs for the compute units",
    "registers": "most of a thread's for its operands alone",
    "stages": "more than there are steps along K",
    "tail": "a third or more would be padding",
    "rows": "blocks larger than the tokens of an expert need",
    "LDS": "more than a workgroup has",
    "shared memory": "more than a workgroup has",
    "spills": "registers that the compiler had to spill",
    "occupancy": "not one workgroup fits on a compute unit",
}
_STAGES = {"gate_up": "gate/up", "down": "down", "layer": "layer"}


def tune(
    *,
    model: Annotated[str, Parameter(help="Whose layer, as in gpt-oss-120b (`paceline kernels report --model all` lists them)")],
    target: Annotated[
        str | None, Parameter(help="gfx942, gfx950, sm_90, or an accelerator of that name (the device here)")
    ] = None,
    m: Annotated[str, Parameter(name="--m", help=f"Tokens of a step, with commas ({DEFAULT_M})")] = DEFAULT_M,
    tp: Annotated[int, Parameter(help="Ranks that share each expert (1)")] = 1,
    ep: Annotated[int, Parameter(help="Ranks that share the experts (1)")] = 1,
    dtype: Annotated[Literal["bf16", "fp16"], Parameter(help="Of the activations (bf16)")] = "bf16",
    kernel: Annotated[
        Literal["paceline", "vllm"], Parameter(help="paceline: this one, MXFP4; vllm: vLLM's fused_moe")
    ] = "paceline",
    weights: Annotated[
        Literal["bf16", "fp8", "int4"] | None, Parameter(help="Of vLLM's kernel, with --kernel vllm: which of its tables")
    ] = None,
    offline: Annotated[
        bool, Parameter(negative="", help="Only what needs no GPU: enumerate, compile, prune, and keep it")
    ] = False,
    budget: Annotated[str | None, Parameter(help="Time for measuring, as in 30m or 2h; what is not reached is left out")] = None,
    candidates: Annotated[int, Parameter(help="Most tiles of a GEMM that are measured at each M (40)")] = 40,
    store: Annotated[Path | None, Parameter(help="Folder of tables ($PACELINE_KERNEL_STORE, else the user's own)")] = None,
    python: Annotated[str, Parameter(help="Python with torch and triton, as the engine's (this one)")] = sys.executable,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object")] = False,
) -> int:
    """Tune a mixture-of-experts layer for the GPU of this node, and write its table with what was measured.

    Tiles are enumerated, compiled and pruned without a GPU (`--offline` stops there, and the node goes on from it). On the node
    each is first judged for correctness, then timed as graph replays over rotated weights with uniform and skewed routing; the
    best third goes on. One that is ended goes on where it was when it is started again. Exit code 1: an M got no configuration.
    """
    given = _Given(model, target, m, tp, ep, dtype, kernel, weights, budget, candidates, store, python)
    if offline:
        return _offline(given, as_json=json)
    from kernels.tuner.node import Node
    from kernels.tuner.plan import cache_in
    from kernels.tuner.tune import gpu_of, tune_on

    given.check()
    with _resumable(given, ""), Node(given.python, cache_in(given.store)) as node:
        with told_if_slow(f"asking {python} for its GPU"):
            probe = gpu_of(given.python, kernel, given.compiler_target, node)
        plan = given.plan(probe.node_class.target)
        shown = _Shown(f"{plan.shape.model} on {probe.node_class}")
        with contextlib.closing(shown):
            found = tune_on(plan, node, probe, shown.at)
    if json:
        say_json(_facts(found, given))
    else:
        _say(found, given)
    return NOT_VALID if found.without else OK


def _offline(given: _Given, *, as_json: bool) -> int:
    from kernels.tuner.tune import offline

    if given.kernel == "vllm":
        raise BadInput("tune: --offline compiles this package's kernel; vLLM's is compiled where it is measured, so leave it out")
    target = given.compiler_target
    if target is None:
        raise BadInput("tune: --offline needs --target, as in --target gfx942: no device is asked")
    plan = given.plan(target)
    with _resumable(given, "--offline"), contextlib.closing(_Shown(f"{plan.shape.model} for {target}")) as shown:
        triton, found = offline(plan, shown.at)
    following = given.command()
    if as_json:
        kept = {str(m): _counts(one) for m, one in found.items()}
        say_json(
            {
                "offline": True,
                "target": target,
                "triton": triton,
                "candidates": kept,
                "folder": str(plan.folder),
                "next": following,
            }
        )
        return OK
    rows = [
        [number(m), *(number(_counts(one)[name]) for name in ("enumerated", "rejected", "gate_up", "down"))]
        for m, one in found.items()
    ]
    say(table(["M", "enumerated", "rejected", "kept: gate/up", "down"], rows, right=range(5)))
    for why, count in sum(
        (one.rejected for one in found.values()), start=type(next(iter(found.values())).rejected)()
    ).most_common(6):
        say(f"- {count:,d} rejected: {why}{f': {_WHY[why]}' if why in _WHY else ''}")
    say(f"\nKept in {plan.folder}, for triton {triton}. Nothing was timed.")
    say("On a node with this GPU, with this store copied or mounted there:")
    say(f"  {typed(following)}")
    return OK


def _counts(of: Candidates) -> dict[str, int]:
    return {"enumerated": of.enumerated, "rejected": of.rejected.total(), "gate_up": len(of.gate_up), "down": len(of.down)}


# --- what was given -----------------------------------------------------------------------------------------


def own_store() -> Path:
    """The user's, where tables are written unless another place is named."""
    return platformdirs.user_data_path("paceline") / "kernels"


class _Given:
    def __init__(
        self, model: str, target: str | None, m: str, tp: int, ep: int, dtype: Literal["bf16", "fp16"],
        kernel: Literal["paceline", "vllm"], weights: Literal["bf16", "fp8", "int4"] | None, budget: str | None, candidates: int,
        store: Path | None, python: str,
    ) -> None:  # fmt: skip
        self.model, self.target, self.m, self.tp, self.ep, self.dtype = model, target, m, tp, ep, dtype
        self.kernel, self.weights, self.budget, self.candidates = kernel, weights, budget, candidates
        # Of a path, for its processes are run in other folders; links stay, since a venv's Python is one.
        self.python = str(Path(python).expanduser().absolute()) if os.sep in python else python
        self.given_store = store
        named = os.environ.get("PACELINE_KERNEL_STORE", "").strip()
        self.store = (store or (Path(named) if named else own_store())).expanduser().absolute()

    @property
    def compiler_target(self) -> str | None:
        from kernels.accelerators import accelerator

        return None if self.target is None else accelerator(self.target).target

    def check(self) -> MoeShape:
        """Everything but the device; the layer."""
        from dataclasses import replace

        from kernels.shapes import model
        from kernels.tuner import vllm_moe

        _tokens(self.m)
        _seconds(self.budget)
        if not 1 <= self.candidates <= 2000:
            raise BadInput(f"tune: --candidates {self.candidates} must be 1 to 2000")
        try:
            is_file = self.store.exists() and not self.store.is_dir()
        except OSError as error:
            raise BadInput(f"tune: --store {self.store} cannot be read: {error.strerror}; name another folder") from None
        if is_file:
            raise BadInput(f"tune: --store {self.store} is a file; a folder of tables is needed")
        shape = model(self.model)
        if self.kernel == "vllm":
            if self.weights is None:
                raise BadInput("tune: --kernel vllm needs --weights bf16, fp8 or int4: each has a table of its own")
            shape = replace(shape, weights=self.weights, bias=False)
            shape = shape.split(tp=self.tp, ep=self.ep)
            vllm_moe.refuse(shape)
            return shape
        if self.weights is not None:
            raise BadInput("tune: --weights goes with --kernel vllm; this package's kernel has MXFP4 weights")
        if shape.weights != "mxfp4":
            near = f"; {shape.model}-MXFP4 is known" if shape.model == "DeepSeek-R1" else ""
            raise BadInput(
                f"tune: {shape.model} has {shape.weights} weights, this kernel is for MXFP4{near}; its tables for vLLM's kernel: "
                f"--kernel vllm --weights {shape.weights}"
            )
        return shape.split(tp=self.tp, ep=self.ep)

    def plan(self, target: str) -> Plan:
        from kernels.tuner.plan import Plan

        return Plan(
            self.check(), target, _tokens(self.m), self.store, self.python, self.dtype, self.kernel, self.candidates,
            _seconds(self.budget),
        )  # fmt: skip

    def command(self, *more: str) -> str:
        """As it was typed, without what it had by default."""
        words = ["--model", self.model]
        for name, value, usual in (
            ("--target", self.target, None), ("--m", self.m, DEFAULT_M), ("--tp", self.tp, 1), ("--ep", self.ep, 1),
            ("--dtype", self.dtype, "bf16"), ("--kernel", self.kernel, "paceline"), ("--weights", self.weights, None),
            ("--budget", self.budget, None), ("--candidates", self.candidates, 40), ("--store", self.given_store, None),
            ("--python", self.python, sys.executable),
        ):  # fmt: skip
            if value != usual:
                words += [name, str(value)]
        return f"kernels tune {shlex.join([*words, *(one for one in more if one)])}"


def _tokens(text: str) -> tuple[int, ...]:
    found = [part.strip() for part in text.split(",")]
    wrong = next((part for part in found if not re.fullmatch(r"[1-9]\d{0,5}", part) or int(part) > MOST_TOKENS), None)
    if wrong is not None:
        raise BadInput(f"tune: --m {text}: {wrong!r} must be a number of tokens, 1 to {MOST_TOKENS}, as in --m 1,16,64")
    return tuple(sorted({int(part) for part in found}))


def _seconds(text: str | None) -> float:
    if text is None:
        return math.inf
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh]?)", text.strip())
    if found is None or float(found[1]) == 0:
        raise BadInput(f"tune: --budget {text} must be a time, as in 90s, 30m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


@contextlib.contextmanager
def _resumable(given: _Given, *more: str) -> Iterator[None]:
    """Says, when somebody ends it, how it goes on."""
    with ended_in_order():
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            note(f"\nWhat was found is kept. To go on from there:\n  {typed(given.command(*more))}")
            raise


# --- what is said -------------------------------------------------------------------------------------------


class _Shown:
    """Progress on stderr: one line drawn over on a terminal, else a line every two seconds."""

    def __init__(self, what: str) -> None:
        self._over = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._next_s = self._began_s + (0.0 if self._over else EVERY_S)
        self._drawn = False
        self._what = what
        self._last: tuple[str, int, int] | None = None

    def at(self, progress: Progress) -> None:
        now_s = time.monotonic()
        new = (progress.stage, progress.m, progress.round) != self._last
        if now_s < self._next_s and not (new and self._over):
            return
        self._last = (progress.stage, progress.m, progress.round)
        self._next_s = now_s + (EVERY_ON_TERMINAL_S if self._over else EVERY_S)
        line = f"{clock(now_s - self._began_s):>5} {self._what}: {progress_words(progress)}"
        if not self._over:
            note(line)
            return
        width = max(20, shutil.get_terminal_size().columns - 1)
        sys.stderr.write(f"\r\x1b[K{line[:width]}")
        sys.stderr.flush()
        self._drawn = True

    def close(self) -> None:
        if self._drawn:
            sys.stderr.write("\n")
            sys.stderr.flush()


def progress_words(at: Progress) -> str:
    """`M 16, gate/up, round 2: 5 of 14, best 48.1 µs`"""
    if at.stage == "compile":
        return f"M {at.m:,d}, {_STAGES[at.gemm]}, compiled {at.done:,d} of {at.of:,d}"
    best = "" if at.best_us is None else f", best {number(at.best_us)} µs"
    of_floor = "" if at.of_floor is None else f" ({at.of_floor:.0%} of the floor)"
    return f"M {at.m:,d}, {_STAGES[at.stage]}, round {at.round}: {at.done} of {at.of}{best}{of_floor}"


def _say(found: Tuned, given: _Given) -> None:
    from kernels.tile import short

    rows = [
        [
            number(m), number(one.measured.uniform_us), number(one.measured.spread_us), number(one.measured.zipf_us),
            number(one.floor_us), f"{one.of_floor:.0%}", f"{one.measured.error:.1e}", short(one.config),
        ]
        for m, one in sorted(found.chosen.items())
    ]  # fmt: skip
    if rows:
        say(table(["M", "µs", "spread", "Zipf µs", "floor µs", "of it", "error", "tiles"], rows, right=range(7)))
    for m, why in found.without.items():
        say(f"M {m:,d} got no configuration: {why}")
    early = [m for m, one in found.chosen.items() if not one.complete]
    if early:
        say(f"The time was up before the last round at M {', '.join(map(str, early))}; to go on: {typed(given.command())}")
    say(
        f"\n{plural(found.measured, 'measurement')}, {found.reused:,d} kept from before, {found.skipped:,d} left out (cannot win)"
    )
    for why, count in found.failed.most_common(6):
        say(f"- {count:,d} refused: {why}")
    say(f"{found.node_class}: its memory was read at {number(found.read_gb_s, 0)} GB/s, the most that was seen")
    if found.table is not None:
        say(f"table: {found.table}")
        used = f"VLLM_TUNED_CONFIG_FOLDER={shlex.quote(str(found.table.parent))}"
        if given.kernel == "paceline":
            used = f"PACELINE_KERNEL_STORE={shlex.quote(str(given.store))}"
        say(f"To use it, set {used} where the engine runs.")


def _facts(found: Tuned, given: _Given) -> dict[str, Any]:
    return {
        "model": found.plan.shape.model, "kernel": found.plan.kernel, "node_class": found.node_class.slug,
        "device_name": found.probe.device_name, "triton": found.probe.triton, "torch": found.probe.torch,
        "read_gb_s": found.read_gb_s, "table": None if found.table is None else str(found.table),
        "keys": {
            str(m): {
                "us": one.measured.uniform_us, "spread_us": one.measured.spread_us, "zipf_us": one.measured.zipf_us,
                "floor_us": one.floor_us, "of_floor": one.of_floor, "error": one.measured.error, "complete": one.complete,
                "config": one.config,
            }
            for m, one in sorted(found.chosen.items())
        },
        "without": {str(m): why for m, why in found.without.items()},
        "measured": found.measured, "reused": found.reused, "skipped": found.skipped, "refused": dict(found.failed),
        "resume": given.command(),
    }  # fmt: skip
