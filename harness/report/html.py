"""The page: one file that needs no other, asks nothing of any network, and reads without its script.

All text goes through `html.escape`; the only markup is written here and by the drawing of charts. The policy in its head
forbids every request and every script but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

from harness.report.document import (
    Block,
    Cell,
    Chart,
    Column,
    Document,
    Folded,
    Heading,
    Level,
    Part,
    Remarks,
    Section,
    Table,
    Text,
    Tile,
    visible,
)  # fmt: skip
from harness.report.drawing import page_svg
from harness.report.palette import DARK, LIGHT, css

_SORTABLE_FROM: Final = 4  # rows
_WIDE: Final = 10  # columns: printed in smaller letters
_LONG: Final = 36  # characters: a cell that may not become a narrow pillar
_WORDS: Final[dict[Level, str]] = {"good": "good", "info": "note", "warn": "look at", "bad": "broken"}
_VERDICTS: Final = {"VALID": "good", "EXPLORATION": "", "INVALID": "bad", "CRASHED": "bad"}


def page(document: Document, tell: Callable[[str], None] = lambda _: None) -> str:
    body = "\n".join(_part(part, tell) for part in document.parts)
    script = _file("page.js")
    colours = (
        f":root {{ color-scheme: light; {css(LIGHT)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {css(DARK)} }} }}\n"
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{_text(document.title)}</title>",
            f"<style>\n{colours}{_file('page.css')}</style>",
            "</head>",
            "<body>",
            f"<header>{_contents(document)}</header>",
            f"<main>\n{body}\n</main>",
            f"<footer>{_text(document.footer)}</footer>",
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{seal}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _text(text: object) -> str:
    return escape(visible(text))


def _contents(document: Document) -> str:
    """Of one part its sections; of several the parts, which list their own."""
    if len(document.parts) == 1:
        return ""
    links = "".join(f'<li><a href="#{part.id}">{_text(part.title)}</a></li>' for part in document.parts)
    return f'<nav aria-label="Parts"><ul>{links}</ul></nav>'


def _part(part: Part, tell: Callable[[str], None]) -> str:
    verdict = f'<span class="verdict {_VERDICTS.get(part.verdict, "warn")}">{_text(part.verdict)}</span>' if part.verdict else ""
    links = "".join(f'<li><a href="#{_anchor(part, section)}">{_text(section.title)}</a></li>' for section in part.sections)
    lines = [
        f'<article class="part" id="{part.id}">',
        f"<h1>{verdict}{_text(part.title)}</h1>",
        f'<p class="subtitle">{_text(part.subtitle)}</p>',
        *(f'<p class="stamp" role="note">{_text(stamp)}</p>' for stamp in part.stamps),
    ]
    if part.tiles:
        lines.append(f'<ul class="tiles">{"".join(map(_tile, part.tiles))}</ul>')
    lines.append(f'<nav aria-label="Sections of {_text(part.title)}"><ul>{links}</ul></nav>')
    for section in part.sections:
        tell(f"{part.title}: {section.title}")
        lines += [f'<section aria-labelledby="{_anchor(part, section)}">',
                  f'<h2 id="{_anchor(part, section)}">{_text(section.title)}</h2>',
                  *map(_block, section.blocks), "</section>"]  # fmt: skip
    return "\n".join([*lines, "</article>"])


def _anchor(part: Part, section: Section) -> str:
    return f"{part.id}-{section.id}"


def _tile(tile: Tile) -> str:
    below = f'<div class="below {tile.level or ""}">{_text(tile.below)}</div>' if tile.below else ""
    return (
        f'<li><div class="label">{_text(tile.label)}</div>'
        f'<div class="value">{_text(tile.value)} <small>{_text(tile.unit)}</small></div>{below}</li>'
    )


def _block(block: Block) -> str:
    match block:
        case Text():
            return f"<p>{_text(block.text)}</p>"
        case Heading():
            return f"<h3>{_text(block.text)}</h3>"
        case Remarks():
            lines = "".join(f'<li><b class="{level}">{_WORDS[level]}</b>{_text(text)}</li>' for level, text in block.lines)
            return f'<ul class="remarks">{lines}</ul>'
        case Table():
            return _table(block)
        case Chart():
            return _figure(block)
        case Folded():
            return f"<details><summary>{_text(block.title)}</summary>{''.join(map(_block, block.blocks))}</details>"


def _scrolls(name: str) -> str:
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{_text(name)}">'


def _figure(chart: Chart) -> str:
    return (
        f'<figure id="{chart.name}">{_scrolls(chart.title)}{page_svg(chart)}</div>\n'
        f"<figcaption><b>{_text(chart.title)}.</b> {_text(chart.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    sides = [' class="n"' if column.right else "" for column in table.columns]
    head = "".join(f'<th scope="col"{side}>{_text(column.title)}</th>' for column, side in zip(table.columns, sides, strict=True))
    rows = []
    levels: Sequence[Level | None] = table.levels or [None] * len(table.rows)
    for row, level in zip(table.rows, levels, strict=True):
        cells = "".join(_cell(column, value) for column, value in zip(table.columns, row, strict=True))
        rows.append(f'<tr class="{level}">{cells}</tr>' if level else f"<tr>{cells}</tr>")
    kinds = [*(["sorts"] if len(rows) >= _SORTABLE_FROM else []), *(["wide"] if len(table.columns) > _WIDE else [])]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    name = table.caption or ", ".join(column.title for column in table.columns[:3])
    caption = f"<figcaption>{_text(table.caption)}</figcaption>" if table.caption else ""
    body = "\n".join(rows)
    inner = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<figure>{_scrolls(name)}{inner}</div>{caption}</figure>"


def _cell(column: Column, value: Cell) -> str:
    text = column.text(value)
    kind = ' class="n"' if column.right else ' class="t"' if len(text) > _LONG else ""
    return f"<td{kind}>{_text(text)}</td>"
