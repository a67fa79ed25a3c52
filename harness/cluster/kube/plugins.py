"""Exec plugins of a kubeconfig (aws, gke-gcloud-auth-plugin, kubelogin, …): run with a deadline, and away from the terminal.

The `kubernetes` package waits for one without end, and gives it the terminal where stdout is one: below a full-screen console
a plugin would read its keys and write over it, and what a plugin says as it fails is lost to a defect of the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.exec_provider import ExecProvider

#: Time enough to log in in a browser, which some plugins open.
DEADLINE_S = 60.0
_BY_HAND = "`kubectl get pods` in a terminal shows what it waits for"


class _Bounded(ExecProvider):
    deadline_s = DEADLINE_S

    def run(self, previous_response: Any = None) -> Any:
        """The `status` of what the plugin prints. Raises ConfigException, OSError."""
        about: dict[str, Any] = {"interactive": False}
        if self.cluster:
            about["cluster"] = self.cluster.value
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": about}
        running = subprocess.Popen(
            self.args, cwd=self.cwd, env={**self.env, "KUBERNETES_EXEC_INFO": json.dumps(info)}, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        with _ended_with_us(running):
            try:
                said, complaint = running.communicate(timeout=self.deadline_s)
            except subprocess.TimeoutExpired:
                raise ConfigException(
                    f"exec: {self.args[0]} has printed no credentials within {self.deadline_s:g} s; {_BY_HAND}"
                ) from None
        if running.returncode:
            why = f": {complaint.strip()}" if complaint.strip() else ""
            raise ConfigException(f"exec: {self.args[0]} ended with exit code {running.returncode}{why}")
        return _status(said, self.args[0], self.api_version)


def _status(said: str, command: str, version: str) -> dict[str, Any]:
    try:
        found = json.loads(said)
    except ValueError:
        raise ConfigException(f"exec: {command} has printed no JSON: {said.strip()[:100]!r}") from None
    status = found.get("status") if isinstance(found, dict) else None
    if not isinstance(status, dict):
        raise ConfigException(f"exec: {command} has printed no ExecCredential with a status")
    if found.get("apiVersion") != version:
        raise ConfigException(f"exec: {command} has printed a credential of {found.get('apiVersion')}, wanted is {version}")
    return status


@contextlib.contextmanager
def _ended_with_us(running: subprocess.Popen[str]) -> Iterator[None]:
    """Too late, or interrupted: neither the plugin nor what it has started stays."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        raise


def bound() -> None:
    """From now on the package's loader runs plugins by this module."""
    kube_config.ExecProvider = _Bounded  # type: ignore[attr-defined]
