"""`paceline --version`: ours and what decides a result."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def versions_line() -> str:
    return f"paceline {of('paceline')}, LoadGen {of('mlcommons-loadgen')}, Python {platform.python_version()}"
