"""The spec's table [metrics]: what is measured beside LoadGen, and where GPU metrics come from.

Nothing secret stands here: tokens and passwords are files, read again for every request because they are rotated.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SourceKind = Literal["auto", "promql", "scrape", "simulated", "none"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _http_url(value: str) -> str:
    parts = urlsplit(value.replace("{host}", "host"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is not a URL; it begins with http:// or https:// and names a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("user and password do not belong into a URL, which is recorded; use username and password_file")
    return value.rstrip("/")


class GpuSourceSpec(_Table):
    source: SourceKind = Field(
        "auto", description="auto: promql with a url, scrape with targets, simulated for synthetic replicas, else none"
    )
    url: str | None = Field(None, description="Of a Prometheus API, path prefix included, /api/v1 not")
    targets: tuple[str, ...] = Field((), description="Pages of exporters; {host} stands for each machine of the fleet")
    profiles: tuple[str, ...] = Field((), description="Names of profiles; empty: those whose metrics are found")
    profile_files: tuple[str, ...] = Field((), description="TOML files with profiles of your own")
    prefix: str = Field("", pattern=r"^[A-Za-z0-9_]*$", description="Before every metric name (AMD: MetricsFieldPrefix)")
    matchers: str = Field("", description='Label matchers for every query, as in: cluster="a", env=~"bench.*"')
    interval_s: float = Field(10.0, ge=1, le=300, description="Between two rounds")
    slow_interval_s: float = Field(60.0, ge=1, le=3600, description="For roles that hardly change (totals, error counters)")
    timeout_s: float = Field(8.0, gt=0, le=120)
    stale_after_s: float = Field(90.0, gt=0, le=3600, description="Values older than this are shown as stale")
    username: str | None = None
    password_file: str | None = None
    bearer_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = Field(None, description="Client certificate (mTLS), PEM")
    key_file: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, description="More headers, as X-Scope-OrgID; recorded: no secrets")
    hosts: dict[str, str] = Field(default_factory=dict, description="Host as the source names it → node of the fleet")
    with_prometheus: bool = Field(False, description="Start a Prometheus on this machine that scrapes the targets, and ask that")

    @field_validator("url")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        return value if value is None else _http_url(value)

    @field_validator("targets")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_http_url(target) for target in value)

    @model_validator(mode="after")
    def _fits_together(self) -> GpuSourceSpec:
        if self.source == "promql" and self.url is None and not self.with_prometheus:
            raise ValueError("source = promql needs url (the Prometheus to ask) or with_prometheus")
        if self.source == "scrape" and not self.targets:
            raise ValueError('source = scrape needs targets, as in ["http://{host}:5000/metrics"]')
        if self.url is not None and self.with_prometheus:
            raise ValueError("url names a Prometheus that is there, with_prometheus starts another: give one of the two")
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file belong together")
        if self.username is not None and self.bearer_file is not None:
            raise ValueError("give bearer_file, or username and password_file, not both")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self


class MetricsSpec(_Table):
    snapshot_hz: float = Field(4.0, gt=0, le=20)
    window_s: float = Field(60.0, ge=10, le=600, description="The moving window beside the whole attempt")
    listen: str | None = Field(
        None,
        pattern=r"^(off|[^\s:]*:\d{1,5})$",
        description="Our own /metrics as host:port; off: none; None: a free port of 127.0.0.1, in a pod port 9464",
    )
    rules: str | None = Field(None, description="Alert rules (Prometheus rule file); None: those that come with paceline")
    gpu: GpuSourceSpec = GpuSourceSpec()

    @field_validator("listen")
    @classmethod
    def _has_a_port(cls, value: str | None) -> str | None:
        if value is not None and value != "off" and int(value.rpartition(":")[2]) > 65_535:
            raise ValueError(f"{value!r}: a port is at most 65535")
        return value
