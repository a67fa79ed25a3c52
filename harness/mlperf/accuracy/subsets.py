"""Which rule a subset of a dataset is scored by. A subset is known by what its name contains, as MLPerf's scripts do it:
`gpqa_diamond` and `gpqa` alike, `aime25` and `aime1983`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from harness.mlperf.accuracy import answers
from harness.mlperf.accuracy.equality import same


@dataclass(frozen=True, slots=True)
class Rule:
    """`find`: the answer in a text. `fits`: that answer and the truth; None where only a program can tell."""

    part: str
    how: str
    find: Callable[[str], str | None]
    fits: Callable[[str, str], bool] | None


def _same_letter(given: str, truth: str) -> bool:
    return given.upper() == truth.strip().upper()


def _same_number(given: str, truth: str) -> bool:
    try:
        return int(given) == int(float(truth)) == float(truth)
    except (ValueError, OverflowError):
        return False


def _choice_of(letters: str) -> Callable[[str], str | None]:
    return lambda text: answers.choice(text, letters)


#: The first whose `part` is in the subset's name counts.
RULES: Final = (
    Rule("gpqa", "exact match (choice letter A-D)", _choice_of("ABCD"), _same_letter),
    Rule("mmlu", "exact match (choice letter A-J)", _choice_of("ABCDEFGHIJ"), _same_letter),
    Rule("math", "exact match (boxed, normalised or of the same value)", answers.boxed, same),
    Rule("aime", "exact match (whole number)", answers.whole_number, _same_number),
    Rule("livecodebench", "code", answers.code, None),
)


def rule_for(subset: str) -> Rule | None:
    return next((rule for rule in RULES if rule.part in subset.lower()), None)
