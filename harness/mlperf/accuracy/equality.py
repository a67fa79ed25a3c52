"""Whether two mathematical answers are the same: by normalised LaTeX, and by value where both are numbers.

Normalisation after the rules published with the MATH dataset (Hendrycks et al., 2021: units, \\left, \\dfrac, \\frac12, "x =",
leading zeros) and the strictness of the PRM800K grader, which MLPerf's reference uses: a fraction must be reduced as the
truth's is, a whole truth needs a whole answer, tuples and intervals are compared part by part with their brackets. Unlike that
grader nothing is rearranged: x+1 and 1+x are different here.
"""

from __future__ import annotations

import math
import re
from typing import Final

_LONGEST: Final = 2000  # of an answer; beyond it only equal text is equal
_DEEPEST: Final = 50
_GONE: Final = (
    "\\left", "\\right", "\\!", "\\,", "\\;", "\\:", "\\ ", "^{\\circ}", "^\\circ", "\\circ", "\\$", "$", "\\%", "%",
    "\\displaystyle",
)  # fmt: skip
_AS: Final = (
    ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\cdot", "*"), ("\\times", "*"), ("\\div", "/"), ("\\leq", "\\le"),
    ("\\geq", "\\ge"), ("−", "-"), ("\\{", "{"), ("\\}", "}"), ("\\lbrack", "["), ("\\rbrack", "]"),
)  # fmt: skip
_TEXT: Final = re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf)\{([^{}]*)\}")
_UNIT: Final = re.compile(
    r"(?<=[\d}])(?:square|cubic)?(?:degrees?|units?|centimeters?|cm|meters?|feet|foot|inch(?:es)?|miles?|dollars?|cents?|"
    r"hours?|minutes?|seconds?|days?|weeks?|points?|percent)(?:\^\{?[23]\}?)?$"
)
_INTEGER: Final = re.compile(r"-?\d+")
_FRACTION: Final = re.compile(r"-?(?:\\frac\{\d+\}\{\d+\}|\d+/\d+)")
_THOUSANDS: Final = re.compile(r"(?<!\d)(-?[1-9]\d{0,2}(?:,\d{3})+)(?!\d)")
_NUMBER: Final = re.compile(r"\d+\.?\d*|\.\d+")
_BRACKETS: Final = {"(": ")]", "[": ")]", "{": "}"}


def same(given: str, truth: str) -> bool:
    left, right = normalised(given), normalised(truth)
    if not left or not right:
        return False
    if left == right:
        return True
    return _same_parts(left, right)


def _same_parts(given: str, truth: str) -> bool:
    ours, theirs = _parts(given), _parts(truth)
    if len(ours) != len(theirs) or (len(theirs) > 1 and (given[0], given[-1]) != (truth[0], truth[-1])):
        return False
    return all(_same_value(left, right) for left, right in zip(ours, theirs, strict=True))


def _same_value(given: str, truth: str) -> bool:
    if given == truth:
        return True
    if _FRACTION.fullmatch(given) and _FRACTION.fullmatch(truth):
        return _over(given) == _over(truth)
    if bool(_INTEGER.fullmatch(given)) != bool(_INTEGER.fullmatch(truth)):
        return False
    left, right = value_of(given), value_of(truth)
    return left is not None and right is not None and math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)


def _over(fraction: str) -> tuple[bool, list[str]]:
    return fraction.startswith("-"), re.findall(r"\d+", fraction)


def normalised(text: str) -> str:
    text = text.strip()
    if len(text) > _LONGEST:
        return text
    for words, symbol in _AS:
        text = text.replace(words, symbol)
    text = _TEXT.sub(r"\1", text)
    for words in _GONE:
        text = text.replace(words, "")
    if text.strip()[:1] not in _BRACKETS:  # in a tuple a comma parts numbers
        text = _THOUSANDS.sub(lambda found: found[1].replace(",", ""), text)
    text = re.sub(r"\s+", "", text).rstrip(".")
    text = re.sub(r"^[a-zA-Z](?:\\in|=)", "", text)  # "x = 5", "k=3", "x \in [1,2]"
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac(\d)\{", r"\\frac{\1}{", text)
    text = re.sub(r"(\\frac\{[^{}]*\})(\d)", r"\1{\2}", text)
    text = re.sub(r"^(-?)(\d+)/(\d+)$", r"\1\\frac{\2}{\3}", text)
    text = re.sub(r"^-\\frac\{-(\d+)\}", r"\\frac{\1}", text)
    text = re.sub(r"^\\frac\{-(\d+)\}", r"-\\frac{\1}", text)
    text = re.sub(r"(?<![\d.])\.(\d)", r"0.\1", text)
    text = re.sub(r"(\d+)\.0+$", r"\1", text)
    text = _UNIT.sub("", text)
    if _INTEGER.fullmatch(text):
        return ("-" if text.startswith("-") else "") + (text.lstrip("-").lstrip("0") or "0")
    return text if "\\" in text or not text.isalpha() else text.lower()


def _parts(text: str) -> list[str]:
    """Of a tuple, an interval or a set; anything else is one part."""
    if len(text) < 2 or text[-1] not in _BRACKETS.get(text[0], ""):
        return [text]
    parts, depth, start = [], 0, 1
    for at, letter in enumerate(text[1:-1], 1):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return [text]
        if letter == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:-1]] if parts else [text]


def value_of(text: str) -> float | None:
    """The value of an expression of numbers, + - * / ^, \\frac, \\sqrt and \\pi; None for anything else."""
    if len(text) > _LONGEST:
        return None
    try:
        value = _Reader(text).whole()
    except (_Unknown, OverflowError, ZeroDivisionError, ValueError):
        return None
    return value if math.isfinite(value) else None


class _Unknown(Exception):
    pass


class _Reader:
    """Recursive descent over the text, bounded in depth."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def whole(self) -> float:
        value = self._sum()
        if self._at != len(self._text):
            raise _Unknown
        return value

    def _takes(self, words: str) -> bool:
        if self._text.startswith(words, self._at):
            self._at += len(words)
            return True
        return False

    def _sum(self) -> float:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _Unknown
        value = self._product()
        while True:
            if self._takes("+"):
                value += self._product()
            elif self._takes("-"):
                value -= self._product()
            else:
                self._depth -= 1
                return value

    def _product(self) -> float:
        value = self._power()
        while True:
            if self._takes("*"):
                value *= self._power()
            elif self._takes("/"):
                value /= self._power()
            elif self._text[self._at : self._at + 1] in ("\\", "("):  # 2\pi, 3\sqrt{2}, 4(5)
                # A mixed number, 2\frac{1}{2}, is a sum: LaTeX writes no product like that.
                mixed = self._text.startswith("\\frac", self._at) and self._text[self._at - 1].isdigit()
                following = self._power()
                value = value + math.copysign(following, value or 1.0) if mixed else value * following
            else:
                return value

    def _power(self) -> float:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _Unknown
        negative = False
        while self._takes("-"):
            negative = not negative
        value = self._atom()
        if self._takes("^"):
            exponent = self._group() if self._text[self._at : self._at + 1] == "{" else self._power()
            value = math.pow(value, exponent)
        self._depth -= 1
        return -value if negative else value

    def _atom(self) -> float:
        if self._takes("\\frac"):
            over = self._group()
            return over / self._group()
        if self._takes("\\sqrt"):
            root = 2.0
            if self._takes("["):
                root = self._sum()
                self._must("]")
            return math.pow(self._group(), 1.0 / root)
        if self._takes("\\pi") or self._takes("π"):
            return math.pi
        if self._takes("("):
            value = self._sum()
            self._must(")")
            return value
        if self._text[self._at : self._at + 1] == "{":
            return self._group()
        number = _NUMBER.match(self._text, self._at)
        if number is None:
            raise _Unknown
        self._at = number.end()
        return float(number[0])

    def _group(self) -> float:
        self._must("{")
        value = self._sum()
        self._must("}")
        return value

    def _must(self, words: str) -> None:
        if not self._takes(words):
            raise _Unknown
