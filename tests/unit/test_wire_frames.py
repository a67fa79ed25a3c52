"""Frames: whatever the bytes, a codec answers with a message of its family, VersionMismatch or WireError."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.wire import attempt, control, data
from harness.wire.frames import PROTOCOL_VERSION, Codec, VersionMismatch, WireError, encode

CODECS: dict[str, Codec[Any]] = {
    "control to head": control.TO_HEAD,
    "control to worker": control.TO_WORKER,
    "control to replica": control.TO_REPLICA,
    "control to console": control.TO_CONSOLE,
    "data to driver": data.TO_DRIVER,
    "data to replica": data.TO_REPLICA,
    "attempt to driver": attempt.TO_DRIVER,
    "attempt to supervisor": attempt.TO_SUPERVISOR,
}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())

fast = settings(max_examples=30, deadline=None)  # a shared core may stall for longer than any deadline

small_ints = st.integers(-(2**63), 2**64 - 1)
counts = st.integers(0, 2**31 - 1)
words = st.text(max_size=20)
numbers = st.floats(allow_nan=False)
plain_values = st.recursive(
    st.none() | st.booleans() | small_ints | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


def readable(codec: Codec[Any], frame: bytes) -> msgspec.Struct | None:
    """The message, or None when it was refused in words."""
    try:
        message = codec.decode(frame)
    except WireError as error:
        refusal = error
    else:
        assert isinstance(message, msgspec.Struct)
        return message
    assert refusal.reason == str(refusal) != ""
    return None


@every_codec
@fast
@given(frame=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused_in_words(codec: Codec[Any], frame: bytes) -> None:
    readable(codec, frame)


@every_codec
@fast
@given(body=st.binary(max_size=200))
def test_any_bytes_behind_the_right_version_are_a_message_or_refused_in_words(codec: Codec[Any], body: bytes) -> None:
    readable(codec, bytes([PROTOCOL_VERSION]) + body)


@every_codec
@fast
@given(body=plain_values)
def test_any_messagepack_behind_the_right_version_is_a_message_or_refused_in_words(codec: Codec[Any], body: Any) -> None:
    readable(codec, bytes([PROTOCOL_VERSION]) + msgspec.msgpack.encode(body))


@fast
@given(
    cut=st.integers(1, 60),
    args=st.dictionaries(words, plain_values, max_size=3),
    request_id=words,
)
def test_a_message_cut_short_is_refused_and_whole_it_comes_back_equal(cut: int, args: dict[str, Any], request_id: str) -> None:
    sent = control.Command(request_id, "ann@desk", "drain", args, "looks slow")
    frame = encode(sent)
    assert control.TO_HEAD.decode(frame) == sent
    with pytest.raises(WireError):
        control.TO_HEAD.decode(frame[:-cut])


@fast
@given(place=st.integers(0, 10_000), value=st.integers(0, 255), facts=st.dictionaries(words, plain_values, max_size=3))
def test_one_changed_byte_is_another_message_or_refused_in_words(place: int, value: int, facts: dict[str, Any]) -> None:
    frame = bytearray(
        encode(control.Register("node000/gpu0", "a1", "both", "m", "hash", "synthetic", True, "w000", 7, "h", facts=facts))
    )
    frame[place % len(frame)] = value
    readable(control.TO_HEAD, bytes(frame))


@fast
@given(epoch=counts, seq=counts, attempt_try=counts, durations=st.tuples(counts, counts, counts))
def test_headers_of_the_data_path_come_back_equal(
    epoch: int, seq: int, attempt_try: int, durations: tuple[int, int, int]
) -> None:
    queue, prefill, decode = durations
    for header in (
        data.First(epoch, seq, attempt_try, queue, prefill),
        data.Complete(epoch, seq, attempt_try, queue, prefill, decode),
        data.Failed(epoch, seq, attempt_try, "engine stopped"),
        data.Hello(epoch, "node000/gpu0", "a1"),
        data.Pong(epoch, "node000/gpu0", "a1"),
    ):
        assert data.TO_DRIVER.decode(encode(header)) == header
    query = data.Query(epoch, seq, attempt_try, "node000/gpu0", 1024, 0, 3)
    assert data.TO_REPLICA.decode(encode(query)) == query


@fast
@given(version=st.integers(0, 255).filter(lambda version: version != PROTOCOL_VERSION), body=st.binary(max_size=20))
def test_another_protocol_version_is_named_whatever_follows_it(version: int, body: bytes) -> None:
    with pytest.raises(VersionMismatch, match=f"version {version} .*speaks version {PROTOCOL_VERSION}") as caught:
        data.TO_DRIVER.decode(bytes([version]) + body)
    assert caught.value.got == version


def test_an_empty_frame_is_a_version_mismatch_without_a_version() -> None:
    with pytest.raises(VersionMismatch, match="empty message") as caught:
        data.TO_DRIVER.decode(b"")
    assert caught.value.got is None


@pytest.mark.parametrize(
    ("codec", "stranger"),
    [
        (data.TO_DRIVER, data.Ping(1, "node000/gpu0")),
        (data.TO_REPLICA, data.Complete(1, 2, 1, 0, 0, 0)),
        (control.TO_HEAD, control.BeatAck(1)),
        (control.TO_CONSOLE, control.GetState("r")),
        (attempt.TO_DRIVER, attempt.InPool("node000/gpu0", "a1")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_that_travels_the_other_way_is_refused(codec: Codec[Any], stranger: msgspec.Struct) -> None:
    with pytest.raises(WireError):
        codec.decode(encode(stranger))


def test_a_field_of_a_later_version_is_ignored_by_name() -> None:
    class Later(control.BeatAck, tag="BeatAck"):
        colour: str = "none"

    assert control.TO_WORKER.decode(encode(Later(3, "blue"))) == control.BeatAck(3)


def test_headers_of_the_data_path_stay_small() -> None:
    header = encode(data.Complete(3, 1_000_000, 1, 20_000, 150_000, 30_000_000))
    assert len(header) < 30
