"""Damage for files, as hypothesis strategies: truncated, flipped, wrong types, huge numbers, deep nesting, wrong encodings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Spoil = Callable[[bytes], bytes]

#: What stands in files that somebody wrote by hand, or a program with a fault.
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "9" * 5000, [],
    {}, [[]], {"": {}}, [1, "2", None], {"a": [1, {"b": None}]}, "../../etc/passwd", "nan", "2026-13-45T99:99:99Z",
)  # fmt: skip
_ODD_BYTES = (
    b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"}", b"{", b'"', b"\n", b"NaN", b"1e999", b"-", b"[" * 5000, b"9" * 5000,
    b'{"a":' * 3000, b"\xef\xbb\xbf", b"PAR1", b":::MLLOG {}", b"\r\n",
)  # fmt: skip


def spoils() -> st.SearchStrategy[Spoil]:
    """One to three kinds of damage, one after the other."""
    one = st.one_of(_cuts(), _flips(), _inserts(), _wrong_values(), _wrong_values(), _encodings())
    return st.lists(one, min_size=1, max_size=3).map(_in_turn)


def _in_turn(some: list[Spoil]) -> Spoil:
    def spoil(content: bytes) -> bytes:
        for each in some:
            content = each(content)
        return content

    return spoil


def _share() -> st.SearchStrategy[float]:
    return st.floats(0, 1, exclude_max=True)


def _cuts() -> st.SearchStrategy[Spoil]:
    def cut(start: float, length: float) -> Spoil:
        def spoil(content: bytes) -> bytes:
            at = int(len(content) * start)
            return content[:at] if length > 0.5 else content[:at] + content[at + int(len(content) * length) :]

        return spoil

    return st.builds(cut, _share(), _share())


def _flips() -> st.SearchStrategy[Spoil]:
    def flip(places: list[tuple[float, int]]) -> Spoil:
        def spoil(content: bytes) -> bytes:
            changed = bytearray(content)
            for share, byte in places if changed else ():
                changed[int(len(changed) * share)] ^= byte
            return bytes(changed)

        return spoil

    return st.builds(flip, st.lists(st.tuples(_share(), st.integers(1, 255)), min_size=1, max_size=8))


def _inserts() -> st.SearchStrategy[Spoil]:
    def insert(share: float, what: bytes) -> Spoil:
        def spoil(content: bytes) -> bytes:
            at = int(len(content) * share)
            return content[:at] + what + content[at:]

        return spoil

    return st.builds(insert, _share(), st.sampled_from(_ODD_BYTES))


def _encodings() -> st.SearchStrategy[Spoil]:
    def encoded(name: str) -> Spoil:
        return lambda content: content.decode("utf-8", "replace").encode(name, "replace")

    return st.sampled_from(("utf-16", "utf-8-sig", "utf-32", "ascii")).map(encoded)


def _wrong_values() -> st.SearchStrategy[Spoil]:
    """A value in a JSON file, or in a line of one, becomes another; a file without JSON stays as it is."""

    def wrong(line: float, path: list[float], value: Any) -> Spoil:
        def spoil(content: bytes) -> bytes:
            try:
                whole = json.loads(content)
            except (ValueError, RecursionError):
                lines = content.split(b"\n")
                at = int(len(lines) * line)
                before, marker, entry = lines[at].rpartition(b":::MLLOG ")
                try:
                    parsed = json.loads(entry.rstrip(b",\r"))
                except (ValueError, RecursionError):
                    return content
                lines[at] = before + marker + _put(parsed, path, value)
                return b"\n".join(lines)
            return _put(whole, path, value)

        return spoil

    return st.builds(wrong, _share(), st.lists(_share(), min_size=1, max_size=5), st.sampled_from(ODD_VALUES))


def _put(whole: Any, path: list[float], value: Any) -> bytes:
    inner, holder, key = whole, None, None
    for share in path:
        if isinstance(inner, dict) and inner:
            holder, key = inner, list(inner)[int(len(inner) * share)]
        elif isinstance(inner, list) and inner:
            holder, key = inner, int(len(inner) * share)
        else:
            break
        inner = holder[key]
    if holder is None:
        return json.dumps(value).encode()
    holder[key] = value
    return json.dumps(whole).encode()
