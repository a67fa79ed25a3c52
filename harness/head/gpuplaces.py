"""Which GPUs a replica owns and by what names its machine may be known, as it has registered."""

from __future__ import annotations

from harness.head.roster import Replica
from harness.metrics.gpu.join import GpuPlace, places_of_replica
from harness.metrics.gpu.uuids import uuid_key
from harness.spec import node_name


def hosts_of(replica: Replica) -> tuple[str, ...]:
    """On a cluster the Kubernetes node first, then the machine's own host name; the slot's node last."""
    about = replica.registered
    named = (about.node_name, about.host) if about is not None else ()
    return tuple(dict.fromkeys(name for name in (*named, node_name(replica.node)) if name))


def identity_of(replica: Replica) -> tuple[str, ...]:
    """What is another one when the slot has come back on other GPUs."""
    about = replica.registered.accelerator if replica.registered is not None else {}
    if uuids := about.get("uuids", ""):
        return tuple(map(uuid_key, listed(uuids)))
    return hosts_of(replica)[0], about.get("pcis", "") or about.get("gpus", "")


def places_of(replica: Replica, devices: int) -> list[GpuPlace]:
    """A place for each GPU that the replica owns. Without what it registered: by its position on the node."""
    about = replica.registered.accelerator if replica.registered is not None else {}
    gpus, uuids, pcis = (listed(about.get(name, "")) for name in ("gpus", "uuids", "pcis"))
    pod = replica.registered.pod if replica.registered is not None else ""
    return places_of_replica(replica.slot, replica.gpu, devices, hosts_of(replica), gpus, uuids, pcis, pod)


def listed(text: str) -> list[str]:
    """REGISTER's accelerator dict joins the values of several GPUs with commas."""
    return [part.strip() for part in text.split(",")] if text else []
