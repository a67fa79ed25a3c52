"""Datasets: where the prompts come from. `load(spec)` gives them as token ids in one flat array, whatever the file.

Imported by the driver (which sends the ids) and by checks before a start; never touches a network.
"""

from harness.datasets.dataset import Dataset, DatasetError
from harness.datasets.load import load

__all__ = ["Dataset", "DatasetError", "load"]
