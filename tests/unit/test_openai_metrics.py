"""Statistics from a server's /metrics, and from our own counts where it has none."""

from __future__ import annotations

import pytest

from harness.engines.openai.counts import Counts
from harness.engines.openai.scrape import Scraped, read_page

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="a {{odd}} name"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 2.0
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 9.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:num_preemptions_total{{engine="0",model_name="m"}} {preempted}
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}
vllm:prompt_tokens_created{{engine="0",model_name="m"}} 1.7e+09
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:iteration_tokens_total_bucket{{engine="0",le="1.0",model_name="m"}} 3.0
vllm:iteration_tokens_total_count{{engine="0",model_name="m"}} {steps}
vllm:inter_token_latency_seconds_sum{{engine="0",model_name="m"}} {gaps_s}
vllm:inter_token_latency_seconds_count{{engine="0",model_name="m"}} {gaps}
"""
BEFORE = {"running": 1.0, "preempted": 0.0, "prompt": 1000.0, "tokens": 500.0, "steps": 100.0, "gaps_s": 5.0, "gaps": 490.0}
AFTER = {"running": 8.0, "preempted": 2.0, "prompt": 1400.0, "tokens": 900.0, "steps": 150.0, "gaps_s": 13.0, "gaps": 890.0}


def scraped(*pages: str) -> Scraped:
    found = Scraped()
    for page in pages:
        read = read_page(page.encode())
        assert read is not None
        found.add(read)
    return found


def test_vllms_page_is_gauges_as_they_are_and_counters_as_they_grew() -> None:
    stats = scraped(VLLM.format(**BEFORE), VLLM.format(**AFTER)).take()
    assert (stats.running, stats.waiting, stats.kv_use, stats.preemptions) == (8, 2, 0.25, 2)
    assert (stats.tokens_out, stats.steps, stats.batch, stats.prefill_tokens) == (400, 50, 8.0, 8.0)
    assert stats.step_ms == pytest.approx(20.0)


def test_the_first_page_counts_nothing_and_nothing_is_counted_twice() -> None:
    found = scraped(VLLM.format(**AFTER))
    assert found.take().tokens_out == 0
    again = read_page(VLLM.format(**{**AFTER, "tokens": 910.0}).encode())
    assert again is not None
    found.add(again)
    assert found.take().tokens_out == 10
    assert found.take().tokens_out == 0


def test_a_server_that_counts_from_zero_again_gives_no_negative_numbers() -> None:
    stats = scraped(VLLM.format(**AFTER), VLLM.format(**BEFORE)).take()
    assert (stats.tokens_out, stats.steps, stats.preemptions) == (0, 0, 0)


def test_data_parallel_engines_step_together() -> None:
    def two(values: dict[str, float]) -> str:
        page = VLLM.format(**values)
        return page + page.replace('engine="0"', 'engine="1"')

    stats = scraped(two(BEFORE), two(AFTER)).take()
    assert (stats.running, stats.tokens_out, stats.steps, stats.batch, stats.kv_use) == (16, 800, 50, 16.0, 0.25)


def test_sglangs_page_has_no_steps_and_they_are_estimated() -> None:
    page = """\
sglang:num_running_reqs{{model_name="m"}} 4.0
sglang:num_queue_reqs{{model_name="m"}} 1.0
sglang:token_usage{{model_name="m"}} 0.5
sglang:generation_tokens_total{{model_name="m"}} {tokens}
sglang:prompt_tokens_total{{model_name="m"}} {tokens}
sglang:num_retracted_reqs_total{{model_name="m"}} 3.0
sglang:inter_token_latency_seconds_sum{{model_name="m"}} {gaps_s}
sglang:inter_token_latency_seconds_count{{model_name="m"}} {tokens}
"""
    stats = scraped(page.format(tokens=0.0, gaps_s=0.0), page.format(tokens=400.0, gaps_s=4.0)).take()
    assert (stats.running, stats.waiting, stats.kv_use, stats.tokens_out) == (4, 1, 0.5, 400)
    assert (stats.steps, stats.batch, stats.prefill_tokens) == (100, 4.0, 4.0)
    assert stats.step_ms == pytest.approx(10.0)


@pytest.mark.parametrize("page", ["", "<html>", "# HELP x\nprocess_cpu_seconds_total 3.0\n", "vllm:num_requests_running NaN\n"])
def test_a_page_with_nothing_wanted_is_none(page: str) -> None:
    assert read_page(page.encode()) is None


def test_own_counts_estimate_steps_from_the_time_between_tokens() -> None:
    counts = Counts()
    for _ in range(4):
        counts.began(100.0, 50)
    for _ in range(4):
        counts.ended(102.0, 201, 2.0)
    stats = counts.take(103.0, outstanding=1)
    assert (stats.running, stats.waiting, stats.outstanding, stats.tokens_out) == (0, 1, 1, 804)
    assert stats.step_ms == pytest.approx(10.0)
    assert stats.steps == 200
    assert stats.batch == pytest.approx(4.0)
    assert stats.prefill_tokens == pytest.approx(1.0)


def test_own_counts_go_on_with_the_last_known_step_while_nothing_ends() -> None:
    counts = Counts()
    counts.began(0.0, 10)
    counts.began(0.0, 10)
    counts.ended(1.0, 101, 1.0)
    assert counts.take(1.0, outstanding=1).steps == 100
    later = counts.take(1.5, outstanding=1)
    assert (later.steps, later.tokens_out, later.batch) == (50, 0, 1.0)
    counts.ended(2.0)  # broken off
    assert counts.take(2.0, outstanding=0).running == 0
