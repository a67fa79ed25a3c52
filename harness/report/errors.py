"""What keeps a report from being written."""

from __future__ import annotations


class ReportRefused(Exception):
    """What was asked for cannot be written there, or not of these runs; the text says what to do instead."""
