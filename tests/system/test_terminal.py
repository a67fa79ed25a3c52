"""The console in a real terminal: tmux types the keys, its screen is read back."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster.local import head_alive, kill_run
from harness.records.layout import list_runs

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Terminal:
    def __init__(self, name: str, command: list[str], env: dict[str, str], columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-L", name, "-f", "/dev/null"]
        settings = [part for key, value in env.items() for part in ("-e", f"{key}={value}")]
        size = ["-x", str(columns), "-y", str(rows)]
        # What a test runner says of its own terminal must not be believed of this one.
        own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        subprocess.run([*self._tmux, "new-session", "-d", *size, *settings, shlex.join(command)], check=True, timeout=10, env=own)

    def screen(self) -> str:
        return subprocess.run([*self._tmux, "capture-pane", "-p"], capture_output=True, text=True, timeout=10, check=False).stdout

    def press(self, *keys: str) -> None:
        for key in keys:
            subprocess.run([*self._tmux, "send-keys", key], check=True, timeout=10)
            time.sleep(0.15)

    def wait(self, text: str, within_s: float = 30.0) -> str:
        deadline = time.monotonic() + within_s
        while text not in (screen := self.screen()):
            assert time.monotonic() < deadline, f"never saw {text!r}:\n{screen}"
            time.sleep(0.1)
        return screen

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=10, check=False)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "runs"
    yield root
    for folder in list_runs(root):
        kill_run(folder)


@pytest.mark.parametrize(("columns", "rows"), [(120, 36), (80, 24)])
def test_keys_change_the_rate_and_a_closed_terminal_leaves_the_run_alone(runs: Path, columns: int, rows: int) -> None:
    command = [
        sys.executable,
        "-m",
        "console.cli",
        "demo",
        "--explore",
        "-s",
        "fleet.nodes=1",
        "-s",
        "load.target_qps=20",
        "-s",
        "fleet.replicas_per_node=4",
    ]
    env = {"PACELINE_RUNS": str(runs), "TERM": "tmux-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
    env |= {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    terminal = Terminal(f"paceline-test-{os.getpid()}-{columns}", command, env, columns, rows)
    try:
        screen = terminal.wait("MEASUR", 60)
        assert "SYNTHETIC" in screen
        terminal.press("=")
        terminal.wait("at once")
        terminal.press("C-u", "4", "5", "Enter", "Enter")
        terminal.wait("45")
        (folder,) = list_runs(runs)
        deadline = time.monotonic() + 10
        while "act.set_rate" not in folder.journal.read_text():
            assert time.monotonic() < deadline, terminal.screen()
            time.sleep(0.1)
        terminal.press("2", "/", "g", "0", "Enter")
        assert "node000/gpu3" not in terminal.wait("1 of 4")
        terminal.press("Enter")
        terminal.wait("Fleet ▸ node000/gpu0")
        terminal.press("Escape")
        for key, text in (("3", "What TTFT is made of" if columns > 100 else "TTFT"), ("4", "following"), ("5", "newest first")):
            terminal.press(key)
            terminal.wait(text)
        terminal.press("1", ":", *"theme", "Space", *"amber", "Enter")
        terminal.wait("Replicas")
        terminal.press("?")
        terminal.wait("type to filter")
        terminal.press("Escape", "q")
        terminal.wait("running")
        terminal.close()  # the terminal goes away: the run does not
        time.sleep(1)
        assert head_alive(folder)
    finally:
        terminal.close()
