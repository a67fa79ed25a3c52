"""Asks a Prometheus API about the past, through prometheus-api-client: after the run, in a thread, never in a live round.

That library has traps, and this module is the only place that touches it. Their cures are here: no retries (three of them
block for six seconds), a time-out on every request and on the whole answer, a session of our own that sends a POST as a body,
keeps the server's warnings, follows no redirects, reads no .netrc and says what is wrong in the words of the live client; whole
seconds and steps that a server allows; queries that are built here, not by the library, because it escapes nothing.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np

from harness.metrics.gpu import promanswer
from harness.metrics.gpu.base import Curve, MetricInfo, QueryAnswer, SourceError
from harness.metrics.gpu.http import CONNECT_S, authorization, headers_of, refusal, trouble_of, trust_of
from harness.metrics.gpu.promquery import MOST_POINTS
from harness.metricspec import GpuSourceSpec

if TYPE_CHECKING:
    import requests

MOST_BYTES: Final = 256 << 20  # of an answer, unpacked
MOST_SERIES: Final = 10_000
_PART_BYTES: Final = 1 << 16
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_OWN_TIME: Final = 0.9  # of the time-out, for the server: so that it says itself that it was too slow


class PastProm:
    """Blocking. Everything raises SourceError and nothing else; `warnings` gathers what the server said of its answers."""

    def __init__(self, spec: GpuSourceSpec, timeout_s: float | None = None) -> None:
        """`timeout_s` None: four times that of live rounds, since a range is more work than a moment."""
        if spec.url is None:
            raise SourceError("setup", "metrics.gpu.url is not set: the Prometheus to ask, as in http://prometheus:9090")
        self._base = spec.url.rstrip("/")  # a slash at the end would ask for //api/v1
        self.name = f"Prometheus {urlsplit(self._base).netloc}"
        self.timeout_s = 4 * spec.timeout_s if timeout_s is None else timeout_s
        self.warnings: list[str] = []
        trust_of(spec)  # says what is wrong with a certificate's file; OpenSSL would ask for a password on the terminal
        from prometheus_api_client import PrometheusConnect
        from urllib3.util.retry import Retry

        self._session = _session_type()(spec, self.name, self._base, self.timeout_s, self.warnings)
        waits = (min(CONNECT_S, self.timeout_s), self.timeout_s)
        self._api: Any = PrometheusConnect(
            self._base, session=self._session, retry=Retry(total=0), timeout=waits, method="POST"
        )  # fmt: skip

    def range(self, query: str, start_unix: float, end_unix: float, step_s: float, *, most: int = MOST_SERIES) -> QueryAnswer:
        """Both ends in whole seconds, the step too, and as long as the server's limit of points wants."""
        if not (math.isfinite(start_unix) and math.isfinite(end_unix) and start_unix < end_unix and step_s > 0):
            asked = f"{start_unix} to {end_unix} by {step_s} s"
            raise SourceError("bad_query", f"a range needs a start before its end and a step above 0, not {asked}")
        start, end = math.floor(start_unix), math.floor(end_unix)
        step = step_allowed(start, end, step_s)
        self._session.asking = query
        with self._in_shape():
            found = self._api.custom_query_range(query, _moment(start), _moment(end), str(step), {"timeout": self._own_time()})
            return _matrix(found, most, float(step), self._told())

    def instant(self, query: str, at_unix: float, *, most: int = MOST_SERIES) -> QueryAnswer:
        self._session.asking = query
        with self._in_shape():
            found = self._api.custom_query(query, {"time": f"{at_unix:.3f}", "timeout": self._own_time()})
            return self._moment_of(found, most)

    def _moment_of(self, found: Any, most: int) -> QueryAnswer:
        kind = self._session.result_kind
        if kind == "matrix":
            return _matrix(found, most, 0.0, self._told())
        if kind in ("scalar", "string"):
            unix, value = found
            curves = [] if kind == "string" else [_curve({}, [(unix, value)])]
            return QueryAnswer(curves, kind, text=value if kind == "string" else "", warnings=self._told())
        curves = [_curve(one["metric"], [one["value"]]) for one in found[:most] if "value" in one]
        return QueryAnswer(curves, "vector", warnings=self._told(), left_out=max(0, len(found) - most))

    def names(self, start_unix: float, end_unix: float, matchers: str = "") -> list[MetricInfo]:
        """Metrics that were there at some time between these; types and helps where the server still knows them."""
        self._session.asking = ""
        since = {"start": str(math.floor(start_unix)), "end": str(math.ceil(end_unix))}
        if matchers.strip():
            since["match[]"] = f"{{{matchers.strip().strip(',')}}}"
        with self._in_shape():
            found = sorted(map(str, self._api.all_metrics(since)))
        try:
            with self._in_shape():
                about = {one["metric_name"]: one for one in self._api.get_metric_metadata("")}
        except SourceError as error:
            if error.passing:
                raise
            about = {}  # a proxy may not let that through
        return [MetricInfo(name, *(about.get(name, {}).get(key, "") for key in ("type", "help"))) for name in found]

    def series(self, matchers: Iterable[str], start_unix: float, end_unix: float) -> list[dict[str, str]]:
        """Label sets that were there between these moments."""
        self._session.asking = ""
        with self._in_shape():
            found = self._api.get_series(
                _moment(math.floor(start_unix)), _moment(math.ceil(end_unix)), {"match[]": list(matchers)}
            )
            return [dict(one) for one in found]

    def targets_down(self) -> list[str]:
        """Pages that the server cannot scrape now, in words; none where it does not tell of targets (Mimir, proxies)."""
        self._session.asking = ""
        try:
            with self._in_shape():
                active = self._api.get_targets(state="active").get("activeTargets", [])
                down = [one for one in active if one.get("health") == "down"]
        except SourceError as error:
            if error.trouble in ("setup", "bad_answer"):
                return []
            raise
        return [f"{one.get('scrapeUrl', '?')}: {promanswer.shortened(one.get('lastError', '')) or 'down'}" for one in down]

    @contextmanager
    def _in_shape(self) -> Iterator[None]:
        """The library takes whatever has a `data` for the answer that it wants."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            text = f"{self.name} sent JSON of another shape than a Prometheus API's ({type(error).__name__}): is it one?"
            raise SourceError("bad_answer", text) from error

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> PastProm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own_time(self) -> str:
        return f"{math.ceil(self.timeout_s * 1000 * _OWN_TIME)}ms"

    def _told(self) -> tuple[str, ...]:
        """Warnings of the last answer."""
        told: tuple[str, ...] = self._session.told
        return told


def step_allowed(start: int, end: int, step_s: float) -> int:
    """Whole seconds, at least what keeps a range within the points that a server gives."""
    return max(1, math.ceil(step_s), math.ceil((end - start) / (MOST_POINTS - 1)))


def _moment(unix: int) -> datetime.datetime:
    """The library wants it so, and rounds what it gets: whole seconds come through as they are."""
    return datetime.datetime.fromtimestamp(unix, datetime.UTC)


def _matrix(found: list[Any], most: int, step_s: float, told: tuple[str, ...]) -> QueryAnswer:
    curves = [_curve(one["metric"], one.get("values", [])) for one in found[:most]]
    return QueryAnswer(curves, "matrix", step_s, warnings=told, left_out=max(0, len(found) - most))


def _curve(labels: dict[str, str], points: list[Any]) -> Curve:
    count = len(points)
    unix = np.fromiter((point[0] for point in points), np.float64, count)
    return Curve(labels, unix, np.fromiter((float(point[1]) for point in points), np.float64, count))


# --- the session -------------------------------------------------------------------------------------------------------


@cache
def _session_type() -> Any:
    """Made when it is first needed: requests is for those who look back."""
    import requests

    class Session(requests.Session):
        def __init__(self, spec: GpuSourceSpec, name: str, base: str, timeout_s: float, warnings: list[str]) -> None:
            super().__init__()
            self._spec, self._name, self._base, self._timeout_s, self._warnings = spec, name, base, timeout_s, warnings
            self.asking, self.result_kind = "", ""
            self.told: tuple[str, ...] = ()
            self.headers.update({"User-Agent": "paceline", "Accept": "application/json", **headers_of(spec)})
            self.auth = self._log_in  # always, or a .netrc would be looked at
            self.trust_env = urlsplit(base).hostname not in _LOOPBACK  # proxies of the environment
            self.verify, self.cert = _tls_files(spec)

        def _log_in(self, request: Any) -> Any:
            if said := authorization(self._spec):
                request.headers["Authorization"] = said
            return request

        def request(self, method: str, url: str, **asked: Any) -> Any:  # type: ignore[override]
            if method == "POST":  # the library puts the query into the URL, which has a limit, and sends an empty body
                asked["data"], asked["params"] = asked.get("params"), None
            until_s = time.monotonic() + self._timeout_s
            try:
                response = super().request(method, url, **{**asked, "stream": True, "allow_redirects": False})
                with response:
                    body = self._body(response, until_s)
            except requests.RequestException as error:
                raise trouble_of(_for_httpx(error), self._base) from error
            except (OSError, ValueError) as error:
                raise trouble_of(error, self._base) from error
            if response.status_code != 200:
                raise self._refused(method, url, response, body)
            self._keep(response, body)
            return response

        def _body(self, response: Any, until_s: float) -> bytes:
            """A time-out of requests is between two bytes only: a server that trickles would never end."""
            parts, size = [], 0
            for part in response.iter_content(_PART_BYTES):
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    cure = "aggregate the query (sum by, topk), or take a longer step"
                    raise SourceError("bad_query", f"the answer of {self._name} is larger than {MOST_BYTES >> 20} MiB: {cure}")
                if time.monotonic() > until_s:
                    raise SourceError("timeout", f"{self._name} has not answered all within {self._timeout_s:g} s")
            return b"".join(parts)

        def _keep(self, response: Any, body: bytes) -> None:
            """The library takes `data` of the decoded body and drops the rest: decoded here, once, and looked at before."""
            try:
                found = msgspec.json.decode(body)
            except msgspec.DecodeError:
                raise promanswer.unreadable(body, self._name) from None
            if not isinstance(found, dict) or "data" not in found:
                raise promanswer.unreadable(body, self._name)
            data = found["data"]
            self.result_kind = str(data.get("resultType", "")) if isinstance(data, dict) else ""
            self.told = tuple(map(str, [*(found.get("warnings") or []), *(found.get("infos") or [])]))
            self._warnings += [one for one in self.told if one not in self._warnings]
            response.json = lambda: found

        def _refused(self, method: str, url: str, response: Any, body: bytes) -> SourceError:
            bad_query = promanswer.refused_query(response.status_code, body, self._name, self.asking) if self.asking else None
            if bad_query is not None:
                return bad_query
            said = promanswer.said_in(body)
            if response.status_code == 404:
                where = "metrics.gpu.url ends before /api/v1 and has the server's path prefix, if it has one"
                said = f"{said}; {where}" if said else where
            headers: Mapping[str, str] = response.headers
            request = httpx.Request(method, url)
            answered = httpx.Response(response.status_code, headers=_only(headers, "location", "retry-after"), request=request)
            return refusal(answered, self._spec, said)

    return Session


def _only(headers: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def _tls_files(spec: GpuSourceSpec) -> tuple[str | bool, str | tuple[str, str] | None]:
    from os.path import expanduser

    verify = expanduser(spec.ca_file) if spec.ca_file is not None else True
    if spec.cert_file is None:
        return verify, None
    cert = expanduser(spec.cert_file)
    return verify, cert if spec.key_file is None else (cert, expanduser(spec.key_file))


def _for_httpx(error: requests.RequestException) -> Exception:
    """Its twin, so that both clients say the same of the same failure; what lies behind it stays its cause."""
    import requests
    from urllib3.exceptions import ReadTimeoutError

    twins: tuple[tuple[type[Exception], type[Exception]], ...] = (
        (requests.exceptions.ConnectTimeout, httpx.ConnectTimeout),
        (requests.exceptions.Timeout, httpx.ReadTimeout),
        (requests.exceptions.ProxyError, httpx.ProxyError),
        (requests.exceptions.InvalidURL, httpx.InvalidURL),
        (requests.exceptions.MissingSchema, httpx.InvalidURL),
        (requests.exceptions.ContentDecodingError, httpx.DecodingError),
        (requests.exceptions.ChunkedEncodingError, httpx.RemoteProtocolError),
        (requests.exceptions.ConnectionError, httpx.ConnectError),
    )
    kind = next((twin for theirs, twin in twins if isinstance(error, theirs)), httpx.ReadError)
    if any(isinstance(part, ReadTimeoutError) for part in error.args):  # silent within a body: not a Timeout of the library
        kind = httpx.ReadTimeout
    made = kind(_innermost(error))
    made.__cause__ = error
    return made


def _innermost(error: BaseException) -> str:
    """requests wraps what urllib3 wraps: the words at the bottom are for people."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return str(error)
