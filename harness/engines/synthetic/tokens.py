"""Output token ids of a synthetic replica: a pure function of (index, position), for byte-for-byte comparison.

All outputs are windows of one ring of 2^20 pseudo-random ids (4 MiB a process, made in about 20 ms on first use): a
window costs one copy of its bytes, where computing 1,344 ids would cost more than the rest of the request. The start
is index times an odd number, so no two of a million samples share one. Ids lie in [3, vocab_size) and are never eos.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_RING = 1 << 20
_START_STRIDE = 0x9E3B5  # odd: index → start is one to one below 2^20
_MASK64 = (1 << 64) - 1
FIRST_ID = 3  # below it: padding, begin and end of text in most vocabularies


def mix64(value: int) -> int:
    """SplitMix64: a well spread 64-bit number from any integer."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


@lru_cache(maxsize=4)
def _ring(vocab_size: int, eos: int) -> bytes:
    value = np.arange(1, _RING + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    ids = (value % np.uint64(vocab_size - FIRST_ID)).astype(np.int64) + FIRST_ID
    if FIRST_ID <= eos < vocab_size:
        ids[ids == eos] = eos + 1 if eos + 1 < vocab_size else FIRST_ID
    return ids.astype("<i4").tobytes()


def output_ids(index: int, n: int, vocab_size: int, eos: int) -> bytes:
    """The first `n` output ids of sample `index`, little-endian int32. A shorter output is a prefix of a longer one."""
    ring = _ring(vocab_size, eos)
    start = (index * _START_STRIDE) % _RING
    if start + n <= _RING:
        return ring[4 * start : 4 * (start + n)]
    rounds = (start + n) // _RING + 1
    return (ring * rounds)[4 * start : 4 * (start + n)]
