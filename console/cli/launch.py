"""Reading a dataset for a command: one that takes long says so. The rest of a start is `console/starting.py`."""

from __future__ import annotations

import threading

from console.cli.output import note
from console.starting import read_dataset
from harness.spec import RunSpec

#: Reading a dataset in silence for longer than this would look like a hang.
SILENT_READING_S = 1.0


def check_dataset(spec: RunSpec) -> None:
    """Reads the whole dataset, as the driver will. Raises DatasetError, BadInput.

    Made-up lengths cannot be wrong beyond what the spec has checked, so a demo does not pay the 0.3 s of its imports.
    """
    reading = threading.Timer(SILENT_READING_S, note, [f"reading {spec.dataset.path or 'the dataset'}"])
    reading.daemon = True
    reading.start()
    try:
        read_dataset(spec)
    finally:
        reading.cancel()
