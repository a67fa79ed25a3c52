"""The same report as Markdown: tables as tables, charts as pictures beside the file. Names and log lines stay plain text."""

from __future__ import annotations

import re
from collections.abc import Callable

from harness.report.document import Block, Chart, Document, Folded, Heading, Part, Remarks, Table, Text, visible

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!])")
_STARTS = re.compile(r"^(?:(\d+)([.)])(?=\s|$)|([-+=])(?=[-+=\s]|$))")  # of a list, a rule, a heading by its underline
_WORDS = {"good": "Good", "info": "Note", "warn": "Look at", "bad": "Broken"}


def markdown(document: Document, picture: Callable[[Chart], str]) -> str:
    """`picture`: the relative path of a chart's file."""
    lines: list[str] = []
    for part in document.parts:
        lines += _part(part, picture)
    return "\n".join([*lines, "---", "", _text(document.footer), ""])


def _part(part: Part, picture: Callable[[Chart], str]) -> list[str]:
    verdict = f"{part.verdict}: " if part.verdict else ""
    lines = [f"# {_text(verdict + part.title)}", "", _text(part.subtitle), ""]
    for stamp in part.stamps:
        lines += [f"> **{_text(stamp)}**", ""]
    if part.tiles:
        for tile in part.tiles:
            below = f" ({tile.below})" if tile.below else ""
            lines.append(f"- {_text(tile.label)}: **{_text(tile.value)}** {_text(tile.unit + below)}")
        lines.append("")
    for section in part.sections:
        lines += [f"## {_text(section.title)}", ""]
        for block in section.blocks:
            lines += _block(block, picture)
    return lines


def _block(block: Block, picture: Callable[[Chart], str]) -> list[str]:
    match block:
        case Text():
            return [_text(block.text), ""]
        case Heading():
            return [f"### {_text(block.text)}", ""]
        case Remarks():
            return [*(f"- **{_WORDS[level]}:** {_text(text)}" for level, text in block.lines), ""]
        case Table():
            return _table(block)
        case Chart():
            return [f"![{_text(block.alt)}]({picture(block)})", "", f"**{_text(block.title)}.** {_text(block.caption)}", ""]
        case Folded():
            return [f"### {_text(block.title)}", "", *(line for inner in block.blocks for line in _block(inner, picture))]


def _table(table: Table) -> list[str]:
    head = " | ".join(_cell(column.title) for column in table.columns)
    sides = " | ".join("---:" if column.right else "---" for column in table.columns)
    rows = [
        " | ".join(_cell(column.text(value)) for column, value in zip(table.columns, row, strict=True)) for row in table.rows
    ]  # fmt: skip
    lines = [f"| {line} |" for line in (head, sides, *rows)]
    return [*lines, "", *([_text(table.caption), ""] if table.caption else [])]


def _text(text: object) -> str:
    """One line that Markdown shows as it is: no markup, no HTML, no links made of brackets."""
    return _STARTS.sub(lambda found: f"{found[1] or ''}\\{found[2] or found[3]}", _cell(text))


def _cell(text: object) -> str:
    flat = " ".join(visible(text).split())
    plain = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)
