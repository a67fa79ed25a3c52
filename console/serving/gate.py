"""Who may use a served console: whoever has the address, from a page of this very server, and nobody else.

The address carries a random token as the first part of its path, so the page, its scripts and its websocket all need it.
A page from elsewhere cannot guess it; should one learn it all the same, `Origin` gives that page away, and `Host` the name
under which it had this machine looked up (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TOKEN_BYTES = 24
_DEFAULT_PORTS = {"http": 80, "https": 443}


class UnfitAddress(Exception):
    """Not an address to serve on, or not one of a proxy; the text says what would be."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(slots=True)
class Gate:
    """`proxy` is the origin under which people reach a proxy in front of this server, such as `https://bench.example.org`."""

    proxy: str = ""
    token: str = field(default_factory=new_token, repr=False)
    _hosts: frozenset[str] = frozenset()
    _origins: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.proxy:
            parts = urlsplit(self.proxy)
            if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query:
                raise UnfitAddress(
                    f"{self.proxy!r} is not the address of a proxy: write it as people type it, such as https://bench.example.org"
                )

    def open_on(self, port: int) -> None:
        """The port is known now: so are the names under which this server may be asked."""
        hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        origins = {f"http://{host}" for host in hosts}
        if port == _DEFAULT_PORTS["http"]:
            bare = {host.rsplit(":", 1)[0] for host in hosts}
            hosts, origins = hosts | bare, origins | {f"http://{host}" for host in bare}
        if self.proxy:
            parts = urlsplit(self.proxy.lower())
            names = {parts.netloc}
            if parts.port is None:
                names.add(f"{parts.netloc}:{_DEFAULT_PORTS[parts.scheme]}")
            hosts, origins = hosts | names, origins | {f"{parts.scheme}://{name}" for name in names}
        self._hosts, self._origins = frozenset(hosts), frozenset(origins)

    def why_not(self, path: str, headers: Mapping[str, str], *, websocket: bool = False) -> str:
        """Why this request is refused, in words; empty when it may pass."""
        if headers.get("Host", "").lower() not in self._hosts:
            return "asked under a name that is not this server's (a proxy must pass on Host as it got it)"
        origin = headers.get("Origin", "").lower()
        if (origin or websocket) and origin not in self._origins:
            return "asked by a page that is not this server's"
        given = path.lstrip("/").partition("/")[0]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return "the address lacks its token: use it as `paceline serve` printed it"
        return ""


def security_headers(host: str) -> dict[str, str]:
    """For every answer. `host` has been checked. The terminal's own styles are set by script, hence 'unsafe-inline' there."""
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
        f"connect-src 'self' ws://{host} wss://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
