"""The way to the API server: its address, TLS and credentials, from a kubeconfig or from the pod that we are in.

The `kubernetes` package reads them, because it knows tokens that rotate, exec plugins and OIDC; our own requests go over
httpx (see api.py). It costs 0.7 s and 34 MiB to import, so only a call of `access` does that.

Credentials are read anew for each request (`headers`), which is free unless the package knows them to be expired, and are
loaded from the start once a reply says that they are (`renew`): the package alone never re-reads a tokenFile, nor the
client certificates of a plugin that gave no date.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import logging
import os
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from harness.cluster.base import ClusterError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_RENEW_AT_MOST_EVERY_S = 5.0
_FIELD = "cluster.kubernetes.context"


class Access:
    """Where the API server is and what it is shown. Safe to be used by several threads."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._renewed_s = float("-inf")
        self._secured: tuple[tuple[Any, ...], ssl.SSLContext] | None = None
        self.configuration: Configuration = source.load()
        self.server = str(self.configuration.host).rstrip("/")
        self.namespace = source.namespace
        self.context = source.context  # "" in a pod
        self.origin = source.origin  # for people: which file and context, or the pod's service account
        if not _is_address(self.server):
            raise ClusterError(f"{self.origin}: server {self.server!r} is not an address; write https://HOST:PORT")

    def headers(self) -> dict[str, str]:
        """What shows who we are. May run an exec plugin or read a file, hence block: call it in a thread of an event loop.
        Raises ClusterError."""
        with self._lock, _told(self.origin):
            token = (self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or "").strip()
            if not (token.isascii() and token.isprintable()):
                raise ClusterError(f"{self.origin}: the token has characters that no token has; log in again, then retry")
        return {"Authorization": token} if token else {}

    def renew(self) -> bool:
        """Read the credentials from the start, after a 401; False when that has just been done. May block."""
        with self._lock:
            if time.monotonic() - self._renewed_s < _RENEW_AT_MOST_EVERY_S:
                return False
            self.configuration = self._source.load()
            self._renewed_s = time.monotonic()
        return True

    def ssl_context(self) -> ssl.SSLContext | None:
        """None for plain HTTP. The same object until certificates change."""
        if not self.server.startswith("https"):
            return None
        with self._lock:
            asked = self.configuration
            files = (asked.ssl_ca_cert, asked.cert_file, asked.key_file)
            state = (asked.verify_ssl, *((file, _changed_ns(file)) for file in files))
            if self._secured is None or self._secured[0] != state:
                with _told(self.origin, "its certificates cannot be used", "check certificate-authority and client-certificate"):
                    self._secured = state, _ssl_context(asked)
            return self._secured[1]

    @property
    def tls_server_name(self) -> str | None:
        """The name that the certificate must have, where it is not the host of `server`."""
        name = self.configuration.tls_server_name
        return str(name) if name else None

    @property
    def proxy(self) -> str | None:
        """The kubeconfig's proxy-url, else the environment's, as kubectl takes it: never for an address of this machine."""
        proxy = self.configuration.proxy
        if not proxy or _on_this_machine(urlsplit(self.server).hostname or ""):
            return None
        from kubernetes.client.rest import should_bypass_proxies

        if should_bypass_proxies(self.server, self.configuration.no_proxy or ""):
            return None
        return str(proxy)

    def __repr__(self) -> str:
        return f"Access({self.server}, {self.origin})"  # never a token


def access(
    context: str | None = None,
    kubeconfig: Path | str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """A kubeconfig (named, of KUBECONFIG, or ~/.kube/config), else the service account of the pod that we are in.

    A context belongs to a kubeconfig: in a pod without one it is not looked at. Raises ClusterError.
    """
    env = os.environ if environ is None else environ
    named = [os.path.expanduser(path) for path in str(kubeconfig or env.get("KUBECONFIG") or "").split(os.pathsep) if path]
    asked = named or [str(Path(env.get("HOME") or Path.home()) / ".kube" / "config")]
    there = [path for path in asked if os.path.isfile(path)]
    if folders := [path for path in named if os.path.isdir(path)]:
        raise ClusterError(f"{folders[0]}: is a folder; set KUBECONFIG to a kubeconfig file that `kubectl get pods` works with")
    in_pod = bool(env.get("KUBERNETES_SERVICE_HOST"))
    if kubeconfig is not None and not there:
        raise ClusterError(f"kubeconfig {kubeconfig}: there is no such file; name one with --kubeconfig or KUBECONFIG")
    if there:
        return Access(_Kubeconfig(there, context))
    if in_pod and (service_account / "token").is_file():
        return Access(_ServiceAccount(service_account, env))
    missing = f"{' and '.join(asked)} {'do' if len(asked) > 1 else 'does'} not exist"
    pod = "this pod has no service account token (automountServiceAccountToken)" if in_pod else "this is not a pod of a cluster"
    raise ClusterError(
        f"there is no way to a Kubernetes cluster: {missing}{' (of KUBECONFIG)' if named else ''}, and {pod}; "
        "set KUBECONFIG to a kubeconfig file that `kubectl get pods` works with"
    )


# --- where credentials come from ---------------------------------------------------------------------------------------


class _Source:
    context = ""
    namespace = "default"
    origin = ""

    def load(self) -> Configuration:
        raise NotImplementedError


class _Kubeconfig(_Source):
    def __init__(self, paths: list[str], context: str | None) -> None:
        self._paths = os.pathsep.join(paths)
        found = self._contexts()
        if not context:
            context = found.current
            if not context:
                raise ClusterError(
                    f"{self._paths}: no current-context; set {_FIELD} to one of {_some(found.by_name)}, "
                    "or run `kubectl config use-context NAME`"
                )
        if context not in found.by_name:
            near = difflib.get_close_matches(context, list(found.by_name), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {_some(found.by_name)}"
            raise ClusterError(f"{_FIELD} {context!r}: {self._paths} has no such context; {hint}")
        user = found.by_name[context].get("user")
        if user and str(user) not in found.users:
            raise ClusterError(f"{self._paths}: context {context} has user {user!r}, which is not there: {_some(found.users)}")
        self.context = context
        self.namespace = str(found.by_name[context].get("namespace") or "default")
        self.origin = f"{self._paths}, context {context}"

    def load(self) -> Configuration:
        from kubernetes.client import Configuration
        from kubernetes.config import load_kube_config

        from harness.cluster.kube import plugins

        plugins.bound()
        made = Configuration()
        with _told(self.origin) as complaints:
            read: Any = load_kube_config  # the package's config has no types
            read(self._paths, context=self.context, client_configuration=made)
        if "BearerToken" not in made.api_key and not made.cert_file and complaints:
            raise ClusterError(f"{self.origin}: no credentials: {_short(complaints[-1])}; log in again, then retry")
        return made

    def _contexts(self) -> _Contexts:
        from kubernetes.config.kube_config import KubeConfigMerger

        with _told(self._paths, "is no kubeconfig", "set KUBECONFIG to a file that `kubectl get pods` works with"):
            merger: Any = KubeConfigMerger
            merged = merger(self._paths).config
            raw = merged.value if merged is not None else {}
            return _Contexts(raw)


class _Contexts:
    def __init__(self, raw: Any) -> None:
        self.current = str(raw.get("current-context") or "")
        self.by_name: dict[str, dict[str, Any]] = {}
        for value in _entries(raw, "contexts"):
            self.by_name[str(value["name"])] = value.get("context") or {}
        self.users = {str(value["name"]): value for value in _entries(raw, "users")}


def _entries(raw: Any, which: str) -> list[dict[str, Any]]:
    entries = [getattr(entry, "value", entry) for entry in raw.get(which) or []]  # the package wraps what it has merged
    for entry in entries:
        if not isinstance(entry, dict) or not entry.get("name"):
            raise ValueError(f"{which} has an entry without a name")
    return entries


class _ServiceAccount(_Source):
    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, dict(env)
        self.origin = f"the pod's service account ({folder})"
        with contextlib.suppress(OSError):
            self.namespace = (folder / "namespace").read_text().strip() or "default"

    def load(self) -> Configuration:
        from kubernetes.client import Configuration
        from kubernetes.config.incluster_config import InClusterConfigLoader

        made = Configuration()
        with _told(self.origin):
            loader: Any = InClusterConfigLoader
            files = {"token_filename": str(self._folder / "token"), "cert_filename": str(self._folder / "ca.crt")}
            loader(**files, environ=self._env).load_and_set(made)
        return made


# --- details -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _told(origin: str, said: str = "the credentials cannot be read", step: str = "") -> Iterator[list[str]]:
    """Turns whatever reading credentials raises into a ClusterError, and keeps what the package tells the root logger: it
    logs the failure of an exec plugin and goes on without credentials, and would print that over a full-screen console."""
    caught = _Caught()
    root = logging.getLogger()
    root.addHandler(caught)
    try:
        yield caught.lines
    except ClusterError:
        raise
    except Exception as problem:  # yaml, base64, files, plugins, OIDC: each raises its own
        why = _short(str(problem)) if _is_for_people(problem) else "it is not written as one"
        raise ClusterError(f"{origin}: {said}: {why or type(problem).__name__}{'; ' + step if step else ''}") from problem
    finally:
        root.removeHandler(caught)


def _is_for_people(problem: Exception) -> bool:
    """What Python says of a list where the package expects a table helps nobody."""
    return not isinstance(problem, TypeError | KeyError | AttributeError | IndexError)


class _Caught(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _ssl_context(asked: Configuration) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=asked.ssl_ca_cert or None)
    # Python 3.13 turns this on, and then refuses the CAs of many clusters, which have no Authority Key Identifier.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not asked.verify_ssl:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if asked.cert_file:
        made.load_cert_chain(asked.cert_file, asked.key_file or None)
    return made


def _changed_ns(file: str | None) -> int:
    """Certificates are renewed in place."""
    try:
        return os.stat(file).st_mtime_ns if file else 0
    except OSError:
        return 0


def _is_address(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is none
        return False


def _on_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _some(names: Mapping[str, object], most: int = 8) -> str:
    """The names for an error message, a few of many."""
    listed = ", ".join(list(names)[:most]) or "none"
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed


def _short(text: str, most: int = 300) -> str:
    flat = " ".join(text.split()).rstrip(".")
    return flat if len(flat) <= most else flat[: most - 1] + "…"
