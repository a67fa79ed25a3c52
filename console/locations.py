"""Where the console looks for runs. What lies inside a run's folder is `harness.records.layout`."""

from __future__ import annotations

from pathlib import Path

from harness.records.layout import runs_root


def runs() -> Path:
    """$PACELINE_RUNS, else ./runs. A run that was put elsewhere by `record.dir` is named by its path."""
    return runs_root()
