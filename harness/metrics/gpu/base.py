"""The seam between whoever has GPU metrics and whoever wants them: MetricsSource and what it answers.

A reading holds only what was measured. A series that is not there is absent, a role that nobody collects is named with the
reason, a sentinel for "blank" never gets this far: no missing value is ever a 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Trouble = Literal["unreachable", "timeout", "unauthorized", "overloaded", "bad_query", "bad_answer", "setup"]


class SourceError(Exception):
    """A source cannot answer (now). The text is for people: what was asked of whom, what came back, what to do next."""

    def __init__(self, trouble: Trouble, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.trouble, self.retry_after_s = trouble, retry_after_s

    @property
    def passing(self) -> bool:
        """Another try may succeed without anybody changing anything."""
        return self.trouble in ("unreachable", "timeout", "overloaded")


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Which GPU (or engine) a series is of, as the source names it; "" where it does not say."""

    host: str = ""
    gpu: str = ""  # its number on the host
    uuid: str = ""
    pci: str = ""
    partition: str = ""
    pod: str = ""
    slot: str = ""  # only sources that know replicas: our own pages
    engine: str = ""  # rank within a server


@dataclass(frozen=True, slots=True)
class RoleReading:
    """One role: `values[i]`, in the role's unit, is of `keys[i]` and was last sampled by the source at `unix[i]`."""

    keys: Sequence[SeriesKey]
    values: NDArray[np.float64]
    unix: NDArray[np.float64]
    metric: str = ""  # as the exporter calls it


@dataclass(frozen=True, slots=True)
class Reading:
    unix: float  # when the source was asked
    roles: dict[str, RoleReading]
    not_collected: dict[str, str] = field(default_factory=dict)  # role → why, in words
    resolution_s: float = float("nan")  # how often its values can change, as far as that is known
    profiles: tuple[str, ...] = ()  # that answered
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # parts that are missing: a target that is down


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of an answer to a query: seconds since 1970 and values, equally long; an instant query gives one point."""

    labels: dict[str, str]
    unix: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    curves: list[Curve]
    kind: Literal["vector", "matrix", "scalar", "string"]
    step_s: float = 0.0  # as it was used; larger than asked for where the server allows no more points
    text: str = ""  # of a string
    warnings: tuple[str, ...] = ()
    left_out: int = 0  # series beyond the limit


@dataclass(frozen=True, slots=True)
class MetricInfo:
    name: str
    type: str = ""
    help: str = ""
    roles: tuple[str, ...] = ()  # that a profile reads from it


class MetricsSource(Protocol):
    kind: str  # promql, scrape, simulated
    name: str  # for a header: `Prometheus prom.example:9090`, `64 exporters`

    async def read(self, roles: Sequence[str]) -> Reading:
        """The newest values. Raises SourceError, never anything else; ends within the source's timeout."""

    async def query(
        self,
        promql: str,
        start_unix: float | None = None,
        end_unix: float | None = None,
        step_s: float | None = None,
        *,
        most: int = 200,
    ) -> QueryAnswer:
        """PromQL: at one moment (only `end_unix`, or now), or over a range. Raises SourceError; one without PromQL says so."""

    async def metrics(self) -> list[MetricInfo]:
        """Every metric that can be asked for, by name. Raises SourceError."""

    async def close(self) -> None:
        """Let go of connections."""
