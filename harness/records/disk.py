"""How much of a disk records take."""

from __future__ import annotations

import os
from pathlib import Path


def size_of(path: Path) -> float:
    """Bytes of all files of a folder; of those that vanish meanwhile nothing."""
    total, folders = 0, [str(path)]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue
    return float(total)
