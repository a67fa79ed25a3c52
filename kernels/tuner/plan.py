"""What is to be tuned, how far that is, and what it has found: the shapes that the tuner, its commands and its table share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from kernels.shapes import MoeShape
from kernels.store import NodeClass
from kernels.store.names import MXFP4
from kernels.tuner import vllm_moe
from kernels.tuner.halving import Measured
from kernels.tuner.node import Probe

Kernel = Literal["paceline", "vllm"]
CANDIDATES: Final = 40  # of a GEMM at an M


def cache_in(store: Path) -> Path:
    """Of what was compiled."""
    return store / ".tuning" / "compiled"


@dataclass(frozen=True, slots=True)
class Plan:
    shape: MoeShape
    target: str  # of the compiler
    ms: tuple[int, ...]
    store: Path
    python: str
    dtype: Literal["bf16", "fp16"] = "bf16"
    kernel: Kernel = "paceline"
    candidates: int = CANDIDATES
    budget_s: float = math.inf
    seed: int = 0

    @property
    def table_dtype(self) -> str:
        return MXFP4 if self.kernel == "paceline" else vllm_moe.TABLE_DTYPE[self.shape.weights]

    @property
    def folder(self) -> Path:
        """Of the journal. Named after the layer and the compiler's target, for the offline part knows no node."""
        shape = self.shape
        name = f"E={shape.experts},N={shape.intermediate},H={shape.hidden},k={shape.top_k}of{shape.routed_over},{self.dtype}"
        return self.store / ".tuning" / self.target / f"{name},dtype={self.table_dtype}"

    @property
    def cache(self) -> Path:
        return cache_in(self.store)


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str  # "compile", "gate_up", "down", "layer"
    m: int
    round: int = 0
    done: int = 0
    of: int = 0
    best_us: float | None = None
    of_floor: float | None = None
    gemm: str = ""  # while compiling: "gate_up", "down"


@dataclass(frozen=True, slots=True)
class Chosen:
    config: dict[str, Any]
    measured: Measured
    floor_us: float
    complete: bool  # False: the budget ended before the last round

    @property
    def of_floor(self) -> float:
        return self.floor_us / self.measured.uniform_us


@dataclass(slots=True)
class Tuned:
    plan: Plan
    node_class: NodeClass
    probe: Probe
    read_gb_s: float
    chosen: dict[int, Chosen] = field(default_factory=dict)
    without: dict[int, str] = field(default_factory=dict)  # M that got no configuration, and why
    failed: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    measured: int = 0
    reused: int = 0
    table: Path | None = None


Told = Callable[[Progress], None]
