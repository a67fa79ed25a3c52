"""A dataset in memory: all prompts in one flat int32 array, so that a prompt's bytes are a slice and never a copy.

A QUERY's payload is exactly `prompt(i)`: little-endian int32. 4,388 DeepSeek-R1 prompts are some 10 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


class DatasetError(Exception):
    """A dataset that cannot be used. The text names the file, the row and field where known, and what would be right."""

    def __init__(self, reason: str, path: Path | None = None, where: str = "") -> None:
        place = ", ".join(str(part) for part in (path, where) if part)
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason
        self.path = path
        self.where = where  # "line 7" (lines count from 1) or "row 7" (rows from 0, as the QSL index does)


class Dataset:
    """`expected_tokens[i]` is the output length known beforehand, 0 when unknown."""

    __slots__ = ("_bytes", "_edges", "expected_tokens", "name", "offsets", "prompts")

    def __init__(self, name: str, prompts: Ids, offsets: npt.NDArray[np.int64], expected_tokens: Ids) -> None:
        self.name = name
        self.prompts: Ids = np.ascontiguousarray(prompts, dtype="<i4")
        self.offsets: npt.NDArray[np.int64] = np.ascontiguousarray(offsets, dtype=np.int64)
        self.expected_tokens: Ids = np.ascontiguousarray(expected_tokens, dtype=np.int32)
        self._bytes = self.prompts.data.cast("B").toreadonly()
        self._edges: list[int] = (self.offsets * 4).tolist()  # plain ints: numpy's cost four times as much to index

    @classmethod
    def of(cls, name: str, prompts: Sequence[Ids], expected_tokens: Sequence[int]) -> Dataset:
        lengths = np.fromiter((len(prompt) for prompt in prompts), np.int64, len(prompts))
        return cls(name, np.concatenate(prompts), edges(lengths), np.array(expected_tokens, np.int32))

    def __len__(self) -> int:
        return len(self._edges) - 1

    def prompt(self, i: int) -> memoryview:
        """The prompt's token ids as little-endian int32 bytes; shares the dataset's memory."""
        return self._bytes[self._edges[i] : self._edges[i + 1]]

    def n_prompt(self, i: int) -> int:
        return (self._edges[i + 1] - self._edges[i]) >> 2


def edges(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Offsets of consecutive prompts of these lengths: one more than there are prompts."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
