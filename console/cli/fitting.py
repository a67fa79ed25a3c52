"""A line that fits: parts, each with shorter ways to say it, shortened in a stated order until the line is narrow enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: From the fullest to the shortest; "" leaves the part out. Order in the line = order in the mapping.
Parts = Mapping[str, tuple[str, ...]]


def fitted(parts: Parts, shorten: Iterable[str], width: int | None, gap: str = "  ") -> str:
    """Each name in `shorten` takes one step to its next shorter form, until it fits. What still does not is cut off."""
    step = dict.fromkeys(parts, 0)

    def line() -> str:
        return gap.join(form for name, forms in parts.items() if (form := forms[step[name]]))

    if width is None:
        return line()
    for name in shorten:
        if len(line()) <= width:
            break
        if name in parts and step[name] + 1 < len(parts[name]):
            step[name] += 1
    return line()[:width]
