"""An API server's watch for the bench of the reflector: so many pods listed, then changes of them as fast as they are read.

Pods are 6.5 kB of JSON each, as a server of 1.36 writes them, two fifths of it managedFields. One JSON argument: pods, changes,
parent. It says its port in a JSON line. The stream stays open when all has been sent.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from tests.bench.rig import child_config

_FIELDS: dict[str, Any] = {f"f:field{n}": {".": {}, "f:name": {}, "f:value": {}} for n in range(50)}
_ENV = [{"name": f"PACELINE_SETTING_{n}", "value": f"value-of-{n}"} for n in range(30)]


def pod(index: int, change: int) -> dict[str, Any]:
    """`change` 0 is the pod as listed; each later one is another step of its life."""
    ready = change % 2 == 1
    meta = {
        "name": f"run-worker-{index}-abcde",
        "generateName": f"run-worker-{index}-",
        "namespace": "bench",
        "uid": f"5a1f0c9d-8e7a-4b6c-9d0e-{index:012d}",
        "resourceVersion": str(1000 + index + change * 1000),
        "creationTimestamp": "2026-11-30T04:50:22Z",
        "labels": {
            "app.kubernetes.io/name": "paceline",
            "app.kubernetes.io/instance": "run",
            "app.kubernetes.io/component": "worker",
            "batch.kubernetes.io/job-completion-index": str(index),
            "batch.kubernetes.io/job-name": "run-worker",
            "topology.kubernetes.io/zone": f"rack-{index // 8}",
        },
        "annotations": {"batch.kubernetes.io/job-index-failure-count": "0"},
        "managedFields": [
            {
                "manager": "kubelet",
                "operation": "Update",
                "apiVersion": "v1",
                "time": "2026-11-30T04:50:22Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:status": _FIELDS},
            }
        ],
    }
    container = {
        "name": "worker",
        "image": "registry.example.com/team/paceline-worker:0.1.0",
        "args": ["worker", "--head", "tcp://run-head.bench.svc:5555", "--nodes", "$(JOB_COMPLETION_INDEX)"],
        "env": _ENV,
        "resources": {"limits": {"amd.com/gpu": "8"}, "requests": {"amd.com/gpu": "8", "cpu": "2", "memory": "8Gi"}},
        "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(6)],
    }
    now = f"2026-11-30T05:{change % 60:02d}:00Z"
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    status = {
        "phase": "Running",
        "podIP": f"10.1.{index // 250}.{index % 250}",
        "startTime": "2026-11-30T04:50:23Z",
        "conditions": [
            {"type": kind, "status": "True" if ready or kind == "PodScheduled" else "False", "lastTransitionTime": now}
            for kind in kinds
        ],
        "containerStatuses": [
            {
                "name": "worker",
                "image": container["image"],
                "imageID": f"{container['image']}@sha256:{'0' * 64}",
                "containerID": f"containerd://{'1' * 64}",
                "ready": ready,
                "restartCount": change,
                "started": True,
                "state": {"running": {"startedAt": now}},
                "lastState": {},
            }
        ],
    }
    spec = {
        "nodeName": f"gpu-{index}",
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": f"volume-{n}", "emptyDir": {}} for n in range(6)],
        "tolerations": [{"key": "amd.com/gpu", "operator": "Exists"}],
    }
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec, "status": status}


def line(kind: str, raw: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": raw}, separators=(",", ":")).encode() + b"\n"


def stream_of(pods: int, changes: int) -> tuple[list[bytes], list[bytes]]:
    listed = [line("ADDED", pod(index, 0)) for index in range(pods)]
    changed = [line("MODIFIED", pod(n % pods, 1 + n // pods)) for n in range(changes)]
    return listed, changed


async def serve(config: dict[str, Any]) -> None:
    listed, changed = stream_of(config["pods"], config["changes"])
    meta = {"resourceVersion": "1000", "annotations": {"k8s.io/initial-events-end": "true"}}
    end_of_list = line("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": meta})

    async def watch(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse()
        await reply.prepare(request)
        for one in listed:
            await reply.write(one)
        if request.query.get("sendInitialEvents"):
            await reply.write(end_of_list)
        for one in changed:
            await reply.write(one)
        await asyncio.sleep(600)
        return reply

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/bench/pods", watch)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"port": runner.addresses[0][1], "bytes_a_pod": len(listed[0])}), flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(serve(child_config()))
