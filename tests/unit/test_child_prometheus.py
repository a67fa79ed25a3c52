"""The Prometheus that a run starts for itself: found or not, ready, aimed elsewhere, ended, never left behind. A real one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from console.cli import main
from harness.cluster.procinfo import is_alive, start_ticks
from harness.metrics.gpu.base import SourceError
from harness.metrics.gpu.child import VARIABLE, ChildPrometheus, find_prometheus, scrape_every_s
from harness.metricspec import GpuSourceSpec
from tests.metrics.prometheus_kit import prometheus_binary, write_page

PAGE = 'gpu_gfx_activity{{gpu_id="0",hostname="{host}",pod=""}} 42\n'


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def ask(url: str, query: str) -> list[Any]:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(query)}", timeout=10) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
        return found


async def until(met: Callable[[], Any], within_s: float = 60.0) -> Any:
    deadline_s = time.monotonic() + within_s
    while not (found := await asyncio.to_thread(met)):
        assert time.monotonic() < deadline_s, "not within the time"
        await asyncio.sleep(0.1)
    return found


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(prometheus_binary()))


@asynccontextmanager
async def running(folder: Path, *targets: str, **more: Any) -> AsyncIterator[ChildPrometheus]:
    child = ChildPrometheus(folder, targets, 2.0, **more)
    try:
        await child.start()
        yield child
    finally:
        await child.close()


# --- finding it --------------------------------------------------------------------------------------------------


def test_the_variable_comes_before_path_and_path_before_the_cache(tmp_path: Path) -> None:
    named, on_path = program(tmp_path / "a" / "prometheus"), program(tmp_path / "b" / "prometheus")
    cached = program(tmp_path / "cache" / "usr" / "bin" / "prometheus")
    path, cache = str(tmp_path / "b"), tmp_path / "cache"
    assert find_prometheus({VARIABLE: str(named), "PATH": path}, cache) == named
    assert find_prometheus({VARIABLE: str(named.parent), "PATH": path}, cache) == named, "its folder will do"
    assert find_prometheus({"PATH": path}, cache) == on_path
    assert find_prometheus({"PATH": str(tmp_path)}, cache) == cached
    unpacked = program(cache / "prometheus")
    assert find_prometheus({"PATH": str(tmp_path)}, cache) == unpacked


def test_without_a_binary_it_is_said_which_package_has_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="in the package prometheus") as caught:
        find_prometheus({"PATH": str(tmp_path)}, tmp_path / "cache")
    assert caught.value.trouble == "setup"
    assert not caught.value.passing
    with pytest.raises(SourceError, match=f"{VARIABLE} = {tmp_path}/none: .* is no program"):
        find_prometheus({VARIABLE: f"{tmp_path}/none"}, tmp_path)


@pytest.mark.parametrize(("interval_s", "every_s"), [(1, 1), (5, 2.5), (10, 5), (300, 15)])
def test_it_scrapes_twice_a_round_within_bounds(interval_s: float, every_s: float) -> None:
    assert scrape_every_s(interval_s) == every_s


# --- running it --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("real")
async def test_it_scrapes_its_targets_follows_new_ones_and_leaves_only_its_log(tmp_path: Path) -> None:
    with write_page(PAGE.format(host="n1")) as one, write_page(PAGE.format(host="n2"), path="/other") as two:
        async with running(tmp_path, one.url) as child:
            url, pid = child.url, child.pid
            (series,) = await until(lambda: ask(url, "gpu_gfx_activity"))
            assert (series["metric"]["hostname"], series["value"][1]) == ("n1", "42")
            assert "exported_pod" not in series["metric"]
            assert os.getpgid(pid) == pid, "a group of its own"
            child.aim([f"{two.url}?a=b"])
            await until(lambda: ask(url, 'gpu_gfx_activity{hostname="n2"}'))
            assert not child.problem
    assert not (tmp_path / "prometheus").exists()
    assert "Server is ready" in (tmp_path / "logs" / "prometheus.log").read_text()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.usefixtures("real")
async def test_pages_that_want_a_login_get_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-of-pages\n")
    with write_page(PAGE.format(host="n1")) as page:
        login = GpuSourceSpec(bearer_file=str(tmp_path / "token"))
        async with running(tmp_path, page.url, login=login):
            await until(lambda: page.headers)
            assert page.headers[0]["Authorization"] == "Bearer secret-of-pages"
            assert "secret-of-pages" not in (tmp_path / "prometheus" / "prometheus.yml").read_text()


@pytest.mark.usefixtures("real")
async def test_one_that_dies_is_told_with_its_signal_and_can_be_started_again(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        os.kill(child.pid, signal.SIGKILL)
        said = await until(lambda: child.problem)
        assert "has ended (signal SIGKILL)" in said
        assert "prometheus.log" in said
        await child.start()
        assert not child.problem


async def test_who_has_no_time_to_wait_for_its_end_leaves_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = program(tmp_path / "bin" / "prometheus", "#!/bin/sh\ntrap '' TERM\necho deaf\nwhile :; do sleep 0.1; done\n")
    monkeypatch.setenv(VARIABLE, str(deaf))
    monkeypatch.setattr("harness.metrics.gpu.child.STOP_S", 60.0)
    child = ChildPrometheus(tmp_path, [], 2.0)
    starting = asyncio.create_task(child.start())
    log = tmp_path / "logs" / "prometheus.log"
    await until(lambda: log.exists() and "deaf" in log.read_text())
    pid = child.pid
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(child.close(), 0.3)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


@pytest.mark.usefixtures("real")
async def test_data_that_it_cannot_open_are_told_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    (tmp_path / "prometheus" / "data").write_text("no folder")
    with pytest.raises(SourceError, match=r"has ended \(exit status \d\): level=error .*: not a directory"):
        await ChildPrometheus(tmp_path, [], 2.0).start()


@pytest.mark.usefixtures("real")
async def test_it_dies_with_a_head_that_is_killed(tmp_path: Path) -> None:
    head = textwrap.dedent(
        f"""
        import asyncio
        from pathlib import Path
        from harness.metrics.gpu.child import ChildPrometheus
        async def main():
            child = ChildPrometheus(Path({str(tmp_path)!r}), [], 2.0)
            await child.start()
            print(child.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", head], stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        pid = int(await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 60))
        ticks = start_ticks(pid)
        assert ticks is not None
        process.kill()
    await until(lambda: not is_alive(pid, ticks))


async def test_one_that_never_listens_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = program(tmp_path / "bin" / "prometheus", "#!/bin/sh\necho level=info msg=waiting\nexec sleep 60\n")
    monkeypatch.setenv(VARIABLE, str(stuck))
    for ready_s in (0.7, 7, 30):  # a busy machine may not have come to the first word of the program
        monkeypatch.setattr("harness.metrics.gpu.child.READY_S", ready_s)
        with pytest.raises(SourceError, match=f"did not answer within {ready_s} s: ") as caught:
            await ChildPrometheus(tmp_path, [], 2.0).start()
        if "it said nothing" not in str(caught.value):
            break
    assert str(caught.value).endswith("level=info msg=waiting")


# --- from the command line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["demo"], ["run", "demo"]])
def test_a_run_that_asks_for_one_is_refused_where_there_is_none(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    assert main([*command, "--with-prometheus", "--no-console"]) == 2
    assert f"{VARIABLE} = {tmp_path}/none" in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, str(program(tmp_path / "prometheus")))
    nowhere = ["-s", "fleet.engine=openai", "-s", 'fleet.engine_args={base_urls=["http://127.0.0.1:9"], shared=true}']
    assert main([*command, "--with-prometheus", "--no-console", *nowhere]) == 2
    assert "with_prometheus has nothing to scrape" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
