"""A server's /metrics as EngineStats: vLLM's and SGLang's names, read by one regular expression.

A page has hundreds of lines of buckets for every one that is wanted; a full parser costs milliseconds of a replica's loop
each second, this some tens of microseconds. Counters are differences between two pages, gauges are the latest page. A
server with several data-parallel engines has a series for each: they step together, so steps count once.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from harness.engines.base import EngineStats

_NAMES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_use": ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
    "tokens_out": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "prompt": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "preemptions": (
        "vllm:num_preemptions_total",
        "sglang:num_retracted_reqs_total",
        "sglang:num_retracted_requests_total",
    ),
    "steps": ("vllm:iteration_tokens_total_count",),
    "gaps": (
        "vllm:inter_token_latency_seconds_count",
        "sglang:inter_token_latency_seconds_count",
        "sglang:time_per_output_token_seconds_count",
    ),
    "gaps_s": (
        "vllm:inter_token_latency_seconds_sum",
        "sglang:inter_token_latency_seconds_sum",
        "sglang:time_per_output_token_seconds_sum",
    ),
}
_WHAT = {name.encode(): what for what, names in _NAMES.items() for name in names}
_LINE = re.compile(rb"^(%b)(?:\{.*\})? +(\S+)" % b"|".join(map(re.escape, _WHAT)), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Page:
    """Sums over the series of a page, and how many there were."""

    sums: dict[str, float]
    series: dict[str, int]

    def of(self, what: str) -> float:
        return self.sums.get(what, 0.0)


def read_page(text: bytes) -> Page | None:
    """None: nothing wanted is in it, so it is no page of a server that we know."""
    sums: dict[str, float] = {}
    series: dict[str, int] = {}
    for name, value in _LINE.findall(text):
        number = float(value)
        if math.isfinite(number):
            what = _WHAT[name]
            sums[what] = sums.get(what, 0.0) + number
            series[what] = series.get(what, 0) + 1
    return Page(sums, series) if sums else None


class Scraped:
    """Collects pages; `take` gives what changed since it was last asked."""

    def __init__(self) -> None:
        self._latest: Page | None = None
        self._taken: Page | None = None  # where the counters stood at the previous take()

    @property
    def usable(self) -> bool:
        return self._latest is not None

    def add(self, page: Page) -> None:
        latest = self._latest
        if latest is None or page.of("tokens_out") < latest.of("tokens_out"):
            self._taken = page  # the first page, or a server that counts from zero again
        self._latest = page

    def take(self) -> EngineStats:
        now, before = self._latest, self._taken
        assert now is not None, "nothing scraped yet"
        assert before is not None, "set with the first page"
        self._taken = now

        def grown(what: str) -> float:
            return max(now.of(what) - before.of(what), 0.0)

        ranks = max(now.series.get("steps", 1), 1)
        tokens, gaps = grown("tokens_out"), grown("gaps")
        running = now.of("running")
        step_s = grown("gaps_s") / gaps if gaps else 0.0
        steps = grown("steps") / ranks
        if "steps" not in now.sums and tokens:  # SGLang has no count of steps: one token a running sequence and step
            steps = max(tokens / max(running, 1.0), 1.0)
        return EngineStats(
            running=round(running),
            waiting=round(now.of("waiting")),
            kv_use=now.of("kv_use") / max(now.series.get("kv_use", 1), 1),
            tokens_out=round(tokens),
            steps=round(steps),
            step_ms=step_s * 1e3,
            batch=tokens / steps if steps else 0.0,
            prefill_tokens=grown("prompt") / steps if steps else 0.0,
            preemptions=round(grown("preemptions")),
        )
