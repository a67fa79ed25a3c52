"""What the record screen asks of a run's record, keeps of the answers, and where in it the operator stands.

Questions go to `harness.analysis.drill.Drill` in threads, one after another: it reads millions of samples with polars, whose
import alone takes 0.3 s. A question and its arguments are one value, so that an answer is asked for once and found again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from console.memory import give_back
from console.store.words import BadFilter, checked, words_of
from harness.analysis.views import BYS, CALLED, METRICS, By, FleetRow, Metric, Where
from harness.records.errors import RecordError

if TYPE_CHECKING:
    from harness.analysis.drill import Drill
    from harness.analysis.views import Tail
    from harness.records.runfile import AttemptRecord

View = Literal["verdict", "timeline", "distributions", "tail", "fleet", "slowest", "acts", "config"]
VIEWS: Final[tuple[View, ...]] = get_args(View)
EVERYWHERE: Final = Where()
FleetBy = Literal["replica", "node"]
SLOWEST: Final = 200
TICKS: Final = 120
AROUND_S: Final = 5.0  # log lines from so long before a moment until so long after it


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the record: a method of Drill and what it is called with."""

    name: str
    given: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, name: str, **given: Any) -> Ask:
        return cls(name, tuple(given.items()))


# --- where one stands --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """What is shown. Replaced, never edited: a step back puts the one before it in force again, whole."""

    view: View = "verdict"
    metric: Metric = "ttft"
    by: By = "replica"
    over_limit: bool = False
    where: Where = EVERYWHERE
    fleet_by: FleetBy = "replica"
    sort: int = 0
    reverse: bool = False
    text: str = ""  # the filter of the rows
    only: frozenset[str] = frozenset()  # replicas, where a setting chose them
    only_words: str = ""

    @property
    def ask(self) -> Ask:
        """The question that the view needs answered."""
        match self.view:
            case "verdict":
                return Ask("overview")
            case "timeline":
                return Ask.of("timeline", ticks=TICKS)
            case "tail":
                return Ask.of("tail", metric=self.metric, over_limit=self.over_limit, where=self.where)
            case "fleet":
                return Ask.of("fleet", by=self.fleet_by)
            case "slowest":
                return Ask.of("slowest", by=self.metric, n=SLOWEST, where=self.where)
            case "acts":
                return Ask("effects")
        return Ask(self.view)

    def to(self, view: View) -> Choice:
        """The same samples in another view; what filtered the rows of this one does not fit those of that."""
        return replace(self, view=view, text="", only=frozenset(), only_words="", sort=0, reverse=False)

    def next_metric(self) -> Choice:
        return replace(self, metric=METRICS[(METRICS.index(self.metric) + 1) % len(METRICS)])

    def next_group(self) -> Choice:
        if self.view == "fleet":
            return replace(self, fleet_by="node" if self.fleet_by == "replica" else "replica", only=frozenset(), only_words="")
        return replace(self, by=BYS[(BYS.index(self.by) + 1) % len(BYS)])


# --- the record --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DrillStore:
    """One attempt of one run; None: the last that has samples. `answers` and `failures` (in words) are by question."""

    path: Path
    wanted: int | None = None
    attempt: AttemptRecord | None = None
    attempts: list[int] = field(default_factory=list)
    limits: dict[str, float | None] = field(default_factory=dict)  # of p99, in ms, by metric
    problems: list[str] = field(default_factory=list)
    answers: dict[Ask, Any] = field(default_factory=dict)
    failures: dict[Ask, str] = field(default_factory=dict)
    _drill: Drill | None = None
    _asked: set[Ask] = field(default_factory=set)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def known(self, ask: Ask) -> Any:
        """The answer, None while it is not there."""
        return self.answers.get(ask)

    def says(self, ask: Ask) -> str:
        """In place of an answer: why there is none, or that it is being read."""
        return self.failures.get(ask) or "reading the record …"

    async def get(self, ask: Ask) -> bool:
        """Ask unless that was done; whether there is something new to show."""
        if ask in self.answers or ask in self.failures or ask in self._asked:
            return False
        self._asked.add(ask)
        try:
            await asyncio.to_thread(self._read, ask)
        finally:
            self._asked.discard(ask)
        return True

    def _read(self, ask: Ask) -> None:
        from harness.analysis.errors import NoSuchAttempt, NoSuchColumn, NoSuchSample
        from harness.records.reader import UNREADABLE

        known = (RecordError, NoSuchAttempt, NoSuchSample, NoSuchColumn, *UNREADABLE)
        with self._turn:
            if self._closed:
                return
            try:
                drill = self._open()
                answer = getattr(drill, ask.name)(**dict(ask.given))
            except known as problem:
                self.failures[ask] = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            else:
                self.answers[ask] = answer
            if self._drill is not None:  # what is wrong stands at the end, and there is little room
                self.problems = [text.replace(f"{self.path}/", "") for text in self._drill.problems]

    def close(self) -> None:
        """Samples are given back now, not when the collector comes round to them: 2.4 million of them are 300 MB."""
        self._closed, self._drill = True, None
        self.answers.clear()
        give_back()

    def _open(self) -> Drill:
        if self._drill is None:
            from harness.analysis.drill import Drill
            from harness.records.reader import Record

            self._drill = Drill(Record(self.path), self.wanted)
            self.attempt = self._drill.attempt
            self.attempts = [attempt.number for attempt in self._drill.run.attempts]
            self.limits = {metric: self._drill.limit_ms(metric) for metric in METRICS}
        return self._drill

    def beside(self, way: int) -> int | None:
        """The attempt before (-1) or after this one."""
        number = self.attempt.number if self.attempt is not None else self.wanted
        if number not in self.attempts:
            return None
        at = self.attempts.index(number) + way
        return self.attempts[at] if 0 <= at < len(self.attempts) else None

    @property
    def begin_unix(self) -> float | None:
        """The wall clock of the attempt's time zero."""
        return self.attempt.started_unix or None if self.attempt is not None else None


# --- rows --------------------------------------------------------------------------------------------------


def keeps(text: str) -> Callable[[str], bool]:
    """`node003`, `a|b`, `!a`: whether a row of that text stays. Raises BadFilter."""
    words = [checked(parts) for parts in words_of(text.lower(), compares=False)]

    def has(row: str) -> bool:
        low = row.lower()
        return all(any((part.text in low) is part.wanted for part in parts) for parts in words)

    return has


def problem_of(text: str) -> str:
    """Why it is no filter; empty when it is one."""
    try:
        keeps(text)
    except BadFilter as problem:
        return str(problem)
    return ""


@dataclass(frozen=True, slots=True)
class Order:
    name: str
    label: str
    of: Callable[[FleetRow], float | str | None]
    largest: bool = True


def _out(row: FleetRow) -> float | None:
    known = [z for z in (row.z_ttft, row.z_tpot, row.z_step) if z is not None]
    return max(known) if known else None


FLEET_ORDERS: Final = (
    Order("z", "largest z", _out), Order("ttft", "TTFT p99", lambda row: row.ttft_p99_ms),
    Order("tpot", "TPOT p99", lambda row: row.tpot_p99_ms),
    Order("over", "over a limit", lambda row: row.over_ttft + row.over_tpot),
    Order("step", "step time", lambda row: row.step_ms), Order("tokens", "tok/s", lambda row: row.tokens_per_s),
    Order("failed", "failed", lambda row: row.failed), Order("redispatched", "re-dispatched", lambda row: row.redispatched),
    Order("name", "name", lambda row: row.name, largest=False),
)  # fmt: skip


def fleet_rows(rows: list[FleetRow], choice: Choice) -> list[FleetRow]:
    """Those of the filter in the chosen order; what is not known comes last, whichever way."""
    order, kept = FLEET_ORDERS[choice.sort % len(FLEET_ORDERS)], keeps(choice.text)
    told = [row for row in rows if (not choice.only or row.name in choice.only) and kept(f"{row.name} {row.host or ''}")]
    known = [row for row in told if order.of(row) is not None]
    known.sort(key=lambda row: row.name)
    known.sort(key=lambda row: cast(Any, order.of(row)), reverse=order.largest != choice.reverse)
    return known + [row for row in told if order.of(row) is None]


def tail_words(tail: Tail) -> list[str]:
    """Which samples it is, as parts of a line."""
    words = [f"{CALLED[tail.metric]} {tail.rule}"]
    if tail.threshold_ms is not None and "limit" not in tail.rule:
        words.append(f"from {tail.threshold_ms:,.{0 if tail.threshold_ms >= 1000 else 1}f} ms on")
    return [*words, f"{tail.tail_n:,d} of {tail.n:,d}"]
