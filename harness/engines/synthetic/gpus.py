"""The made-up GPUs of a synthetic fleet: what its replicas register and its simulated exporter shows, so that both agree.

Every name says that there is no such device.
"""

from __future__ import annotations

from typing import Final

from harness.spec import RunSpec, node_name

MODEL: Final = "MI355X (simulated)"


def gpus_per_replica(spec: RunSpec) -> int:
    """As many as the layout asks for; one where it asks for none, because a replica without any would show nothing."""
    return max(1, spec.fleet.layout.devices)


def numbers_on_node(spec: RunSpec, gpu: int) -> range:
    """The GPUs of the replica at this place of a node, as its exporter numbers them."""
    each = gpus_per_replica(spec)
    return range(gpu * each, (gpu + 1) * each)


def uuid(node: int, number: int) -> str:
    return f"synthetic-{node_name(node)}-{number}"


def identity(spec: RunSpec, node: int, gpu: int) -> dict[str, str]:
    """For REGISTER; one without PCI addresses, because there is no bus either."""
    numbers = numbers_on_node(spec, gpu)
    return {
        "name": MODEL,
        "gpus": ",".join(map(str, numbers)),
        "uuids": ",".join(uuid(node, number) for number in numbers),
    }
