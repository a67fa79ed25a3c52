"""A run's folder for a head in a pod: on the results volume, with the spec of its ConfigMap and the keys of its Secret.

A head that takes the place of one that died finds the folder as that one left it, and the spec must still be the same.
The keys stay in the Secret's mount: a link leads there, so that a volume that many can read never holds them.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.records.errors import RecordError
from harness.records.files import write_atomically
from harness.records.layout import RunFolder


class CannotUse(Exception):
    """The folder cannot be made what a head needs; the text names what stands in the way."""


def make_folder(run: Path, spec: Path, keys: Path) -> None:
    """Raises CannotUse."""
    folder = RunFolder(run)
    try:
        wanted = spec.read_bytes()
        json.loads(wanted)
    except OSError as error:
        raise CannotUse(f"--spec {spec} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CannotUse(f"--spec {spec} is not JSON: {error}") from error
    if not (keys / "server.key").is_file():
        raise CannotUse(f"--keys {keys} holds no server.key: mount the Secret of the head's keys there")
    try:
        run.mkdir(parents=True, exist_ok=True)
        if folder.spec_json.exists():
            if json.loads(folder.spec_json.read_bytes()) != json.loads(wanted):
                raise CannotUse(f"{run} holds another run (its spec.json differs from {spec}); give this run another name")
        else:
            write_atomically(folder.spec_json, wanted)
        if folder.keys.is_symlink():
            folder.keys.unlink()
        if not folder.keys.exists():
            folder.keys.symlink_to(keys.resolve(), target_is_directory=True)
    except (OSError, RecordError, ValueError) as error:
        raise CannotUse(f"{run} cannot be used: {error}") from error
