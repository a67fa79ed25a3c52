"""Which kernel this is: a hash of its source, kept beside every measured table. Needs neither triton nor torch."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

KERNEL_NAME = "paceline-mxfp4-a16w4"
KERNEL_SOURCE = Path(__file__).parent / "moe" / "kernel.py"


@lru_cache(maxsize=1)
def kernel_hash() -> str:
    """The first 12 hex digits of the SHA-256 of kernel.py; line ends do not count, as git may change them."""
    return hashlib.sha256(KERNEL_SOURCE.read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:12]
