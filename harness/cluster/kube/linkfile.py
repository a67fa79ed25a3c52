"""link.json in a run's local folder: whose link it is and how far it has come. What a person is told of it begins here.

state   following: the record is being copied, or was when the link ended · whole: all of it is here · gone: the run's
        objects are no longer on the cluster, or its head ended before the copy was whole
"""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.records.files import write_atomically
from harness.records.layout import RunFolder

State = Literal["following", "whole", "gone"]


class LinkFile(msgspec.Struct, omit_defaults=True, frozen=True):
    state: State = "following"
    started_here: bool = True  # False: somebody else's run, found on the cluster
    why: str = ""
    cleaned: bool = False  # nothing of the run is left on the cluster


_decoder = msgspec.json.Decoder(LinkFile)


def read_link(folder: RunFolder) -> LinkFile | None:
    """None: the folder has never been linked to a cluster, or the file cannot be read."""
    try:
        return _decoder.decode((folder.path / "link.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def write_link(folder: RunFolder, about: LinkFile) -> None:
    """Raises RecordError."""
    write_atomically(folder.path / "link.json", msgspec.json.encode(about))
