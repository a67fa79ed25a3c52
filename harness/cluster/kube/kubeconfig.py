"""Whether there is a kubeconfig at all: asked where importing the `kubernetes` package would cost more than the answer."""

from __future__ import annotations

import os
from pathlib import Path


def has_kubeconfig() -> bool:
    named = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    default = Path(os.environ.get("HOME") or Path.home()) / ".kube" / "config"
    return any(os.path.isfile(os.path.expanduser(path)) for path in named or [str(default)])
