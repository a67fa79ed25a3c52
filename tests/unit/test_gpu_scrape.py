"""Direct scrape of real pages over HTTP: roles, what is missing and why, targets that fail, windows, credentials, bounds."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from clock_kit import Clock as Time

from harness.metrics.gpu import profiles, scrape
from harness.metrics.gpu.base import Reading, SeriesKey, SourceError
from harness.metrics.gpu.http import shown
from harness.metrics.gpu.roles import GPU_ROLES, ROLES
from harness.metrics.gpu.scrape import ScrapeSource
from harness.metricspec import GpuSourceSpec

DEAD = "http://127.0.0.1:9/metrics"


@dataclass
class Exporter:
    text: str = ""
    status: int = 200
    content_type: str = "text/plain"
    delay_s: float = 0.0
    packed: bool = False
    port: int = 0
    asked: list[dict[str, str]] = field(default_factory=list)  # headers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.headers))
        await asyncio.sleep(self.delay_s)
        more = {"Location": "/login?next=secret", "Retry-After": "7"}
        response = web.Response(text=self.text, status=self.status, content_type=self.content_type, headers=more)
        if self.packed:
            response.enable_compression(web.ContentCoding.gzip)
        return response


@asynccontextmanager
async def serving(*exporters: Exporter) -> AsyncIterator[None]:
    runners = []
    for exporter in exporters:
        app = web.Application()
        app.router.add_get("/metrics", exporter.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        exporter.port = runner.addresses[0][1]
        runners.append(runner)
    try:
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


class Clock:
    def __init__(self) -> None:
        self.unix = 1_000_000.0

    def __call__(self) -> float:
        return self.unix


def amd(host: str, busy: float, *more: str, gpu: int = 0) -> str:
    labels = f'gpu_id="{gpu}",hostname="{host}",pod=""'
    lines = [f"gpu_gfx_activity{{{labels}}} {busy}", *(line.replace("{", f"{{{labels},", 1).replace(",}", "}") for line in more)]
    return "# TYPE gpu_gfx_activity gauge\n" + "\n".join(lines) + "\n"


def source(urls: Sequence[str], clock: Callable[[], float] | None = None, **settings: object) -> ScrapeSource:
    spec = GpuSourceSpec.model_validate({"timeout_s": 5.0, **settings})
    return ScrapeSource(urls, spec, profiles.load(spec), clock=clock or time.time)


def values(reading: Reading, role: str) -> dict[str, float]:
    of_role = reading.roles[role]
    return {f"{key.host}/{key.gpu}": value for key, value in zip(of_role.keys, of_role.values.tolist(), strict=True)}


async def test_pages_of_several_exporters_are_one_reading() -> None:
    one, two = Exporter(amd("a", 90, "gpu_power_usage{} 700")), Exporter(amd("b", 80, gpu=1), packed=True)
    async with serving(one, two):
        under = source([one.url, two.url], clock := Clock())
        reading = await under.read(GPU_ROLES)
        assert values(reading, "gpu_util") == {"a/0": 90, "b/1": 80}
        assert values(reading, "power") == {"a/0": 700}
        assert reading.roles["power"].metric == "gpu_power_usage"
        assert reading.roles["gpu_util"].unix.tolist() == [clock.unix, clock.unix]
        assert (reading.profiles, reading.problems, under.name, under.kind) == (("amd-dme",), (), "2 exporters", "scrape")
        assert "gpu_ecc_correct_total" in reading.not_collected["ecc_correctable"]
        assert set(reading.roles) | set(reading.not_collected) == set(GPU_ROLES)
        keys = reading.roles["gpu_util"].keys
        assert (await under.read(GPU_ROLES)).roles["gpu_util"].keys is keys  # whoever joins them need not do it again
        await under.close()


async def test_an_exporter_that_says_no_host_is_on_the_host_of_its_page() -> None:
    engine = Exporter('vllm:num_requests_running{engine="0",model_name="m"} 5\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n')
    async with serving(engine):
        under = source([engine.url])
        reading = await under.read(list(ROLES))
        assert list(reading.roles["running"].keys) == [SeriesKey(host="127.0.0.1", engine="0")]
        assert reading.not_collected["power"] == "no metrics of GPUs are there, only those of vLLM"
        await under.close()


async def test_a_target_that_falls_silent_keeps_its_last_word_until_it_is_stale() -> None:
    one, two = Exporter(amd("a", 90)), Exporter(amd("b", 80))
    async with serving(one, two):
        under, clock = source([one.url, two.url], clock := Clock(), stale_after_s=60.0), clock
        await under.read(["gpu_util"])
        two.status = 503
        clock.unix += 30
        reading = await under.read(["gpu_util"])
        assert values(reading, "gpu_util") == {"a/0": 90, "b/0": 80}
        assert (reading.unix - reading.roles["gpu_util"].unix).tolist() == [0, 30]
        assert reading.problems[0] == "1 of 2 exporters do not answer (1 overloaded)"
        assert f"{two.url} is overloaded or not ready (HTTP 503)" in reading.problems[1]
        clock.unix += 40
        assert values(await under.read(["gpu_util"]), "gpu_util") == {"a/0": 90}
        two.status = 200
        assert values(await under.read(["gpu_util"]), "gpu_util") == {"a/0": 90, "b/0": 80}
        await under.close()


async def test_a_series_that_left_its_page_is_gone_at_once() -> None:
    exporter = Exporter(amd("a", 90, "gpu_power_usage{} 700"))
    async with serving(exporter):
        under = source([exporter.url])
        assert "power" in (await under.read(["power"])).roles
        exporter.text = amd("a", 90)
        reading = await under.read(["power"])
        assert not reading.roles
        assert "gpu_power_usage" in reading.not_collected["power"]
        await under.close()


@pytest.mark.parametrize(
    ("exporter", "trouble", "says"),
    [
        (Exporter(status=401), "unauthorized", "no credentials are set: metrics.gpu.bearer_file"),
        (Exporter(status=404), "setup", "there is nothing at http://127.0.0.1:"),
        (Exporter(status=302), "setup", "sends elsewhere (HTTP 302, /login)"),
        (Exporter(status=503), "overloaded", "overloaded or not ready"),
        (Exporter("<html>", content_type="text/html"), "bad_answer", "is a page for people (HTML)"),
        (Exporter(delay_s=3.0), "timeout", "did not answer in time (metrics.gpu.timeout_s)"),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
async def test_the_only_target_failing_is_told_in_words(exporter: Exporter, trouble: str, says: str) -> None:
    async with serving(exporter):
        under = source([exporter.url], timeout_s=0.5 if trouble == "timeout" else 60.0)
        with pytest.raises(SourceError) as caught:
            await under.read(["power"])
        assert caught.value.trouble == trouble
        assert says in str(caught.value)
        assert "secret" not in str(caught.value)
        await under.close()


async def test_nobody_listening_and_none_of_many() -> None:
    for urls, says in (
        ([DEAD], f"{DEAD} cannot be reached: connection refused"),
        ([DEAD, DEAD + "2"], "none of 2 exporters answers: "),
    ):
        under = source(urls)
        with pytest.raises(SourceError, match=says) as caught:
            await under.read(["power"])
        assert caught.value.trouble == "unreachable"
        await under.close()
    with pytest.raises(SourceError, match=r"metrics\.gpu\.targets is empty"):
        await source([]).read(["power"])


async def test_a_round_ends_in_time_whoever_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = Exporter(amd("a", 90)), Exporter(amd("b", 80), delay_s=600.0)
    async with serving(quick, slow):
        under, clock = source([quick.url, slow.url], timeout_s=60.0), Time(monkeypatch)
        reading_it = asyncio.create_task(under.read(["gpu_util"]))
        async with asyncio.timeout(600):
            while not (slow.asked and under._targets[0].scanner.known):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for _ in range(20):  # turns of the loop, in which it takes the page in
            await asyncio.sleep(0.005)
        clock.passes(61)
        reading = await asyncio.wait_for(reading_it, 30)
        assert values(reading, "gpu_util") == {"a/0": 90}
        assert "1 timeout" in reading.problems[0]
        await under.close()


async def test_pages_that_are_empty_foreign_or_partly_broken_are_told() -> None:
    empty, foreign, broken = Exporter(""), Exporter("up 1\n"), Exporter(amd("a", 90) + "gpu_gfx_activity{ 5\n")
    async with serving(empty, foreign, broken):
        under = source([empty.url, foreign.url, broken.url])
        reading = await under.read(["gpu_util"])
        assert values(reading, "gpu_util") == {"a/0": 90}
        assert sorted(problem.partition("/metrics ")[2] for problem in reading.problems[:2]) == [
            "is an empty page (an exporter whose agent is late shows one)",
            "shows no metric that a profile knows",
        ]
        assert reading.problems[2] == f"1 lines of {broken.url} are not in the format of Prometheus"
        await under.close()


async def test_no_page_is_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Exporter(amd("a", 90) + "x 1\n" * 1_000_000, packed=True)
    monkeypatch.setattr(scrape, "MOST_PAGE_BYTES", 1 << 20)
    async with serving(exporter):
        under = source([exporter.url])
        with pytest.raises(SourceError, match="has more than 1 MiB: is it an exporter's page"):
            await under.read(["gpu_util"])
        await under.close()


async def test_shares_of_time_come_with_the_second_round_and_survive_a_restart() -> None:
    def page(capped: float, looks: float) -> str:
        return amd(
            "a",
            90,
            f"gpu_violation_ppt_residency_accumulated{{}} {capped}",
            f"gpu_violation_current_accumulated_counter{{}} {looks}",
        )

    exporter = Exporter(page(1e6, 5e6))
    async with serving(exporter):
        under = source([exporter.url], clock := Clock())
        first = await under.read(["throttle_power"])
        assert first.not_collected == {"throttle_power": "it is a change over time: known from the next rounds on"}
        for capped, looks in ((1e6 + 2_500, 5e6 + 10_000), (1e6 + 5_000, 5e6 + 20_000)):
            exporter.text = page(capped, looks)
            clock.unix += 10
            reading = await under.read(["throttle_power"])
        assert reading.roles["throttle_power"].values[0] == pytest.approx(0.25)
        exporter.text = page(2_500, 10_000)
        clock.unix += 10
        assert (await under.read(["throttle_power"])).roles["throttle_power"].values[0] == pytest.approx(0.25)
        await under.close()


async def test_the_resolution_is_how_far_apart_pages_differ() -> None:
    exporter = Exporter(amd("a", 0))
    async with serving(exporter):
        under = source([exporter.url], clock := Clock(), interval_s=5.0)
        for round_number in range(13):
            exporter.text = amd("a", round_number // 3)  # every 15 s another
            reading = await under.read(["gpu_util"])
            clock.unix += 5
        assert reading.resolution_s == pytest.approx(15.0)
        await under.close()


async def test_a_time_on_the_page_is_the_samples_time() -> None:
    clock = Clock()
    exporter = Exporter(amd("a", 90).replace(" 90\n", f" 90 {int((clock.unix - 40) * 1000)}\n"))
    async with serving(exporter):
        under = source([exporter.url], clock)
        reading = await under.read(["gpu_util"])
        assert reading.unix - reading.roles["gpu_util"].unix[0] == pytest.approx(40)
        await under.close()


async def test_labels_that_come_and_go_do_not_pile_up() -> None:
    exporter = Exporter()
    async with serving(exporter):
        under = source([exporter.url], clock := Clock())
        for job in range(12):
            lines = [amd("a", gpu, gpu=gpu).replace('pod=""', f'pod="job-{job}"') for gpu in range(500)]
            exporter.text = "".join(lines)
            clock.unix += 10
            reading = await under.read(["gpu_util"])
            assert reading.roles["gpu_util"].values.tolist() == list(range(500))
            assert {key.pod for key in reading.roles["gpu_util"].keys} == {f"job-{job}"}
        assert len(under._table) <= 3500
        assert len(under._targets[0].scanner.known) <= 3500
        await under.close()


async def test_windows_go_on_when_series_are_thinned_out() -> None:
    def page(job: int, looks: int) -> str:
        lines = [amd("a", gpu, gpu=gpu).replace('pod=""', f'pod="job-{job}"') for gpu in range(1, 1500)]
        kept = amd(
            "b", 1, f"gpu_violation_ppt_residency_accumulated{{}} {1e6 + looks}",
            f"gpu_violation_current_accumulated_counter{{}} {5e6 + 2 * looks}",
        )  # fmt: skip
        return "".join(lines) + kept

    exporter = Exporter()
    async with serving(exporter):
        under = source([exporter.url], clock := Clock())
        sizes = []
        for round_number in range(6):
            exporter.text = page(round_number, 1000 * round_number)
            clock.unix += 10
            reading = await under.read(["throttle_power", "gpu_util"])
            sizes.append(len(under._table))
            assert len(reading.roles["gpu_util"].keys) == 1500
        assert min(np.diff(sizes)) < 0
        assert reading.roles["throttle_power"].values.tolist() == [pytest.approx(0.5)]
        await under.close()


async def test_a_token_is_read_again_for_each_round_and_never_told(tmp_path: Path) -> None:
    exporter, token = Exporter(amd("a", 90)), tmp_path / "token"
    token.write_text("first\n")
    async with serving(exporter):
        under = source([exporter.url], bearer_file=str(token), headers={"X-Scope-OrgID": "team"})
        await under.read(["gpu_util"])
        token.write_text("second\n")
        await under.read(["gpu_util"])
        assert [asked["Authorization"] for asked in exporter.asked] == ["Bearer first", "Bearer second"]
        assert exporter.asked[0]["X-Scope-OrgID"] == "team"
        exporter.status = 403
        with pytest.raises(SourceError, match=r"look at the token in .*/token \(metrics\.gpu\.bearer_file\)") as caught:
            await under.read(["gpu_util"])
        assert "second" not in str(caught.value)
        for content, says in (("two words", "does not hold one token on one line"), ("", "is empty")):
            token.write_text(content)
            with pytest.raises(SourceError, match=says) as caught:
                await under.read(["gpu_util"])
            assert caught.value.trouble == "setup"
        token.unlink()
        with pytest.raises(SourceError, match="cannot be read: No such file"):
            await under.read(["gpu_util"])
        await under.close()


async def test_promql_is_refused_with_what_to_set() -> None:
    with pytest.raises(SourceError, match=r"metrics\.gpu\.url names a Prometheus to ask") as caught:
        await source([DEAD]).query("up")
    assert caught.value.trouble == "setup"


async def test_metrics_are_listed_with_type_help_and_roles() -> None:
    exporter = Exporter("# HELP gpu_gfx_activity Busy\n" + amd("a", 90) + "other_total 1\n")
    async with serving(exporter):
        under = source([exporter.url, DEAD])
        found = {info.name: info for info in await under.metrics()}
        assert (found["gpu_gfx_activity"].type, found["gpu_gfx_activity"].help) == ("gauge", "Busy")
        assert found["gpu_gfx_activity"].roles == ("gpu_util",)
        assert found["other_total"].roles == ()
        await under.close()
    under = source([DEAD])
    with pytest.raises(SourceError, match="connection refused"):
        await under.metrics()
    await under.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ca_file": "/nowhere.pem"}, "ca_file '/nowhere.pem': cannot be read: No such file"),
        ({"cert_file": __file__}, "not a certificate with its key in PEM"),
        ({"headers": {"X-Team": "a\nb"}}, "the value of X-Team has characters that a header may not have"),
        ({"headers": {"X Team": "a"}}, "'X Team' is not the name of a header"),
    ],
)
async def test_settings_that_cannot_serve_are_told_at_the_first_round(settings: dict[str, object], says: str) -> None:
    with pytest.raises(SourceError) as caught:
        await source([DEAD], None, **settings).read(["power"])
    assert caught.value.trouble == "setup"
    assert says in str(caught.value)


def test_a_url_is_shown_without_secrets() -> None:
    assert shown("https://user:pw@host:9/a?token=x#y") == "https://host:9/a"


async def test_pages_never_seen_before_leave_the_loop_its_time() -> None:
    """A new head costs 20 to 70 µs to understand; thousands of them, from two exporters at once, must not be one stretch."""
    exporters = [Exporter("".join(amd(f"n{n}", 90, gpu=gpu) for gpu in range(3000))) for n in range(2)]
    stretches: list[float] = []

    async def watch() -> None:
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            stretches.append(now_s - last_s)
            last_s = now_s

    async with serving(*exporters):
        under = source([one.url for one in exporters])
        await under.metrics()  # what has to be imported is
        gc.disable()  # a collection of all that a test process holds is a stretch of its own
        try:
            watching = asyncio.create_task(watch())
            reading = await under.read(["gpu_util"])
        finally:
            gc.enable()
        watching.cancel()
        await under.close()
    assert len(reading.roles["gpu_util"].keys) == 6000
    assert max(stretches) < 0.15 * sum(stretches)
