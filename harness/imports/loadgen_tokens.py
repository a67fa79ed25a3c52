"""mlperf_log_accuracy.json: the answers of an accuracy run, of which only the numbers of tokens are wanted here.

An array of flat objects with hex strings, one a line or all in one; it is read object by object, because a real one has
gigabytes. A log that LoadGen did not get to close, or that was truncated for a submission, gives what it has.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from harness.imports.pieces import Pieces
from harness.imports.told import Progress

_HEX_OF_A_TOKEN = 8  # a little-endian int32


class _Answer(msgspec.Struct):
    seq_id: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    data: str = ""
    token_count: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None


@dataclass(slots=True)
class Answers:
    """Parallel: the sample's number and its tokens. `closed`: the array has its end."""

    seq: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("q"))
    damaged: int = 0
    closed: bool = False

    @property
    def total(self) -> int:
        return sum(self.tokens)


_decoder = msgspec.json.Decoder(_Answer)


def read_answers(path: Path, progress: Progress) -> Answers:
    """Raises ImportProblem for a file that cannot be read; what is no answer is counted."""
    answers = Answers()
    pieces = Pieces(path, progress, separator=b"}")
    for piece in pieces:
        at = piece.find(b"{")
        try:
            answer = _decoder.decode(piece[at:] + b"}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answers.damaged += 1
            continue
        answers.seq.append(answer.seq_id)
        counted = answer.token_count if answer.token_count is not None else len(answer.data) // _HEX_OF_A_TOKEN
        answers.tokens.append(max(0, counted))
    answers.damaged += pieces.too_long + (b"{" in pieces.rest)
    answers.closed = pieces.rest.strip().endswith(b"]")
    return answers
