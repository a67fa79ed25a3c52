"""MXFP4 of the reference: every code under every scale, rounding, and the bounds of what can be held."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.reference.moe import relative_error
from kernels.reference.mxfp4 import MAGNITUDES, decode, encode

U8 = npt.NDArray[np.uint8]


def by_bits(nibble: int) -> float:
    """E2M1 from its definition: a sign, two bits of exponent with bias 1, one of mantissa, subnormal at exponent 0."""
    exponent, mantissa = nibble >> 1 & 3, nibble & 1
    magnitude = (1 + mantissa / 2) * 2.0 ** (exponent - 1) if exponent else mantissa / 2
    return -magnitude if nibble & 8 else magnitude


def under_every_scale() -> tuple[U8, U8]:
    """256 blocks of 32 values, a scale each; all 256 bytes stand under each scale, in 16 blocks of 16 bytes."""
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8), (256, 256))
    scales = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None], (256, 16))
    return codes, scales


def test_all_codes_under_all_scales_are_what_their_bits_say() -> None:
    codes, scales = under_every_scale()
    got = decode(codes, scales)
    one_row = np.array([by_bits(nibble) for byte in range(256) for nibble in (byte & 15, byte >> 4)])
    for scale in range(255):
        assert np.array_equal(got[scale], one_row * 2.0 ** (scale - 127)), scale
    assert np.isnan(got[255]).all(), "a NaN scale spares no value of its block, not even zeros"


def test_the_lowest_scale_is_two_to_the_minus_127_and_not_zero() -> None:
    got = decode(np.full(16, 0x72, np.uint8), np.zeros(1, np.uint8))
    assert got[0] == 2.0**-127
    assert got[1] == 6 * 2.0**-127


def test_the_low_nibble_is_the_even_value_and_minus_zero_keeps_its_sign() -> None:
    codes = np.zeros(16, np.uint8)
    codes[0] = 0x8F
    got = decode(codes, np.full(1, 127, np.uint8))
    assert got[0] == -6.0
    assert got[1] == 0.0
    assert np.signbit(got).tolist() == [True, True, *[False] * 30]


@pytest.mark.parametrize(
    ("codes", "scales", "told"),
    [
        (np.zeros((2, 24), np.uint8), np.zeros((2, 1), np.uint8), "multiple of 16"),
        (np.zeros((2, 32), np.uint8), np.zeros((2, 1), np.uint8), r"must be \(2, 2\)"),
        (np.zeros((2, 32), np.uint8), np.zeros((3, 2), np.uint8), r"must be \(2, 2\)"),
        (np.zeros((2, 32), np.int32), np.zeros((2, 2), np.uint8), "codes is int32"),
        (np.zeros((2, 32), np.uint8), np.zeros((2, 2)), "scales is float64"),
        (np.uint8(3), np.zeros(1, np.uint8), "K as its last axis"),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_refused_in_words(codes: U8, scales: U8, told: str) -> None:
    with pytest.raises(KernelInputError, match=told):
        decode(np.asarray(codes), scales)


def test_what_encode_writes_decodes_to_the_same_values_and_codes() -> None:
    codes, scales = under_every_scale()
    finite = decode(codes, scales)[:255]
    again_codes, again_scales = encode(finite)
    again = decode(again_codes, again_scales)
    assert np.array_equal(again, finite)
    assert np.array_equal(np.signbit(again), np.signbit(finite))


def test_ties_go_to_the_even_code_and_beyond_six_is_six() -> None:
    values = np.zeros(32)
    values[:9] = [4.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.9]  # the largest, 7.9, gives the block the scale 1
    got = decode(*encode(values))
    assert got[:9].tolist() == [4.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]
    assert np.array_equal(decode(*encode(-values)), -got)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e30, 1e30), min_size=32, max_size=32))
def test_no_value_is_further_from_its_code_than_from_any_other_code_of_its_block(values: list[float]) -> None:
    wide = np.array(values)
    codes, scales = encode(wide)
    got = decode(codes, scales)
    scale = 2.0 ** (int(scales[0]) - 127)
    choices = np.concatenate([MAGNITUDES, -MAGNITUDES]) * scale
    nearest = np.abs(wide[:, None] - choices).min(axis=1)
    assert (np.abs(wide - got) <= nearest).all()
    if np.abs(wide).max() >= 2.0**-125:  # below, the block's scale is as low as scales go
        assert 4 * scale <= np.abs(wide).max() < 8 * scale


def test_a_block_of_zeros_stays_zeros_with_their_signs_and_numbers_below_all_scales_become_zero() -> None:
    zeros = np.array([0.0, -0.0] * 16)
    assert np.array_equal(np.signbit(decode(*encode(zeros))), np.signbit(zeros))
    assert not decode(*encode(np.full(32, 1e-300))).any()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (np.full(32, np.nan), "finite"),
        (np.full(32, -np.inf), "finite"),
        (np.zeros(33), "multiple of 32"),
        (np.float64(1.0), "multiple of 32"),
        (np.full(32, 1e40), "beyond the largest"),
    ],
)
def test_what_has_no_code_is_refused(values: npt.NDArray[np.float64], told: str) -> None:
    with pytest.raises(KernelInputError, match=told):
        encode(values)


def test_normal_numbers_keep_an_eighth_of_error_and_layers_of_no_rows_are_fine() -> None:
    values = np.random.default_rng(0).standard_normal((3, 5, 64))
    codes, scales = encode(values)
    assert codes.shape == (3, 5, 32)
    assert scales.shape == (3, 5, 2)
    assert 0.05 < relative_error(decode(codes, scales), values) < 0.15
    assert decode(*encode(np.zeros((0, 64)))).shape == (0, 64)
