"""LoadGen's mlperf_log_accuracy.json as a stream: one object a line, up to hundreds of MB, never all in memory.

`data` is the hexadecimal of little-endian int32 token ids, eight characters a token; `token_data`, where LoadGen was told of
first tokens, that of the first. Read without trust: a killed LoadGen leaves `[` or half a line, and what a submission
carries is cut in the middle on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from harness.mlperf.accuracy.errors import ScoringError

ACCURACY_LOG: Final = "mlperf_log_accuracy.json"
_LONGEST_LINE: Final = 64 << 20  # of one answer: eight million tokens
_CUT: Final = "is cut off: LoadGen did not write it to its end, or it was shortened for a submission (score the original)"


class _Line(msgspec.Struct):
    seq_id: int
    qsl_idx: int
    data: str
    token_count: int | None = None
    token_data: str | None = None


@dataclass(frozen=True, slots=True)
class Logged:
    """One answer. `first`: the first token as LoadGen was told of it, None where it was not (Offline)."""

    seq: int
    index: int  # of the dataset
    tokens: bytes
    token_count: int | None
    first: bytes | None

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.tokens, "<i4")

    @property
    def n(self) -> int:
        return len(self.tokens) >> 2


class AccuracyLog:
    """Iterate once; then `sha256` is that of the whole file and `n` the number of answers. Raises ScoringError."""

    def __init__(self, path: Path) -> None:
        self.path = path / ACCURACY_LOG if path.is_dir() else path
        self.sha256 = ""
        self.n = 0

    def __iter__(self) -> Iterator[Logged]:
        digest, decoder, seen, opened, closed = hashlib.sha256(), msgspec.json.Decoder(_Line), set[int](), False, False
        self.n = 0
        try:
            with self.path.open("rb") as file:
                for number, raw in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
                    digest.update(raw)
                    line = raw.strip()
                    if not opened and line.startswith(b"["):
                        opened, line = True, line[1:].strip()
                    if line.endswith(b"]"):
                        closed, line = True, line[:-1].strip()
                    line = line.rstrip(b",").strip()
                    if not line:
                        continue
                    logged = self._logged(line, number, decoder)
                    if logged.seq in seen:
                        raise ScoringError(f"line {number}: seq_id {logged.seq} is there a second time", self.path)
                    seen.add(logged.seq)
                    self.n += 1
                    yield logged
        except FileNotFoundError:
            raise ScoringError("is not there: LoadGen wrote no accuracy log for this attempt", self.path) from None
        except OSError as error:
            raise ScoringError(f"cannot be read: {error.strerror or error}", self.path) from error
        if not (opened and closed):
            raise ScoringError(f"{_CUT}; {self.n:,d} answers are whole", self.path)
        self.sha256 = digest.hexdigest()

    def _logged(self, line: bytes, number: int, decoder: msgspec.json.Decoder[_Line]) -> Logged:
        try:
            entry = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            why = f"line {number} is not one answer as LoadGen writes it ({error})"
            raise ScoringError(why if line.endswith(b"}") else f"{_CUT}; line {number} is half an answer", self.path) from None
        tokens = self._tokens(entry.data, number, "data")
        first = None if entry.token_data is None else self._tokens(entry.token_data, number, "token_data")
        if entry.qsl_idx < 0:
            raise ScoringError(f"line {number}: qsl_idx {entry.qsl_idx} is no place in a dataset", self.path)
        return Logged(entry.seq_id, entry.qsl_idx, tokens, entry.token_count, first)

    def _tokens(self, text: str, number: int, field: str) -> bytes:
        try:
            found = bytes.fromhex(text)
        except ValueError:
            found = b"?"
        if len(found) % 4:
            raise ScoringError(
                f"line {number}: {field} is not the hexadecimal of int32 token ids, 8 characters each "
                f"(it has {len(text):,d} characters)",
                self.path,
            )
        return found
