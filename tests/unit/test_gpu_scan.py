"""The scanner reads what prometheus_client's parser reads, with a cold and a warm cache, and no page makes it fail."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from harness.metrics.gpu.scan import IGNORED, Broken, Samples, Scanner, names_on, parse_line


class Reader:
    """Remembers what it was asked to admit."""

    def __init__(self, *wanted: str, ignore: str = "") -> None:
        self.admitted: list[tuple[str, dict[str, str]]] = []
        self._ignore = ignore
        self.scanner = Scanner({name.encode() for name in wanted}, self._admit)

    def _admit(self, name: str, labels: dict[str, str]) -> int:
        if name == self._ignore:
            return IGNORED
        self.admitted.append((name, labels))
        return len(self.admitted) - 1

    def read(self, text: str) -> list[tuple[str, dict[str, str], float]]:
        page = self.scan(text)
        return [(*self.admitted[n], value) for n, value in zip(page.numbers, page.values, strict=True)]

    def scan(self, text: str) -> Samples:
        return self.scanner.scan(text.encode())


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


NAMES = st.from_regex(r"[a-z_:][a-z0-9_:]{0,6}", fullmatch=True)
LABELS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8),
    max_size=4,
)
VALUES = st.one_of(st.floats(width=64), st.integers(-(10**18), 10**18).map(float))
SAMPLES = st.lists(st.tuples(NAMES, LABELS, VALUES, st.one_of(st.none(), st.integers(1, 2**41))), max_size=12)


def line(name: str, labels: dict[str, str], value: float, stamp: int | None) -> str:
    escaped = {label: text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for label, text in labels.items()}
    inside = ",".join(f'{label}="{text}"' for label, text in escaped.items())
    shown = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))
    return f"{name}{f'{{{inside}}}' if labels else ''} {shown}{'' if stamp is None else f' {stamp}'}"


@given(SAMPLES)
@settings(max_examples=150, deadline=None)
def test_reads_what_the_reference_parser_reads(samples: list[tuple[str, dict[str, str], float, int | None]]) -> None:
    text = "\n".join(line(*sample) for sample in samples) + "\n"
    expected = [(s.name, s.labels, float(s.value)) for family in plain(text) for s in family.samples]
    reader = Reader(*{name for name, *_ in samples})
    for _ in range(2):  # the second page is read from the cache
        found = reader.read(text)
        assert len(found) == len(expected)
        for (name, labels, value), (their_name, their_labels, their_value) in zip(
            sorted(found, key=str), sorted(expected, key=str), strict=True
        ):
            assert (name, labels) == (their_name, their_labels)
            assert same(value, their_value)
    assert reader.scan(text).broken == 0


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_it_fail(body: bytes) -> None:
    scanner = Scanner({b"a", b"b_total"}, lambda name, labels: 0)
    scanner.scan(body)
    scanner.scan(b'a{x="' + body + b'"} 1\na{' + body + b"\na " + body)
    names_on(body)


def test_values_of_all_spellings() -> None:
    text = 'a 1\na{b="1"} NaN\na{b="2"} +Inf\na{b="3"} -Inf\na{b="4"} 1.5e+03\na{b="5"} 9223372036854775794\n'
    values = [value for _, _, value in Reader("a").read(text)]
    assert values[0] == 1
    assert math.isnan(values[1])
    assert values[2:] == [math.inf, -math.inf, 1500.0, 9223372036854775794.0]


def test_times_are_milliseconds_and_in_openmetrics_seconds() -> None:
    reader = Reader("a")
    assert reader.scan('a{b="1"} 5 1700000000500\n').stamped == {0: 1700000000.5}
    assert reader.scan('a{b="1"} 5 1700000000500\n').stamped == {0: 1700000000.5}
    assert reader.scan('a{b="1"} 5 1700000000.5\n# EOF\n').stamped == {0: 1700000000.5}
    assert reader.scan('a{b="1"} 5\n').stamped == {}


def test_openmetrics_with_exemplars_reads_as_the_reference_does() -> None:
    text = (
        "# HELP hits Hits\n# TYPE hits counter\n"
        'hits_total{path="/a} b"} 17.0 # {trace="x} y",span="1"} 0.67 1700000000.25\n'
        'hits_total{path="/c"} 3 1700000000 # {trace="z"} 1\n# EOF\n'
    )
    expected = [(s.name, s.labels, s.value) for family in openmetrics(text) for s in family.samples]  # type: ignore[no-untyped-call]
    reader = Reader("hits_total")
    assert reader.read(text) == expected
    assert reader.read(text) == expected


def test_only_wanted_names_are_understood_and_ignored_series_are_left_out() -> None:
    reader = Reader("a", "skip", ignore="skip")
    assert reader.read('b{x="1"} 5\na{x="1"} 6\nskip{x="1"} 7\na_total 8\n') == [("a", {"x": "1"}, 6.0)]
    assert reader.read('skip{x="1"} 7\n') == []
    assert len(reader.scanner.known) == 2


@pytest.mark.parametrize(
    "broken",
    [
        'a{x="1" 5', 'a{x=1} 5', 'a{x="1"}', "a", "a one", 'a{x="1"} 1_0', 'a{x="1"} 5 6 7', 'a{x="1"} 5 soon',
        'a{x="1",x="2"} 5', 'a{="1"} 5', "<html>", "4a 5",
    ],
)  # fmt: skip
def test_broken_lines_are_counted_and_take_nothing_else_along(broken: str) -> None:
    reader = Reader("a")
    for _ in range(2):
        page = reader.scan(f'a{{x="0"}} 1\n{broken}\na{{x="9"}} 2\n')
        assert (page.values, page.broken) == ([1.0, 2.0], 1)


def test_a_line_with_a_known_head_and_a_broken_value_is_counted() -> None:
    reader = Reader("a")
    reader.read('a{x="1"} 1\n')
    page = reader.scan('a{x="1"} 1_0\na{x="1"} x\na{x="1"} \n')
    assert (page.values, page.broken) == ([], 3)


def test_no_space_before_the_value_and_many_before_it() -> None:
    assert [v for *_, v in Reader("a").read('a{x="1"}5\na { x = "2" , } \t 6\n  a  7  \r\n')] == [5.0, 6.0, 7.0]


def test_parse_line_names_where_the_head_ends() -> None:
    assert parse_line(b'a{x="1"} 5 9') == ("a", {"x": "1"}, 5.0, 9.0, 7)
    with pytest.raises(Broken):
        parse_line(b"")


def test_names_with_type_and_help_also_of_histograms_and_totals() -> None:
    page = (
        "# HELP lat_seconds How \\\\ long\n# TYPE lat_seconds histogram\n"
        'lat_seconds_bucket{le="1"} 1\nlat_seconds_sum 2\nlat_seconds_count 1\n'
        '# HELP hits Hits\n# TYPE hits counter\nhits_total 5\nbare{x="1"} 1\n# EOF\n'
    )
    assert names_on(page.encode()) == {
        "lat_seconds_bucket": ("histogram", "How \\ long"),
        "lat_seconds_sum": ("histogram", "How \\ long"),
        "lat_seconds_count": ("histogram", "How \\ long"),
        "hits_total": ("counter", "Hits"),
        "bare": ("", ""),
    }
