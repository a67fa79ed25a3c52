"""The wrapper of prometheus-api-client: each of its traps, sprung against a real Prometheus or a server that misbehaves."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from asking import closed_port
from prometheus_kit import PrometheusServer, prometheus, scraping, serving, write_page

from harness.metrics.gpu.base import SourceError
from harness.metrics.gpu.pastprom import PastProm, step_allowed
from harness.metricspec import GpuSourceSpec

PAGE = """\
# HELP power Watts, of each GPU.
# TYPE power gauge
power{gpu="0",host="a"} 700
power{gpu="1",host="it's \\"b\\""} 650.5
power{gpu="2",host="c"} NaN
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PrometheusServer]:
    with (
        write_page(PAGE, stamped=True) as page,
        prometheus(scraping([page.target, "127.0.0.1:9"]), prefix="/prom") as running,
    ):
        running.until_scraped(times=3)
        yield running


def past(url: str, timeout_s: float = 20.0, **settings: object) -> PastProm:
    return PastProm(GpuSourceSpec.model_validate({"url": url, **settings}), timeout_s)


def refused(client: PastProm, query: str = "up") -> SourceError:
    now = time.time()
    with pytest.raises(SourceError) as caught:
        client.range(query, now - 60, now, 1)
    return caught.value


def success(result: Any, kind: str = "matrix", **more: Any) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": kind, "result": result}, **more})


# --- the traps ---------------------------------------------------------------------------------------------------------


def test_a_server_that_is_down_or_overloaded_is_asked_once_and_not_waited_for() -> None:
    with past(f"http://127.0.0.1:{closed_port()}") as client:
        began_s = time.monotonic()  # the library is loaded by now, which takes its time
        error = refused(client)
        assert time.monotonic() - began_s < 5, "the library itself takes 6 s"
    assert (error.trouble, "connection refused" in str(error)) == ("unreachable", True)
    asked: list[str] = []

    async def overloaded(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=503, text="not now", headers={"Retry-After": "7"})

    with serving(overloaded) as port, past(f"http://127.0.0.1:{port}") as client:
        began_s = time.monotonic()
        error = refused(client)
        assert time.monotonic() - began_s < 5, "the library itself takes 6 s"
    assert (error.trouble, error.retry_after_s, len(asked)) == ("overloaded", 7.0, 1)


def test_neither_a_silent_nor_a_trickling_server_holds_it_for_ever() -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(300):
            await answer.write(b" " * 70_000)
            await _asleep(0.1)
        return answer

    async def silent(request: web.Request) -> web.Response:
        await _asleep(30)
        return web.Response()

    async def stuck(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b" " * 70_000)
        await _asleep(30)
        return answer

    for behaviour, timeout_s in ((trickle, 3.0), (silent, 0.7), (stuck, 0.7)):  # 3 s: longer than it may stall between drops
        began_s = time.monotonic()
        with serving(behaviour) as port, past(f"http://127.0.0.1:{port}", timeout_s=timeout_s) as client:
            assert refused(client).trouble == "timeout"
        assert time.monotonic() - began_s < 15, behaviour.__name__


async def _asleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def test_a_query_travels_in_the_body_so_its_length_has_no_limit(server: PrometheusServer) -> None:
    long = "power or " + " or ".join(f"vector({number}) > 1e9" for number in range(6000))
    assert len(long) > 117_000
    with past(server.url) as client:
        answer = client.range(long, time.time() - 5, time.time(), 1)
    assert len(answer.curves) == 3


def test_the_servers_warnings_are_kept() -> None:
    async def partial(request: web.Request) -> web.Response:
        return success([{"metric": {}, "values": [[1.0, "2"]]}], warnings=["store 3 is down"], infos=["half of it"])

    with serving(partial) as port, past(f"http://127.0.0.1:{port}") as client:
        assert client.range("up", 1, 2, 1).warnings == ("store 3 is down", "half of it")
        client.range("up", 1, 2, 1)
        assert client.warnings == ["store 3 is down", "half of it"], "each once"


def test_ends_are_whole_seconds_and_never_in_the_future_and_the_step_is_one_that_is_allowed() -> None:
    seen: list[dict[str, str]] = []

    async def note(request: web.Request) -> web.Response:
        seen.append({name: str(value) for name, value in (await request.post()).items()})
        return success([])

    with serving(note) as port, past(f"http://127.0.0.1:{port}") as client:
        client.range("up", 1000.7, 2000.9, 0.2)
        client.range("up", 0, 110_000, 1)
    assert (seen[0]["start"], seen[0]["end"], seen[0]["step"]) == ("1000", "2000", "1")
    assert seen[1]["step"] == str(step_allowed(0, 110_000, 1)) == "11"
    assert seen[0]["timeout"] == "18000ms", "the server knows how long it has"


def test_a_range_of_any_length_has_no_more_points_than_the_server_gives(server: PrometheusServer) -> None:
    now = time.time()
    with past(server.url) as client:
        assert client.range("vector(1)", now - 30 * 86_400, now, 1).step_s == 236
        assert "range needs a start before its end" in str(_bad(client, now, now - 1))


def _bad(client: PastProm, start: float, end: float) -> SourceError:
    with pytest.raises(SourceError) as caught:
        client.range("up", start, end, 1)
    return caught.value


def test_what_is_wrong_with_a_query_is_said_once_with_its_place(server: PrometheusServer) -> None:
    with past(server.url) as client:
        unread, uncomputed = refused(client, "sum(power"), refused(client, "power * on(job) power")
    assert (unread.trouble, uncomputed.trouble) == ("bad_query", "bad_query")
    assert "cannot read the query at character" in str(unread)
    assert "cannot compute the query" in str(uncomputed)


def test_quotes_in_labels_break_no_query(server: PrometheusServer) -> None:
    from harness.metrics.gpu.recipes import quoted

    host = 'it\'s "b"'
    with past(server.url) as client:
        answer = client.range(f"power{{host={quoted(host)}}}", time.time() - 3, time.time(), 1)
    assert [curve.labels["host"] for curve in answer.curves] == [host]
    assert answer.curves[0].values[-1] == 650.5


def test_slashes_at_the_end_of_the_url_are_one_too_many_for_nobody(server: PrometheusServer) -> None:
    with past(server.url + "/") as client:
        assert client.instant("vector(3)", time.time()).curves[0].values[0] == 3.0


def test_nothing_is_stored_beside_and_no_data_frames_are_imported(
    server: PrometheusServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    with past(server.url) as client:
        client.range("power", time.time() - 3, time.time(), 1)
    assert list(tmp_path.iterdir()) == []
    assert "pandas" not in set(sys.modules) - before


def test_values_that_are_no_numbers_and_results_of_other_kinds_come_through(server: PrometheusServer) -> None:
    now = time.time()
    with past(server.url) as client:
        by_host = {curve.labels["host"]: curve.values[-1] for curve in client.instant("power", now).curves}
        assert math.isnan(by_host["c"])
        assert (client.instant("1 / 0", now).kind, client.instant("1 / 0", now).curves[0].values[0]) == ("scalar", math.inf)
        assert (client.instant('"word"', now).kind, client.instant('"word"', now).text) == ("string", "word")
        assert client.instant("power[5s]", now).kind == "matrix"
        many = client.range("power", now - 3, now, 1, most=2)
    assert (len(many.curves), many.left_out) == (2, 1)


def test_it_may_be_asked_from_a_thread_while_another_works(server: PrometheusServer) -> None:
    found: list[int] = []

    def ask() -> None:
        with past(server.url) as client:
            found.append(len(client.range("power", time.time() - 3, time.time(), 1).curves))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [3, 3, 3]


# --- who asks, and who answers -----------------------------------------------------------------------------------------


def test_the_login_is_the_live_clients_and_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    async def gate(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        return success([]) if request.headers.get("Authorization") == "Bearer second" else web.Response(status=401)

    token, netrc = tmp_path / "token", tmp_path / "netrc"
    token.write_text("first")
    netrc.write_text("machine localhost login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving(gate) as port:
        with past(f"http://localhost:{port}", bearer_file=str(token), headers={"X-Scope-OrgID": "team-7"}) as client:
            error = refused(client)
            token.write_text("second\n")
            client.range("up", 1, 2, 1)
        with past(f"http://localhost:{port}") as client:
            refused(client)
    assert error.trouble == "unauthorized"
    assert str(token) in str(error)
    assert "first" not in str(error)
    assert [one.get("Authorization") for one in seen] == ["Bearer first", "Bearer second", None]
    assert seen[0]["X-Scope-OrgID"] == "team-7"


def test_a_password_and_bad_files_are_told_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "pass").write_text("tiger")
    missing = past("http://127.0.0.1:9", bearer_file=str(tmp_path / "none"))
    assert "cannot be read" in str(refused(missing))
    with pytest.raises(SourceError, match="ca_file"):
        past("https://127.0.0.1:9", ca_file=str(tmp_path / "pass"))
    with pytest.raises(SourceError, match="is not set"):
        PastProm(GpuSourceSpec())


def test_a_redirect_is_not_followed_with_our_headers() -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://elsewhere.example/login"})

    with serving(elsewhere) as port, past(f"http://127.0.0.1:{port}") as client:
        error = refused(client)
    assert "sends elsewhere (HTTP 302, http://elsewhere.example/login)" in str(error)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<html><title>Sign in</title></html>", "web page titled 'Sign in'"),
        ('{"status":"success"}', "no answer of a Prometheus API"),
        ('{"status":"success","data":{"resu', "breaks off in the middle"),
    ],
)
def test_what_is_no_prometheus_is_called_that(body: str, said: str) -> None:
    async def other(request: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    with serving(other) as port, past(f"http://127.0.0.1:{port}") as client:
        error = refused(client)
    assert (error.trouble, said in str(error)) == ("bad_answer", True), error


def test_json_of_another_shape_is_no_crash() -> None:
    async def other(request: web.Request) -> web.Response:
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": {"no": "list"}}})

    with serving(other) as port, past(f"http://127.0.0.1:{port}") as client:
        for ask in (
            lambda: client.range("up", 0, 60, 1),
            lambda: client.instant("up", 60),
            lambda: client.series(["up"], 0, 60),
        ):
            with pytest.raises(SourceError, match="of another shape") as error:
                ask()
            assert error.value.trouble == "bad_answer"
        assert [one.name for one in client.names(0, 60)] == ["result", "resultType"], "without types and helps"
        assert client.targets_down() == []


def test_names_series_and_targets_of_a_span(server: PrometheusServer) -> None:
    now = time.time()
    with past(server.url) as client:
        names = {one.name: one for one in client.names(now - 60, now)}
        assert (names["power"].type, names["power"].help) == ("gauge", "Watts, of each GPU.")
        assert "power" not in {one.name for one in client.names(now - 60, now, 'job="other"')}
        assert {one["gpu"] for one in client.series(["power"], now - 60, now)} == {"0", "1", "2"}
        # Where a scrape came too late for this machine, the page that works is down too, until the next one.
        (down,) = server.until(lambda: len(found := client.targets_down()) == 1 and found, "one target is down", 30.0)
    assert down.startswith("http://127.0.0.1:9/metrics: ")


def test_a_server_that_tells_of_no_targets_is_taken_as_it_is() -> None:
    async def only_queries(request: web.Request) -> web.Response:
        return web.Response(status=404) if request.path.endswith("targets") else success([])

    with serving(only_queries) as port, past(f"http://127.0.0.1:{port}") as client:
        assert client.targets_down() == []


def test_importing_the_wrapper_does_not_import_the_library() -> None:
    """It costs 0.3 s of CPU, and vLLM's environment does not have it."""
    import subprocess
    import sys

    told = "import sys, harness.metrics.gpu.postrun; print(json.dumps(sorted(sys.modules)))".replace(
        "import sys", "import sys, json"
    )
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, timeout=60, check=True, env={**os.environ}
    )
    assert {"prometheus_api_client", "requests"} & set(json.loads(done.stdout)) == set()
