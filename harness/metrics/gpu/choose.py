"""Where a run's GPU metrics come from: the spec's wish (harness/metricspec.py) turned into a source, or into words why none.

`choose_source` only chooses. Supply also starts what a source needs (the page of a synthetic fleet, a Prometheus of our
own) and ends it again: what the head uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.metrics.gpu.base import MetricsSource, SourceError
from harness.metricspec import GpuSourceSpec
from harness.spec import RunSpec

if TYPE_CHECKING:
    from harness.metrics.gpu.child import ChildPrometheus
    from harness.metrics.gpu.profiles import Profile
    from harness.metrics.gpu.simulated import FleetLoad, SimulatedExporter

Kind = Literal["promql", "scrape", "simulated", "none"]

_NEXT_STEP = (
    "set metrics.gpu.url to a Prometheus that scrapes the GPUs' exporters, or metrics.gpu.targets to the exporters themselves, "
    'as in ["http://{host}:5000/metrics"] (AMD) or ["http://{host}:9400/metrics"] (NVIDIA)'
)
_HOST = "{host}"


def kind_of(spec: RunSpec) -> Kind:
    """What is meant, whether or not it can be had."""
    gpu = spec.metrics.gpu
    if gpu.source == "none":
        return "none"
    if gpu.with_prometheus:
        return "promql"
    if gpu.source != "auto":
        return gpu.source
    if gpu.url is not None:
        return "promql"
    if gpu.targets:
        return "scrape"
    return "simulated" if _is_synthetic(spec) else "none"


def wants_page(spec: RunSpec) -> bool:
    """The simulated exporter is to be started: it is the source, or all that our Prometheus has to scrape."""
    kind, gpu = kind_of(spec), spec.metrics.gpu
    for_prometheus = kind == "promql" and gpu.with_prometheus and (gpu.source == "simulated" or not gpu.targets)
    return _is_synthetic(spec) and (kind == "simulated" or for_prometheus)


def targets_of(spec: RunSpec, hosts: Sequence[str], page: str | None) -> list[str]:
    """Pages to scrape: the simulated one, or the spec's with each host of the fleet put in, each once and in order."""
    if page is not None:
        return [page]
    pages: dict[str, None] = {}
    for target in spec.metrics.gpu.targets:
        for host in hosts if _HOST in target else ("",):
            pages[target.replace(_HOST, _in_url(host))] = None
    return list(pages)


def choose_source(
    spec: RunSpec, hosts: Sequence[str], page: str | None, *, prometheus: str | None = None
) -> MetricsSource | None:
    """`page`: of the simulated exporter; `prometheus`: of the one that was started for this run; each None without one.

    None where `why_none` has the reason. Raises SourceError("setup") for what the spec asks for and cannot be.
    """
    kind, gpu = kind_of(spec), spec.metrics.gpu
    if why_none(spec, hosts):
        return None
    if kind == "promql":
        from harness.metrics.gpu.promsource import PromqlSource

        asked = gpu if prometheus is None else _of_our_own(gpu, prometheus)
        if asked.url is None:
            raise SourceError("setup", "metrics.gpu.with_prometheus: its Prometheus has not been started")
        return PromqlSource(asked, _profiles(gpu))
    from harness.metrics.gpu.scrape import ScrapeSource

    if kind == "simulated":
        if page is None:
            raise SourceError("setup", "metrics.gpu.source = simulated: its page has not been started")
        return ScrapeSource([page], gpu, _profiles(gpu), kind="simulated", name="simulated exporter")
    return ScrapeSource(targets_of(spec, hosts, None), gpu, _profiles(gpu))


def why_none(spec: RunSpec, hosts: Sequence[str] = ("?",)) -> str:
    """Why this run has no source (with these hosts known), and the next step; "" when it has one."""
    kind, gpu = kind_of(spec), spec.metrics.gpu
    if gpu.source == "none":
        return "metrics.gpu.source = none: GPU metrics are switched off; set it to auto to have them"
    if kind == "none":
        return f"no source of GPU metrics is configured: {_NEXT_STEP}"
    if kind == "simulated" and not _is_synthetic(spec):
        engine = spec.fleet.engine
        return f"metrics.gpu.source = simulated is for synthetic fleets, and fleet.engine = {engine} measures: {_NEXT_STEP}"
    if kind == "promql" and gpu.url is not None:
        return ""
    if wants_page(spec):
        return ""
    if not gpu.targets:
        return f"metrics.gpu.with_prometheus has nothing to scrape: {_NEXT_STEP}"
    if not targets_of(spec, hosts, None):
        return f"metrics.gpu.targets: no machine of the fleet is known yet that {_HOST} could stand for"
    return ""


class Supply:
    """A run's source with all that it needs, opened and closed together. `source` is None while there is none; see `why`.

    What is made here is made in threads: the libraries alone take a third of a second to import, which the loop has not.
    """

    def __init__(self, spec: RunSpec, folder: Path, state: Callable[[], FleetLoad]) -> None:
        self._spec, self._folder, self._state = spec, folder, state
        self._exporter: SimulatedExporter | None = None
        self._child: ChildPrometheus | None = None
        self._targets: list[str] = []
        self.source: MetricsSource | None = None
        self.why = why_none(spec, ())

    @property
    def problem(self) -> str:
        """Of the Prometheus of our own, when it has died; "" otherwise."""
        return self._child.problem if self._child is not None else ""

    async def open(self, hosts: Sequence[str]) -> MetricsSource | None:
        """Call it again when the fleet's hosts have changed, or its Prometheus has died. Raises SourceError; what has been
        started stays for the next try."""
        self.why = why_none(self._spec, hosts)
        if self.why:
            return await self._replace(None)
        page = await self._page()
        targets = targets_of(self._spec, hosts, page)
        prometheus = await self._prometheus(targets)
        if self.source is not None and (prometheus is not None or targets == self._targets):
            return self.source
        chosen = await asyncio.to_thread(choose_source, self._spec, hosts, page, prometheus=prometheus)
        self._targets = targets
        return await self._replace(chosen)

    async def close(self) -> None:
        child, exporter = self._child, self._exporter
        self._child = self._exporter = None
        async with AsyncExitStack() as last:  # each of them, whatever becomes of the others
            if exporter is not None:
                last.push_async_callback(exporter.close)
            if child is not None:
                last.push_async_callback(child.close)
            await self._replace(None)

    async def _replace(self, source: MetricsSource | None) -> MetricsSource | None:
        before, self.source = self.source, source
        if before is not None:
            await before.close()
        return source

    async def _page(self) -> str | None:
        if not wants_page(self._spec):
            return None
        if self._exporter is None:
            exporter = await asyncio.to_thread(_new_exporter, self._spec, self._state)
            await exporter.start()
            self._exporter = exporter
        return self._exporter.url

    async def _prometheus(self, targets: Sequence[str]) -> str | None:
        gpu = self._spec.metrics.gpu
        if not gpu.with_prometheus or kind_of(self._spec) != "promql":
            return None
        if self._child is not None and self._child.url and not self._child.problem:
            self._child.aim(targets)
            return self._child.url
        if self._child is None:
            self._child = await asyncio.to_thread(_new_child, self._folder, targets, gpu)
        else:
            self._child.aim(targets)
            await self._replace(None)  # it comes back on another port
        return await self._child.start()


def _new_exporter(spec: RunSpec, state: Callable[[], FleetLoad]) -> SimulatedExporter:
    from harness.metrics.gpu.simulated import SimulatedExporter

    return SimulatedExporter(spec, state)


def _new_child(folder: Path, targets: Sequence[str], gpu: GpuSourceSpec) -> ChildPrometheus:
    from harness.metrics.gpu.child import ChildPrometheus

    return ChildPrometheus(folder, targets, gpu.interval_s, login=gpu)


def _profiles(gpu: GpuSourceSpec) -> list[Profile]:
    from harness.metrics.gpu import profiles

    try:
        return profiles.load(gpu)
    except ValueError as error:
        raise SourceError("setup", str(error)) from error


def _of_our_own(gpu: GpuSourceSpec, url: str) -> GpuSourceSpec:
    """Logins and headers are for the pages that it scrapes; it wants none itself."""
    without = dict.fromkeys(("username", "password_file", "bearer_file", "ca_file", "cert_file", "key_file"))
    return gpu.model_copy(update={**without, "headers": {}, "url": url, "with_prometheus": False})


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_synthetic(spec: RunSpec) -> bool:
    return spec.fleet.engine == "synthetic"
