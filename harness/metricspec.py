"""The spec's table [metrics]: what is measured beside LoadGen, and where GPU metrics come from.

Nothing secret stands here: tokens and passwords are files, read again for every request because they are rotated.
"""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SourceKind = Literal["auto", "promql", "scrape", "simulated", "none"]

#: name="value" and the like, with commas between; what a label's value is quoted with is PromQL's.
_MATCHER: Final = r"""\s*[A-Za-z_][A-Za-z0-9_]*\s*(?:=~|!~|!=|=)\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)\s*"""
_MATCHERS: Final = re.compile(rf"\s*(?:{_MATCHER}(?:,{_MATCHER})*,?\s*)?")
_SECRET_HEADERS: Final = ("authorization", "proxy-authorization")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value.replace("{host}", "host"))
        parts.port  # noqa: B018 - looked at, because it raises
    except ValueError as error:  # brackets without an IPv6 address between them, a port that is none
        why = str(error).replace("Port could not be cast to integer value as", "its port is no number:")
        raise ValueError(f"{value!r} is not a URL: {why[:1].lower()}{why[1:]}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is not a URL; it begins with http:// or https:// and names a host")
    if "{" in parts.netloc:
        raise ValueError(f"{value!r}: only {{host}} stands for something, each machine of the fleet")
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
    prefix: str = Field("", description="Before every metric name (AMD: MetricsFieldPrefix)")
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
        if value is None:
            return None
        url = _http_url(value)
        parts = urlsplit(url)
        if "{host}" in url:
            raise ValueError(f"{value!r}: {{host}} stands for each machine of the fleet, in targets; one Prometheus is asked")
        base = re.sub(r"/(api/v1(/query(_range)?)?|graph)$", "", parts.path)  # in the middle, /api/v1 is a cluster's proxy
        if parts.query or parts.fragment or base != parts.path:
            right = parts._replace(path=base, query="", fragment="").geturl()
            raise ValueError(f"{value!r} is more than the API's base, to which /api/v1/query is added; write {right}")
        return url

    @field_validator("targets")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_http_url(target) for target in value)

    @field_validator("prefix")
    @classmethod
    def _begins_names(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_]*", value):
            raise ValueError(f"{value!r} cannot stand before a metric's name: only letters, digits and _, as in amd_")
        return value

    @field_validator("matchers")
    @classmethod
    def _are_matchers(cls, value: str) -> str:
        if not _MATCHERS.fullmatch(value):
            raise ValueError(f'{value!r} are no label matchers of PromQL; write them as in cluster="a", env=~"bench.*"')
        return value

    @field_validator("headers")
    @classmethod
    def _are_no_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        if secret := next((name for name in value if name.strip().lower() in _SECRET_HEADERS), None):
            raise ValueError(
                f"{secret} does not belong here, since the spec is recorded; bearer_file or password_file name a file"
            )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> GpuSourceSpec:
        if self.source == "promql" and self.url is None and not self.with_prometheus:
            raise ValueError("source = promql needs url (the Prometheus to ask) or with_prometheus")
        if self.source == "scrape" and not self.targets:
            raise ValueError('source = scrape needs targets, as in ["http://{host}:5000/metrics"]')
        if self.url is not None and self.with_prometheus:
            raise ValueError("url names a Prometheus that is there, with_prometheus starts another: give one of the two")
        if (self.username is None) != (self.password_file is None):
            lacking, given = ("username", "password_file") if self.username is None else ("password_file", "username")
            raise ValueError(f"{given} needs {lacking}")
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
        description="Our own /metrics as host:port; off: none; None: a free port of 127.0.0.1, in a pod port 9464",
    )
    rules: str | None = Field(None, description="Alert rules (Prometheus rule file); None: those that come with paceline")
    gpu: GpuSourceSpec = GpuSourceSpec()

    @field_validator("listen")
    @classmethod
    def _has_a_port(cls, value: str | None) -> str | None:
        if value is None or value == "off":
            return value
        if not re.fullmatch(r"[^\s:]*:\d{1,5}", value):
            raise ValueError(f"{value!r} is not host:port, as in 127.0.0.1:9464 or 0.0.0.0:9464; off: no page")
        if int(value.rpartition(":")[2]) > 65_535:
            raise ValueError(f"{value!r}: a port is at most 65535")
        return value
