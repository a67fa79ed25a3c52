"""A SYSTEM.toml drafted from facts: of this node, and of what a record says of the nodes that served. The rest stays empty.

Every value says where it is from; an empty one says what to write there. Facts of this node are left out where the run was
served elsewhere: the head of a run on a cluster is seldom one of its GPU nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from harness.mlperf.submission.demands import DEMANDS, benchmark_of
from harness.mlperf.submission.inventory import Inventory
from harness.mlperf.submission.system import FIELDS, MEASUREMENTS, NEEDED
from harness.records.clusterlog import last_view
from harness.records.errors import RecordError
from harness.records.fleetfile import FleetFile, read_fleet
from harness.records.layout import RunFolder
from harness.records.runfile import RunFile, read_run

#: Versions that say nothing of the system under test.
_UNTOLD = frozenset({"system", "pyzmq", "libzmq", "msgspec", "numpy", "polars", "pydantic"})


class Fact(NamedTuple):
    value: str
    source: str


class Draft(NamedTuple):
    """`remarks`: what the reader should know of the whole: whose facts these are."""

    facts: dict[str, Fact]
    benchmark: str
    remarks: list[str]


def draft(inventory: Inventory, folder: RunFolder | None = None) -> Draft:
    """Raises RecordError for a run that cannot be read."""
    here = {key: Fact(value, f"this node ({inventory.host})") for key, value in inventory.facts().items()}
    if folder is None:
        remarks = [
            f"facts of this node, {inventory.host}: run this where an engine runs; with RUN it adds what the record says",
        ]
        return Draft(here, "", remarks)
    run = read_run(folder.path)
    elsewhere = _served_elsewhere(run, inventory.host)
    recorded = dict(_recorded(folder, run))
    facts = recorded if elsewhere else {**here, **recorded}
    if not elsewhere and "other_software_stack" in here and "other_software_stack" in recorded:
        both = f"{here['other_software_stack'].value}, {recorded['other_software_stack'].value}"
        facts["other_software_stack"] = Fact(both, f"this node and the record of {folder.name}")
    name = (run.spec.get("model") or {}).get("mlperf_name") or ""
    return Draft(facts, benchmark_of(name), list(_remarks(folder, run, inventory.host, elsewhere)))


def as_toml(found: Draft) -> str:
    lines = [
        "# System description for an MLPerf Inference v6.1 submission: `paceline export mlperf RUN... --system THIS-FILE`.",
        '# Facts only; what could not be known is empty and says what to write. "N/A" where a key does not apply.',
        "# `paceline system check THIS-FILE` lists what is missing.",
        *(f"# {remark}" for remark in found.remarks),
        "",
    ]
    for key, wanted in FIELDS.items():
        fact = found.facts.get(key)
        if fact is not None:
            lines.append(f"{key} = {_quoted(fact.value)}  # {fact.source}")
        else:
            lines.append(f'{key} = ""  # {wanted}' + (" (needed)" if key in NEEDED else ""))
    named = found.benchmark if found.benchmark in DEMANDS else ""
    lines += ["", f'[measurements."{named}"]' if named else "[measurements]"]
    lines += [f'{key} = ""  # {wanted} (needed)' for key, wanted in MEASUREMENTS.items()]
    return "\n".join(lines) + "\n"


def _served_elsewhere(run: RunFile, host: str) -> bool:
    """On a cluster, or on another machine than this."""
    cluster = run.spec.get("cluster") or {}
    return cluster.get("kind", "local") != "local" or (bool(run.host) and run.host != host)


def _remarks(folder: RunFolder, run: RunFile, host: str, elsewhere: bool) -> Iterator[str]:
    yield f"from the record of {folder.name}"
    if elsewhere:
        yield (
            f"this node ({host}) did not serve that run, so nothing of its hardware is here: `paceline system describe` on one "
            "of the nodes that did (in its pod) gives the host_ and accelerator_ keys"
        )
    if run.synthetic:
        yield "that run was SYNTHETIC: no hardware was measured, and nothing of it can be submitted"


def _recorded(folder: RunFolder, run: RunFile) -> Iterator[tuple[str, Fact]]:
    source, fleet = f"the record of {folder.name}", _fleet(folder)
    machines, per_machine = _machines(folder, run, fleet)
    if machines:
        yield "number_of_nodes", Fact(str(machines), source)
    if per_machine:
        yield "accelerators_per_node", Fact(str(per_machine), f"{source}: capacity of its Kubernetes nodes")
    told = _agreed(fleet)
    if device := told.get("device_name"):
        yield "accelerator_model_name", Fact(device, f"{source}: as its engine names it")
    engine = told.get("engine") or str((run.spec.get("fleet") or {}).get("engine") or "")
    if engine and not run.synthetic:
        yield "framework", Fact(" ".join(filter(None, (engine, told.get(f"versions.{engine}", "")))), source)
    replicas = {key.removeprefix("versions."): value for key, value in told.items() if key.startswith("versions.")}
    head = {name: value for name, value in run.versions.items() if name not in _UNTOLD and name not in replicas}
    versions = [f"{name} {value}" for name, value in sorted({**head, **replicas}.items()) if name != engine]
    if versions:
        of_whom = "of its replicas and head" if replicas else "of its head"
        yield "other_software_stack", Fact(", ".join(versions), f"{source}: versions {of_whom}")


def _fleet(folder: RunFolder) -> FleetFile | None:
    try:
        return read_fleet(folder.fleet_json)
    except RecordError:
        return None


def _agreed(fleet: FleetFile | None) -> dict[str, str]:
    """What all replicas said alike when they registered."""
    first, *others = (fleet.facts if fleet else []) or [{}]
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def _machines(folder: RunFolder, run: RunFile, fleet: FleetFile | None) -> tuple[int, int]:
    """How many machines served, and accelerators of one where the cluster said so and all are alike; 0: not known."""
    view = last_view(folder.cluster)
    if view is not None and view.pods:
        hosts = {pod.host for pod in view.pods if pod.host and pod.node >= 0}
        gpus = {host.gpus_there for host in view.hosts if host.name in hosts}
        return len(hosts), gpus.pop() if len(gpus) == 1 else 0
    names = {tuple(life.hosts) for lives in (fleet.slots.values() if fleet else ()) for life in lives if life.hosts}
    if names:
        return len(names), 0
    return (1 if (run.spec.get("cluster") or {}).get("kind") == "local" and run.host else 0), 0


def _quoted(text: str) -> str:
    """A basic string of TOML: what JSON writes, for text without control characters beyond it."""
    return json.dumps(text.replace("\x7f", ""), ensure_ascii=False)
