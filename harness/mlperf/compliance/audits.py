"""The compliance tests as data: what their audit.config sets, what their logs are held against.

Source: the audit.config files and READMEs under compliance/ of mlcommons/inference (v6.1). Their TEST07 and TEST09 set
performance_issue_unique, because LoadGen otherwise draws with replacement and covers some 62 % of the samples. With it
LoadGen crashes in Offline when the configured performance count is larger than the dataset, as TEST07's is (6396 against
990): hence `performance_samples`, which goes into that attempt's user.conf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.spec import TESTS

_ACCURACY_LOG_SEED: Final = 720381539243781796
_PERFORMANCE_MODE: Final = 2


@dataclass(frozen=True, slots=True)
class Audit:
    """`log_target`: how many answers LoadGen is to log, all where it is at least the number issued."""

    test: str
    model: str
    log_target: int
    min_queries: int
    performance_samples: int  # of the dataset that belongs to the test
    unique: bool = False  # every sample once
    least_accuracy: float | None = None  # exact_match, percent
    tokens: tuple[float, float] | None = None  # mean output tokens: least, most

    @property
    def settings(self) -> dict[str, int]:
        """What audit.config sets, besides the mode, by LoadGen's names."""
        found = {
            "accuracy_log_rng_seed": _ACCURACY_LOG_SEED,
            "accuracy_log_sampling_target": self.log_target,
            "min_query_count": self.min_queries,
            "min_duration": 0,
            "sample_concatenate_permutation": 0,
        }
        return found | ({"performance_issue_unique": 1} if self.unique else {})

    @property
    def thresholds(self) -> dict[str, float]:
        """Not for LoadGen: the official scripts read them from the same file."""
        name = self.test.lower()
        found = {} if self.least_accuracy is None else {f"{name}_accuracy_threshold": self.least_accuracy}
        if self.tokens is not None:
            found |= {f"{name}_min_output_tokens": self.tokens[0], f"{name}_max_output_tokens": self.tokens[1]}
        return found

    def config(self) -> str:
        """The text of audit.config."""
        keys = {"mode": _PERFORMANCE_MODE, **self.settings, **self.thresholds}
        lines = [f"# {self.test} for {self.model}, written for this attempt."]
        return "\n".join([*lines, *(f"*.*.{key} = {value:.15g}" if isinstance(value, float) else f"*.*.{key} = {value}"
                                    for key, value in keys.items())]) + "\n"  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    """A compliance attempt that has ended. `eos`: the model's end-of-text token."""

    folder: Path
    test: str
    scenario: str
    eos: int
    mlperf_name: str | None = None


AUDITS: Final[Mapping[str, Audit]] = {
    audit.test: audit
    for audit in (
        Audit("TEST06", TESTS["TEST06"], log_target=100, min_queries=100, performance_samples=4388),
        Audit(
            "TEST07", TESTS["TEST07"], log_target=990, min_queries=990, performance_samples=990, unique=True,
            least_accuracy=60.698,
        ),
        Audit(
            "TEST09", TESTS["TEST09"], log_target=10_000, min_queries=6396, performance_samples=6396, unique=True,
            tokens=(1150.38, 1406.02),
        ),
    )
}  # fmt: skip
