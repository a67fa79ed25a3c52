"""Watching 512 pods with churn: CPU and memory of our reflector, raw JSON into frozen structs, against model objects.

Both ways read the same stream of the same server over HTTP, each in a process of its own, and keep the last state of each pod.
A run that starts changes each of its pods about ten times within a minute.
"""

from __future__ import annotations

from typing import Any

from tests.bench.rig import Row, children, row

PODS, CHANGES, WITHIN_S = 512, 512 * 5, 300.0


def run() -> list[Row]:
    with children() as started:
        server = started.start("kube_server", {"pods": PODS, "changes": CHANGES})
        there = server.says(60)

        def cost(way: str) -> dict[str, Any]:
            watcher = started.start("kube_watcher", {"way": way, "port": there["port"], "pods": PODS, "changes": CHANGES})
            found = watcher.says(WITHIN_S)
            watcher.end()
            assert found["kept"] == PODS
            return found

        ours, models = cost("ours"), cost("models")
    events = PODS + CHANGES
    return [
        row("kube watch: CPU of model objects over ours", models["cpu_s"] / ours["cpu_s"], "ratio", at_least=3.0),
        row("kube watch: memory held by model objects over ours", models["held_mib"] / ours["held_mib"], "ratio", at_least=3.0),
        row("kube watch: CPU of an event, ours", ours["cpu_s"] / events * 1e6, "us"),
        row("kube watch: CPU of an event, model objects", models["cpu_s"] / events * 1e6, "us"),
        row("kube watch: memory held for 512 pods, ours", ours["held_mib"], "MiB"),
        row("kube watch: memory held for 512 pods, model objects", models["held_mib"], "MiB"),
        row("kube watch: size of a pod's JSON", there["bytes_a_pod"] / 1000, "kB"),
    ]
