"""GPU metrics of a run that is over, from a Prometheus that has them still: fetched by role and put into the record.

Blocking, for a thread or a command. By the run's time span alone, so a run without a head (or of last week) will do. What the
record has stays as it is: a sample is added where its GPU and role have none close to it, which also makes a second fetch add
nothing. Whose GPU a series was of is told by fleet.json, which the head writes; without it by the place on the node.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu import profiles as profile_files
from harness.metrics.gpu.base import Reading, RoleReading, SeriesKey, SourceError
from harness.metrics.gpu.join import GpuPlace, Joiner, places_of_replica
from harness.metrics.gpu.pastprom import PastProm, step_allowed
from harness.metrics.gpu.profiles import Profile
from harness.metrics.gpu.roles import ROLES
from harness.metricspec import GpuSourceSpec
from harness.records.clusterlog import last_view
from harness.records.columns import GPU_SCHEMA, gpu_frame
from harness.records.fleetfile import FleetFile, GpusOf, read_fleet
from harness.records.layout import RunFolder
from harness.records.lines import LineFile
from harness.records.lock import folder_lock
from harness.records.reader import Record
from harness.records.runfile import RunFile
from harness.records.writer import WAITING_ROWS, ChunkWriter
from harness.spec import RunSpec, node_name

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]
Tell = Callable[[str], None]

POINTS: Final = 200_000  # of one answer: 512 GPUs x 390 steps, some 5 MB
PROBES: Final = 40  # moments at which an exporter is looked for
_NEAR: Final = 0.6  # of the time between two samples: what is closer is the same one


# --- where the GPUs were -----------------------------------------------------------------------------------------------


class Places:
    """Of each moment: the GPUs of every slot, as they were registered then."""

    def __init__(self, fleet: FleetFile, slots: Sequence[str], hosts: Mapping[str, str]) -> None:
        self.devices, self.slots = fleet.devices, list(slots)
        self._hosts = hosts
        self._lives = [fleet.slots.get(slot) or [] for slot in self.slots]
        self._joiners: dict[tuple[int, ...], Joiner] = {}

    def joiner(self, unix: float) -> Joiner:
        """What came first counts for all the time before it: a replica is there before it is READY."""
        lives = tuple(max(0, sum(life.since_unix <= unix for life in of_slot) - 1) for of_slot in self._lives)
        if lives not in self._joiners:
            told = zip(self.slots, self._lives, lives, strict=True)
            places = [place for slot, of_slot, at in told if of_slot for place in self._of(slot, of_slot[at])]
            self._joiners[lives] = Joiner(places, self._hosts, slots=self.slots, devices=self.devices)
        return self._joiners[lives]

    def _of(self, slot: str, life: GpusOf) -> list[GpuPlace]:
        position = int(slot.rpartition("/gpu")[2])
        return places_of_replica(slot, position, self.devices, tuple(life.hosts), life.gpus, life.uuids, life.pcis, life.pod)


def places_of(folder: RunFolder, run: RunFile, spec: RunSpec, hosts: Mapping[str, str]) -> Places:
    """By fleet.json; of a record without it by each slot's place on its node, and where the node's pod was seen last."""
    fleet = read_fleet(folder.fleet_json)
    if fleet is None or not fleet.slots:
        fleet = _by_position(folder, run, spec)
    return Places(fleet, spec.slots(), hosts)


def _by_position(folder: RunFolder, run: RunFile, spec: RunSpec) -> FleetFile:
    view = last_view(folder.cluster)
    pods = {row.node: row for row in view.pods} if view is not None else {}
    fleet = FleetFile(max(1, spec.fleet.layout.devices))
    for node in range(spec.fleet.nodes):
        pod = pods.get(node)
        here = [run.host] if pod is None and spec.fleet.nodes == 1 and run.host else []
        life = GpusOf(0.0, [*([pod.host] if pod is not None and pod.host else here), node_name(node)], pod.pod if pod else "")
        for slot in (slot for slot in spec.slots() if slot.startswith(f"{node_name(node)}/")):
            fleet.slots[slot] = [life]
    return fleet


# --- what a source has of a span ---------------------------------------------------------------------------------------


@dataclass
class _Grid:
    """One role as one exporter gave it: a row a step, a column a key; NaN where there is nothing."""

    keys: list[SeriesKey]
    values: Floats
    stamps: Floats  # when the source had sampled what it answers with


@dataclass
class Fetched:
    """What came, and what of it was news to the record."""

    source: str
    start_unix: float
    end_unix: float
    step_s: float
    profiles: list[str] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)  # role → values of GPUs of the fleet
    added: dict[str, int] = field(default_factory=dict)  # role → rows that the record lacked
    matched: int = 0
    gpus_unmatched: int = 0
    series_unmatched: int = 0
    examples: list[str] = field(default_factory=list)
    not_collected: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.added.values())


class _Asker:
    """Roles of the profiles that answer, window after window, each sample once."""

    def __init__(self, client: PastProm, spec: GpuSourceSpec, window_s: float) -> None:
        self._client, self._spec, self._window_s = client, spec, window_s
        self._newest: dict[tuple[str, str, SeriesKey], float] = {}
        self.broken: dict[str, str] = {}  # role → what the server said of its query

    def active(self, profiles: Sequence[Profile], start: int, end: int) -> list[Profile]:
        """Those whose exporter was there at some time of the span."""
        step = max(1, (end - start) // PROBES)
        there = set()
        for profile in profiles:
            answer = self._client.range(profile.probe_promql(self._spec.matchers, self._spec.prefix), start, end, step)
            if any(len(curve.values) for curve in answer.curves):
                there.add(profile.name)
        return profile_files.in_use(profiles, lambda profile: profile.name in there)

    def role(
        self, profile: Profile, role: str, ticks: NDArray[np.int64], stamps: Mapping[tuple[str, ...], Floats]
    ) -> _Grid | None:
        recipe = profile.recipes[role]
        query = recipe.promql(self._spec.matchers, self._spec.prefix, self._window_s)
        try:
            keys, values = self._matrix(profile, query, ticks)
        except SourceError as error:
            if error.trouble != "bad_query":
                raise
            self.broken[role] = str(error)
            return None
        if not keys:
            return None
        told = np.stack([_stamps_of(key, stamps, ticks) for key in keys], axis=1)
        fresh = ~np.isnan(values)
        for column, key in enumerate(keys):  # what a slow source repeats is one sample
            before = self._newest.get((profile.name, role, key), -math.inf)
            newest = np.maximum.accumulate(np.concatenate(([before], np.where(fresh[:, column], told[:, column], -math.inf))))
            fresh[:, column] &= told[:, column] > newest[:-1]
            self._newest[profile.name, role, key] = float(newest[-1])
        return _Grid(keys, np.where(fresh, values, np.nan), told)

    def stamps(self, profile: Profile, ticks: NDArray[np.int64]) -> dict[tuple[str, ...], Floats]:
        """When each of its targets was sampled, by (host, pod, slot) and by host alone."""
        labels = [label for name in ("host", "pod", "slot") for label in profile.labels.get(name, ())]
        own = [*(f'{label}!=""' for label in profile.probe_labels), self._spec.matchers.strip().strip(",")]
        inside = ",".join(filter(None, own))
        prefix = profile.prefix(self._spec.prefix)
        stamps = " or ".join(f"timestamp({prefix}{name}{{{inside}}})" for name in profile.probe)
        keys, values = self._matrix(profile, f"max by ({', '.join(labels)}) ({stamps})", ticks)
        found: dict[tuple[str, ...], Floats] = {}
        for column, key in enumerate(keys):
            for place in ((key.host, key.pod, key.slot), (key.host,)):
                found[place] = np.fmax(found.get(place, np.full(len(ticks), np.nan)), values[:, column])
        return found

    def _matrix(self, profile: Profile, query: str, ticks: NDArray[np.int64]) -> tuple[list[SeriesKey], Floats]:
        step = int(ticks[1] - ticks[0]) if len(ticks) > 1 else 1
        answer = self._client.range(query, int(ticks[0]), int(ticks[-1]) + (len(ticks) == 1), step)
        numbers: dict[SeriesKey, int] = {}
        rows = [(numbers.setdefault(profile.key_of(curve.labels), len(numbers)), curve) for curve in answer.curves]
        made = np.full((len(ticks), len(numbers)), np.nan)
        for column, curve in rows:
            steps = np.round((curve.unix - ticks[0]) / step).astype(np.intp)
            inside = (steps >= 0) & (steps < len(ticks))
            made[steps[inside], column] = np.fmax(made[steps[inside], column], curve.values[inside])
        return list(numbers), made


def _stamps_of(key: SeriesKey, stamps: Mapping[tuple[str, ...], Floats], ticks: NDArray[np.int64]) -> Floats:
    """A source that cannot tell leaves the time of the question."""
    asked = ticks.astype(np.float64)
    told = stamps.get((key.host, key.pod, key.slot))
    if told is None:
        told = stamps.get((key.host,))
    return asked if told is None else np.where(np.isnan(told), asked, told)


# --- into the record ---------------------------------------------------------------------------------------------------


def span_of(run: RunFile, attempt: int | None) -> tuple[float, float]:
    """Of the run, or of an attempt; what has not ended goes until now. Raises ValueError."""
    if attempt is None:
        ends = [one.ended_unix for one in run.attempts]
        return run.started_unix, run.ended_unix or max([*ends, 0.0]) or time.time()
    for one in run.attempts:
        if one.number == attempt:
            return one.started_unix, one.ended_unix or time.time()
    there = ", ".join(str(one.number) for one in run.attempts) or "none"
    raise ValueError(f"{run.run} has no attempt {attempt}; it has {there}")


def fetch(
    folder: RunFolder,
    gpu: GpuSourceSpec,
    start_unix: float,
    end_unix: float,
    *,
    step_s: float | None = None,
    who: str = "",
    tell: Tell = lambda text: None,
) -> Fetched:
    """Every role of every exporter that was there, into the record. `gpu.url` is asked.

    Raises SourceError, RecordError, ValueError (profiles; a span or a spec that does not serve), FolderTaken (a head lives).
    """
    import polars as pl

    record = Record(folder)
    run = record.run
    if not start_unix < end_unix:
        raise ValueError(f"nothing to fetch between {start_unix:.0f} and {end_unix:.0f}: the start is not before the end")
    spec = RunSpec.model_validate(run.spec)
    places = places_of(folder, run, spec, gpu.hosts)
    wanted = profile_files.load(gpu)
    start, end = math.floor(start_unix), math.floor(end_unix)
    step = step_allowed(start, end, gpu.interval_s if step_s is None else step_s)
    with folder_lock(folder), PastProm(gpu) as client:
        done = Fetched(client.name, start, end, step)
        asker = _Asker(client, gpu, profile_files.window_s(step))
        active = asker.active(wanted, start, end)
        done.profiles = [profile.name for profile in active]
        if not active:
            done.problems.append(_nothing_found(client, gpu, start, end))
            return done
        done.problems += [f"down now: {text}" for text in client.targets_down()[:3]]
        in_span = pl.col("sampled_unix").is_between(start_unix, end_unix)  # a first step finds what was sampled before it
        writer = ChunkWriter(folder.gpus, 0.0, time.monotonic, WAITING_ROWS)
        for ticks in _windows(start, end, step, len(places.slots) * places.devices):
            tell(f"{_clock(ticks[0])} to {_clock(ticks[-1])}")
            frame = _put(asker, active, ticks, places, run, done).filter(in_span)
            _count(frame, done.found)
            news = _news(frame, record, step)
            _count(news, done.added)
            if news.height:
                writer.add(news.height, lambda news=news: news)  # type: ignore[misc]
                writer.flush()
        done.warnings += client.warnings
        missing = [role for role in ROLES if role not in done.found]
        done.not_collected = {
            role: asker.broken.get(role) or profile_files.why_missing(role, active, gpu.prefix) for role in missing
        }
        _write_down(folder, done, who)
        return done


def _count(frame: pl.DataFrame, into: dict[str, int]) -> None:
    for role, count in frame.group_by("role").len().iter_rows():
        into[role] = into.get(role, 0) + count


def _windows(start: int, end: int, step: int, gpus: int) -> Iterator[NDArray[np.int64]]:
    ticks = np.arange(start, end + 1, step, dtype=np.int64)
    each = max(2, POINTS // max(1, gpus))
    for first in range(0, len(ticks), each):
        yield ticks[first : first + each]


def _put(
    asker: _Asker, active: Sequence[Profile], ticks: NDArray[np.int64], places: Places, run: RunFile, done: Fetched
) -> pl.DataFrame:
    """The window's samples of GPUs of the fleet, as rows of the record."""
    import polars as pl

    grids: dict[str, list[_Grid]] = {}
    for profile in active:
        stamps = asker.stamps(profile, ticks)
        for role in profile.recipes:
            if role not in asker.broken and (grid := asker.role(profile, role, ticks, stamps)) is not None:
                grids.setdefault(role, []).append(grid)
    whole = {role: _together(found) for role, found in grids.items()}
    frames: list[pl.DataFrame] = []
    kept: dict[bytes, list[SeriesKey]] = {}  # the same list for the same keys: the join is decided once for it
    for at, tick in enumerate(ticks):
        reading = Reading(float(tick), {})
        for role, grid in whole.items():
            there = np.flatnonzero(~np.isnan(grid.values[at]))
            if len(there):
                chosen = kept.setdefault(role.encode() + there.tobytes(), [grid.keys[i] for i in there])
                reading.roles[role] = RoleReading(chosen, grid.values[at][there], grid.stamps[at][there])
        if not reading.roles:
            continue
        joined = places.joiner(float(tick)).place(reading)
        if joined.matched >= done.matched:
            done.matched, done.gpus_unmatched = joined.matched, joined.gpus_unmatched
            done.series_unmatched, done.examples = joined.series_unmatched, list(joined.examples)
        told = {role: (column, joined.unix[role]) for role, column in joined.columns.items()}
        frames.append(gpu_frame(0, float(tick), told, places.slots, places.devices))
    if not frames:
        return pl.DataFrame(schema=GPU_SCHEMA)
    return pl.concat(frames).with_columns(attempt=_attempt_of(run))


def _together(grids: Sequence[_Grid]) -> _Grid:
    """Of several exporters: a GPU that two of them know is taken from the first."""
    first = grids[0]
    for more in grids[1:]:
        known = set(first.keys)
        fresh = [i for i, key in enumerate(more.keys) if key not in known]
        first = _Grid(
            [*first.keys, *(more.keys[i] for i in fresh)],
            np.hstack([first.values, more.values[:, fresh]]),
            np.hstack([first.stamps, more.stamps[:, fresh]]),
        )
    return first


def _attempt_of(run: RunFile) -> pl.Expr:
    """By when it was sampled; 0 between attempts."""
    import polars as pl

    sampled, number = pl.col("sampled_unix"), pl.lit(0)
    for attempt in run.attempts:
        if attempt.started_unix:
            within = sampled.is_between(attempt.started_unix, attempt.ended_unix or math.inf)
            number = pl.when(within).then(pl.lit(attempt.number)).otherwise(number)
    return number.cast(GPU_SCHEMA["attempt"])


def _news(frame: pl.DataFrame, record: Record, step_s: float) -> pl.DataFrame:
    """Rows without a recorded sample of the same GPU and role close by; how close depends on how often that role was sampled."""
    import polars as pl

    if not frame.height:
        return frame
    keys = ["role", "slot", "device"]
    first, last = frame["sampled_unix"].min(), frame["sampled_unix"].max()
    around = pl.col("sampled_unix").is_between(pl.lit(first) - 600.0, pl.lit(last) + 600.0)
    there = Record(record.folder).collect(
        lambda gpus: gpus.filter(around).select(*keys, "sampled_unix").unique().sort("sampled_unix"), table="gpus"
    )
    if not there.height:
        return frame
    gaps = there.with_columns(gap=pl.col("sampled_unix").diff().over(keys)).group_by("role").agg(gap=pl.col("gap").median())
    near = there.with_columns(recorded_unix=pl.col("sampled_unix"))
    sorted_frame = frame.sort("sampled_unix").join(gaps, on="role", how="left")
    with_near = sorted_frame.join_asof(near, on="sampled_unix", by=keys, strategy="nearest", check_sortedness=False)
    apart = (pl.col("sampled_unix") - pl.col("recorded_unix")).abs()
    limit = _NEAR * pl.max_horizontal(pl.col("gap").fill_null(step_s), pl.lit(step_s))
    return with_near.filter(pl.col("recorded_unix").is_null() | (apart > limit)).select(GPU_SCHEMA.names())


def _nothing_found(client: PastProm, gpu: GpuSourceSpec, start: int, end: int) -> str:
    """With names that look like what was meant, if there are any."""
    names = [one.name for one in client.names(start, end, gpu.matchers)]
    if not names:
        return (
            f"{client.name} has nothing at all between {_clock(start)} and {_clock(end)}: does it keep data that long, and "
            "is it the one that scraped the exporters then?"
        )
    alike = [name for name in names if any(part in name.lower() for part in ("gpu", "dcgm", "vllm", "sglang"))][:5]
    like = f" (it has {', '.join(alike)} …: metrics.gpu.prefix, or a profile of your own)" if alike else ""
    narrowed = f" with the matchers {gpu.matchers}" if gpu.matchers else ""
    return f"{client.name} has {len(names)} metrics of that time, none of a known exporter{narrowed}{like}"


def _clock(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(unix)))


# --- what was fetched --------------------------------------------------------------------------------------------------


class FetchLine(msgspec.Struct, omit_defaults=True):
    """Where rows came from that no head has written: a line of gpus/fetched.jsonl."""

    unix: float
    source: str
    start_unix: float
    end_unix: float
    step_s: float
    profiles: list[str] = []
    rows: int = 0
    roles: dict[str, int] = {}
    matched: int = 0
    gpus_unmatched: int = 0
    not_collected: dict[str, str] = {}
    warnings: list[str] = []
    who: str = ""


def _write_down(folder: RunFolder, done: Fetched, who: str) -> None:
    line = FetchLine(
        time.time(), done.source, done.start_unix, done.end_unix, done.step_s, done.profiles, done.rows, done.added,
        done.matched, done.gpus_unmatched, done.not_collected, done.warnings, who,
    )  # fmt: skip
    folder.gpus.mkdir(parents=True, exist_ok=True)
    lines = LineFile(folder.fetched)
    try:
        lines.add(msgspec.json.encode(line))
        lines.flush()
    finally:
        lines.close()


def read_fetches(folder: RunFolder) -> list[FetchLine]:
    """Oldest first; a damaged line is left out."""
    found: list[FetchLine] = []
    try:
        lines = folder.fetched.read_bytes().splitlines()
    except OSError:
        return found
    decoder: Any = msgspec.json.Decoder(FetchLine)
    for line in lines:
        try:
            found.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return found
