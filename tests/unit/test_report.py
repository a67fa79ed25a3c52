"""A report: one page that needs no other file, the same figures as `show`, hostile names as plain text, data that reads back."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from made_run import Made, make_run
from markdown_it import MarkdownIt

from console.cli import main
from harness.analysis.definitions import DEFINITIONS
from harness.mlperf.scores import AccuracyScore, Check, Compliance, SubsetScore, write_compliance, write_score
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.records.runfile import AttemptRecord, Imported, RunFile, read_run, write_run
from harness.report.build import document
from harness.report.comparison import part
from harness.report.document import Chart, Column, Remarks, Section, Table, number
from harness.report.drawing import file_png, file_svg, matplotlib_as_ours, page_svg
from harness.report.gather import gather
from harness.report.html import page
from harness.report.markdown import markdown
from harness.report.palette import LIGHT
from harness.report.write import write_report
from harness.wire.control import JournalEntry

EVIL = "<script>alert(1)</script> [x](javascript:alert) ![y](http://evil.example/z.png) | *a* `b` $c$ {{d}} \x1b[31m \u202eright"
USERS = ("tokens_per_user_system", "tokens_per_user_p90", "tokens_per_user_turns", "tokens_per_user_median")
SECRET = "Bearer-of-nobody-4711"


@dataclass
class Seen(HTMLParser):
    """What a page is made of."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tables: list[tuple[int, list[int]]] = field(default_factory=list)  # headings, cells of each row
    inside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.inside.append(tag)
        if tag == "table":
            self.tables.append((0, []))
        elif tag == "th":
            self.tables[-1] = (self.tables[-1][0] + 1, self.tables[-1][1])
        elif tag == "tr" and "tbody" in self.inside:
            self.tables[-1][1].append(0)
        elif tag == "td":
            self.tables[-1][1][-1] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in self.inside:
            del self.inside[len(self.inside) - 1 - self.inside[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.inside):
            self.text.append(data)


def seen(text: str) -> Seen:
    parser = Seen()
    parser.feed(text)
    parser.close()
    return parser


@dataclass
class Reported:
    run: Path
    out: Path
    page: str
    seen: Seen


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """A record whose every free text is hostile, reported with everything."""
    root = tmp_path_factory.mktemp("reports")
    made = Made(name="b<i>d & 'x'", nodes=3, per_node=2, qps=60, seconds=20, tpot_limit_ms=30, verdict="INVALID", again_every=200)
    run = make_run(root / "runs", made)
    file = read_run(run)
    file.spec["metrics"]["gpu"]["headers"] = {"Authorization": SECRET}
    file.versions = {"engine": EVIL}
    attempt = file.attempts[0]
    attempt.reasons, attempt.notes = [EVIL], ["a note"]
    attempt.loadgen = {"samples_per_s": 61.0, "tokens_per_s": 2100.0, "ttft_ms": {"99.00": 100.0}}
    write_run(run, file)
    journal = JournalWriter(RunFolder(run).journal)
    journal.append(JournalEntry(0, attempt.started_unix + 10, "operator:<b>kim</b>", "act.drain", EVIL, why=EVIL, attempt=1))
    journal.close()
    attempt_folder = RunFolder(run).attempt(1)
    attempt_folder.mkdir(parents=True)
    subset = SubsetScore("gpqa", 10, 7, 70.0, "exact match (choice letter)")
    score = AccuracyScore(
        metric="exact_match", score=70.0, gate=82.3, passed=False, n=10, expected_n=10, subsets=[subset], tokens_per_sample=35.2,
        log_sha256="ab" * 32, scored_unix=1.0,
    )  # fmt: skip
    write_score(attempt_folder, score)
    checks = [Check("accuracy", True, EVIL)]
    write_compliance(attempt_folder, Compliance(test="TEST07", passed=True, checks=checks, verified_unix=1.0))
    out = root / "report"
    write_report([(RunFolder(run), 1)], out, formats=("html", "md"), charts=("svg",), tables=("csv", "parquet"))
    text = (out / "report.html").read_text(encoding="utf-8")
    return Reported(run, out, text, seen(text))


# --- the page ----------------------------------------------------------------------------------------------


def test_the_page_refers_to_nothing_outside_itself(reported: Reported) -> None:
    outward = ("src", "href", "xlink:href", "srcset", "action", "data")
    references = [value for _, attrs in reported.seen.tags for name, value in attrs.items() if name in outward]
    assert references
    assert [value for value in references if not value.startswith("#")] == []
    assert {tag for tag, _ in reported.seen.tags} & {"link", "img", "iframe", "object", "embed", "base", "form", "image"} == set()
    style = reported.page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(attrs["content"] for tag, attrs in reported.seen.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_every_link_of_the_page_has_its_place_and_every_place_is_there_once(reported: Reported) -> None:
    ids = [attrs["id"] for _, attrs in reported.seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    wanted = {attrs["href"][1:] for _, attrs in reported.seen.tags if attrs.get("href", "").startswith("#")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", reported.page))
    assert wanted - set(ids) == set()


def test_every_table_has_a_heading_for_each_column(reported: Reported) -> None:
    assert len(reported.seen.tables) > 20
    assert [rows for headings, rows in reported.seen.tables if not headings or set(rows) - {headings}] == []
    assert all(attrs.get("scope") == "col" for tag, attrs in reported.seen.tags if tag == "th")


def test_every_chart_says_in_words_what_it_shows_its_window_and_that_it_is_synthetic(reported: Reported) -> None:
    charts = re.findall(r'<figure id="([\w-]+)">(.*?)</figure>', reported.page, re.DOTALL)
    assert [name for name, _ in charts] == [
        "margins", "timeline", "distribution-ttft", "distribution-tpot", "distribution-latency", "tail-ttft", "tail-tpot",
        "tail-latency", "fleet", "life",
    ]  # fmt: skip
    for name, chart in charts:
        title = re.search(r"<title[^>]*>(.+?)</title>", chart)
        assert title is not None, name
        assert len(title[1]) > 30, name
        caption = chart.partition("<figcaption>")[2]
        assert "Window: " in caption, name
        assert "SYNTHETIC." in caption, name
        assert "#01fe" not in chart, f"a colour of {name} was not turned into a variable"
        assert "var(--" in chart


def test_hostile_text_stays_text_in_the_page_its_charts_and_its_files(reported: Reported) -> None:
    assert [tag for tag, _ in reported.seen.tags if tag == "script"] == ["script"], "its own, and no other"
    assert not [attrs for _, attrs in reported.seen.tags if any(name.startswith("on") for name in attrs)]
    told = "".join(reported.seen.text)
    assert "<script>alert(1)</script>" in told, "it is told, as text"
    assert "b<i>d & 'x'" in told
    assert "\x1b" not in reported.page
    assert "\u202e" not in reported.page
    for drawn in (reported.out / "charts").glob("*.svg"):
        assert "<script" not in drawn.read_text(encoding="utf-8")


def test_hostile_text_stays_text_in_markdown(reported: Reported) -> None:
    text = (reported.out / "report.md").read_text(encoding="utf-8")
    made = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    parsed = seen(made)
    assert [tag for tag, _ in parsed.tags if tag in ("script", "a", "i", "b", "code")] == []
    pictures = [attrs["src"] for tag, attrs in parsed.tags if tag == "img"]
    assert len(pictures) == 10
    assert all((reported.out / picture).is_file() for picture in pictures)
    assert len(parsed.tables) == len(reported.seen.tables)
    assert "<script>alert(1)</script> [x](javascript:alert)" in "".join(parsed.text)


def test_what_may_be_secret_is_nowhere_in_the_report(reported: Reported) -> None:
    for path in reported.out.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def test_figures_are_those_that_show_prints(reported: Reported, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(reported.run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    told, rates = "".join(reported.seen.text), shown["rates"]
    for value in (rates["completed_qps"], rates["tokens_per_s"], *shown["ttft_ms"].values(), *shown["tpot_ms"].values()):
        assert number(value, 2) in told
    with (reported.out / "data" / "figures.csv").open(encoding="utf-8") as file:
        figures = {row["figure"]: row["value"] for row in csv.DictReader(file)}
    assert float(figures["completed_qps"]) == pytest.approx(rates["completed_qps"], rel=1e-12)
    assert float(figures["ttft_p99_9_ms"]) == shown["ttft_ms"]["p99_9"]
    assert int(figures["completed"]) == shown["totals"]["completed"]


def test_loadgens_figures_and_all_definitions_of_tokens_per_user_stand_beside_ours(reported: Reported) -> None:
    told = " ".join(reported.seen.text)
    assert "LoadGen's own figures beside ours" in told
    assert "2,100.00" in told
    assert [one for one in DEFINITIONS.values() if one.id in USERS and one.title not in told] == []


def test_scores_and_audits_are_told(reported: Reported) -> None:
    told = " ".join(reported.seen.text)
    assert "exact_match 70.0000 over 10 of 10 samples; gate 82.3000: not passed." in told
    assert "TEST07 passed." in told


# --- files beside the page ---------------------------------------------------------------------------------


def test_csv_and_parquet_hold_the_same_rows(reported: Reported) -> None:
    data = reported.out / "data"
    names = {path.stem for path in data.glob("*.csv")}
    assert names == {"figures", "ticks", "distributions", "cdf", "fleet", "nodes", "tail", "parts", "slowest", "acts"}
    for name in names:
        with (data / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        frame = pl.read_parquet(data / f"{name}.parquet")
        assert frame.height == len(rows), name
        assert frame.columns == list(rows[0]), name
    fleet = pl.read_parquet(data / "fleet.parquet")
    assert fleet["samples"].sum() == 1200
    assert fleet["name"].to_list()[0] == "node000/gpu0"


def test_charts_as_files_say_themselves_where_they_come_from(reported: Reported) -> None:
    names = {path.name for path in (reported.out / "charts").iterdir()}
    assert {"timeline.svg", "fleet.svg", "life.svg"} <= names
    text = (reported.out / "charts" / "timeline.svg").read_text(encoding="utf-8")
    assert "SYNTHETIC" in text
    assert "attempt 1" in text
    assert "#01fe" not in text
    assert "var(--" not in text


def test_two_reports_of_one_record_are_equal(reported: Reported) -> None:
    whole = document([gather(RunFolder(reported.run), None, lambda _: None)])
    text = markdown(whole, lambda chart: f"charts/{chart.name}.svg")
    assert text == (reported.out / "report.md").read_text(encoding="utf-8")
    drawn = {chart.name: chart for chart in whole.parts[0].charts()}
    for name in ("margins", "distribution-tpot", "fleet", "life"):
        assert page_svg(drawn[name]) in reported.page, name
    assert file_svg(drawn["margins"], "x") == file_svg(drawn["margins"], "x")
    picture = file_png(drawn["margins"], "x")
    assert picture.startswith(b"\x89PNG")
    assert file_png(drawn["margins"], "x") == picture


def test_drawing_leaves_nothing_of_itself_behind() -> None:
    import matplotlib

    def draw(palette: object) -> object:
        from harness.report.drawing import new_figure

        figure, axes = new_figure(1.0, 1, 1)
        axes[0, 0].plot([1, 2], [1, 2])
        axes[0, 0].set_title("a $not$ math 12.3456")
        return figure

    before = dict(matplotlib.rcParams)
    text = page_svg(Chart("x", "t", "c", "alt <&>", draw))  # type: ignore[arg-type]
    assert dict(matplotlib.rcParams) == before
    assert "a $not$ math 12.3456" in text
    assert "alt &lt;&amp;&gt;" in text


def test_commands_start_without_the_library_of_charts() -> None:
    script = "import sys, console.cli.app, harness.report.write; assert not {'matplotlib', 'PIL'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# --- other records -----------------------------------------------------------------------------------------


def imported_run(root: Path) -> Path:
    run = root / "theirs"
    run.mkdir(parents=True)
    attempt = AttemptRecord(1, "performance", "Server", 20.0, 1, 0.0, 0.0, "ENDED", "VALID")
    attempt.totals, attempt.rates = {"completed": 500}, {"completed_qps": 19.5, "tokens_per_s": 4000.0}
    attempt.ttft_ms, attempt.tpot_ms = {"p99": 800.0, "avg": 200.0}, {"p99": 45.0}
    told = Imported("loadgen", "/their/logs", 0.0, ["summary: percentiles"], ["times of single samples"])
    made = RunFile(run="theirs", spec={}, phase="DONE", synthetic=False, attempts=[attempt], verdict="VALID", imported=told)
    write_run(run, made)
    return run


def test_a_record_without_samples_has_its_figures_and_is_marked_as_imported(tmp_path: Path) -> None:
    content = gather(RunFolder(imported_run(tmp_path)), None, lambda _: None)
    whole = document([content])
    parsed = seen(page(whole))
    told = " ".join(parsed.text)
    assert "IMPORTED: made from" in told
    assert "Not in those files: times of single samples" not in told.partition("The record")[0]
    assert "times of single samples" in told
    assert "800.00" in told
    assert "19.50" in told
    assert [chart.name for chart in whole.parts[0].charts() if "IMPORTED." not in chart.caption] == []


def test_a_run_without_attempts_and_one_with_a_damaged_score_are_told(tmp_path: Path) -> None:
    run = tmp_path / "early"
    run.mkdir()
    write_run(run, RunFile(run="early", spec={"fleet": "not a table"}, phase="WARMING", synthetic=False))
    told = " ".join(seen(page(document([gather(RunFolder(run), None, lambda _: None)]))).text)
    assert "no attempt" in told
    theirs = imported_run(tmp_path)
    RunFolder(theirs).attempt(1).mkdir(parents=True)
    (RunFolder(theirs).attempt(1) / "accuracy.json").write_text("{")
    content = gather(RunFolder(theirs), None, lambda _: None)
    assert any("accuracy.json" in problem for problem in content.problems)


def test_several_runs_are_compared_first_and_scale_where_they_differ_in_nodes(tmp_path: Path) -> None:
    from harness.analysis.comparing import compare
    from harness.analysis.scaling import scaling

    runs = [
        make_run(tmp_path, Made(name=f"n{nodes}", nodes=nodes, per_node=2, qps=40.0 * nodes, seconds=10, slow_node=None))
        for nodes in (1, 2)
    ]
    folders = [RunFolder(run) for run in runs]
    contents = [gather(folder, 1, lambda _: None) for folder in folders]
    whole = document(contents, compare([(Record(folder), 1) for folder in folders]), scaling(folders))
    assert [part.title for part in whole.parts] == ["Comparison", "n1:1", "n2:1"]
    assert [section.id for section in whole.parts[0].sections] == ["sides", "differences", "distributions", "scaling", "settings"]
    names = [chart.name for part in whole.parts for chart in part.charts()]
    assert len(names) == len(set(names))
    assert page_svg(next(chart for chart in whole.parts[0].charts() if chart.name.startswith("scaling"))).count("<svg") == 1
    course = next(chart for chart in whole.parts[1].charts() if chart.name.endswith("timeline"))
    with matplotlib_as_ours(LIGHT):
        figure = course.draw(LIGHT)
        figure.draw_without_rendering()
        assert min(axes.get_position().height for axes in figure.axes) > 0.06, (
            "no panel is squeezed, also where nobody was flagged"
        )
    rows = {row[0]: row[2:] for row in _tables(whole.parts[0].sections[1])[0].rows}
    assert rows["completed"][0] == contents[0].overview.totals["completed"]
    assert isinstance(rows["completed"][0], int), "counts have no decimals"
    again = document([contents[0], contents[0]])
    assert len({part.id for part in again.parts}) == 2, "the same run twice does not share its anchors"


def test_a_comparison_says_why_a_run_is_not_valid_and_that_it_was_acted_on(tmp_path: Path) -> None:
    from harness.analysis.comparing import compare

    made = [make_run(tmp_path, Made(name=name, nodes=2, per_node=2, seconds=10)) for name in ("well", "acted")]
    run = read_run(made[1])
    run.attempts[0].verdict, run.attempts[0].reasons, run.attempts[0].acts = "INVALID", ["an operator's evict touched it"], 1
    write_run(made[1], run)
    sides = part(compare([(Record(RunFolder(path)), 1) for path in made]), None).sections[0]
    assert [row[-1] for row in _tables(sides)[0].rows] == ["SYNTHETIC", "SYNTHETIC ACTS 1"]
    (remarks,) = [block for block in sides.blocks if isinstance(block, Remarks)]
    assert remarks.lines[0] == ("warn", "acted is INVALID: an operator's evict touched it")


def _tables(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


# --- where it is written -----------------------------------------------------------------------------------


def test_nothing_foreign_is_written_over_and_nothing_is_left_of_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported_run(tmp_path / "runs")
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    assert main(["report", "theirs:1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    out = tmp_path / "report-theirs-1"
    assert told["files"] == [str(out / "report.html")]
    assert told["runs"] == [{"run": "theirs", "attempt": 1, "verdict": "VALID"}]
    assert main(["report", "theirs:1"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["report", "theirs:1", "--replace", "--format", "md", "--data", "csv"]) == 0
    assert {path.name for path in out.iterdir()} == {"report.md", "data"} | ({"charts"} if (out / "charts").exists() else set())
    (out / "notes.txt").write_text("mine")
    assert main(["report", "theirs:1", "--replace"]) == 2
    assert "notes.txt" in capsys.readouterr().err
    assert (out / "notes.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "report-theirs-1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--format", "pdf"], "'pdf' is not known; choose of html, md"),
        (["--charts", "svg,gif"], "'gif' is not known; choose of svg, png"),
        (["--format", "md", "--open"], "add html"),
        (["--format", ""], "nothing would be written"),
        (["nobody"], "no run named 'nobody'"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported_run(tmp_path / "runs")
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    assert main(["report", *options]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_an_attempt_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported_run(tmp_path / "runs")
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    assert main(["report", "theirs:7", "--out", str(tmp_path / "x")]) == 2
    assert "no attempt 7" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_numbers_and_cells_are_written_alike_everywhere() -> None:
    values = (None, float("nan"), float("inf"), -0.0001, 1234.5, 12)
    assert [number(value, 2) for value in values] == ["-", "-", "-", "0.00", "1,234.50", "12"]
    assert [Column("x", 1).text(value) for value in (None, True, 2.25, "a")] == ["-", "yes", "2.2", "a"]
