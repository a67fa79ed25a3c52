"""Which errors are expected, and the exit code of each: those are told in their own words, all others are called a defect.

The classes are recognised by where they were defined, so that no module is imported only to compare with it.
"""

from __future__ import annotations

import errno

OK, NOT_VALID, BAD_INPUT, CRASHED = 0, 1, 2, 3

#: Class name, for classes defined in our packages. What the person typed is 2; what failed while running is 3.
_EXPECTED = {
    "SpecError": BAD_INPUT,
    "NoSuchRun": BAD_INPUT,
    "ImportProblem": BAD_INPUT,
    "EngineError": BAD_INPUT,
    "DatasetError": BAD_INPUT,
    "BadInput": BAD_INPUT,
    "ReportRefused": BAD_INPUT,
    "SystemFileError": BAD_INPUT,
    "CannotWrite": BAD_INPUT,
    "ScoringError": BAD_INPUT,
    "NoSuchAttempt": BAD_INPUT,
    "NoSuchSample": BAD_INPUT,
    "NoSuchColumn": BAD_INPUT,
    "NoSuchDefinition": BAD_INPUT,
    "CannotCompare": BAD_INPUT,
    "BadReference": BAD_INPUT,
    "KernelInputError": BAD_INPUT,
    "NotHere": BAD_INPUT,
    "HeadUnreachable": CRASHED,
    "HeadDied": CRASHED,
    "NotStarted": CRASHED,
    "KeyProblem": CRASHED,
    "RecordError": CRASHED,
    "TooFewFiles": CRASHED,
    "CannotListen": CRASHED,
    "ClusterError": CRASHED,
    "SourceError": CRASHED,
}
_OURS = ("harness.", "console.", "kernels.")


class BadInput(Exception):
    """What was typed cannot be done; the text says what to type instead."""


class HeadDied(Exception):
    """A head ended, or did not come up; the text has the end of its log."""


class NotStarted(Exception):
    """This machine cannot carry the run as asked; the text says what is short."""


def describe(error: Exception) -> tuple[str, int]:
    for kind in type(error).__mro__:
        if kind.__name__ in _EXPECTED and kind.__module__.startswith(_OURS):
            return str(error), _EXPECTED[kind.__name__]
    if isinstance(error, OSError) and error.errno is not None:
        place = f"{error.filename}: " if error.filename else ""
        advice = "; free some space or set PACELINE_RUNS to another disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return f"{place}{error.strerror}{advice}", CRASHED
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"unexpected failure, a defect of paceline: {said} (PACELINE_DEBUG=1 shows where)", CRASHED
