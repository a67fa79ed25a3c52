"""Numbers as people read them. Pure; every text has a bounded width in cells, because columns depend on it."""

from __future__ import annotations

import math
import re
from typing import Final

from rich.cells import cell_len, set_cell_size

BLOCKS: Final = "▁▂▃▄▅▆▇█"
_PARTS: Final = " ▏▎▍▌▋▊▉"
UNKNOWN: Final = "–"


def count(value: float) -> str:
    """61204 → `61,204`, as the command line writes it."""
    return UNKNOWN if math.isnan(value) else f"{value:,.0f}"


def plural(n: int, thing: str) -> str:
    """`1 sample`, `2,048 samples`."""
    return f"{n:,d} {thing}" if n == 1 else f"{n:,d} {thing}s"


def big(value: float) -> str:
    """5612000 → `5.61 M`."""
    if math.isnan(value):
        return UNKNOWN
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == " k" else limit)
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def rate(qps: float) -> str:
    if math.isnan(qps):
        return UNKNOWN
    return count(qps) if qps >= 1000 or qps == int(qps) else f"{qps:.1f}"


def millis(value_ms: float) -> str:
    """2690 → `2.69 s`, 36.5 → `36.5 ms`: never wider than 7."""
    if math.isnan(value_ms):
        return UNKNOWN
    if value_ms >= 100_000:
        return f"{value_ms / 1000:.0f} s"
    if value_ms >= 10_000:
        return f"{value_ms / 1000:.1f} s"
    if value_ms >= 1000:
        return f"{value_ms / 1000:.2f} s"
    return f"{value_ms:.0f} ms" if value_ms >= 100 else f"{value_ms:.1f} ms"


def percent(fraction: float) -> str:
    return UNKNOWN if math.isnan(fraction) else f"{fraction * 100:.0f}%"


def signed(value: float, digits: int = 1) -> str:
    """`+3.5`, `-0.2`; what rounds to nothing has no sign: `0.0`."""
    if math.isnan(value):
        return UNKNOWN
    rounded = round(value, digits)
    return f"{rounded:+.{digits}f}" if rounded else f"{0.0:.{digits}f}"


def signed_percent(fraction: float) -> str:
    return UNKNOWN if math.isnan(fraction) else f"{signed(fraction * 100, 0)}%"


def age(seconds: float) -> str:
    """`9s`, `12m`, `3h`, `2d`: at most 4 wide."""
    if math.isnan(seconds) or seconds < 0:
        return UNKNOWN
    for limit, per, unit in ((100, 1, "s"), (5940, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / per:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def clock(seconds: float) -> str:
    """462 → `07:42`; with hours from 1 h on."""
    if math.isnan(seconds):
        return "--:--"
    whole = int(max(0.0, seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60:02d}:{rest % 60:02d}"


def size(octets: float) -> str:
    """4096 → `4.1 kB`, 67000000 → `67 MB`."""
    if math.isnan(octets):
        return UNKNOWN
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if octets >= limit:
            scaled = octets / limit
            return f"{scaled:.1f} {unit}" if scaled < 10 else f"{scaled:.0f} {unit}"
    return f"{octets:.0f} B"


def bar(fraction: float, width: int) -> str:
    """Filled to an eighth of a character; empty when the fraction is unknown."""
    if math.isnan(fraction) or width <= 0:
        return " " * max(0, width)
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_PARTS[part] if part else "")).ljust(width)


def gauge(fraction: float, width: int) -> tuple[str, str]:
    """Filled part and trough of a thin bar: lines of them below one another stay apart. Both empty when unknown."""
    if math.isnan(fraction) or width <= 0:
        return "", " " * max(0, width)
    full = round(min(max(fraction, 0.0), 1.0) * width)
    full = max(full, 1) if fraction > 0 else full
    return "━" * full, "─" * (width - full)


def middle(text: str, width: int) -> str:
    """Long names lose their middle: both ends tell runs apart."""
    if cell_len(text) <= width:
        return text
    if width < 4:
        return set_cell_size(text, max(0, width))
    head = (width - 1) // 2
    return set_cell_size(text, head) + "…" + set_cell_size(text[::-1], width - 1 - head)[::-1]


_SLOT: Final = re.compile(r"([a-z])[a-z_-]*0*(\d+)/([a-z])[a-z_-]*0*(\d+)")


def short_slot(slot: str) -> str:
    """`node005/gpu3` → `n5/g3`; a name of another form stays, its middle shortened."""
    found = _SLOT.fullmatch(slot)
    return f"{found[1]}{found[2]}/{found[3]}{found[4]}" if found else middle(slot, 12)


def clip(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def pad(text: str, width: int) -> str:
    """`ljust` in cells: names may be of wide letters."""
    return text + " " * max(0, width - cell_len(text))


def clause(text: str, width: int) -> str:
    """A sentence that is too long ends before a bracket, after a clause or at least after a word, never inside one."""
    if len(text) <= width:
        return text
    cut = text[: max(0, width - 1)]
    bracket = cut.rfind("(")
    if bracket > cut.rfind(")"):
        return cut[:bracket].rstrip(" ,;:") + "…"
    word = cut if text[len(cut) : len(cut) + 1] in ("", " ") else cut.rpartition(" ")[0]
    return (word or cut).rstrip(" ,;:") + "…"
