"""Before a run: will its source of GPU metrics answer, by which exporters, and of how many GPUs? Looks, and changes nothing.

Nothing here is ever a failure: a run goes well without GPU metrics. But an operator who counts on them should know before it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import subprocess
from collections.abc import Sequence
from typing import Final

from harness.doctor import Check
from harness.metrics.exposition import listen_address
from harness.metrics.gpu.base import MetricsSource, Reading, SourceError
from harness.metrics.gpu.choose import choose_source, kind_of, wants_page, why_none
from harness.metrics.gpu.join import host_forms
from harness.metrics.gpu.roles import GPU_ROLES
from harness.metricspec import MetricsSpec
from harness.spec import RunSpec, node_name

NAME: Final = "metrics"
WITHIN_S: Final = 6.0
_HOST: Final = "{host}"
_ROLES: Final = ("gpu_util", "power", "junction_temp", "hbm_used", "clock", "ecc_uncorrectable")


def gpu_metrics(spec: RunSpec, hosts: Sequence[str] = ()) -> Check:
    """Blocking, `WITHIN_S` at most. `hosts`: the fleet's machines, as far as they are known before it is placed."""
    local = spec.cluster.kind == "local"
    known = list(hosts) or ([socket.gethostname()] if local else [])
    gpu = spec.metrics.gpu
    if gpu.with_prometheus and (check := prometheus()).ok is not True:
        return dataclasses.replace(check, name=NAME)
    if wants_page(spec):
        by = " through a Prometheus of its own" if gpu.with_prometheus else ""
        return Check(NAME, True, f"simulated by the run itself{by}, as its GPUs are")
    if why := why_none(spec, ("?",)):
        return Check(NAME, None, f"none: {why}")
    if kind_of(spec) == "scrape" or gpu.with_prometheus:
        if not known and any(_HOST in target for target in gpu.targets):
            return Check(NAME, None, "which pages are read is known when the fleet is placed: {host} stands for its machines")
        looked = spec.model_copy(update={"metrics": _scraping(spec)}) if gpu.with_prometheus else spec
    else:
        looked = spec
    try:
        return asyncio.run(_look(looked, known))
    except SourceError as error:
        where = "" if local else "; from a pod it may be otherwise"
        fix = "the run goes without GPU metrics, or set metrics.gpu right"
        return Check(NAME, None, f"no GPU metrics: {error}{where}", fix)


def own_page(spec: RunSpec) -> Check | None:
    """Of an address that `metrics.listen` fixes on this machine; a run whose page cannot be shown goes on without it."""
    address = listen_address(spec.metrics, spec.cluster)
    if address is None or spec.cluster.kind != "local" or not address[1]:
        return None
    try:
        with socket.create_server(address):
            return Check("metrics page", True, f"http://{address[0] or '0.0.0.0'}:{address[1]}/metrics can be shown")
    except OSError as error:
        said = (error.strerror or str(error)).partition(" (while")[0]
        why = f"metrics.listen = {spec.metrics.listen}: cannot be listened on: {said}"
        fix = "another port, or leave metrics.listen out: a free port of 127.0.0.1 is taken, which head.json names"
        return Check("metrics page", None, why, fix)


def prometheus() -> Check:
    """The program for `--with-prometheus`; a run without that needs none."""
    from harness.metrics.gpu.child import VARIABLE, find_prometheus

    try:
        path = find_prometheus()
    except SourceError as error:
        return Check("prometheus", None, str(error).removeprefix("metrics.gpu.with_prometheus: "), "")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("prometheus", None, f"{path} cannot be started: {error}", "only --with-prometheus needs it")
    words = (done.stdout or done.stderr).split()
    if words[:2] != ["prometheus,", "version"] or len(words) < 3:
        return Check("prometheus", None, f"{path} is no Prometheus: it does not tell its version", f"set ${VARIABLE} right")
    return Check("prometheus", True, f"{words[2]} at {path}, for --with-prometheus")


def _scraping(spec: RunSpec) -> MetricsSpec:
    """The pages that a Prometheus of the run's own would scrape, looked at directly."""
    gpu = spec.metrics.gpu.model_copy(update={"with_prometheus": False, "source": "scrape"})
    return spec.metrics.model_copy(update={"gpu": gpu})


async def _look(spec: RunSpec, hosts: Sequence[str]) -> Check:
    gpu = spec.metrics.gpu.model_copy(update={"timeout_s": min(WITHIN_S, spec.metrics.gpu.timeout_s)})
    source = choose_source(
        spec.model_copy(update={"metrics": spec.metrics.model_copy(update={"gpu": gpu})}), hosts, None
    )  # fmt: skip
    if source is None:
        return Check(NAME, None, why_none(spec, hosts))
    try:
        async with asyncio.timeout(WITHIN_S):
            return _judged(spec, source, await source.read(_ROLES), hosts)
    except TimeoutError:
        raise SourceError("timeout", f"{source.name} has not answered within {WITHIN_S:g} s") from None
    finally:
        await source.close()


def _strangers(spec: RunSpec, reading: Reading, hosts: Sequence[str]) -> list[str]:
    """Machines of the source, where none of them is the fleet's by its name, nor can be by a UUID. [] where nobody knows."""
    keys = [key for role in reading.roles.values() for key in role.keys]
    if not hosts or spec.cluster.kind != "local" or any(key.uuid for key in keys):
        return []
    named = [*hosts, *map(node_name, range(spec.fleet.nodes)), *spec.metrics.gpu.hosts]
    ours = {form for host in named for form in host_forms(host)}
    theirs = sorted({key.host for key in keys if key.host})
    return theirs if theirs and not any(ours & set(host_forms(host)) for host in theirs) else []


def _judged(spec: RunSpec, source: MetricsSource, reading: Reading, hosts: Sequence[str]) -> Check:
    expected = spec.expected_replicas * max(1, spec.fleet.layout.devices)
    gpus = {
        (key.host, key.gpu or key.uuid or key.pci)
        for role in GPU_ROLES
        if role in reading.roles
        for key in reading.roles[role].keys
        if key.gpu or key.uuid or key.pci
    }
    every = f", a value every {reading.resolution_s:.0f} s" if reading.resolution_s == reading.resolution_s else ""
    read_by = f" by {', '.join(reading.profiles)}" if reading.profiles else ""
    detail = f"{source.name}: {len(gpus):,d} GPUs{read_by}, {expected:,d} in this fleet{every}"
    doubts = [*reading.problems[:2], *reading.warnings[:2]]
    strangers = _strangers(spec, reading, hosts)
    if strangers:
        few = f"{', '.join(strangers[:3])}{' …' if len(strangers) > 3 else ''}"
        doubts.insert(0, f"of none of this fleet's machines ({', '.join(hosts[:3])}), but of {few}")
    if len(gpus) < expected:
        doubts.insert(0, f"{expected - len(gpus):,d} GPUs have no metrics")
    if not doubts:
        return Check(NAME, True, detail)
    fix = "look at the exporters of those nodes, and at metrics.gpu.matchers" if gpus else "look at metrics.gpu"
    if strangers:
        fix = f'metrics.gpu.hosts = {{ "{strangers[0]}" = "{node_name(0)}" }} says which node a machine is'
    return Check(NAME, None, f"{detail}; {'; '.join(doubts)}", fix)
