"""`paceline report`: runs as one page that can be sent, with charts and data beside it where asked for."""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from console.cli.errors import OK, BadInput
from console.cli.found import any_run, attempt_of
from console.cli.output import note, plural, say, say_json
from console.cli.waiting import ended_in_order

if TYPE_CHECKING:
    from harness.records.layout import RunFolder
    from harness.report.write import Written

_PATIENCE_S: Final = 1.0  # what takes longer says how far it is


def report(
    *runs: str,
    out: Annotated[str | None, Parameter(help="Folder to write (report-RUN here)")] = None,
    format: Annotated[str, Parameter(help="html, md or both: html,md (html)")] = "html",
    charts: Annotated[str, Parameter(help="The charts as files too: svg, png or svg,png")] = "",
    data: Annotated[str, Parameter(help="The tables as files too: csv, parquet or csv,parquet")] = "",
    replace: Annotated[bool, Parameter(negative="", help="Replace an earlier report in that folder")] = False,
    open: Annotated[bool, Parameter(negative="", help="Open the page in a browser")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object: what was written")] = False,
) -> int:
    """A run as one page that can be sent: verdict, findings, figures with formulas, charts, tables, configuration.

    The page needs no other file and no network, prints well, and is light or dark as its reader's screen is. RUN may be RUN:N
    for attempt N; left out, it is the newest run. Several runs (up to 8) are compared first. Markdown comes with its charts as
    files. What a page could give away (headers, passwords) is not in it; names of hosts and nodes are.
    """
    from harness.report.write import CHARTS, DATA, FORMATS, write_report

    formats, kinds, tables = (
        _chosen(text, known, name)
        for text, known, name in ((format, FORMATS, "--format"), (charts, CHARTS, "--charts"), (data, DATA, "--data"))
    )
    if not formats and not kinds and not tables:
        raise BadInput("report: --format is empty, and so is all else: nothing would be written")
    if open and "html" not in formats:
        raise BadInput("report: --open shows the page, which --format leaves out; add html")
    chosen = [attempt_of(text) for text in runs] or [(any_run(None), None)]
    target = Path(out).expanduser() if out is not None else Path(_default_name(chosen))
    with ended_in_order():
        done = write_report(chosen, target, formats=formats, charts=kinds, tables=tables, replace=replace, tell=_Progress())
    for problem in done.problems:
        note(f"record: {problem}")
    _tell(done, as_json=json)
    if open and not webbrowser.open((done.folder / "report.html").resolve().as_uri()):
        note("report: no browser could be started here; open the page yourself")
    return OK


def _default_name(chosen: list[tuple[RunFolder, int | None]]) -> str:
    (folder, attempt), more = chosen[0], len(chosen) - 1
    return f"report-{folder.name}" + (f"-{attempt}" if attempt is not None else "") + (f"-and-{more}" if more else "")


def _chosen(text: str, known: tuple[str, ...], option: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise BadInput(f"report: {option} {word!r} is not known; choose of {', '.join(known)}")
    return list(dict.fromkeys(words))


class _Progress:
    """On stderr, of what takes longer than a moment."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self.began > _PATIENCE_S:
            note(f"report: {text}")


def _tell(done: Written, *, as_json: bool) -> None:
    size = sum(path.stat().st_size for path in done.files)
    if as_json:
        say_json(
            {
                "folder": str(done.folder.resolve()),
                "files": [str(path.resolve()) for path in done.files],
                "bytes": size,
                "runs": [
                    {"run": one.run.run, "attempt": one.overview.attempt or None, "verdict": one.overview.verdict}
                    for one in done.contents
                ],
                "charts": [chart.name for part in done.document.parts for chart in part.charts()],
                "problems": done.problems,
            }
        )
        return
    for path in done.files[:4]:
        say(str(path))
    if len(done.files) > 4:
        say(f"… {plural(len(done.files), 'file')}, {size / 1e6:.1f} MB in {done.folder}")
