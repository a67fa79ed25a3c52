"""What a Prometheus API sends back, as types: decoded answers, and refusals in words with what to do about them.

Values come as strings, which may be "NaN" or "+Inf"; each kind of result has a shape of its own. Labels of a vector stay raw
bytes, because the same 4096 of them come every round and whoever asks each round keeps what it made of them.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec
import numpy as np

from harness.metrics.gpu.base import Curve, QueryAnswer, SourceError, Trouble

Point = tuple[float, str]

_BAD: Final[Trouble] = "bad_query"
_LATE: Final[Trouble] = "timeout"
_SHOWN: Final = 200  # characters of a query or an answer in an error


class Sample(msgspec.Struct, frozen=True):
    """One series of a vector; a native histogram has no value."""

    metric: msgspec.Raw
    value: Point | None = None


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[Point] = []


class _LabelledSample(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: Point | None = None


class _Data(msgspec.Struct, frozen=True):
    resultType: str
    result: msgspec.Raw


class _Success(msgspec.Struct, frozen=True):
    data: _Data
    warnings: list[str] = []
    infos: list[str] = []


class _Refusal(msgspec.Struct, frozen=True):
    """Parts are optional: proxies in between answer in JSON as well."""

    error: str = ""
    errorType: str = ""


class _List(msgspec.Struct, frozen=True):
    data: list[str]


class _Meta(msgspec.Struct, frozen=True):
    type: str = ""
    help: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    data: dict[str, list[_Meta]]


_success = msgspec.json.Decoder(_Success)
_refusal = msgspec.json.Decoder(_Refusal)
_list = msgspec.json.Decoder(_List)
_metadata = msgspec.json.Decoder(_Metadata)
_vector = msgspec.json.Decoder(list[Sample])
_labelled = msgspec.json.Decoder(list[_LabelledSample])
_matrix = msgspec.json.Decoder(list[_Series])
_point = msgspec.json.Decoder(Point)


# --- answers ---------------------------------------------------------------------------------------------------


def vector(body: bytes, whom: str) -> tuple[list[Sample], tuple[str, ...]]:
    """The samples of a vector and the server's warnings. Raises SourceError."""
    try:
        found = _success.decode(body)
        if found.data.resultType != "vector":
            raise SourceError(
                "bad_query", f"{whom} answered with a {found.data.resultType} where one value a series was asked for"
            )
        return _vector.decode(found.data.result), (*found.warnings, *found.infos)
    except msgspec.DecodeError as error:
        raise unreadable(body, whom) from error


def answer(body: bytes, whom: str, *, most: int, step_s: float = 0.0) -> QueryAnswer:
    """At most `most` curves, the rest counted. Raises SourceError."""
    try:
        found = _success.decode(body)
        kind, result = found.data.resultType, found.data.result
        curves: list[Curve] = []
        text, there = "", 0
        if kind == "vector":
            samples = [sample for sample in _labelled.decode(result) if sample.value is not None]
            there, curves = len(samples), [_curve(one.metric, [cast(Point, one.value)]) for one in samples[:most]]
        elif kind == "matrix":
            series = _matrix.decode(result)
            there, curves = len(series), [_curve(one.metric, one.values) for one in series[:most]]
        elif kind == "scalar":
            there, curves = 1, [_curve({}, [_point.decode(result)])]
        elif kind == "string":
            text = _point.decode(result)[1]
        else:
            raise unreadable(body, whom)
    except (msgspec.DecodeError, ValueError) as error:
        raise unreadable(body, whom) from error
    warnings = (*found.warnings, *found.infos)
    return QueryAnswer(curves, cast(Any, kind), step_s, text, warnings, max(there - len(curves), 0))


def names(body: bytes, whom: str) -> list[str]:
    try:
        return _list.decode(body).data
    except msgspec.DecodeError as error:
        raise unreadable(body, whom) from error


def metadata(body: bytes, whom: str) -> dict[str, tuple[str, str]]:
    """Type and help of each metric. Exporters may disagree: the first counts."""
    try:
        found = _metadata.decode(body).data
    except msgspec.DecodeError as error:
        raise unreadable(body, whom) from error
    return {name: (metas[0].type, metas[0].help) for name, metas in found.items() if metas}


def _curve(labels: dict[str, str], points: list[Point]) -> Curve:
    count = len(points)
    unix = np.fromiter((point[0] for point in points), np.float64, count)
    return Curve(labels, unix, np.fromiter((float(point[1]) for point in points), np.float64, count))


# --- refusals --------------------------------------------------------------------------------------------------


def refused_query(status: int, body: bytes, whom: str, query: str) -> SourceError | None:
    """What is wrong with the query, if that is why there is no answer."""
    kind, said = _refused(body)
    because = f": {said}" if said else ""
    if kind == "bad_data" or (status == 400 and not kind):
        trouble, text = _BAD, f"cannot read the query{_with_position(because)}"
    elif kind == "execution" or status == 422:
        trouble, text = _BAD, f"cannot compute the query{because}"
    elif kind in ("timeout", "canceled"):
        trouble, text = _LATE, f"gave up on the query for lack of time{because}"
    elif status == 413:
        trouble, text = _BAD, f"takes no query this long{because}"
    else:
        return None
    return SourceError(trouble, f"{whom} {text}" + (f" (query: {shortened(query)})" if query else ""))


def said_in(body: bytes) -> str:
    """The server's own words, from JSON or from a page."""
    return shortened(_refused(body)[1])


def _refused(body: bytes) -> tuple[str, str]:
    try:
        told = _refusal.decode(body)
    except msgspec.DecodeError:
        return "", _plain(body)
    return told.errorType, told.error or _plain(body)


def unreadable(body: bytes, whom: str) -> SourceError:
    """It came with status 200 and is not what a Prometheus sends: says what it looks like instead."""
    start = body[:2000].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<")):
        title = re.search(rb"<title[^>]*>\s*([^<]{1,80})", body[:20_000], re.IGNORECASE)
        named = f" titled {title[1].decode(errors='replace').strip()!r}" if title else ""
        return SourceError(
            "bad_answer", f"{whom} sent a web page{named}, no answer of a Prometheus API: a login page, or another server?"
        )
    if start.startswith((b"{", b"[")):
        try:
            found = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return SourceError("bad_answer", f"{whom} sent JSON that ends or breaks off in the middle ({len(body)} bytes)")
        fields = f" with the fields {', '.join(sorted(map(str, found))[:8])}" if isinstance(found, dict) else ""
        return SourceError("bad_answer", f"{whom} sent JSON{fields} that is no answer of a Prometheus API")
    return SourceError("bad_answer", f"{whom} sent no answer of a Prometheus API: {_plain(body) or 'nothing'}")


def shortened(text: str, most: int = _SHOWN) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _with_position(because: str) -> str:
    """`1:7: parse error: unexpected …` in words."""
    found = re.search(r"(?:^|[ \"])(\d+):(\d+): (?:parse error: )?(.*)", because, re.DOTALL)
    if found is None:
        return because
    line, column, what = found.groups()
    where = f"character {column}" if line == "1" else f"line {line}, character {column}"
    return f" at {where}: {what}"


def _plain(body: bytes) -> str:
    """The start of an answer that has no words for us, if it is text."""
    text = body[:4000].decode("utf-8", "replace")
    if text.lstrip().startswith("<"):
        text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE)
    if "\ufffd" in text or any(ord(letter) < 32 and letter not in "\r\n\t" for letter in text):
        return f"{len(body)} bytes that are no text"
    return shortened(text)
