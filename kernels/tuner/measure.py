"""Measuring one layer on this machine's device: made-up weights and routings, a gate on correctness, and times of graph replays.

What makes a time worth something here:
  * weights do not come from the cache: there are at least three sets, and calls with fresh routings rotate over them until the
    different weights that one replay reads are twice the last-level cache;
  * launches do not count: all those calls are one graph, whose replays are queued one behind the other before the first is timed;
  * routing is uniform and, beside it, Zipf: a tile that is good only while every expert has the same load is seen;
  * a configuration is timed only after its result, on poisoned memory, agreed with float32 arithmetic on dequantised weights.

A rehearsal has no GPU: tiny shapes on the CPU, no graph, the wall clock. Its results are marked, and no table takes them.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch

from kernels.errors import NotHere
from kernels.shapes import Activation, MoeShape
from kernels.tuner.halving import Failed, Measured

ERROR_LIMIT: Final = 1e-2
SETS_AT_LEAST: Final = 3
CALLS_AT_LEAST, CALLS_AT_MOST = 10, 120
CHECKED_TOKENS: Final = 8
ZIPF_EXPONENT: Final = 1.0
DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
Routing = Literal["uniform", "zipf"]
ROUTINGS: Final[tuple[Routing, ...]] = ("uniform", "zipf")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a layer: its tokens, and the experts that they chose among all (not only this device's)."""

    x: torch.Tensor  # [M, H]
    ids: torch.Tensor  # [M, k] i32
    weights: torch.Tensor  # [M, k] f32
    weight_set: int


class Subject(Protocol):
    """A kernel with its weight sets."""

    shape: MoeShape
    sets: int
    error_limit: float

    def run(self, call: Call, what: str, config: Mapping[str, Any], out: torch.Tensor) -> torch.Tensor:
        """Launches only. `what`: "layer", or the GEMM that is being tuned. The result of a layer may be `out`."""
        ...

    def layer(self, what: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a whole layer in which the gate judges that of `what`."""
        ...

    def poison(self) -> None:
        """NaN into what the kernel writes in between."""
        ...

    def matrices(
        self, weight_set: int, expert: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Gate/up [2I, H] and down [H, I] of an expert in float32, and their biases."""
        ...


# --- data ---------------------------------------------------------------------------------------------------


def route(shape: MoeShape, m: int, how: Routing, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's experts, drawn without replacement: the top k of log-probabilities plus Gumbel noise."""
    device, over = generator.device, shape.routed_over
    noise = -torch.log(-torch.log(torch.rand(m, over, generator=generator, device=device).clamp(1e-9, 1 - 1e-7)))
    logits = torch.zeros(over, device=device)
    if how == "zipf":
        ranks = torch.randperm(over, generator=generator, device=device)
        logits = -ZIPF_EXPONENT * torch.log(ranks.float() + 1)
    ids = torch.topk(logits + noise, shape.top_k, dim=1).indices.to(torch.int32)
    weights = torch.softmax(torch.randn(m, shape.top_k, generator=generator, device=device), dim=1)
    return ids, weights


def expert_map(shape: MoeShape, device: torch.device) -> torch.Tensor | None:
    """Expert of all → expert here, -1 for those of other ranks. The first ones are here. None: all are."""
    if shape.routed_over == shape.experts:
        return None
    mapped = torch.full((shape.routed_over,), -1, dtype=torch.int32, device=device)
    mapped[: shape.experts] = torch.arange(shape.experts, dtype=torch.int32, device=device)
    return mapped


def touched(shape: MoeShape, ids: torch.Tensor) -> list[int]:
    """Which experts of this device."""
    found: list[int] = torch.unique(ids[ids < shape.experts]).tolist()
    return found


# --- the gate -----------------------------------------------------------------------------------------------


def activate(pairs: torch.Tensor, shape: MoeShape) -> torch.Tensor:
    """[..., 2I] → [..., I] in float32."""
    how: Activation = shape.activation
    if shape.gate_up == "interleaved":
        gate, up = pairs[..., 0::2], pairs[..., 1::2]
    else:
        gate, up = pairs[..., : shape.intermediate], pairs[..., shape.intermediate :]
    if how.limit:
        gate, up = gate.clamp(max=how.limit), up.clamp(-how.limit, how.limit)
    return gate * torch.sigmoid(how.alpha * gate) * (up + 1.0 if how.plus_one else up)


def expected(subject: Subject, call: Call, tokens: Sequence[int]) -> torch.Tensor:
    """What the layer gives for these tokens, in float32; experts of other ranks give nothing."""
    shape = subject.shape
    out = torch.zeros(len(tokens), shape.hidden, dtype=torch.float32, device=call.x.device)
    chosen = call.ids[list(tokens)]
    for expert in torch.unique(chosen).tolist():
        if expert >= shape.experts:
            continue
        w13, w2, b13, b2 = subject.matrices(call.weight_set, expert)
        for row, slot in (chosen == expert).nonzero().tolist():
            token = tokens[row]
            pairs = w13 @ call.x[token].float() + (0.0 if b13 is None else b13.float())
            down = w2 @ activate(pairs, shape) + (0.0 if b2 is None else b2.float())
            out[row] += call.weights[token, slot] * down
    return out


def relative_error(found: torch.Tensor, right: torch.Tensor) -> float:
    """Frobenius, scale-free; infinite where anything is not finite."""
    off = float(torch.linalg.vector_norm(found.double() - right.double()))
    size = float(torch.linalg.vector_norm(right.double()))
    error = off / size if size else off
    return error if math.isfinite(error) else math.inf


# --- time ---------------------------------------------------------------------------------------------------


def quartile_spread(samples: Sequence[float]) -> float:
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return high - low


class GraphOf:
    """The calls as one graph, to be replayed. On the CPU they are called."""

    def __init__(self, calls: Sequence[Callable[[], object]], device: torch.device) -> None:
        self._calls, self._graph, self._device = calls, None, device
        if device.type != "cuda":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles, and whatever else may not be captured
            for call in calls:
                call()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # After a capture that failed torch stays on the stream of the capture: the outer one goes back to this one.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(self._graph):
            for call in calls:
                call()
        self._graph.replay()
        torch.cuda.synchronize()

    def times_us(self, repetitions: int) -> list[float]:
        """Of one call, one sample a replay. A replay runs ahead, and nothing is waited for until all are queued: else the samples
        would have in them the time that this process takes to launch a graph, as much as a short graph's own."""
        if self._graph is None:
            return [self._called_us() / len(self._calls) for _ in range(repetitions)]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repetitions + 1)]
        for event in events:
            self._graph.replay()
            event.record()
        events[-1].synchronize()
        return [float(begin.elapsed_time(end)) * 1e3 / len(self._calls) for begin, end in itertools.pairwise(events)]

    def _called_us(self) -> float:
        began_s = time.perf_counter()
        for call in self._calls:
            call()
        return (time.perf_counter() - began_s) * 1e6


def read_ceiling_gb_s(device: torch.device, size_bytes: int = 8 * 10**9, repetitions: int = 20) -> float:
    """The fastest that this device was seen to read its memory: a reduction that writes next to nothing."""
    numbers = torch.ones(size_bytes // 4 // 4096, 4096, dtype=torch.float32, device=device)
    out = torch.empty(numbers.shape[0], dtype=torch.float32, device=device)
    graph = GraphOf([lambda: torch.sum(numbers, dim=1, out=out)], device)
    return float(numbers.numel() * 4 / min(graph.times_us(repetitions)) * 1e-3)


# --- one layer ----------------------------------------------------------------------------------------------


class Bench:
    """Gate and times of a subject. Calls of an M are made once: every configuration sees the same data."""

    def __init__(
        self, subject: Subject, device: torch.device, dtype: torch.dtype, cache_bytes: int, seed: int, *, rehearse: bool
    ) -> None:
        self.subject, self.device, self.dtype, self.rehearse = subject, device, dtype, rehearse
        self._cache_bytes, self._seed = cache_bytes, seed
        self._calls: dict[tuple[int, Routing], list[Call]] = {}
        self._right: dict[int, tuple[list[int], torch.Tensor]] = {}
        self._passed: dict[str, float] = {}

    def measure(self, m: int, what: str, config: Mapping[str, Any], repetitions: int) -> Measured | Failed:
        name = f"{m} {what} {sorted(config.items(), key=str)}"
        if name not in self._passed:
            error = self.error_of(m, self.subject.layer(what, config))
            if not error <= self.subject.error_limit:
                return Failed(f"relative error {error:.2g} is above {self.subject.error_limit:g}")
            self._passed[name] = error
        medians, spread = {}, 0.0
        for how in ROUTINGS:
            calls = self.calls(m, how)
            out = torch.empty(m, self.subject.shape.hidden, dtype=self.dtype, device=self.device)
            graph = GraphOf([self._one(call, what, config, out) for call in calls], self.device)
            samples = graph.times_us(repetitions)
            medians[how] = statistics.median(samples)
            spread = quartile_spread(samples) if how == "uniform" else spread
        experts = statistics.mean(len(touched(self.subject.shape, call.ids)) for call in self.calls(m, "uniform"))
        return Measured(
            medians["uniform"], medians["zipf"], spread, repetitions, self._passed[name], experts, rehearsal=self.rehearse
        )

    def error_of(self, m: int, config: Mapping[str, Any]) -> float:
        """Of the whole layer, on poisoned memory; infinite where it left anything that is not a number."""
        call = self.calls(m, "uniform")[0]
        tokens, right = self.right(m)
        poisoned = torch.full((m, self.subject.shape.hidden), math.nan, dtype=self.dtype, device=self.device)
        self.subject.poison()
        out = self.subject.run(call, "layer", config, poisoned)
        if not bool(torch.isfinite(out).all()):
            return math.inf
        return relative_error(out[tokens], right)

    def right(self, m: int) -> tuple[list[int], torch.Tensor]:
        """Some tokens of the first uniform call, spread over it, and what the layer must give for them."""
        if m not in self._right:
            tokens = list(range(0, m, max(1, m // CHECKED_TOKENS)))[:CHECKED_TOKENS]
            self._right[m] = tokens, expected(self.subject, self.calls(m, "uniform")[0], tokens)
        return self._right[m]

    def calls(self, m: int, how: Routing) -> list[Call]:
        if (m, how) not in self._calls:
            self._calls[m, how] = list(self._made(m, how))
        return self._calls[m, how]

    def _made(self, m: int, how: Routing) -> Iterator[Call]:
        shape, subject = self.subject.shape, self.subject
        generator = torch.Generator(self.device).manual_seed(self._seed + 7919 * m + ROUTINGS.index(how))
        read, made = set[tuple[int, int]](), 0  # experts of weight sets
        expert_bytes = shape.parameters / 2  # at least, of any weights known here
        least, most = (1, 2) if self.rehearse else (CALLS_AT_LEAST, CALLS_AT_MOST)
        while made < least or (len(read) * expert_bytes < 2 * self._cache_bytes and made < most):
            x = torch.randn(m, shape.hidden, generator=generator, device=self.device).to(self.dtype)
            ids, weights = route(shape, m, how, generator)
            yield Call(x, ids, weights, made % subject.sets)
            read |= {(made % subject.sets, expert) for expert in touched(shape, ids)}
            made += 1

    def _one(self, call: Call, what: str, config: Mapping[str, Any], out: torch.Tensor) -> Callable[[], object]:
        return lambda: self.subject.run(call, what, config, out)


# --- the device ---------------------------------------------------------------------------------------------


def device_of(*, rehearse: bool) -> torch.device:
    """NotHere without a GPU, except for a rehearsal, for which triton must be in its interpreter."""
    if not rehearse:
        if not torch.cuda.is_available():
            raise NotHere("no GPU here (torch.cuda.is_available() is false): nothing is timed without one")
        return torch.device("cuda", 0)
    from kernels.moe.interpreted import round_to_nearest

    round_to_nearest()
    return torch.device("cpu")


def sets_that_fit(set_bytes: float, device: torch.device, *, rehearse: bool) -> int:
    """NotHere where not even three fit into the memory that is free."""
    if rehearse:
        return 2
    free, _ = torch.cuda.mem_get_info(device)
    if SETS_AT_LEAST * set_bytes > 0.8 * free:
        raise NotHere(
            f"{SETS_AT_LEAST} sets of weights take {SETS_AT_LEAST * set_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB of the device's "
            "memory are free; end what uses it, or give --tp or --ep as the layer will be split"
        )
    return SETS_AT_LEAST
