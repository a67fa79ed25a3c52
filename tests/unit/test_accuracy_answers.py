"""Answers found in made-up texts, and compared with the truth: one case for each rule, and anything at all without a crash."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.mlperf.accuracy import answers
from harness.mlperf.accuracy.equality import same, value_of
from harness.mlperf.accuracy.subsets import RULES, rule_for

SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "deepseek_r1_samples.jsonl"
FINAL = "<|channel|>analysis<|message|>Answer: C, or rather not<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("So it must be the second.\n\nAnswer: B", "B"),
        ("ANSWER: (C)", "C"),
        ("the final answer = d.", "D"),
        ("Answer: A\nWait, that is wrong.\nAnswer: D", "D"),  # the last one counts
        ("Answer: Because of gravity", None),
        ("Answer: E", None),
        ("no letter is chosen", None),
        ("", None),
        (FINAL.format("B"), "B"),
        (FINAL.format("**B**"), "B"),
        (FINAL.format("(b) since it is heavier"), "B"),
        (FINAL.format("The heavier one falls. Answer: A"), "A"),
        (FINAL.format("The heavier one falls."), "C"),  # nothing in the final channel: what it thought
        (FINAL.replace("final<|", "final 7<|").format("D"), "D"),  # a damaged mark
        ("<|channel|>analysis<|message|>cut off, Answer: D", "D"),
    ],
)
def test_a_choice_of_four(text: str, letter: str | None) -> None:
    assert answers.choice(text, "ABCD") == letter


@pytest.mark.parametrize(
    ("text", "letter"), [("Answer: J", "J"), ("it is F) and nothing else", "F"), ("Answer: the 4th", None), ("x y z", None)]
)
def test_a_choice_of_ten_falls_back_to_a_letter_that_stands_alone(text: str, letter: str | None) -> None:
    assert answers.choice(text, "ABCDEFGHIJ") == letter


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("thus \\boxed{ 042 }", "42"),
        ("\\boxed{1} and then \\boxed{999}", "999"),
        ("\\boxed{1000}", None),
        ("\\boxed{x}, Answer: 17", "17"),
        ("answer:  8", "8"),
        ("Answer: 3.5", None),
        ("Answer: none", None),
    ],
)
def test_a_whole_number(text: str, number: str | None) -> None:
    assert answers.whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{3} no, \\boxed{4}.", "4"),
        ("\\boxed{3", None),
        ("\\boxed{}", None),
        ("3", None),
    ],
)
def test_a_boxed_expression(text: str, inside: str | None) -> None:
    assert answers.boxed(text) == inside


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nfirst\n```\n```python\nsecond\n```", "first"),
        ("```\nnot said\n```", None),
        ("```python\nnever closed", None),
        (FINAL.format("```python\none\n```\n```python\ntwo\n```"), "two"),
        (FINAL.format("```\nplain\n```"), "plain"),
        ("<|channel|>analysis<|message|>```py\ndraft\n```", "draft"),
    ],
)
def test_a_program(text: str, program: str | None) -> None:
    assert answers.code(text) == program


@pytest.mark.parametrize(
    ("given_", "truth"),
    [
        ("\\dfrac12", "\\frac{1}{2}"), ("1/2", "\\frac{1}{2}"), ("0.5", "\\frac{1}{2}"), (".5", "0.5"), ("x = 5", "5"),
        ("5\\text{ cm}", "5"), ("12\\%", "12"), ("\\$5", "5"), ("1,000", "1000"), ("5.0", "5"), ("007", "7"),
        ("-\\frac{-1}{3}", "\\frac{1}{3}"),
        ("\\left(1,\\,2\\right)", "(1,2)"), ("(0.5, 3]", "(\\frac{1}{2},3]"), ("2\\sqrt{3}", "\\sqrt{12}"),
        ("2\\frac{1}{2}", "\\frac{5}{2}"),
        ("90^\\circ", "90"), ("\\text{Evelyn}", "Evelyn"), ("\\sqrt2", "\\sqrt{2}"), ("2^{0.5}", "\\sqrt{2}"),
        ("3\\pi", "\\pi*3"),
        ("p - q", "p-q"), ("\\{1, 2\\}", "\\{1,2\\}"),
    ],
)  # fmt: skip
def test_the_same_written_otherwise(given_: str, truth: str) -> None:
    assert same(given_, truth)


@pytest.mark.parametrize(
    ("given_", "truth"),
    [
        ("\\frac{2}{4}", "\\frac{1}{2}"),  # not reduced
        ("\\frac{10}{2}", "5"), ("2^{3}", "8"),  # a whole truth wants a whole answer
        ("(1,2]", "(1,2)"), ("(1,2)", "(2,1)"), ("(1,2,3)", "(1,2)"), ("x+1", "1+x"), ("", "5"), ("5", ""), ("1/0", "2"),
        ("0.3333", "\\frac{1}{3}"),
        ("9^{9^{9^{9}}}", "1.5"),
    ],
)  # fmt: skip
def test_not_the_same(given_: str, truth: str) -> None:
    assert not same(given_, truth)


def test_subsets_are_known_by_a_part_of_their_name() -> None:
    named = {name: rule_for(name) for name in ("gpqa_diamond", "MMLU_Pro", "math500", "aime1983", "livecodebench_v6", "poetry")}
    assert [rule.part if rule else None for rule in named.values()] == ["gpqa", "mmlu", "math", "aime", "livecodebench", None]


@pytest.mark.skipif(not SAMPLES.exists(), reason="shared sample data is not here")
def test_the_references_own_answers_are_found_in_its_outputs() -> None:
    for row in map(json.loads, SAMPLES.read_text().splitlines()):
        rule = rule_for(row["dataset"])
        assert rule is not None
        found = rule.find(row["ref_output"])
        assert found == str(row["ref_extracted_answer"]).strip()
        assert rule.fits is None or rule.fits(found, str(row["ground_truth"]))


_PIECES = st.sampled_from(
    ["Answer:", "\\boxed{", "}", "{", "\\frac",
     "\\sqrt", "<|channel|>final<|message|>", "<|return|>", "```python\n", "```", "**", "A",
     "(", ")", ",", "^", "-", "/", "1", "22", " ", "\n", "\\text{", "[", "]", "\\pi", "."]
)  # fmt: skip
_TEXTS = st.one_of(st.text(max_size=80), st.lists(_PIECES, max_size=40).map("".join))


@settings(max_examples=150, deadline=None)
@given(_TEXTS, st.text(max_size=20))
def test_any_text_gives_an_answer_or_none(text: str, truth: str) -> None:
    for rule in RULES:
        found = rule.find(text)
        assert found is None or isinstance(found, str)
        if found is not None and rule.fits is not None:
            assert rule.fits(found, truth) in (True, False)


@settings(max_examples=150, deadline=None)
@given(_TEXTS)
def test_whatever_is_no_number_has_no_value_and_equals_itself(text: str) -> None:
    value_of(text)
    assert same(text, "5") in (True, False)


@settings(max_examples=60, deadline=None)
@given(st.integers(-(10**6), 10**6), st.integers(1, 999))
def test_numbers_equal_themselves_in_every_spelling(over: int, under: int) -> None:
    assert same(f"{over:,}", str(over))
    assert same(f"\\frac{{{over}}}{{{under}}}", f"{over}/{under}")
    assert same(f"({over}, {under})", f"\\left({over},{under}\\right)")


@pytest.mark.parametrize(
    "text", ["Answer:" + " " * 60_000, "\\boxed{" * 20_000, "**a" * 20_000, "```" * 20_000, "-" * 60_000, "Answer: " * 10_000]
)
def test_a_model_that_repeats_itself_costs_no_time(text: str) -> None:
    started_s = time.process_time()
    for rule in RULES:
        rule.find(text)
    same(text, "5")
    assert time.process_time() - started_s < 2.0
