"""What can be asked for and is not there; the texts say what is."""

from __future__ import annotations


class NoSuchAttempt(Exception):
    """The run has no attempt of that number."""


class NoSuchSample(Exception):
    """The attempt has no row of that sample: it was not issued, or neither completed nor failed."""


class NoSuchColumn(ValueError):
    """A metric, a grouping or an order by that name does not exist."""
