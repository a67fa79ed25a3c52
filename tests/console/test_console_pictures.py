"""Screens still look as in docs/pictures. After a change that is meant, `make pictures` draws them anew, and a person looks.

Compared as SVG, so that a colour or a style that changed is noticed as well; what differs is told as lines of text, and
the new picture is left in build/pictures.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from pictures import FOLDER, KEYS, OWN_WISHES, SHOTS, Shot, draw, keys_page, still

NEW = Path(__file__).parents[2] / "build" / "pictures"

#: About fifteen: each kind of screen in both sizes, two themes.
COMPARED = [
    (shot, size, file)
    for shot in SHOTS
    for size, file in shot.files()
    if size != (160, 48) and (shot.name not in ("command", "rate", "barrier") or size == (120, 36))
]


@pytest.fixture(autouse=True)
def same_time_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import time

    monkeypatch.setenv("TZ", "UTC")
    for name in OWN_WISHES:
        monkeypatch.delenv(name, raising=False)
    still()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("shot", "size", "file"), COMPARED, ids=[file for _, _, file in COMPARED])
async def test_it_looks_as_in_its_picture(shot: Shot, size: tuple[int, int], file: str) -> None:
    svg, text = await draw(shot, size)
    kept = (FOLDER / file).read_text(encoding="utf-8") if (FOLDER / file).exists() else ""
    if svg == kept:
        return
    NEW.mkdir(parents=True, exist_ok=True)
    (NEW / file).write_text(svg, encoding="utf-8")
    changed = "\n".join(difflib.unified_diff(lines_of(kept), lines_of(svg), "docs/pictures", "now", lineterm="", n=0))
    pytest.fail(f"{file} is not what is drawn now (build/pictures/{file}; `make pictures` if it is meant):\n{changed or text}")


def lines_of(svg: str) -> list[str]:
    """The words of a picture, a line each."""
    rows: dict[str, list[str]] = {}
    for y, words in re.findall(r'<text class="[^"]*" x="[^"]*" y="([^"]*)"[^>]*>([^<]*)</text>', svg):
        rows.setdefault(y, []).append(unescape(words).replace("\xa0", " "))
    return ["".join(row).rstrip() for row in rows.values()]


def test_the_page_of_keys_is_that_of_the_registry() -> None:
    assert KEYS.read_text(encoding="utf-8") == keys_page(), "`make pictures` writes docs/keys.md anew"
