"""A Prometheus of our own: a child process on loopback that scrapes a run's pages, for `metrics.gpu.with_prometheus`.

Config and data lie in the run's folder (prometheus/) and are removed at the end; the log stays (logs/prometheus.log). The
kernel kills it when the head dies. What it scrapes stands in a file that it watches, so targets can come and go.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout
from platformdirs import user_cache_path

from harness.metrics.gpu.base import SourceError
from harness.metricspec import GpuSourceSpec
from harness.records.layout import RunFolder

VARIABLE: Final = "PACELINE_PROMETHEUS"
READY_S: Final = 45.0
STOP_S: Final = 1.5  # its data is removed all the same: nothing is lost with one that has to be killed
#: Blocks, log and head together; a run of an hour writes some 50 MB.
MOST_DATA: Final = "1GB"
_LISTENING = re.compile(r'msg="?Listening on"? address=(\S+)')
_SINCE: Final = re.compile(r"^ts=\S+ caller=\S+ ")
#: exec after asking the kernel for SIGKILL at our death: what asks so between fork and exec is not safe beside threads.
_TIED = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


def cache_folder() -> Path:
    return user_cache_path("paceline") / "prometheus"


def find_prometheus(environ: Mapping[str, str] = os.environ, cache: Path | None = None) -> Path:
    """$PACELINE_PROMETHEUS (the program or its folder), PATH, then the cache. Raises SourceError with what would help."""
    cache = cache_folder() if cache is None else cache
    if named := environ.get(VARIABLE):
        path = Path(os.path.expanduser(named))
        path = path / "prometheus" if path.is_dir() else path
        if not _runs(path):
            raise SourceError("setup", f"{VARIABLE} = {named}: {path} is no program that can be started")
        return path.absolute()
    if on_path := shutil.which("prometheus", path=environ.get("PATH", os.defpath)):
        return Path(on_path).absolute()
    for path in (cache / "prometheus", *sorted(cache.glob("**/bin/prometheus"))):
        if _runs(path):
            return path
    raise SourceError(
        "setup",
        f"metrics.gpu.with_prometheus: no program prometheus in ${VARIABLE}, on PATH or in {cache}; Debian and Ubuntu have it "
        f"in the package prometheus, which `apt-get download prometheus && dpkg-deb -x prometheus_*.deb {cache}` unpacks "
        "without starting its service; or run without with_prometheus: the exporters are then scraped directly",
    )


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def scrape_every_s(interval_s: float) -> float:
    """Twice as often as it is asked, so that an answer is at most half a round old."""
    return min(15.0, max(1.0, interval_s / 2))


class ChildPrometheus:
    """`login`: what the targets' pages want of a visitor (bearer, password, CA); its files are named to Prometheus, not read."""

    def __init__(self, folder: Path, targets: Sequence[str], interval_s: float, *, login: GpuSourceSpec | None = None) -> None:
        place = RunFolder(folder)
        self._folder, self._log = place.prometheus, place.log("prometheus")
        self._targets, self._every_s, self._login = tuple(targets), scrape_every_s(interval_s), login or GpuSourceSpec()
        self._process: asyncio.subprocess.Process | None = None
        self._log_from = 0  # a head that was started again finds its predecessor's lines
        self.url = ""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def problem(self) -> str:
        """Why it does not run although it should; "" while it does, or when nobody has started it."""
        process = self._process
        if process is None or process.returncode is None:
            return ""
        return f"the Prometheus of this run has ended ({_ending(process.returncode)}): {self._last_line()}; see {self._log}"

    async def start(self) -> str:
        """Its URL, once it answers. Raises SourceError."""
        self.url = ""
        program = find_prometheus()
        self._write_files()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = [
            str(program),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--storage.tsdb.retention.size={MOST_DATA}",
            "--web.listen-address=127.0.0.1:0",
        ]
        with self._log.open("ab") as log:
            self._log_from = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.url = await asyncio.wait_for(self._answering(), READY_S)
        except TimeoutError:
            last = self._last_line()
            await self.close()
            raise SourceError("setup", f"Prometheus ({program}) did not answer within {READY_S:g} s: {last}") from None
        except BaseException:
            await self.close()
            raise
        return self.url

    def aim(self, targets: Sequence[str]) -> None:
        """Scrape these from now on; it sees the file change within seconds."""
        if tuple(targets) != self._targets:
            self._targets = tuple(targets)
            self._write_targets()

    async def close(self) -> None:
        """Ends it and removes its data; the log stays."""
        process, self._process, self.url = self._process, None, ""
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                pass
            finally:  # also for who has no time to wait
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # --- starting ---------------------------------------------------------------------------------------------

    async def _answering(self) -> str:
        """It listens on a port that it chooses and logs, so no other program can take that between choice and use."""
        url = ""
        async with ClientSession(timeout=ClientTimeout(total=5.0)) as client:
            while True:
                if self.problem:
                    raise SourceError("setup", self.problem)
                if not url and (found := _LISTENING.search(self._new_log())):
                    url = f"http://{found[1]}"
                if url:
                    with suppress(ClientError, TimeoutError):
                        async with client.get(f"{url}/-/ready") as answer:
                            if answer.status == 200:
                                return url
                await asyncio.sleep(0.05)

    def _write_files(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write_targets()
        every = f"{round(self._every_s * 1000)}ms"
        job = {
            "job_name": "paceline",
            "honor_labels": True,  # the labels of an exporter are its own, as in a direct scrape
            "file_sd_configs": [{"files": [str(self._folder / "targets.json")], "refresh_interval": "30s"}],
            **self._login_of_job(),
        }
        config = {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": [job]}
        (self._folder / "prometheus.yml").write_text(json.dumps(config, indent=1))  # YAML, as all JSON is

    def _write_targets(self) -> None:
        aside = self._folder / "targets.new"
        aside.write_text(json.dumps([_target(url) for url in self._targets], indent=1))
        aside.replace(self._folder / "targets.json")

    def _login_of_job(self) -> dict[str, Any]:
        login, job = self._login, dict[str, Any]()
        if login.bearer_file is not None:
            job["authorization"] = {"credentials_file": _absolute(login.bearer_file)}
        if login.username is not None and login.password_file is not None:
            job["basic_auth"] = {"username": login.username, "password_file": _absolute(login.password_file)}
        tls = {name: _absolute(file) for name in ("ca_file", "cert_file", "key_file") if (file := getattr(login, name))}
        return {**job, "tls_config": tls} if tls else job

    # --- its log ----------------------------------------------------------------------------------------------

    def _new_log(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(self._log_from)
                return log.read(100_000).decode(errors="replace")
        except OSError:
            return ""

    def _last_line(self) -> str:
        """The last error that it names, else its last line."""
        lines = self._new_log().strip().splitlines()
        errors = [line for line in lines if "level=error" in line or "err=" in line]
        return _SINCE.sub("", (errors or lines or ["it said nothing"])[-1])[:400]


def _target(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    parameters = {f"__param_{name}": value for name, value in parse_qsl(parts.query)}
    labels = {"__scheme__": parts.scheme, "__metrics_path__": parts.path or "/metrics", **parameters}
    return {"targets": [parts.netloc], "labels": labels}


def _absolute(file: str) -> str:
    return os.path.abspath(os.path.expanduser(file))


def _ending(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
