"""All that a report says of one attempt, asked of the record once. What cannot be read becomes a problem that it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from harness.analysis.definitions import Beside, beside_loadgen
from harness.analysis.drill import Drill
from harness.analysis.errors import NoSuchSample
from harness.analysis.users import UserFigure, tokens_per_user
from harness.analysis.views import (
    METRICS,
    Difference,
    Distribution,
    Effect,
    FleetRow,
    Life,
    Metric,
    Overview,
    SampleRow,
    Tail,
    Timeline,
)  # fmt: skip
from harness.metrics.kernels import InUse
from harness.mlperf.scores import AccuracyScore, Compliance, read_compliance, read_score
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile

if TYPE_CHECKING:
    from harness.metrics.gpu.summary import RoleSummary

SLOWEST: Final = 20
Tell = Callable[[str], None]


@dataclass
class Content:
    """One attempt of one run."""

    folder: RunFolder
    run: RunFile
    attempt: AttemptRecord | None
    overview: Overview
    timeline: Timeline
    distributions: list[Distribution]
    tails: list[Tail]
    replicas: list[FleetRow]
    nodes: list[FleetRow]
    slowest: list[SampleRow]
    life: Life | None
    effects: list[Effect]
    config: list[Difference]
    kernels: list[InUse]
    gpus: list[RoleSummary]
    beside: list[Beside]
    users: list[UserFigure]
    accuracy: AccuracyScore | None = None
    compliance: Compliance | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def limits_ms(self) -> dict[Metric, float]:
        return {margin.metric: margin.limit_ms for margin in self.overview.margins}

    @property
    def stamps(self) -> tuple[str, ...]:
        """In a word or two, for captions."""
        return (*(("SYNTHETIC",) if self.overview.synthetic else ()), *(("IMPORTED",) if self.overview.imported else ()))


def gather(folder: RunFolder, attempt: int | None, tell: Tell) -> Content:
    """Raises harness.analysis.errors.NoSuchAttempt."""
    from harness.metrics.gpu.summary import summarise_gpus
    from harness.records.reader import Record

    record = Record(folder)
    drill = Drill(record, attempt)
    name = f"{folder.name}, attempt {drill.attempt.number}" if drill.attempt else folder.name

    def asked(what: str, answer: Callable[[], Any]) -> Any:
        tell(f"{name}: {what}")
        return answer()

    overview: Overview = asked("verdict and findings", drill.overview)
    slowest: list[SampleRow] = asked("slowest samples", lambda: drill.slowest("latency", SLOWEST))
    number = drill.attempt.number if drill.attempt else None
    problems: list[str] = []
    content = Content(
        folder=folder,
        run=drill.run,
        attempt=drill.attempt,
        overview=overview,
        timeline=asked("course over time", lambda: drill.timeline(_ticks(overview))),
        distributions=asked("distributions", drill.distributions),
        tails=asked("tails", lambda: [drill.tail(metric, over_limit=_broken(overview, metric)) for metric in METRICS]),
        replicas=asked("replicas and nodes", lambda: drill.fleet("replica")),
        nodes=drill.fleet("node"),
        slowest=slowest,
        life=_life(drill, slowest),
        effects=asked("acts and their effects", drill.effects),
        config=asked("configuration", drill.config),
        kernels=asked("MoE kernels", drill.kernels),
        gpus=asked("GPU metrics", lambda: summarise_gpus(record, number)),
        beside=beside_loadgen(drill.attempt) if drill.attempt else [],
        users=tokens_per_user(drill.attempt) if drill.attempt else [],
        problems=problems,
    )
    if number is not None:
        content.accuracy = _or_problem(lambda: read_score(folder.attempt(number)), problems)
        content.compliance = _or_problem(lambda: read_compliance(folder.attempt(number)), problems)
    problems += [problem for problem in drill.problems if problem not in problems]
    return content


def _ticks(overview: Overview) -> int:
    """So many that most have samples enough for a p99."""
    return max(20, min(120, overview.totals.get("completed", 0) // 40))


def _broken(overview: Overview, metric: Metric) -> bool:
    """The samples over a limit are the tail to be explained where there are more of them than allowed."""
    return any(one.metric == metric and one.over > (one.allowed_over or 0) for one in overview.margins)


def _life(drill: Drill, slowest: list[SampleRow]) -> Life | None:
    try:
        return drill.sample(slowest[0].seq) if slowest else None
    except NoSuchSample:
        return None


def _or_problem(read: Callable[[], Any], problems: list[str]) -> Any:
    try:
        return read()
    except RecordError as error:
        problems.append(str(error))
        return None
