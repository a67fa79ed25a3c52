"""What an API server's refusal means, as a sentence for a person and as fields for programs."""

from __future__ import annotations

import re
import ssl
from typing import Any

import httpx
import msgspec

from harness.cluster.base import ClusterError
from harness.exceptions import chain

BUDGET_CAUSE = "DisruptionBudget"
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)"| at the cluster scope)?'
)
CHECK_SERVER = "check `server` of the cluster in the kubeconfig"
_TITLE = re.compile(r"<title>(.*?)</title>", re.I | re.S)
_VERBS = {"GET": "read", "POST": "create", "PATCH": "apply", "PUT": "replace", "DELETE": "delete"}


class Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    field: str = ""
    message: str = ""


class ApiProblem(ClusterError):
    """`code` is the HTTP status, 0 when there was no reply. str() is the whole sentence: what failed on what, why, next step."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        sentence: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(sentence or message)
        self.code, self.reason, self.message = code, reason, message
        self.causes, self.retry_after_s = causes, retry_after_s

    @property
    def no_reply(self) -> bool:
        return self.code == 0

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def conflict(self) -> bool:
        return self.code == 409

    @property
    def forbidden(self) -> bool:
        """A right is missing; quota and admission refuse with the same code, and are not this."""
        return self.code == 403 and _FORBIDDEN.search(self.message) is not None

    @property
    def expired(self) -> bool:
        """A resourceVersion is too old to go on from."""
        return self.code == 410

    @property
    def budget(self) -> Cause | None:
        """Why a PodDisruptionBudget did not allow an eviction; None when it was not that."""
        return next((c for c in self.causes if c.reason == BUDGET_CAUSE), None) if self.code == 429 else None

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.code in (0, 408, 429, 502, 503, 504)


def of_reply(
    method: str, what: str, code: int, body: bytes, headers: httpx.Headers | None = None, origin: str = ""
) -> ApiProblem:
    """`what` names the object, as in `job run-worker`; `origin`: where the credentials came from."""
    status = _status(body)
    found = status.get("details")
    details: dict[str, Any] = found if isinstance(found, dict) else {}
    message = _one_line(str(status.get("message") or _plain(body.decode("utf-8", "replace"))))
    if 300 <= code < 400:
        where = (headers.get("location") if headers is not None else None) or "another address"
        message = f"it sends us to {where}, as no API server does; {CHECK_SERVER}"
    reason = str(status.get("reason") or "")
    causes = tuple(
        Cause(str(c.get("reason") or ""), str(c.get("field") or ""), _one_line(str(c.get("message") or "")))
        for c in details.get("causes") or ()
        if isinstance(c, dict)
    )
    retry_s = details.get("retryAfterSeconds") or (_number(headers.get("retry-after")) if headers is not None else None)
    verb = _VERBS.get(method, method.lower())
    return ApiProblem(
        code,
        reason,
        message,
        sentence=_sentence(code, verb, what, message, causes, origin),
        causes=causes,
        retry_after_s=float(retry_s) if isinstance(retry_s, (int, float)) and retry_s else None,
    )


def of_silence(server: str, method: str, what: str, problem: Exception, timeout_s: float) -> ApiProblem:
    """No reply: refused, unknown, too slow, cut, or a certificate that does not fit."""
    causes = chain(problem)
    untrusted = next((p for p in causes if isinstance(p, ssl.SSLCertVerificationError)), None)
    if untrusted is not None:
        reason, sentence = (
            "Untrusted",
            f"the certificate of the API server {server} is not trusted: {untrusted.verify_message.rstrip('.')}; "
            "check certificate-authority and tls-server-name in the kubeconfig",
        )
    elif tls := next((p for p in causes if isinstance(p, ssl.SSLError)), None):
        reason, sentence = "Tls", f"no TLS connection to the API server {server}: {tls.reason or tls}"
    else:
        why = _silence(problem, causes, timeout_s)
        late = isinstance(problem, (TimeoutError, httpx.TimeoutException)) and not isinstance(problem, httpx.ConnectTimeout)
        reason = "TimedOut" if late else "NoReply"
        sentence = f"the API server {server} does not answer: {why} ({_VERBS.get(method, method.lower())} {what})"
    return ApiProblem(0, reason, sentence)


def of_event(what: str, status: dict[str, Any]) -> ApiProblem:
    """An ERROR event inside a watch; it carries a Status as a refused request does."""
    code = status.get("code")
    return of_reply("GET", what, code if isinstance(code, int) else 500, msgspec.json.encode(status))


# --- sentences ---------------------------------------------------------------------------------------------------------


def _sentence(code: int, verb: str, what: str, message: str, causes: tuple[Cause, ...], origin: str) -> str:
    """The server's own message already names object and field in most cases; these say what it means and what to do."""
    failed = f"cannot {verb} {what}"
    if code == 401:
        return f"{failed}: the API server does not accept the credentials of {origin or 'this user'}; log in again, then retry"
    if code == 403:
        return _forbidden(failed, message)
    if code == 404:
        return f"{failed}: {message or 'there is none'}"
    if code == 409:
        return f"{failed}: {_conflict(message, causes)}"
    if code == 422:
        fields = "; ".join(f"{c.field}: {c.message}" for c in causes if c.field and c.message)
        return f"{failed}: the API server finds it invalid: {fields or message}"
    if code == 429:
        return _throttled(failed, message, causes)
    if code in (500, 502, 503, 504):
        hint = "; two budgets select this pod: remove one" if "more than one PodDisruptionBudget" in message else ""
        return f"{failed}: the API server failed (HTTP {code}): {message or 'no message'}{hint}"
    return f"{failed}: {message or f'HTTP {code}'}"


def _forbidden(failed: str, message: str) -> str:
    found = _FORBIDDEN.search(message)
    if found is None:  # quota, pod security, a namespace that is going: the message says which
        if "exceeded quota" in message:
            return f"{failed}: {message}; ask for a larger quota or fewer nodes"
        return f"{failed}: {message}"
    namespace = found["namespace"]
    where = f"in namespace {namespace}" if namespace else "in the whole cluster"
    group = f" of group {found['group']}" if found["group"] else ""
    kind = "Role" if namespace else "ClusterRole"
    return (
        f"{failed}: user {found['user']} may not {found['verb']} {found['resource']}{group} {where}; "
        f"an admin can allow it by a {kind} (verb {found['verb']})"
    )


def _conflict(message: str, causes: tuple[Cause, ...]) -> str:
    owned = [c for c in causes if c.reason == "FieldManagerConflict"]
    if not owned:
        return message
    fields = ", ".join(c.field for c in owned[:5])
    return f"{fields} belongs to somebody else: {owned[0].message}"


def _throttled(failed: str, message: str, causes: tuple[Cause, ...]) -> str:
    cause = next((c for c in causes if c.reason == BUDGET_CAUSE), None)
    if cause is None:
        return f"{failed}: the API server is busy: {message or 'too many requests'}"
    if cause.message.rstrip(".").endswith("still being processed by the server"):
        return f"{failed}: its disruption budget has not been counted yet; retry in some seconds"
    return (
        f"{failed}: the disruption budget does not allow it now: {cause.message.rstrip('.')}; wait until another worker is ready"
    )


def _silence(problem: Exception, causes: list[BaseException], timeout_s: float) -> str:
    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
    if isinstance(problem, (TimeoutError, httpx.TimeoutException)):
        return f"no reply within {timeout_s:g} s"
    if isinstance(problem, httpx.ProxyError):
        return f"the proxy refused: {_one_line(str(problem))}"
    text = _one_line(str(problem))
    if "refused" in text or "All connection attempts failed" in text:  # anyio hides the errors of several addresses
        return "connection refused"
    return text or type(problem).__name__


def _status(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain(text: str) -> str:
    """Of a page that a proxy in between has sent, no more than its title."""
    if not text.lstrip().startswith("<"):
        return text[:500]
    found = _TITLE.search(text)
    return f"a web page, {found[1].strip()[:200]!r}, not from an API server" if found else "a web page, not from an API server"


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None


def _one_line(text: str, most: int = 1000) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"
