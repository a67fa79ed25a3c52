"""MXFP4 of the OCP Microscaling formats: E2M1 values, two a byte, with one E8M0 scale for each 32 of them along K.

The low nibble of a byte is the even k. Bit 3 of a nibble is the sign, so that 8 is -0.0, which stays what it is. Scale code s
stands for 2**(s - 127): 0 for 2**-127 and 254 for 2**127; 255 for NaN, which makes its whole block NaN, zeros too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.errors import KernelInputError
from kernels.shapes import MXFP4_BLOCK

U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]

MAGNITUDES: F64 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
#: Of the sixteen nibbles.
E2M1: F64 = np.concatenate([MAGNITUDES, -MAGNITUDES])
#: Of the 256 scale codes.
E8M0: F64 = np.append(np.ldexp(1.0, np.arange(-127, 128)), np.nan)

_PAIRS: F64 = np.stack([np.tile(E2M1, 16), np.repeat(E2M1, 16)], axis=1)  # byte → its even and its odd value
_BETWEEN: F64 = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2
_ZERO_BLOCK = 127  # scale code of a block of zeros, which has no largest exponent
_LARGEST = float(MAGNITUDES[-1] * E8M0[254])


def decode(codes: U8, scales: U8) -> F64:
    """Codes [..., K/2] and scales [..., K/32] → values [..., K]; exact, since every value is a float64."""
    for name, array in (("codes", codes), ("scales", scales)):
        if array.dtype != np.uint8 or array.ndim < 1:
            raise KernelInputError(f"{name} is {array.dtype} of shape {array.shape}; must be uint8 with K as its last axis")
    packed = codes.shape[-1]
    if packed % (MXFP4_BLOCK // 2):
        raise KernelInputError(f"codes {codes.shape}: its last axis, K/2, must be a multiple of {MXFP4_BLOCK // 2}")
    right = (*codes.shape[:-1], 2 * packed // MXFP4_BLOCK)
    if scales.shape != right:
        raise KernelInputError(f"scales {scales.shape}: must be {right} beside codes {codes.shape}: one for {MXFP4_BLOCK} values")
    values = _PAIRS[codes].reshape(*right, MXFP4_BLOCK)
    values *= E8M0[scales][..., None]
    return values.reshape(*codes.shape[:-1], 2 * packed)


def encode(values: npt.NDArray[Any]) -> tuple[U8, U8]:
    """Finite values [..., K] → (codes, scales), for data of tests.

    A block's scale is 2**(floor(log2(largest magnitude)) - 2), held to what E8M0 has, so that its largest value meets E2M1's
    largest exponent. Values are rounded to the nearest, ties to the even code; what would round beyond 6 becomes 6.
    """
    wide = np.asarray(values, np.float64)
    if wide.ndim < 1 or wide.shape[-1] % MXFP4_BLOCK:
        raise KernelInputError(f"values {wide.shape}: the last axis, K, must be a multiple of {MXFP4_BLOCK}")
    if not np.isfinite(wide).all():
        raise KernelInputError("values: NaN and infinity have no code in MXFP4; all must be finite")
    blocks = wide.reshape(*wide.shape[:-1], wide.shape[-1] // MXFP4_BLOCK, MXFP4_BLOCK)
    magnitudes = np.abs(blocks)
    largest = magnitudes.max(axis=-1)
    if largest.size and largest.max() > _LARGEST:
        raise KernelInputError(f"values: {largest.max():g} is beyond the largest that MXFP4 has, {_LARGEST:g}")
    exponents = np.clip(np.frexp(largest)[1] - 3, -127, 127)  # frexp's mantissa is in [1/2, 1)
    scaled = np.ldexp(magnitudes, -exponents[..., None])
    below, above = np.searchsorted(_BETWEEN, scaled, "left"), np.searchsorted(_BETWEEN, scaled, "right")  # differ in a tie
    nibbles = np.where(below % 2 == 0, below, above) | np.signbit(blocks) << 3
    nibbles = nibbles.astype(np.uint8).reshape(*wide.shape[:-1], wide.shape[-1] // 2, 2)
    scales = np.where(largest == 0, _ZERO_BLOCK, exponents + 127).astype(np.uint8)
    return nibbles[..., 0] | nibbles[..., 1] << 4, scales
