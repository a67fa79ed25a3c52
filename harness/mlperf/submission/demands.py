"""What a v6.1 datacenter submission needs beyond the rules of an attempt (harness/mlperf/rules.py), as data.

Source: the v6.1 submission checker and the README files of both models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LEAST_DURATION_MS: Final = 600_000
#: Bytes of mlperf_log_accuracy.json that a submission may hold.
MOST_ACCURACY_LOG: Final = 10_240

PERFORMANCE: Final = "performance"
ACCURACY: Final = "accuracy"
OFFLINE, SERVER, INTERACTIVE = "Offline", "Server", "Interactive"
_SUFFIX = "-interactive"

#: The file by which a compliance test is judged.
VERIFY_FILE: Final[Mapping[str, str]] = {
    "TEST06": "verify_accuracy.txt",
    "TEST07": "verify_accuracy.txt",
    "TEST09": "verify_output_len.txt",
}


@dataclass(frozen=True, slots=True)
class Demands:
    model: str
    offline_samples: int  # least in the one Offline query
    tests: tuple[str, ...]
    temperature: float


DEMANDS: Final[Mapping[str, Demands]] = {
    demands.model: demands
    for demands in (
        Demands("gpt-oss-120b", 6396, ("TEST07", "TEST09"), 1.0),
        Demands("deepseek-r1", 4388, ("TEST06",), 0.0),
    )
}


def benchmark_of(mlperf_name: str) -> str:
    """The benchmark's name in a submission: Interactive is a scenario there, not a model."""
    return mlperf_name.removesuffix(_SUFFIX)


def folder_of(mlperf_name: str, scenario: str) -> str:
    """The scenario's folder. Of LoadGen's view, Interactive is Server under another model name."""
    return INTERACTIVE if scenario == SERVER and mlperf_name.endswith(_SUFFIX) else scenario


def limits_name(benchmark: str, folder: str) -> str:
    """The LoadGen model whose limits hold in that folder (see rules.MODELS)."""
    return benchmark + _SUFFIX if folder == INTERACTIVE else benchmark
