"""(s) One round of direct scrape: 512 GPUs x 20 metrics on pages with the exporter's real, long labels.

What counts is CPU of the head's thread per round with a warm cache: scanning alone (and against prometheus_client's parser on
the same bytes), the whole round over HTTP from 64 exporters and from one page, and the join of 16 roles. The exporters run in
a process of their own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from harness.metrics.gpu import profiles
from harness.metrics.gpu.join import GpuPlace, Joiner
from harness.metrics.gpu.roles import GPU_ROLES
from harness.metrics.gpu.scan import Scanner
from harness.metrics.gpu.scrape import ScrapeSource
from harness.metricspec import GpuSourceSpec
from tests.bench.rig import Row, median, row
from tests.metrics.pages import Fleet, amd_page

ROUNDS = 9
NODES, EACH = 64, 8
LINES = 10_240


def run() -> list[Row]:
    fleet = Fleet(NODES, EACH)
    pages = {f"/{node}": _trimmed(amd_page(fleet, node=node)) for node in range(NODES)}
    pages["/all"] = b"".join(pages.values())
    lines = sum(not line.startswith(b"#") for line in pages["/all"].splitlines())
    spec = GpuSourceSpec(interval_s=1.0, timeout_s=60.0)

    scan_ms = _scan_ms(pages["/all"], spec)
    theirs_ms = _cpu_ms(lambda: list(text_string_to_metric_families(pages["/all"].decode())))
    many_ms, one_ms, join_ms = asyncio.run(_rounds(pages, spec, fleet))
    return [
        row("(s) prometheus_client.parser over our scanner, same page", theirs_ms / scan_ms, "ratio", at_least=20),
        row(f"(s) scan of {lines:,} lines ({len(pages['/all']) / 1e6:.1f} MB), warm", scan_ms, "CPU ms", at_most=30),
        row("the same by prometheus_client.parser", theirs_ms, "CPU ms"),
        row("(s) round from one page of 512 GPUs: HTTP, scan, 18 roles", one_ms, "CPU ms", at_most=30),
        row("(s) round from 64 exporters of 8 GPUs", many_ms, "CPU ms", at_most=150),
        row("(s) join of 512 GPUs x 16 roles, warm", join_ms, "CPU ms", at_most=5),
    ]


def _trimmed(page: str) -> bytes:
    """20 series a GPU, as the goal says."""
    kept = [
        line for line in page.splitlines() if not line.startswith(("gpu_afid_errors", "gpu_edge", 'gpu_clock{clock_index="8"'))
    ]
    return ("\n".join(kept) + "\n").encode()


def _cpu_ms(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return (time.thread_time() - began_s) * 1e3


def _scan_ms(body: bytes, spec: GpuSourceSpec) -> float:
    wanted = {
        name.encode() for profile in profiles.load(spec) for recipe in profile.recipes.values() for name in recipe.metrics()
    }
    numbers: list[int] = []

    def admit(name: str, labels: dict[str, str]) -> int:
        numbers.append(len(numbers))
        return numbers[-1]

    scanner = Scanner(wanted, admit)
    scanner.scan(body)
    return median([_cpu_ms(lambda: scanner.scan(body)) for _ in range(ROUNDS)])


async def _rounds(pages: dict[str, bytes], spec: GpuSourceSpec, fleet: Fleet) -> tuple[float, float, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs, pages), daemon=True)
    server.start()
    try:
        if not ours.poll(30):
            raise TimeoutError("the exporters' process did not start within 30 s")
        bases = [f"http://127.0.0.1:{port}" for port in ours.recv()]
        took = {}
        for name, urls in (("many", [f"{base}/{node}" for node, base in enumerate(bases)]), ("one", [f"{bases[0]}/all"])):
            source = ScrapeSource(urls, spec, profiles.load(spec))
            reading = await source.read(GPU_ROLES)
            times = []
            for _ in range(ROUNDS):
                began_s = time.thread_time()
                reading = await source.read(GPU_ROLES)
                times.append((time.thread_time() - began_s) * 1e3)
            await source.close()
            took[name] = median(times)
        if len(reading.roles["power"].keys) != fleet.count:
            raise AssertionError(f"{len(reading.roles['power'].keys)} GPUs have power, not {fleet.count}")
    finally:
        server.terminate()
        server.join(10)
    places = [
        GpuPlace(f"node{gpu // EACH:03d}/gpu{gpu % EACH}", 0, (fleet.host(gpu),), str(gpu % EACH)) for gpu in range(fleet.count)
    ]
    joiner = Joiner(places)
    if joiner.place(reading).matched != fleet.count:
        raise AssertionError("not every GPU was joined")
    return took["many"], took["one"], median([_cpu_ms(lambda: joiner.place(reading)) for _ in range(ROUNDS)])


def _serve(told: Connection, pages: dict[str, bytes]) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=pages[request.path], content_type="text/plain")

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/{page}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        for _ in range(NODES):  # a port for each exporter
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        told.send([address[1] for address in runner.addresses])
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    for line in run():
        print(line)
