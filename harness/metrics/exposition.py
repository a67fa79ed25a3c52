"""Text for Prometheus to scrape: families of one process through prometheus_client, and tables of one line a replica beside them.

The library takes 20 µs a line, which at 512 replicas x 11 columns is 110 ms in the loop that supervises; a table of known
shape is joined from prepared labels instead, in a tenth of that (tests hold both to what the library's own parser reads).
The registry is ours alone: vLLM uses the global one, and multiprocess mode leaves files that outlive a killed process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from harness.metricspec import MetricsSpec
from harness.spec import ClusterSpec

if TYPE_CHECKING:
    from prometheus_client.core import Metric

POD_PORT = 9464
_OPENMETRICS = "application/openmetrics-text"


@dataclass(frozen=True, slots=True)
class Column:
    """`name` without the namespace; a counter's ends in _total. `values`: one a row, NaN: no line."""

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    values: Sequence[float]
    more_labels: Sequence[str] = ()  # one a row, as in `state="READY"`


@dataclass(frozen=True, slots=True)
class Table:
    label: str
    rows: Sequence[str]
    columns: Sequence[Column]


class Collects(Protocol):
    def collect(self) -> Iterable[Metric]: ...


class Page:
    """`collector` gives the families, each time anew; what needs prometheus_client imports it when first asked."""

    def __init__(self, collector: Collects) -> None:
        self._collector = collector

    def render(self, accept: str, tables: Sequence[Table] = ()) -> tuple[bytes, str]:
        """Body and content type: OpenMetrics where it is accepted, else the older text format."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._collector)
        # Older servers name OpenMetrics among others; the encoder knows which of them it can serve.
        encode, kind = choose_encoder(accept)
        body: bytes = encode(registry)
        open_metrics = kind.startswith(_OPENMETRICS)
        tail = b"# EOF\n" if open_metrics else b""
        rows = "".join(_lines(table, open_metrics) for table in tables).encode()
        return body.removesuffix(tail) + rows + tail, kind


def _lines(table: Table, open_metrics: bool) -> str:
    heads = [f'{{{table.label}="{_escaped(row)}"' for row in table.rows]
    parts: list[str] = []
    for column in table.columns:
        name = f"paceline_{column.name}"
        family = name.removesuffix("_total") if open_metrics and column.kind == "counter" else name
        parts.append(f"# HELP {family} {column.help}\n# TYPE {family} {column.kind}\n")
        if column.more_labels:
            rows = zip(heads, column.more_labels, column.values, strict=True)
            parts.extend(f"{name}{head},{more}}} {value}\n" for head, more, value in rows if value == value)
        else:
            parts.extend(f"{name}{head}}} {value}\n" for head, value in zip(heads, column.values, strict=True) if value == value)
    return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def listen_address(metrics: MetricsSpec, cluster: ClusterSpec) -> tuple[str, int] | None:
    """Where a head or worker shows its page: host and port (0: a free one); None: nowhere."""
    if metrics.listen == "off":
        return None
    if metrics.listen is not None:
        host, _, port = metrics.listen.rpartition(":")
        return host, int(port)
    return ("127.0.0.1", 0) if cluster.kind == "local" else ("0.0.0.0", POD_PORT)
