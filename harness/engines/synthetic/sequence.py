"""What a synthetic replica keeps of a request, and what it says of one: the nouns of core.py."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from harness.wire.data import PREFILL


class First(NamedTuple):
    key: Hashable
    t_s: float
    queue_s: float
    prefill_s: float  # of a decode request: until its KV cache was here


class Done(NamedTuple):
    key: Hashable
    t_s: float
    queue_s: float
    prefill_s: float
    decode_s: float


class Prefilled(NamedTuple):
    """The prompt of a prefill request is computed; its place and its KV cache are free again."""

    key: Hashable
    t_s: float
    queue_s: float
    prefill_s: float


Event = First | Done | Prefilled


class DoesNotFit(ValueError):
    """The request needs more KV tokens than the replica has; it could never be admitted."""


@dataclass(slots=True)
class Counters:
    """Totals since the replica began; `batch_sum` adds the decoding sequences of every step."""

    steps: int = 0
    step_time_s: float = 0.0
    batch_sum: int = 0
    prefill_tokens: int = 0
    tokens_out: int = 0


IN_LINE, IN_PREFILL, IN_TRANSFER, IN_DECODE, GONE = range(5)


class Sequence:
    __slots__ = (
        "admitted_s",
        "cancelled",
        "finish_step",
        "first_s",
        "here_s",
        "key",
        "kv_tokens",
        "n_out",
        "n_prompt",
        "place",
        "prompt_left",
        "stage",
        "submitted_s",
    )

    def __init__(self, key: Hashable, n_prompt: int, n_out: int, stage: int, submitted_s: float) -> None:
        self.key = key
        self.n_prompt = n_prompt
        self.n_out = n_out
        self.stage = stage  # WHOLE, PREFILL or DECODE, as asked for
        self.kv_tokens = n_prompt if stage == PREFILL else n_prompt + n_out  # reserved at admission
        self.submitted_s = submitted_s
        self.admitted_s = submitted_s
        self.here_s = submitted_s  # when its KV cache has arrived
        self.first_s = submitted_s
        self.prompt_left = n_prompt
        self.finish_step = 0
        self.place = IN_LINE
        self.cancelled = False

    @property
    def queue_s(self) -> float:
        return self.admitted_s - self.submitted_s


class KvLink:
    """The way of KV caches into a decode replica: one transfer after the other, in the order of admission."""

    def __init__(self, latency_s: float = 0.0, per_token_s: float = 0.0) -> None:
        self._latency_s, self._per_token_s = latency_s, per_token_s
        self._free_s = float("-inf")

    def book(self, now_s: float, tokens: int) -> float:
        """When the cache of so many tokens is here. The latency is waited for, the link is only taken by the bytes."""
        self._free_s = max(self._free_s, now_s) + tokens * self._per_token_s
        return self._free_s + self._latency_s


@lru_cache(maxsize=16)
def jitter_factors(sigma: float) -> tuple[float, ...]:
    """1,024 quantiles of a lognormal of mean 1 in a fixed random order; replicas walk them from different places."""
    if sigma == 0:
        return (1.0,)
    normal = NormalDist()
    factors = [exp(sigma * normal.inv_cdf((i + 0.5) / 1024) - sigma * sigma / 2) for i in range(1024)]
    Random(20).shuffle(factors)
    return tuple(factors)
