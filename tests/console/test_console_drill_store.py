"""What the record screen computes without drawing: samples of two bounds, order of a fleet, filters, heights of lanes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.store.drill import FLEET_ORDERS, VIEWS, Ask, Choice, fleet_rows, keeps, problem_of, tail_words
from console.store.drill_tables import FIGURES
from console.widgets.drill import span
from console.widgets.drill_rows import figure_words
from console.widgets.drill_tail import outstanding
from console.widgets.drill_timeline import at_text, shared
from console.widgets.fmt import millis
from harness.analysis.definitions import define
from harness.analysis.views import FleetRow, Tail, TailGroup, Where


def row(name: str, z_tpot: float | None, ttft_p99_ms: float | None = 100.0) -> FleetRow:
    return FleetRow(name, None, 1, 10, 0, 100, 10.0, 50.0, ttft_p99_ms, 20.0, 30.0, 20.0, 0, 0, 0, None, z_tpot, None)


def test_two_bounds_on_samples_are_both_kept() -> None:
    both = Where(slot="node001/gpu2", from_s=20, to_s=90).within(Where(node="node001", from_s=10, to_s=60))
    assert both == Where(slot="node001/gpu2", node="node001", from_s=20, to_s=60)
    assert Where(prompt_to=512).within(Where()) == Where(prompt_to=512)
    assert Where(node="node002").within(Where(node="node001", prompt_from=8)) == Where(node="node002", prompt_from=8)


def test_no_figure_is_written_as_a_power_of_ten() -> None:
    tail = Tail("latency", "slowest 1 %", 14_012.3, 100, 1, {}, [], 0, [])
    assert tail_words(tail)[1] == "from 14,012 ms on"
    assert Where(prompt_from=1 << 20, prompt_to=1 << 21).words == "prompt 1,048,576–2,097,151 tokens"
    assert Where(from_s=1_234_567.25).words == "from 1,234,567.25 s"


def test_what_is_not_known_of_a_fleet_comes_last_both_ways() -> None:
    rows = [row("a", None), row("b", 1.0), row("c", 9.0)]
    assert [one.name for one in fleet_rows(rows, Choice())] == ["c", "b", "a"]
    assert [one.name for one in fleet_rows(rows, Choice(reverse=True))] == ["b", "c", "a"]
    names = [order.name for order in FLEET_ORDERS]
    assert [one.name for one in fleet_rows(rows, Choice(sort=names.index("name")))] == ["a", "b", "c"]
    assert [one.name for one in fleet_rows(rows, Choice(text="!b", only=frozenset("bc")))] == ["c"]


def test_a_filter_without_its_word_is_told() -> None:
    assert keeps("node1|evict !gpu3")("12:00 evict node2/gpu1")
    assert not keeps("node1|evict !gpu3")("evict node2/gpu3")
    assert "a word is missing" in problem_of("a|")
    assert problem_of("a") == ""


def test_a_question_is_the_same_as_long_as_what_it_asks_for_is() -> None:
    assert Choice(view="tail").ask == Choice(view="tail", by="node").ask == Choice(view="tail").next_group().ask
    assert Choice(view="tail").ask != Choice(view="tail").next_metric().ask
    assert Choice(view="fleet").next_group().ask == Ask.of("fleet", by="node")
    assert Choice(view="fleet", text="x", sort=3).to("tail") == Choice(view="tail")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 60))
def test_lanes_take_no_more_lines_than_there_are(weights: list[int], lines: int) -> None:
    given = shared(weights, lines)
    assert len(given) == len(weights)
    assert sum(given) <= lines
    assert all(given) or lines < len(weights)


def test_the_group_that_stands_out_is_the_one_with_most_more_than_its_share() -> None:
    def group(key: str, tail: int, lift: float) -> TailGroup:
        return TailGroup("time", key, 100, tail, 0.1, lift, None, None, Where())

    groups = [group("few", 3, 9.0), group("many", 80, 4.0), group("less", 40, 0.5)]
    assert outstanding(groups) == groups[1]
    assert outstanding(groups[2:]) is None


def test_figures_of_every_view_have_a_definition() -> None:
    assert set(FIGURES) == set(VIEWS)
    assert all(define(figure).formula for figures in FIGURES.values() for figure in figures)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (span((980.0, 1020.0), millis), "[980 ms … 1.02 s]"),
        (span((1000.0, 1020.0), millis), "[1.00 … 1.02 s]"),
        (span(None, millis), ""),
        (at_text(-5.2), "-00:05"),
        (at_text(400), "06:40"),
        (figure_words("ttft_p99_ms"), "TTFT p99"),
        (figure_words("tokens_per_s"), "tok/s"),
    ],
)
def test_figures_are_written_as_people_read_them(text: str, said: str) -> None:
    assert text == said
