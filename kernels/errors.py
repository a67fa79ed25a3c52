"""What can be wrong with what a person gives to this package, or with the machine it is run on. Each text says what to do."""

from __future__ import annotations


class KernelInputError(ValueError):
    """A name, a number or a file that was given cannot be used; the text has the field, the value and what would be right."""


class NotHere(RuntimeError):
    """This machine or this Python lacks what the step needs (a GPU, triton, torch); the text says what and where it is had."""
