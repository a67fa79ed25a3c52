"""`write_report`: from runs to files. Everything is written aside and put in place at the end: there is no half report."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.analysis.comparing import MOST, CannotCompare, Comparison, compare
from harness.analysis.scaling import scaling
from harness.records.aside import folder_aside
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.report.build import data, document, part_ids, scope_of
from harness.report.data import as_csv, as_parquet
from harness.report.document import Chart, Document
from harness.report.drawing import file_png, file_svg
from harness.report.errors import ReportRefused
from harness.report.gather import Content, Tell, gather
from harness.report.html import page
from harness.report.markdown import markdown

FORMATS: Final = ("html", "md")
CHARTS: Final = ("svg", "png")
DATA: Final = ("csv", "parquet")
PAGE: Final = "report.html"
TEXT: Final = "report.md"
#: All that a report's folder has: a folder with anything else in it is not replaced.
_OURS: Final = (PAGE, TEXT, "charts", "data")


@dataclass(frozen=True)
class Written:
    folder: Path
    files: list[Path]
    document: Document
    contents: Sequence[Content]
    problems: list[str]


def write_report(
    runs: Sequence[tuple[RunFolder, int | None]],
    out: Path,
    *,
    formats: Collection[str] = ("html",),
    charts: Collection[str] = (),
    tables: Collection[str] = (),
    replace: bool = False,
    tell: Tell = lambda _: None,
) -> Written:
    """`runs`: folders with the number of an attempt (None: the last with samples). Raises ReportRefused,
    NoSuchAttempt, OSError."""
    if not 1 <= len(runs) <= MOST:
        raise ReportRefused(f"a report is of 1 to {MOST} runs; {len(runs)} given")
    _check_place(out, replace)
    with contextlib.ExitStack() as stack:
        try:  # first, so that a full or closed disk is known at once
            out.parent.mkdir(parents=True, exist_ok=True)
            aside = stack.enter_context(folder_aside(out.parent, ".report-"))
        except OSError as error:
            raise ReportRefused(f"{out}: no report can be written there: {error.strerror}; name another folder") from error
        contents = [gather(folder, attempt, tell) for folder, attempt in runs]
        compared = _compared(contents, tell)
        whole = document(contents, compared, scaling([one.folder for one in contents]) if compared is not None else None)
        pictures = _write_charts(whole, contents, aside, _chart_kinds(formats, charts), tell)
        if "md" in formats:
            (aside / TEXT).write_text(markdown(whole, lambda chart: pictures[chart.name]), encoding="utf-8")
        if "html" in formats:
            (aside / PAGE).write_text(page(whole, lambda part: tell(f"page: {part}")), encoding="utf-8")
        _write_data(contents, aside, tables)
        aside.chmod(0o755)  # it was closed to colleagues
        _put_in_place(aside, out)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    problems = [f"{content.folder.name}: {problem}" for content in contents for problem in content.problems]
    return Written(out, files, whole, contents, problems)


def _chart_kinds(formats: Collection[str], charts: Collection[str]) -> list[str]:
    """Markdown shows pictures from files: it has SVG where nothing else was asked for."""
    return [kind for kind in CHARTS if kind in charts] or (["svg"] if "md" in formats else [])


def _check_place(out: Path, replace: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise ReportRefused(f"{out} is a file; a report is a folder: name another place")
    there = sorted(path.name for path in out.iterdir())
    if there and not replace:
        raise ReportRefused(
            f"{out} is not empty, and nothing is written over; name another folder, or replace an earlier report there"
        )
    foreign = [name for name in there if name not in _OURS]
    if foreign:
        raise ReportRefused(
            f"{out} has files that are no report's ({', '.join(foreign[:3])}), so it is not replaced; name another folder"
        )


def _put_in_place(aside: Path, out: Path) -> None:
    if not out.exists():
        os.rename(aside, out)
        return
    old = out.parent / f".report-old-{secrets.token_hex(6)}"
    try:
        os.rename(out, old)
        os.rename(aside, out)
    finally:  # also where a signal comes in between; what cannot be put back is not taken away
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, out)


def _compared(contents: Sequence[Content], tell: Tell) -> Comparison | None:
    """None of one run."""
    if len(contents) < 2:
        return None
    sides = [(Record(one.folder), one.attempt.number if one.attempt else None) for one in contents]
    try:
        return compare(sides, progress=tell)
    except CannotCompare as error:
        raise ReportRefused(str(error)) from error


def _write_charts(whole: Document, contents: Sequence[Content], aside: Path, kinds: Sequence[str], tell: Tell) -> dict[str, str]:
    """Name → relative path of the first kind."""
    found: dict[str, str] = {}
    if not kinds:
        return found
    footers = {name: scope_of(content, name).footer for content, name in zip(contents, part_ids(contents), strict=True)}
    (aside / "charts").mkdir()
    makers: dict[str, Callable[[Chart, str], str | bytes]] = {"svg": file_svg, "png": file_png}
    for part in whole.parts:
        for chart in part.charts():
            tell(f"chart: {chart.title}")
            footer = footers.get(part.id) or " · ".join([part.subtitle, *part.stamps])
            for kind in kinds:
                path = aside / "charts" / f"{chart.name}.{kind}"
                made = makers[kind](chart, footer)
                path.write_bytes(made.encode() if isinstance(made, str) else made)
            found[chart.name] = f"charts/{chart.name}.{kinds[0]}"
    return found


def _write_data(contents: Sequence[Content], aside: Path, tables: Collection[str]) -> None:
    if not tables:
        return
    for content, name in zip(contents, part_ids(contents), strict=True):
        folder = aside / "data" / name if len(contents) > 1 else aside / "data"
        folder.mkdir(parents=True)
        for table in data(content):
            if "csv" in tables:
                (folder / f"{table.name}.csv").write_text(as_csv(table), encoding="utf-8")
            if "parquet" in tables:
                (folder / f"{table.name}.parquet").write_bytes(as_parquet(table))
