"""What scoring and verifying say when they cannot: the file, the sample where one is meant, and what would be right."""

from __future__ import annotations

from pathlib import Path


class ScoringError(Exception):
    """Nothing has been scored; the text says why and what to do."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path
