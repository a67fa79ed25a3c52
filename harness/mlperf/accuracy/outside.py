"""A subset, or all of a log, scored by a stated command: `livecodebench=CMD {answers} {out}`.

The command is given a JSONL of answers (qsl_idx, dataset, ground_truth, answer, text, tokens) and may write a JSON object
with `correct` (a number of samples) or `exact_match`, `accuracy`, `score` or `pass@1` (a percentage) to {out}; else the last
line that it prints like `'exact_match': 61.2` counts, as MLPerf's own scripts print it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from harness.mlperf.accuracy import command
from harness.mlperf.accuracy.errors import ScoringError

#: The name that stands for all subsets at once: an official script that scores the whole log.
ALL: Final = "all"
_PERCENT: Final = ("exact_match", "accuracy", "score", "pass@1")
#: A whole number, as numpy prints it too: of 1e9 the 1 alone would be a score.
_PRINTED: Final = re.compile(
    r"""['"]?exact_match['"]?\s{0,8}[:=]\s{0,8}(?:np\.float\d\d\()?([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?!\w|\.[0-9])"""
)


@dataclass(frozen=True, slots=True)
class Scorer:
    """`name`: part of a subset's name, or `all`."""

    name: str
    command: str

    @classmethod
    def parse(cls, text: str) -> Scorer:
        """`NAME=COMMAND`. Raises ScoringError."""
        name, equals, words = text.partition("=")
        if not (equals and name.strip() and words.strip()):
            raise ScoringError(
                f"--scorer {text!r} is not of the form NAME=COMMAND, as in livecodebench='CMD {{answers}} {{out}}'"
            )
        return cls(name.strip().lower(), words.strip())

    def takes(self, subset: str) -> bool:
        return self.name != ALL and self.name in subset.lower()


def correct_of(scorer: Scorer, n: int, places: Mapping[str, str], folder: Path, deadline_s: float) -> float:
    """How many of `n` samples its command calls correct. Raises ScoringError."""
    safe = re.sub(r"[^\w.-]", "_", scorer.name)
    out, output = folder / f"{safe}.out.json", folder / f"{safe}.log"
    out.unlink(missing_ok=True)
    words = command.words_of(scorer.command, {**places, "out": str(out)})
    printed = command.run(words, folder, output, deadline_s)
    found = _from_file(out, n) if out.exists() else None
    if found is None:
        said = _PRINTED.findall(printed)
        found = float(said[-1]) / 100 * n if said else None
    if found is None:
        raise ScoringError(
            f"the scorer {scorer.name} told no score: it wrote no {out.name} with correct or one of {', '.join(_PERCENT)}, "
            f"and printed no line like 'exact_match': 61.2 (see {output})"
        )
    if not (math.isfinite(found) and 0 <= found <= n * (1 + 1e-9)):
        raise ScoringError(f"the scorer {scorer.name} told {found:g} correct of {n:,d} samples, which cannot be (see {output})")
    return found


def _from_file(path: Path, n: int) -> float | None:
    try:
        found: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ScoringError(f"is not the JSON that a scorer writes: {error}", path) from error
    if not isinstance(found, dict):
        raise ScoringError("holds no JSON object with the score", path)
    for name in ("correct", *_PERCENT):
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) if name == "correct" else float(value) / 100 * n
    return None
