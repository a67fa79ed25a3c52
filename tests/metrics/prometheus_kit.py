"""A real Prometheus for tests, and pages of exporter text for it to scrape, that a test can change.

    with write_page(text) as page, prometheus(scraping([page.target])) as server:
        server.until_scraped()
        ... server.url ...

The binaries (`prometheus`, `promtool`) are looked for in $PACELINE_PROMETHEUS (a folder, or the file), on PATH, and in
~/.cache/paceline/prometheus, which Debian's package fills the first time: it is downloaded and unpacked there, never
installed, so no service starts. Where that fails tests are skipped with the reason. Plain functions without fixtures, for
tests and benches of any folder: `from prometheus_kit import ...` here, `from tests.metrics.prometheus_kit import ...` elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

CACHE: Final = Path.home() / ".cache" / "paceline" / "prometheus"
READY_S: Final = 60.0
_PR_SET_PDEATHSIG: Final = 1

# --- the binaries ----------------------------------------------------------------------------------------------


def prometheus_binary() -> Path:
    """Skips the test, with the reason, where there is none and none can be had."""
    return _binary("prometheus")


def promtool_binary() -> Path:
    return _binary("promtool")


def promtool(*arguments: str | Path, within_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """What promtool says of files: its status in `returncode`, its words in `stdout` and `stderr`."""
    command = [str(promtool_binary()), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)


def _binary(name: str) -> Path:
    found, why_not = _find(name)
    if found is None:
        pytest.skip(f"no {name}: {why_not}")
    return found


@functools.cache
def _find(name: str) -> tuple[Path | None, str]:
    if named := os.environ.get("PACELINE_PROMETHEUS"):
        place = Path(named)
        file = place / name if place.is_dir() else place.with_name(name)
        if os.access(file, os.X_OK):
            return file, ""
    if on_path := shutil.which(name):
        return Path(on_path), ""
    why_not = "" if (CACHE / name).exists() else _fill_cache()
    file = CACHE / name
    return (file, "") if os.access(file, os.X_OK) else (None, why_not or f"{CACHE} has no {name}")


def _fill_cache() -> str:
    """Unpacks Debian's package into the cache. What went wrong, in words; "" if nothing did. One process at a time does it."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "not on PATH, not in $PACELINE_PROMETHEUS, and this is no Debian to download its package from"
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE.parent / "prometheus.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (CACHE / "prometheus").exists():
            return ""
        place = Path(folder)
        place.chmod(0o755)  # apt downloads as a user of its own
        try:
            _run(["apt-get", "-q", "download", "prometheus"], place)
            [package] = place.glob("*.deb")
            _run(["dpkg-deb", "-x", str(package), "root"], place)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            output = getattr(error, "stderr", None) or str(error)
            return f"Debian's package could not be had: {output.strip().splitlines()[-1]}"
        CACHE.mkdir(exist_ok=True)
        for name in ("promtool", "prometheus"):  # prometheus last: whoever sees it sees both
            (place / "root" / "usr" / "bin" / name).rename(CACHE / name)
    return ""


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=180)


# --- pages of exporter text ------------------------------------------------------------------------------------


@dataclass
class Page:
    """A page on loopback. `text` is what the next scrape gets; with `status` other than 200, an error instead.

    `stamped`: each sample bears the time at which Prometheus got it. Of such series a scrape that comes too late for a busy
    machine leaves a gap; others it ends, and until the next scrape they have no value at all.
    """

    text: str
    port: int = 0
    path: str = "/metrics"
    status: int = 200
    content_type: str = "text/plain; version=0.0.4; charset=utf-8"
    stamped: bool = False
    headers: list[Mapping[str, str]] = field(default_factory=list)  # of each request, oldest first

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.target}{self.path}"


@contextlib.contextmanager
def write_page(text: str = "", *, path: str = "/metrics", stamped: bool = False) -> Iterator[Page]:
    page = Page(text, path=path, stamped=stamped)

    async def answer(request: web.Request) -> web.Response:
        page.headers.append(dict(request.headers))
        text = page.text
        if page.stamped and request.headers.get("User-Agent", "").startswith("Prometheus"):
            text = re.sub(r"^([^#\n].*)$", rf"\1 {time.time_ns() // 1_000_000}", text, flags=re.MULTILINE)
        # Not packed: of a large page that takes longer than sending it, and Prometheus waits no longer than its interval.
        return web.Response(body=text.encode(), status=page.status, headers={"Content-Type": page.content_type})

    with serving(answer) as page.port:
        yield page


@contextlib.contextmanager
def serving(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], *, tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """The port of a small web server in a thread of its own, so that a test which blocks does not block it."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        ports.append(runner.addresses[0][1])
        ready.set()

    def serve() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, name="page", daemon=True)
    thread.start()
    assert ready.wait(10), "the page's server did not start within 10 s"
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


# --- the server ------------------------------------------------------------------------------------------------


def scraping(
    targets: Sequence[str],
    *,
    interval_s: float = 0.5,
    honor_labels: bool = False,
    labels: Mapping[str, str] | None = None,
    rule_files: Sequence[str | Path] = (),
) -> str:
    """A config with one job, "gpus", that scrapes host:port targets at /metrics."""
    return config_of([job("gpus", targets, honor_labels=honor_labels, labels=labels)], interval_s, rule_files)


def job(
    name: str, targets: Sequence[str], *, honor_labels: bool = False, labels: Mapping[str, str] | None = None, **settings: Any
) -> dict[str, Any]:
    static = {"targets": list(targets), "labels": dict(labels or {})}
    return {"job_name": name, "honor_labels": honor_labels, "static_configs": [static], **settings}


def config_of(jobs: Sequence[Mapping[str, Any]], interval_s: float = 0.5, rule_files: Sequence[str | Path] = ()) -> str:
    """As Prometheus reads it (JSON is YAML)."""
    interval = f"{round(interval_s * 1000)}ms"
    every = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    config = {"global": every, "rule_files": [str(file) for file in rule_files], "scrape_configs": list(jobs)}
    return json.dumps(config, indent=1)


@dataclass
class PrometheusServer:
    """A running Prometheus. `url` has the path prefix, /api/v1 not."""

    url: str
    port: int
    folder: Path
    command: list[str]
    tls: ssl.SSLContext | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """On the same port with the same data. Raises AssertionError with its last words when it is not ready in time."""
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )
        self.until(lambda: self._is_ready(), "it is ready", READY_S)

    def stop(self) -> None:
        """Ends it as a crash would: sockets close at once, data stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def reload(self, config: str) -> None:
        (self.folder / "prometheus.yml").write_text(config)
        self._get("/-/reload", b"")

    def ask(self, query: str, at_unix: float | None = None) -> Any:
        """`data.result` of an instant query, for a test's own use."""
        asked = {"query": query, **({} if at_unix is None else {"time": f"{at_unix:.3f}"})}
        return json.loads(self._get("/api/v1/query", urllib.parse.urlencode(asked).encode()))["data"]["result"]

    def until_found(self, query: str, within_s: float = 30.0) -> Any:
        """The result of a query as soon as it has one."""
        return self.until(lambda: self.ask(query), f"{query} has a result", within_s)

    def until_scraped(self, targets: int = 1, times: int = 1, within_s: float = 60.0) -> None:
        """So many targets are up and were scraped so often, scrapes that failed not counted."""
        query = f"count(sum_over_time(up[10m]) >= {times} and up == 1) >= {targets}"
        self.until_found(query, within_s)

    def until_all_scraped_since(self, unix: float, targets: int = 1, within_s: float = 60.0) -> None:
        """So many targets are up by a scrape that began after that moment: it had what their pages show since then."""
        self.until_found(f"count(timestamp(up) > {unix:.3f} and up == 1) >= {targets}", within_s)

    def until(self, met: Callable[[], Any], what: str, within_s: float) -> Any:
        deadline = time.monotonic() + within_s
        while True:
            if self.process is None or self.process.poll() is not None:
                raise AssertionError(f"Prometheus has ended: {self.log_tail()}")
            if found := met():
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s:g} s: {what}; Prometheus says: {self.log_tail()}")
            time.sleep(0.05)

    def log_tail(self) -> str:
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-5:])

    def _is_ready(self) -> bool:
        try:
            self._get("/-/ready")
        except urllib.error.HTTPError as error:
            return error.code == 401  # it wants to know who asks, so it is there
        except OSError:
            return False
        return True

    def _get(self, path: str, body: bytes | None = None) -> bytes:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.tls))
        with direct.open(urllib.request.Request(self.url + path, data=body), timeout=10) as answer:
            content: bytes = answer.read()
            return content


@contextlib.contextmanager
def prometheus(
    config: str, *, prefix: str = "", arguments: Sequence[str] = (), tls: ssl.SSLContext | None = None
) -> Iterator[PrometheusServer]:
    """A Prometheus on a free port of 127.0.0.1 with data of its own; it and its data are gone afterwards.

    `tls`: how it is asked, where `arguments` make it want TLS.
    """
    binary = prometheus_binary()
    with tempfile.TemporaryDirectory(prefix="prometheus-") as place:
        folder, port = Path(place), _free_port()
        (folder / "prometheus.yml").write_text(config)
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}{prefix.rstrip('/')}"
        command = [
            str(binary),
            "--config.file=prometheus.yml",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--web.external-url={url}/",
            "--web.enable-lifecycle",
            "--log.level=warn",
            *arguments,
        ]
        server = PrometheusServer(url, port, folder, command, tls)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    """Below those that the system hands out, so that nobody is given it before the server has it, or while it restarts."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports are all taken")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
