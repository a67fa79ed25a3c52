"""The keys of a run as Secrets, one for each who may read them; file names and contents as harness/wire/keys.py writes them."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Literal

from harness.cluster.kube import names
from harness.cluster.kube.render_base import Object
from harness.wire.keys import ServerKeys

_Holder = Literal["head", "worker", "operator", "viewer"]

#: Who holds whose keys. The head lets all roles in; an operator may look with the viewer's key.
_FILES: dict[_Holder, tuple[str, ...]] = {
    "head": ("server.key", "worker.key", "operator.key", "viewer.key"),
    "worker": ("worker.key",),
    "operator": ("operator.key", "viewer.key"),
    "viewer": ("viewer.key",),
}


def key_secrets(instance: str, namespace: str, keys: ServerKeys) -> list[Object]:
    with tempfile.TemporaryDirectory(prefix="paceline-keys-") as folder:  # only ServerKeys knows what its files look like
        keys.save(Path(folder))
        texts = {path.name: base64.b64encode(path.read_bytes()).decode() for path in Path(folder).iterdir()}
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": names.keys_secret(instance, holder),
                "namespace": namespace,
                "labels": names.labels(instance),
            },
            "type": "Opaque",
            "data": {name: texts[name] for name in files},
        }
        for holder, files in _FILES.items()
    ]
