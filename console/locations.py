"""Where the console finds and keeps things of the person at the terminal; a run's own files are `harness.records.layout`."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from harness.records.layout import runs_root

_APP = "paceline"


def runs() -> Path:
    """Folder of runs as the commands look for them: $PACELINE_RUNS, else ./runs."""
    return runs_root()


def config_dir() -> Path:
    """$XDG_CONFIG_HOME/paceline; not created by asking."""
    return Path(platformdirs.user_config_dir(_APP))


def user_themes() -> Path:
    return config_dir() / "themes"


def shipped_themes() -> Path:
    """In an installed package beside the console, in a checkout at its top."""
    installed = Path(__file__).parent / "_themes"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "themes"
