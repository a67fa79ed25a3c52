"""Probes of a container that is a process: exec and tcpSocket, on the paths and the address that it really has."""

from __future__ import annotations

import os
import socket
import subprocess

from .containers import ADDRESS, Mounts
from .errors import Json


def why_unwell(probe: Json, container: Json, mounts: Mounts, environment: dict[str, str]) -> str:
    """ "" : it is well."""
    timeout_s = probe.get("timeoutSeconds", 1)
    if "exec" in probe:
        return _by_command([mounts.translated(word) for word in probe["exec"]["command"]], environment, timeout_s)
    if "tcpSocket" in probe:
        port = probe["tcpSocket"]["port"]
        if isinstance(port, str):
            port = next(known["containerPort"] for known in container.get("ports") or () if known.get("name") == port)
        try:
            socket.create_connection((ADDRESS, port), timeout=timeout_s).close()
        except OSError as problem:
            return f"dial tcp {ADDRESS}:{port}: {problem.strerror or problem}"
        return ""
    return f"this kubelet knows only exec and tcpSocket, not {sorted(probe)}"


def _by_command(words: list[str], environment: dict[str, str], timeout_s: float) -> str:
    if words[:2] == ["test", "-f"]:  # asked often, and not worth a process each time
        return "" if os.path.isfile(words[2]) else "command failed: exit status 1"
    try:
        done = subprocess.run(words, env=environment, capture_output=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return "" if done.returncode == 0 else f"command failed: {done.stdout.decode(errors='replace')}".strip()
