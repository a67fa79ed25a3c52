"""HTTP for sources of metrics: one httpx client by the spec's [metrics.gpu], and its failures in words.

Tokens and passwords are files that are read again for every request, because they are rotated. They are looked at before
they are sent: the libraries below would quote a header that they refuse, and neither a log nor a record may hold one.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
from collections.abc import Generator
from urllib.parse import urlsplit

import httpx

from harness.exceptions import chain
from harness.metrics.gpu.base import SourceError, Trouble
from harness.metricspec import GpuSourceSpec

CONNECT_S = 2.0
_MOST_SECRET_BYTES = 64 * 1024
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request, with its URL


def make_client(spec: GpuSourceSpec, *, connections: int = 4, accept: str = "application/json") -> httpx.AsyncClient:
    """For one server. Raises SourceError where a file of the spec does not serve.

    Proxies of the environment count, but not for loopback.
    """
    try:
        return httpx.AsyncClient(
            auth=_auth(spec),
            verify=trust_of(spec),
            headers={"User-Agent": "paceline", "Accept": accept, **headers_of(spec)},
            timeout=_timeout(spec),
            limits=_limits(connections),
            mounts={f"all://{host}": None for host in _LOOPBACK},
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # HTTP_PROXY and the like are read here
        raise SourceError("setup", f"a proxy named in the environment (HTTPS_PROXY, ALL_PROXY) cannot be used: {error}") from None


def make_client_of_many(spec: GpuSourceSpec, *, accept: str) -> httpx.AsyncClient:
    """For a server on each machine of a fleet. As a Prometheus that scrapes them, it asks no proxy."""
    return httpx.AsyncClient(
        auth=_auth(spec),
        transport=_PoolEach(trust_of(spec)),
        headers={"User-Agent": "paceline", "Accept": accept, **headers_of(spec)},
        timeout=_timeout(spec),
    )


class _PoolEach(httpx.AsyncBaseTransport):
    """A pool for each server: a shared one looks at all its connections for every request, 4 ms of CPU each with 64 servers."""

    def __init__(self, trust: ssl.SSLContext | bool) -> None:
        self._trust = trust
        self._pools: dict[tuple[str, str, int | None], httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        server = url.scheme, url.host, url.port
        pool = self._pools.get(server)
        if pool is None:
            if self._trust is True and url.scheme == "https":
                self._trust = httpx.create_ssl_context()  # reading the CAs of all the world takes 20 ms: once
            verify = self._trust if url.scheme == "https" else False  # plain HTTP has nothing to verify
            pool = self._pools[server] = httpx.AsyncHTTPTransport(verify=verify, limits=_limits(2))
        return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()


def _timeout(spec: GpuSourceSpec) -> httpx.Timeout:
    return httpx.Timeout(spec.timeout_s, connect=min(CONNECT_S, spec.timeout_s))


def _limits(connections: int) -> httpx.Limits:
    return httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=120.0)


def trouble_of(error: Exception, url: str) -> SourceError:
    """What kept a request from being answered. Anything that a request of `make_client` raises may be given."""
    if isinstance(error, SourceError):
        return error
    where = shown(url)
    causes = chain(error)
    untrusted = next((one for one in causes if isinstance(one, ssl.SSLCertVerificationError)), None)
    if untrusted is not None:
        why = untrusted.verify_message.rstrip(".") or "it cannot be verified"
        return SourceError("setup", f"the certificate of {where} is not trusted: {why}; metrics.gpu.ca_file names the CA's file")
    waiting = ssl.SSLWantReadError, ssl.SSLWantWriteError  # stands behind an alert that came instead of data
    tls = next((one for one in causes if isinstance(one, ssl.SSLError) and not isinstance(one, waiting)), None)
    if tls is not None:
        return SourceError("setup", f"no TLS with {where}: {_why_no_tls(tls)}")
    if isinstance(error, httpx.ConnectTimeout):
        return SourceError("unreachable", f"{where} does not accept the connection in time; is it the right host and port?")
    if isinstance(error, (TimeoutError, httpx.TimeoutException)):
        return SourceError("timeout", f"{where} did not answer in time (metrics.gpu.timeout_s)")
    if isinstance(error, httpx.ProxyError):
        return SourceError("unreachable", f"the proxy in front of {where} refuses: {_one_line(error)}")
    if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
        return SourceError("setup", f"{where} is not a URL that can be asked: {_one_line(error)}")
    if isinstance(error, httpx.DecodingError):
        return SourceError("bad_answer", f"{where} sent a body that cannot be unpacked: {_one_line(error)}")
    if isinstance(error, httpx.RemoteProtocolError):
        return SourceError("unreachable", f"{where} broke off or does not speak HTTP: {_one_line(error)}")
    return SourceError("unreachable", f"{where} cannot be reached: {_silence(error, causes)}")


def refusal(response: httpx.Response, spec: GpuSourceSpec, said: str = "") -> SourceError:
    """Of an answer that is not 2xx. `said`: the server's own words, where the caller could read them."""
    code, where = response.status_code, shown(str(response.request.url))
    more = f": {said}" if said else ""
    if code in (401, 403):
        return SourceError("unauthorized", f"{where} refuses (HTTP {code}){more}; {_look_at(spec)}")
    if code == 429 or code in (502, 503, 504):
        return SourceError("overloaded", f"{where} is overloaded or not ready (HTTP {code}){more}", retry_after_s(response))
    if code in (301, 302, 303, 307, 308):
        target = response.headers.get("location", "")
        return SourceError("setup", f"{where} sends elsewhere (HTTP {code}, {shown(target)}): give the final URL in metrics.gpu")
    if code == 404:
        return SourceError("setup", f"there is nothing at {where} (HTTP 404){more}; is the path right?")
    trouble: Trouble = "overloaded" if code >= 500 else "bad_answer"
    return SourceError(trouble, f"{where} answers with HTTP {code}{more}", retry_after_s(response))


def retry_after_s(response: httpx.Response) -> float:
    """What the server asks for, in seconds, at most ten minutes; 0 where it says nothing or gives a date."""
    text = response.headers.get("retry-after", "").strip()
    return min(600.0, float(text)) if text.isascii() and text.isdigit() else 0.0


def shown(url: str) -> str:
    """For people: without query, user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else url.partition("?")[0]


# --- credentials -------------------------------------------------------------------------------------------------------


class _FromFiles(httpx.Auth):
    def __init__(self, spec: GpuSourceSpec) -> None:
        self._spec = spec

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if said := authorization(self._spec):
            request.headers["Authorization"] = said
        yield request


def authorization(spec: GpuSourceSpec) -> str:
    """The header's value as the files have it now; "" without credentials. Raises SourceError."""
    if spec.bearer_file is not None:
        token = _secret("bearer_file", spec.bearer_file)
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise SourceError("setup", f"metrics.gpu.bearer_file {spec.bearer_file!r} does not hold one token on one line")
        return f"Bearer {token}"
    if spec.password_file is not None:
        pair = f"{spec.username}:{_secret('password_file', spec.password_file)}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    return ""


def _auth(spec: GpuSourceSpec) -> httpx.Auth | None:
    return _FromFiles(spec) if spec.bearer_file is not None or spec.password_file is not None else None


def _secret(field: str, path: str) -> str:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            text = file.read(_MOST_SECRET_BYTES).decode().strip()
    except OSError as error:
        raise SourceError("setup", f"metrics.gpu.{field} {path!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SourceError("setup", f"metrics.gpu.{field} {path!r} is not text") from None
    if not text:
        raise SourceError("setup", f"metrics.gpu.{field} {path!r} is empty")
    return text


def headers_of(spec: GpuSourceSpec) -> dict[str, str]:
    for name, value in spec.headers.items():
        if not name.isascii() or not name or any(not (c.isalnum() or c in "!#$%&'*+-.^_`|~") for c in name):
            raise SourceError("setup", f"metrics.gpu.headers: {name!r} is not the name of a header")
        if not value.isascii() or not value.isprintable():
            raise SourceError("setup", f"metrics.gpu.headers: the value of {name} has characters that a header may not have")
    return dict(spec.headers)


def trust_of(spec: GpuSourceSpec) -> ssl.SSLContext | bool:
    if spec.ca_file is None and spec.cert_file is None:
        return True
    try:
        context = ssl.create_default_context(cafile=os.path.expanduser(spec.ca_file) if spec.ca_file is not None else None)
    except (OSError, ssl.SSLError) as error:
        raise SourceError(
            "setup", f"metrics.gpu.ca_file {spec.ca_file!r}: {_why_unread(error, 'no certificate in PEM')}"
        ) from None
    if spec.cert_file is not None:
        key = os.path.expanduser(spec.key_file) if spec.key_file is not None else None
        try:
            # Without a password of ours OpenSSL would ask for one on the terminal, under a running console.
            context.load_cert_chain(os.path.expanduser(spec.cert_file), key, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            names = f"metrics.gpu.cert_file {spec.cert_file!r}" + (f", key_file {spec.key_file!r}" if key is not None else "")
            why = _why_unread(error, "not a certificate with its key in PEM, without a password")
            raise SourceError("setup", f"{names}: {why}") from None
    return context


# --- words -------------------------------------------------------------------------------------------------------------


def _why_unread(error: OSError, otherwise: str) -> str:
    """ssl.SSLError is an OSError as well."""
    return otherwise if isinstance(error, ssl.SSLError) or not error.strerror else f"cannot be read: {error.strerror}"


def _look_at(spec: GpuSourceSpec) -> str:
    if spec.bearer_file is not None:
        return f"look at the token in {spec.bearer_file} (metrics.gpu.bearer_file)"
    if spec.password_file is not None:
        return f"look at metrics.gpu.username and the password in {spec.password_file} (metrics.gpu.password_file)"
    if spec.cert_file is not None:
        return f"look at the certificate in {spec.cert_file} (metrics.gpu.cert_file)"
    return "no credentials are set: metrics.gpu.bearer_file, or username and password_file"


def _why_no_tls(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version" in reason or "record layer" in reason:
        return "it does not speak TLS there; is it http:// instead of https://?"
    if ("alert" in reason and "certificate" in reason) or "handshake failure" in reason:
        return f"{reason}; it may want a client certificate: metrics.gpu.cert_file and key_file"
    return reason


def _silence(error: Exception, causes: list[BaseException]) -> str:
    if any(isinstance(one, ConnectionRefusedError) for one in causes) or "All connection attempts failed" in str(error):
        return "connection refused"
    return _one_line(error) or type(error).__name__


def _one_line(error: Exception, most: int = 200) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= most else text[: most - 1] + "…"
