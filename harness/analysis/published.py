"""Published results as reference sets: those that ship (published.toml) and those of a reader's own files of the same form."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from harness.records.files import read_plain

SHIPPED: Final = Path(__file__).parent / "published.toml"
_MOST_BYTES: Final = 4 << 20


class ReferencePoint(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    scenario: str
    nodes: int
    gpus: int
    tokens_per_s: float  # output tokens
    replicas: int = 0
    engine: str = ""
    samples_per_s: float | None = None
    target_qps: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None


class ReferenceSet(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    title: str
    source: str
    points: list[ReferencePoint] = msgspec.field(name="point")


class _File(msgspec.Struct, forbid_unknown_fields=True):
    sets: list[ReferenceSet] = msgspec.field(name="set")


class BadReference(Exception):
    """A file of reference results that cannot be read; the text says which field, and what it should be."""


def shipped() -> list[ReferenceSet]:
    return read_references(SHIPPED)


def read_references(path: Path) -> list[ReferenceSet]:
    """Raises BadReference."""
    try:
        found = msgspec.convert(tomllib.loads(read_plain(path, _MOST_BYTES).decode("utf-8")), _File)
    except OSError as error:
        raise BadReference(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReference(f"{path}: is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise BadReference(f"{path}: {error}; harness/analysis/published.toml is a file of this form") from error
    for one in found.sets:
        for number, point in enumerate(one.points, 1):
            for name, value in (("nodes", point.nodes), ("gpus", point.gpus), ("tokens_per_s", point.tokens_per_s)):
                if not (math.isfinite(value) and value > 0):
                    raise BadReference(f"{path}: {name} = {value} of point {number} of {one.title!r} must be more than 0")
    return found.sets
