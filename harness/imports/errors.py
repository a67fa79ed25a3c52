"""What cannot be imported, in words."""

from __future__ import annotations


class ImportProblem(Exception):
    """The text says what was looked at, what was read and what was not, and what would be right."""
