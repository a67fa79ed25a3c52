"""One GPU, several spellings of its UUID: what to compare instead.

ROCm's runtime says GPU-724c3b58bf67050e (16 hex digits of the serial number, as a replica registers them); AMD's SMI library
and its exporters spread the same digits over 72ff740f-0000-1000-804c-3b58bf67050e, with device id 740f and a byte (ff here)
that is the partition in newer versions. NVIDIA's drivers and exporters agree on one spelling.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

#: First serial byte, partition, device id, version, second serial byte, the other six.
_AMD_SMI: Final = re.compile(r"([0-9a-f]{2})[0-9a-f]{6}-0000-[01]000-80([0-9a-f]{2})-([0-9a-f]{12})")


@lru_cache(maxsize=65_536)
def uuid_key(uuid: str) -> str:
    """Equal for spellings of one GPU; "" for none."""
    plain = uuid.strip().lower().removeprefix("gpu-")
    amd = _AMD_SMI.fullmatch(plain)
    return "".join(amd.groups()) if amd else plain
