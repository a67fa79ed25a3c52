"""The console in a real terminal: keys change the rate and the screens, and the run outlives the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal_kit import Terminal, environment

from harness.cluster.local import head_alive, kill_run
from harness.records.layout import list_runs

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "runs"
    yield root
    for folder in list_runs(root):
        kill_run(folder)


@pytest.mark.parametrize(("columns", "rows"), [(120, 36), (80, 24)])
def test_keys_change_the_rate_and_a_closed_terminal_leaves_the_run_alone(runs: Path, columns: int, rows: int) -> None:
    command = [sys.executable, "-m", "console.cli", "demo", "--explore"]
    for setting in ("fleet.nodes=1", "load.target_qps=20", "fleet.replicas_per_node=4"):
        command += ["-s", setting]
    env = environment(PACELINE_RUNS=str(runs))
    terminal = Terminal(f"paceline-test-{os.getpid()}-{columns}", command, env, columns, rows)
    try:
        terminal.wait("MEASURING", 60)
        terminal.wait("SYNTHETIC")
        terminal.press_until("=", "Change the target rate")
        terminal.wait("at once (exploration)")
        terminal.press("C-u", "4", "5")
        terminal.wait("20 → 45 qps")
        terminal.press_and_see("Enter", "Set rate")  # the button has the focus
        terminal.press("Enter")
        terminal.wait_gone("Change the target rate")
        (folder,) = list_runs(runs)
        deadline = time.monotonic() + 30
        while "act.set_rate" not in folder.journal.read_text():
            assert time.monotonic() < deadline, terminal.screen()
            time.sleep(0.1)
        terminal.press_until("2", "▸ Fleet")
        terminal.press_until("/", "a b both")
        terminal.press("g", "0")
        terminal.wait("/g0: 1 of 4")
        terminal.wait_gone("node000/gpu3")
        terminal.press("Enter")
        terminal.wait_gone("a b both")
        terminal.press_until("Enter", "Fleet ▸ node000/gpu0")
        terminal.leave("Fleet ▸ node000/gpu0")
        for key, text in (("3", "What TTFT is made of" if columns > 100 else "TTFT"), ("4", "following"), ("5", "newest first")):
            terminal.press_until(key, text)
        terminal.press_until("1", "▸ Live")
        terminal.press_until(":", "tab completes")
        terminal.press(*"theme", "Space", *"amber")
        terminal.wait("theme amber")  # what can be completed
        terminal.press("Enter")
        terminal.wait_gone("theme amber")
        terminal.press_until("?", "type to filter")
        terminal.leave("type to filter")
        terminal.press_until("q", "Leave it running")
        terminal.close()  # the terminal goes away: the run does not
        time.sleep(1)
        assert head_alive(folder)
    finally:
        terminal.close()
