"""`paceline show`: what a run's record says, whole or view by view, for people, as JSON and as CSV."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from console.cli.errors import OK, BadInput
from console.cli.found import any_run, attempt_of
from console.cli.output import note, say_json, typed
from console.cli.waiting import told_if_slow

if TYPE_CHECKING:
    from console.cli.view_words import Shown
    from harness.analysis.drill import Drill
    from harness.analysis.views import By, Where
    from harness.records.layout import RunFolder

View = Literal["overview", "timeline", "distributions", "tail", "fleet", "slowest", "acts", "config", "logs"]
Metric = Literal["ttft", "tpot", "latency"]
Group = Literal["replica", "node", "time", "prompt-length", "output-length", "tries", "part"]

#: Which views each option is for. `sample` is a view of its own.
_GOES_WITH: dict[str, tuple[str, ...]] = {
    "--metric": ("distributions", "tail", "slowest"),
    "--by": ("tail", "fleet"),
    "--over-limit": ("tail",),
    "--top": ("tail", "fleet", "slowest", "logs"),
    "--at": ("logs",),
    "--span-s": ("logs",),
    "--process": ("logs",),
    "--window-s": ("acts",),
    "--ticks": ("timeline",),
}
_OF_WHERE = ("tail", "slowest")
_LARGEST_OFFSET_S = 1e8  # three years: what is more is Unix time


def _help(text: str) -> Parameter:
    return Parameter(help=text)


@Parameter(name="*")
@dataclass(frozen=True)
class Narrowed:
    """Only some of the samples; bounds are inclusive below and exclusive above."""

    slot: Annotated[str | None, _help("Samples of this replica")] = None
    node: Annotated[str | None, _help("Samples of this node's replicas")] = None
    from_s: Annotated[float | None, _help("Scheduled from here on, seconds of the attempt")] = None
    to_s: Annotated[float | None, _help("Scheduled before that")] = None
    prompt_from: Annotated[int | None, _help("At least so many prompt tokens")] = None
    prompt_to: Annotated[int | None, _help("Fewer prompt tokens than that")] = None
    output_from: Annotated[int | None, _help("At least so many output tokens")] = None
    output_to: Annotated[int | None, _help("Fewer output tokens than that")] = None
    tries_from: Annotated[int | None, _help("Dispatched at least so often")] = None
    tries_to: Annotated[int | None, _help("Dispatched less often than that")] = None

    def where(self) -> Where:
        from harness.analysis.views import Where

        return Where(**vars(self))

    def given(self) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None]


@dataclass(frozen=True)
class Asked:
    """What a view is asked for."""

    metric: Metric | None = None
    by: Group | None = None
    over_limit: bool = False
    where: Where | None = None
    top: int | None = None
    at_unix: float = 0.0
    span_s: float = 5.0
    process: str | None = None
    window_s: float | None = None
    ticks: int = 0
    for_people: bool = True

    @property
    def grouping(self) -> By | None:
        return cast("By", self.by.replace("-", " ")) if self.by not in (None, "part") else None

    def first(self, usual: int | None) -> int | None:
        """How many rows: as asked; else, for people, the usual number."""
        return self.top if self.top is not None else usual if self.for_people else None


def show(
    run: str | None = None,
    /,
    *,
    attempt: Annotated[int | None, _help("Figures of this attempt (default: the last; of a view, the last with samples)")] = None,
    view: Annotated[View | None, _help("One view of the record instead of the whole page")] = None,
    sample: Annotated[int | None, _help("The life of the sample with this number of its attempt")] = None,
    metric: Annotated[
        Metric | None, _help("tail: of what (ttft); slowest: in order of what (latency); distributions: bins")
    ] = None,
    by: Annotated[Group | None, _help("tail: only this grouping; fleet: replica or node")] = None,
    over_limit: Annotated[bool, Parameter(negative="", help="tail: those over the limit, not the slowest 1 %")] = False,
    narrowed: Narrowed = Narrowed(),
    top: Annotated[int | None, _help("At most so many rows")] = None,
    at: Annotated[str | None, _help("logs: around this moment: Unix time, seconds or m:ss of the attempt")] = None,
    span_s: Annotated[float | None, _help("logs: so long before and after (5)")] = None,
    process: Annotated[str | None, _help("logs: only of head, driver-1, node003 or a slot")] = None,
    window_s: Annotated[float | None, _help("acts: length of the windows before and after")] = None,
    ticks: Annotated[int | None, _help("timeline: about so many stretches (40; as JSON or CSV 120)")] = None,
    explain: Annotated[bool, Parameter(negative="", help="Formula, window and source of the figures shown")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="", help="One JSON object")] = False,
    csv: Annotated[bool, Parameter(name="--csv", negative="", help="The rows of a view")] = False,
) -> int:
    """A run's verdict and figures, from its record; of one that is going on, those until now. --view or --sample: one view.

    `ACTS n` beside a verdict: n acts of operators (or of the straggler policy) touched its attempts. Drains and readmits,
    which load balancing may do anyway, leave VALID possible; every other act rules it out for its attempt.
    """
    given = {
        "--metric": metric, "--by": by, "--over-limit": over_limit or None, "--top": top, "--at": at, "--span-s": span_s,
        "--process": process, "--window-s": window_s, "--ticks": ticks,
    }  # fmt: skip
    named = "sample" if sample is not None else view
    _check(named, view, [name for name, value in given.items() if value is not None], narrowed, as_json=json, as_csv=csv)
    _check_numbers(top, span_s, window_s, ticks)
    if named == "fleet" and by not in (None, "replica", "node"):
        raise BadInput(f"show: --view fleet takes --by replica or node, not {by}")
    _check_narrowed(narrowed)
    folder, attempt = _meant(run, attempt)
    if named is None:
        return _whole(folder, attempt, explain=explain, as_json=json)
    with told_if_slow(f"reading the record of {folder.name}"):
        drill = _drill(folder, attempt)
        _check_place(drill, narrowed)
        asked = Asked(
            metric=metric, by=by, over_limit=over_limit, where=narrowed.where(), top=top, at_unix=_moment(at, drill),
            span_s=span_s or 5.0, process=process, window_s=window_s, ticks=ticks or (120 if json or csv else 40),
            for_people=not (json or csv),
        )  # fmt: skip
        shown = _shown(drill, named, asked, sample)
    return _print(drill, named, shown, explain=explain, as_json=json, as_csv=csv)


def _check(named: str | None, view: str | None, given: list[str], narrowed: Narrowed, *, as_json: bool, as_csv: bool) -> None:
    """That options go together."""
    if as_json and as_csv:
        raise BadInput("show: --json or --csv, not both")
    if named == "sample" and view is not None:
        raise BadInput("show: --sample is a view of its own; leave --view out")
    if as_csv and named is None:
        raise BadInput("show: a run has several tables: --csv needs --view (timeline, distributions, tail, fleet, slowest, …)")
    for option in given:
        if named not in _GOES_WITH[option]:
            raise BadInput(f"show: {option} goes with --view {' or '.join(_GOES_WITH[option])}")
    if named == "logs" and "--at" not in given:
        raise BadInput("show: --view logs needs --at: Unix time, or seconds or m:ss of the attempt, as in --at 1:30")
    if narrowed.given() and named not in _OF_WHERE:
        raise BadInput(f"show: {narrowed.given()[0]} goes with --view {' or '.join(_OF_WHERE)}")


def _check_numbers(top: int | None, span_s: float | None, window_s: float | None, ticks: int | None) -> None:
    for option, value in (("--top", top), ("--span-s", span_s), ("--window-s", window_s), ("--ticks", ticks)):
        if value is not None and not 0 < value < 1e9:
            raise BadInput(f"show: {option} {value:g} must be more than 0 and less than 1e9")


def _check_narrowed(narrowed: Narrowed) -> None:
    """That each range has something in it."""
    given = vars(narrowed)
    for name in ("from_s", "to_s"):
        if given[name] is not None and not math.isfinite(given[name]):
            raise BadInput(f"show: --{name.replace('_', '-')} {given[name]} is not a number of seconds, as in 90 or 12.5")
    for start, end in (("from_s", "to_s"), *((f"{what}_from", f"{what}_to") for what in ("prompt", "output", "tries"))):
        if given[start] is not None and given[end] is not None and given[start] >= given[end]:
            said = f"--{start.replace('_', '-')} {given[start]} --{end.replace('_', '-')} {given[end]}"
            raise BadInput(f"show: {said} leaves nothing: the second must be larger")


def _check_place(drill: Drill, narrowed: Narrowed) -> None:
    """A name without samples is most often a slip."""
    for option, value, known in (("--slot", narrowed.slot, drill.table.slots), ("--node", narrowed.node, drill.table.nodes)):
        if value is None or value in known or not known:
            continue
        near = difflib.get_close_matches(value, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else f"; those that have are listed by `{typed('show RUN --view fleet')}`"
        raise BadInput(f"show: {option} {value!r} has no sample in attempt {drill.number}{meant}")


def _meant(run: str | None, attempt: int | None) -> tuple[RunFolder, int | None]:
    """RUN:2 is attempt 2 here as it is elsewhere."""
    if run is None:
        return any_run(run), attempt
    folder, number = attempt_of(run)
    if None not in (number, attempt) and number != attempt:
        raise BadInput(f"show: {run} is attempt {number}, and --attempt says {attempt}; give one of them")
    return folder, number if attempt is None else attempt


def _drill(folder: RunFolder, attempt: int | None) -> Drill:
    from harness.analysis.drill import Drill
    from harness.records.reader import Record

    return Drill(Record(folder.path), attempt)


def _moment(text: str | None, drill: Drill) -> float:
    """Unix time of `--at`."""
    if text is None:
        return 0.0
    clock = re.fullmatch(r"(?:(\d+):)?(\d+):([0-5]?\d(?:\.\d+)?)", text.strip())
    if clock is not None:
        offset_s = int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3])
    else:
        try:
            offset_s = float(text)
        except ValueError:
            offset_s = float("nan")
        if not abs(offset_s) < 1e11:
            raise BadInput(f"show: --at {text!r} is no moment: Unix time, or seconds or m:ss of the attempt, as in --at 1:30")
    if offset_s >= _LARGEST_OFFSET_S:
        return offset_s
    if drill.attempt is None or not drill.attempt.started_unix:
        raise BadInput(f"show: {drill.run.run} does not say when an attempt began; give --at as Unix time")
    return drill.attempt.started_unix + offset_s


def _shown(drill: Drill, named: str, asked: Asked, sample: int | None) -> Shown:
    from console.cli.sample_views import life
    from console.cli.views import VIEWS

    return life(drill, sample) if sample is not None else VIEWS[named](drill, asked)


def _print(drill: Drill, named: str, shown: Shown, *, explain: bool, as_json: bool, as_csv: bool) -> int:
    from console.cli.view_words import explained, say_csv
    from console.cli.views import say_view

    definitions = explained(shown.figures) if explain else []
    if as_json:
        number = drill.attempt.number if drill.attempt is not None else None
        whole: dict[str, Any] = {"run": drill.run.run, "attempt": number, "view": named, named: shown.data}
        say_json(whole | ({"definitions": definitions} if explain else {}) | {"problems": drill.problems})
        return OK
    if as_csv:
        say_csv(shown.rows)
    else:
        say_view(drill, shown, definitions)
    for problem in drill.problems:
        note(f"record: {problem}")
    return OK


def _whole(folder: RunFolder, attempt: int | None, *, explain: bool, as_json: bool) -> int:
    from console.cli.report import FIGURES, result_of, say_result
    from console.cli.view_words import explained, say_definitions

    with told_if_slow(f"reading the record of {folder.name}"):
        result = result_of(folder, number=attempt)
    definitions = explained(FIGURES) if explain else []
    if as_json:
        say_json(result | ({"definitions": definitions} if explain else {}))
    else:
        say_result(result)
        say_definitions(definitions)
    return OK
