"""Reading event streams and HTTP chunks: whatever the pieces, the same answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_kit import DONE, event, token, usage

from harness.engines.openai.park import unchunked
from harness.engines.openai.stream import FirstFragment, StreamError, read_answer

WHOLE = token(11, 12, text="aé\U0001f680") + token(13, finish="stop") + usage(3) + DONE


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


@given(st.lists(st.integers(1, len(WHOLE)), max_size=20), st.sampled_from([b"\n", b"\r\n"]))
def test_the_first_fragment_is_found_however_the_stream_is_cut(cuts: list[int], line_end: bytes) -> None:
    raw = (b": hi\n\nevent: x\n" + WHOLE).replace(b"\n", line_end)
    finder, at, found = FirstFragment(), 0, None
    for cut in [*sorted(cuts), len(raw) + 1]:
        found = found or finder.feed(raw[at:cut])
        at = cut
    assert found is not None
    assert found.token_ids == [11, 12]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("between", [b"", b": keep-alive\n\n", b"id: 7\nretry: 100\n\n"])
def test_an_answer_is_read_the_same_with_other_line_ends_and_fields(line_end: bytes, between: bytes) -> None:
    raw = (token(11, 12) + between + token(13, finish="stop") + usage(3) + between + DONE).replace(b"\n", line_end)
    answer = read_answer(raw)
    assert (answer.ids, answer.text, answer.usage_tokens) == ([11, 12, 13], "xx", 3)


def test_what_follows_done_does_not_count() -> None:
    assert read_answer(token(11) + DONE + token(12)).ids == [11]


def test_an_event_over_several_data_lines_is_one() -> None:
    raw = b'data: {"choices":\ndata: [{"text": "a", "token_ids": [7], "finish_reason": "stop"}]}\n\n'
    assert read_answer(raw).ids == [7]


def test_reasoning_is_text_too() -> None:
    raw = event({"choices": [{"delta": {"reasoning_content": "think"}}]}) + event({"choices": [{"delta": {"content": "say"}}]})
    assert read_answer(raw + DONE).text == "thinksay"


def test_an_end_without_done_counts_after_a_finish_reason() -> None:
    assert read_answer(token(11, finish="stop")).ids == [11]


@pytest.mark.parametrize("raw", [b"", token(11), token(11) + b"data: {", b"nonsense"])
def test_an_early_end_never_counts(raw: bytes) -> None:
    with pytest.raises(StreamError, match="ended early"):
        read_answer(raw)


@pytest.mark.parametrize(
    "bad",
    [
        b'data: {"error": {"message": "boom"}}\n\n',
        b'data: {"error": "boom"}\n\n',
        b'data: {"object": "error", "message": "boom"}\n\n',
        b'event: error\ndata: {"error": {"message": "boom"}}\n\n',
    ],
)
def test_every_form_of_error_event_is_one(bad: bytes) -> None:
    for raw in (token(11) + bad + DONE, bad, token(11, finish="stop") + bad):
        with pytest.raises(StreamError, match=r"error event.*boom"):
            read_answer(raw)


def test_an_event_of_other_types_is_told_with_its_beginning() -> None:
    with pytest.raises(StreamError, match="cannot be read"):
        read_answer(b'data: {"choices": 7}\n\n' + DONE)


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_chunks_are_taken_apart_as_they_were_put_together(parts: list[bytes]) -> None:
    assert unchunked(chunked(parts)) == b"".join(parts)


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=5), st.integers(1, 400))
def test_chunks_that_are_not_whole_are_left_to_the_library(parts: list[bytes], cut: int) -> None:
    raw = chunked(parts)
    if cut < len(raw):
        assert unchunked(raw[:-cut]) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"5;name=value\r\nabcde\r\n0\r\n\r\n",  # an extension
        b"5\r\nabcde\r\n0\r\nTrailer: x\r\n\r\n",
        b"-5\r\nabcde\r\n0\r\n\r\n",
        b"cde\r\n5\r\nabcde\r\n0\r\n\r\n",  # began in the middle of a chunk
        b"5\r\nabcdefg\r\n0\r\n\r\n",
    ],
)
def test_chunks_of_another_form_are_left_to_the_library(raw: bytes) -> None:
    assert unchunked(raw) is None
