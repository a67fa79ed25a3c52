"""Opens the console on SAMPLE DATA, for pictures: `python tests/console/sample.py [barrier|explore|verdict|demo|light]`."""

from __future__ import annotations

import sys

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet


def sample_app(kind: str = "") -> PacelineApp:
    if kind == "barrier":
        fleet = ScriptedFleet(phase="WARMING", at_s=0.0)
    elif kind == "explore":
        fleet = ScriptedFleet(kind="explore")
    elif kind == "demo":
        fleet = ScriptedFleet(nodes=8, gpus=8)
    else:
        fleet = ScriptedFleet()
    if kind == "verdict":
        fleet.phase, fleet.verdict = "DONE", "INVALID"
        fleet.reasons = ["TTFT p99 3.21 s is over the limit of 3.00 s", "an operator's eviction touched the attempt"]
    app = PacelineApp(feed=ScriptedFeed(fleet), ask_on_quit=kind == "demo")
    if kind in ("light", "high-contrast"):
        app.theme = "paceline-light" if kind == "light" else kind
    return app


if __name__ == "__main__":
    print(sample_app(sys.argv[1] if len(sys.argv) > 1 else "").run())
