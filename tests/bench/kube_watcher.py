"""One watcher of the pods that kube_server streams: our reflector, or the `kubernetes` package's watch with its models.

Both keep the last state of each pod by uid, as a live view must. One JSON argument: way ("ours", "models"), port, pods, changes,
parent. When all changes have been seen it says, as a JSON line, what they cost: CPU seconds, and MiB above what it had before.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.cluster.kube.access import access
from harness.cluster.kube.api import Api
from harness.cluster.kube.reflector import Reflector
from harness.cluster.kube.views import PodView, reduce_pod
from tests.bench.rig import child_config

Config = dict[str, Any]


def memory_mib() -> float:
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS:"))


class Meter:
    """Cost since it was made. It is made when everything is imported and nothing is connected yet."""

    def __init__(self) -> None:
        gc.collect()
        self._cpu_s, self._began_s, self._before_mib = time.process_time(), time.monotonic(), memory_mib()

    def says(self, kept: int) -> None:
        cpu_s, wall_s = time.process_time() - self._cpu_s, time.monotonic() - self._began_s
        gc.collect()
        found = {
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "held_mib": memory_mib() - self._before_mib,
            "kept": kept,
        }
        print(json.dumps(found), flush=True)


async def ours(config: Config) -> None:
    events = config["pods"] + config["changes"]
    seen = 0
    done = asyncio.Event()

    def counted(raw: Mapping[str, Any]) -> PodView:
        nonlocal seen
        seen += 1
        if seen == events:
            done.set()
        return reduce_pod(raw)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(json.dumps(kubeconfig(config["port"])))
        found = access(kubeconfig=path)
    async with Api(found, "bench") as api:
        watch = Reflector(api, "Pod", counted)
        meter = Meter()
        watch.start()
        await asyncio.wait_for(done.wait(), 300)
        meter.says(len(watch.items))
        await watch.stop()


def models(config: Config) -> None:
    from kubernetes import client, watch

    made = client.Configuration(host=f"http://127.0.0.1:{config['port']}")
    core = client.CoreV1Api(client.ApiClient(made))
    kept: dict[str, Any] = {}
    events = config["pods"] + config["changes"]
    watcher: Any = watch.Watch  # it has no types
    meter = Meter()
    for seen, event in enumerate(watcher().stream(core.list_namespaced_pod, "bench"), 1):
        kept[event["object"].metadata.uid] = event["object"]
        if seen == events:
            break
    meter.says(len(kept))


def kubeconfig(port: int) -> dict[str, Any]:
    return {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "bench", "user": {"token": "x"}}],
    }


if __name__ == "__main__":
    asked = child_config()
    if asked["way"] == "ours":
        asyncio.run(ours(asked))
    else:
        models(asked)
