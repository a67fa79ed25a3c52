"""Exit codes: of a run's verdict, and (from `console/errors.py`) of an error."""

from __future__ import annotations

from console.errors import BAD_INPUT, CRASHED, NOT_VALID, OK, BadInput, HeadDied, NotStarted, describe

__all__ = ["BAD_INPUT", "CRASHED", "NOT_VALID", "OK", "BadInput", "HeadDied", "NotStarted", "describe", "exit_code_of"]

#: A run's verdict as an exit code. A run that has none yet, or an unknown one, did not end as it should.
_VERDICTS = {
    "VALID": OK,
    "EXPLORATION": OK,
    "INVALID": NOT_VALID,
    "SUPERSEDED": NOT_VALID,
    "ABORTED": NOT_VALID,
    "CRASHED": CRASHED,
}


def exit_code_of(verdict: str, phase: str = "") -> int:
    """FAILED is a crash whatever an earlier attempt's verdict was."""
    return CRASHED if phase == "FAILED" else _VERDICTS.get(verdict, CRASHED)
