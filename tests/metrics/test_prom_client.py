"""The PromQL client against a real Prometheus: answers, refusals in words, and a server that is gone or is none.

What a Prometheus 2.42 cannot be made to say (warnings, a login page, 429) comes from small servers here, and says so.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from asking import asking, closed_port, trouble
from prometheus_kit import PrometheusServer, prometheus, scraping, serving, write_page

from harness.metrics.gpu import promquery
from harness.metrics.gpu.base import SourceError
from harness.metrics.gpu.promquery import Breaker, PromClient
from harness.metricspec import GpuSourceSpec

PAGE = """\
# HELP power Watts, of each GPU.
# TYPE power gauge
power{gpu="0",host="a"} 700
power{gpu="1",host="a"} 650.5
power{gpu="0",host="b"} NaN
power{gpu="1",host="b"} +Inf
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PrometheusServer]:
    """Under a path prefix, as Mimir and Crusoe have one."""
    with write_page(PAGE, stamped=True) as page, prometheus(scraping([page.target]), prefix="/prom") as running:
        running.until_scraped()
        yield running


# --- answers ---------------------------------------------------------------------------------------------------


async def test_a_vector_keeps_labels_nan_and_infinity(server: PrometheusServer) -> None:
    async with asking(server.url + "/") as client:  # the slash at the end does no harm
        answer = await client.instant("power")
    assert answer.kind == "vector"
    found = {(curve.labels["host"], curve.labels["gpu"]): float(curve.values[0]) for curve in answer.curves}
    assert found.pop(("b", "0")) != found.get(("b", "0"))
    assert found == {("a", "0"): 700.0, ("a", "1"): 650.5, ("b", "1"): math.inf}
    assert abs(answer.curves[0].unix[0] - time.time()) < 30


async def test_scalar_string_and_raw_samples_have_their_kinds(server: PrometheusServer) -> None:
    async with asking(server.url) as client:
        scalar, string = await client.instant("scalar(count(power))"), await client.instant('"power"')
        raw = await client.instant('power{host="a",gpu="0"}[1m]')
    assert (scalar.kind, float(scalar.curves[0].values[0])) == ("scalar", 4.0)
    assert (string.kind, string.text, string.curves) == ("string", "power", [])
    assert raw.kind == "matrix"
    assert set(raw.curves[0].values.tolist()) == {700.0}


async def test_series_beyond_the_limit_are_counted(server: PrometheusServer) -> None:
    async with asking(server.url) as client:
        answer = await client.instant("power", most=3)
    assert (len(answer.curves), answer.left_out) == (3, 1)


async def test_a_range_lies_on_multiples_of_its_step_and_never_in_the_future(server: PrometheusServer) -> None:
    now = time.time()
    async with asking(server.url) as client:
        answer = await client.range("time()", now - 60, now, 7.0)
    moments = answer.curves[0].unix
    assert answer.step_s == 7.0
    assert len(moments) in (9, 10)
    assert moments[0] > now - 60 - 7
    assert moments[-1] <= now
    assert all(abs(moment % 7) < 1e-3 for moment in moments)


async def test_a_step_too_small_for_the_server_is_widened_and_told(server: PrometheusServer) -> None:
    now = time.time()
    async with asking(server.url) as client:
        refused = await client._http.post(
            f"{server.url}/api/v1/query_range", data={"query": "vector(1)", "start": now - 86_400, "end": now, "step": 1}
        )
        answer = await client.range("vector(1)", now - 86_400, now, 1.0)
    assert refused.status_code == 400, "the server itself refuses this step"
    assert answer.step_s == pytest.approx(86_400 / 10_999, abs=0.001)
    assert 10_990 <= len(answer.curves[0].values) <= 11_000


@pytest.mark.parametrize(("start", "end", "step"), [(10.0, 10.0, 1.0), (0.0, math.nan, 1.0), (0.0, 10.0, 0.0)])
async def test_a_range_that_is_none_is_refused_without_asking(start: float, end: float, step: float) -> None:
    async with asking("http://127.0.0.1:9") as client:
        with pytest.raises(SourceError, match="a start before its end") as caught:
            await client.range("power", start, end, step)
    assert caught.value.trouble == "bad_query"


async def test_metrics_are_listed_with_type_and_help(server: PrometheusServer) -> None:
    async with asking(server.url) as client:
        found = {metric.name: metric for metric in await client.series_names()}
    assert (found["power"].type, found["power"].help) == ("gauge", "Watts, of each GPU.")
    assert found["up"].type == ""
    async with asking(server.url, matchers='job="nobody"') as client:
        assert await client.series_names() == []


async def test_a_long_query_fits_into_the_body(server: PrometheusServer) -> None:
    query = "power or " + " or ".join(f'power{{gpu="{number:05}"}}' for number in range(5000))
    assert len(query) > 100_000
    async with asking(server.url) as client:
        assert len((await client.instant(query)).curves) == 4


# --- refusals --------------------------------------------------------------------------------------------------


async def test_a_parse_error_says_where(server: PrometheusServer) -> None:
    async with asking(server.url) as client:
        error = await trouble(client, "sum(power")
        second = await trouble(client, "power +\n  sum by (")
    assert error.trouble == "bad_query"
    assert not error.passing
    assert "cannot read the query at character 10: unclosed left parenthesis" in str(error)
    assert "(query: sum(power)" in str(error)
    assert "at line 2, character" in str(second)


async def test_an_impossible_match_is_a_bad_query(server: PrometheusServer) -> None:
    async with asking(server.url) as client:
        error = await trouble(client, "power / on (host) power")
    assert error.trouble == "bad_query"
    assert "cannot compute the query" in str(error)
    assert "many-to-many" in str(error)


async def test_a_query_that_takes_too_long_for_the_server_says_so() -> None:
    """503: the server itself gives up after --query.timeout."""
    with prometheus(scraping([]), arguments=["--query.timeout=1ms"]) as hasty:
        async with asking(hasty.url) as client:
            error = await trouble(client, "sum(count_over_time(vector(1)[1m:1ms]))")
    assert (error.trouble, error.passing) == ("timeout", True)
    assert "gave up on the query for lack of time" in str(error)


async def test_a_wrong_path_prefix_names_the_setting(server: PrometheusServer) -> None:
    async with asking(f"http://127.0.0.1:{server.port}/other") as client:
        error = await trouble(client)
    assert error.trouble == "setup"
    assert "404" in str(error)
    assert "metrics.gpu.url" in str(error)
    assert "/other/api/v1/query" in str(error)


async def test_nobody_there_is_unreachable_and_costs_the_live_rounds_nothing() -> None:
    clock = Clock()
    client = PromClient(GpuSourceSpec(url=f"http://127.0.0.1:{closed_port()}"), clock)
    try:
        with pytest.raises(SourceError) as caught:
            await client.vector("power")
        assert (caught.value.trouble, caught.value.passing) == ("unreachable", True)
        began_s = time.process_time()
        for _ in range(100):
            with pytest.raises(SourceError) as again:
                await client.vector("power")
        assert time.process_time() - began_s < 0.1, "the breaker is open: nothing is sent"
        assert str(again.value) == str(caught.value)
        assert again.value.retry_after_s > 1
        clock.now_s += 3
        with pytest.raises(SourceError) as tried:
            await client.vector("power")
        assert tried.value.retry_after_s == 0, "the pause was over, so it was tried"
    finally:
        await client.close()


def test_pauses_grow_with_jitter_and_end_with_a_success() -> None:
    clock, error = Clock(), SourceError("overloaded", "busy")
    breaker, pauses = Breaker(clock), []
    for _ in range(8):
        breaker.failed(error)
        pauses.append(left_s(breaker))
    assert 1.5 <= pauses[0] <= 2.5
    assert 3.0 <= pauses[1] <= 5.0
    assert 45 <= pauses[-1] <= 75
    breaker.succeeded()
    breaker.check()
    breaker.failed(SourceError("overloaded", "busy", retry_after_s=30))
    assert left_s(breaker) == pytest.approx(30)
    breaker.succeeded()
    breaker.failed(SourceError("bad_query", "no"))
    breaker.check()


def test_a_server_that_is_down_for_days_does_not_end_the_pauses() -> None:
    breaker = Breaker(lambda: 0.0)
    for _ in range(2000):
        breaker.failed(SourceError("unreachable", "down"))
    assert 0 < left_s(breaker) < 90


async def test_a_server_that_never_answers_ends_with_the_time_out_and_rounds_do_not_queue() -> None:
    async def silence(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    with serving(silence) as port:
        async with asking(f"http://127.0.0.1:{port}", timeout_s=0.5) as client:
            began_s = time.monotonic()
            first = asyncio.create_task(client.vector("power"))
            await asyncio.sleep(0.1)
            with pytest.raises(SourceError, match="has not answered the last round yet"):
                await client.vector("power")
            with pytest.raises(SourceError) as caught:
                await first
            assert time.monotonic() - began_s < 5
    assert caught.value.trouble == "timeout"
    assert "metrics.gpu.timeout_s" in str(caught.value)


# --- answers that a Prometheus 2.42 does not give ---------------------------------------------------------------


def says(body: str, status: int = 200, **headers: str) -> Any:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body, status=status, headers=headers)

    return serving(answer)


async def test_warnings_and_infos_are_kept() -> None:
    """2.42 has no remote storage to warn about in one process, and no infos at all: this answer is written here."""
    body = {
        "status": "success",
        "data": {"resultType": "vector", "result": []},
        "warnings": ["a store did not answer"],
        "infos": ["metric might not be a counter"],
    }
    with says(json.dumps(body)) as port:
        async with asking(f"http://127.0.0.1:{port}") as client:
            answer, (_, warnings) = await client.instant("rate(power[1m])"), await client.vector("power")
    assert answer.warnings == warnings == ("a store did not answer", "metric might not be a counter")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<!doctype html><html><head><title>Sign in</title>", "a web page titled 'Sign in'"),
        ('{"took": 3, "hits": []}', "JSON with the fields hits, took"),
        ('{"status":"success","data":{"resultType":"vec', "breaks off in the middle"),
        ('{"status":"success","data":{"resultType":"vector","result":[{"metric":7}]}}', "no answer of a Prometheus API"),
        ("", "nothing"),
        ("Bad Gateway", "Bad Gateway"),
    ],
)
async def test_other_answers_are_named_for_what_they_look_like(body: str, words: str) -> None:
    with says(body) as port:
        async with asking(f"http://127.0.0.1:{port}") as client:
            error = await trouble(client)
    assert error.trouble == "bad_answer"
    assert words in str(error)


async def test_a_busy_server_is_left_alone_for_as_long_as_it_wants() -> None:
    with says("slow down", 429, **{"Retry-After": "20"}) as port:
        async with asking(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(SourceError) as caught:
                await client.vector("power")
            assert (caught.value.trouble, caught.value.retry_after_s) == ("overloaded", 20.0)
            with pytest.raises(SourceError) as again:
                await client.vector("power")
    assert 15 < again.value.retry_after_s <= 20


async def test_a_redirection_is_not_followed() -> None:
    with says("", 302, Location="http://127.0.0.1:1/login?secret=1") as port:
        async with asking(f"http://127.0.0.1:{port}") as client:
            error = await trouble(client)
    assert error.trouble == "setup"
    assert "sends elsewhere" in str(error)
    assert "secret" not in str(error)


async def test_an_answer_beyond_all_bounds_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promquery, "MOST_BYTES", 1 << 20)
    with says("x" * (3 << 20)) as port:
        async with asking(f"http://127.0.0.1:{port}") as client:
            error = await trouble(client)
    assert error.trouble == "bad_query"
    assert "larger than 1 MiB" in str(error)


# --- small parts -----------------------------------------------------------------------------------------------


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def left_s(breaker: Breaker) -> float:
    with pytest.raises(SourceError) as caught:
        breaker.check()
    return caught.value.retry_after_s
