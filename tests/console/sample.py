"""Opens the console on SAMPLE DATA, for pictures: `python tests/console/sample.py [barrier|cluster|pending|blind|explore|…]`."""

from __future__ import annotations

import sys
from pathlib import Path

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from harness.wire.control import AttemptInfo

SHAPES = {"demo": (8, 8), "pods": (64, 1), "few": (1, 4), "barrier": (64, 8), "roles": (8, 9)}
THEMES = {"light": "paceline-light", "high-contrast": "high-contrast"}


def sample_fleet(kind: str = "") -> ScriptedFleet:
    nodes, gpus = SHAPES.get(kind, (64, 8))
    if kind in ("barrier", "pending"):
        return ScriptedFleet(phase="WARMING", at_s=0.0, on_cluster=kind == "pending")
    roles = "5P4D" if kind == "roles" else ""
    load = "explore" if kind == "explore" else "performance"
    fleet = ScriptedFleet(
        nodes=nodes, gpus=gpus, kind=load, roles=roles, on_cluster=kind in ("cluster", "blind"), with_gpus=kind == "gpus"
    )
    if kind == "blind" and fleet.cluster is not None:
        fleet.cluster.problem, fleet.cluster.seen_s = "the API server does not answer (connection refused)", 42.0
    if kind == "verdict":
        fleet.earlier = [AttemptInfo(1, "performance", "Server", 144.0, 1, verdict="SUPERSEDED", state="ENDED", acts=1)]
        fleet.phase, fleet.verdict = "DONE", "INVALID"
        fleet.reasons = ["TTFT p99 3.21 s is over the limit of 3.00 s", "an operator's eviction touched the attempt"]
    elif kind == "draining":
        fleet.phase, fleet.attempt_state = "DRAINING", "draining"
    elif kind in ("demo", "pods"):
        fleet.straggler_note = "not judged yet: grace for 22 s more"
        fleet._skill[5] = 0.7
    return fleet


def sample_app(kind: str = "") -> PacelineApp:
    if Path(kind, "run.json").is_file():
        return PacelineApp(Path(kind))
    app = PacelineApp(feed=ScriptedFeed(sample_fleet(kind)), ask_on_quit=kind == "demo", read_only=kind == "read-only")
    app.theme = THEMES.get(kind, app.theme)
    return app


if __name__ == "__main__":
    print(sample_app(sys.argv[1] if len(sys.argv) > 1 else "").run())
