"""Two commands meet the same dead link at the same time: one of the links that they start serves both."""

from __future__ import annotations

import os
import signal

import pytest
from cluster_kit import ClusterKit
from laptop_kit import Laptop, ready, told

from harness.cluster.procinfo import is_alive

PATIENCE_S = 90.0

pytestmark = pytest.mark.timeout(240)


def test_both_commands_are_answered(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(1))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "both replicas ready")
    os.kill(link := laptop.link_pid(), signal.SIGKILL)
    laptop.until(lambda: not is_alive(link, None), PATIENCE_S, "the link was killed")
    both = [laptop.begin("rate", folder.name, rate) for rate in ("20", "21")]
    said = [process.communicate(timeout=PATIENCE_S)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(told(kit, folder, "act.set_rate")) == 2
    assert laptop.paceline("stop", folder.name).returncode == 0
