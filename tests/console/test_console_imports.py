"""The store and the feeds run without Textual: a headless twin can use them."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import sys
import console.store.fleet, console.store.view, console.store.heat, console.feeds.head, console.feeds.scripted
assert "textual" not in sys.modules, "textual was imported"
assert not any(name.startswith(("console.screens", "console.widgets")) for name in sys.modules)
"""


def test_store_and_feeds_do_not_import_textual() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
