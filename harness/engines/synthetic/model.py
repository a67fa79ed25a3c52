"""The step-time model of a synthetic replica and its presets.

One engine step gives one token to each of B decoding sequences and computes P prompt tokens:

    t_step = c0 + cd*B + ck*ctx + cp*P          ctx = tokens held by the B sequences

c0 is weight reads and launches (all-to-all included), cd the matrix work and sampling of one sequence, ck the KV
cache read of one token, cp the prefill work of one prompt token.

Origin of the constants: they are FITTED to published totals of MLPerf Inference v6.1 (512 MI355X: tokens/s, TTFT and
TPOT p99 of the Server scenario), cross-checked against rooflines. Nothing here was measured on such a GPU, and the
input lengths behind the fit are assumed. `demo` is a fictitious small GPU.

How firm they are: tokens/s and TPOT p99 hold to a per cent or two over seeds and over slot counts. TTFT p99 near
saturation is slot queueing: a few per cent of slots, or of load, or another dispatch policy, move it from 0.2 s to
several seconds. `max_seqs` is therefore fitted with the seeds, lengths and independent Poisson arrivals of
tests/unit/test_synthetic_published.py and means nothing beyond them: 408 gives 2.4 to 2.6 s over other pools of seeds
(404: 3.2 to 3.6 s, 412: 1.6 to 1.9 s), but 3,408 (426 a DP rank) gives 0.9, 1.8 and 4.4 s over three pools of 64
replicas. A dispatcher that balances will do better than either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StepModel:
    c0_ms: float
    cd_us: float
    ck_ns: float
    cp_us: float
    max_seqs: int  # sequences that hold a slot (prefilling ones too)
    token_budget: int  # decoding sequences + prompt tokens in one step
    kv_tokens: int  # KV capacity; prompt and whole output are reserved at admission

    def __post_init__(self) -> None:
        if self.c0_ms <= 0 or self.cd_us < 0 or self.ck_ns < 0 or self.cp_us < 0:
            raise ValueError("c0_ms must be above 0, cd_us, ck_ns and cp_us at least 0")
        if self.max_seqs < 1 or self.kv_tokens < 2:
            raise ValueError("max_seqs must be at least 1 and kv_tokens at least 2")
        if self.token_budget <= self.max_seqs:
            raise ValueError(
                f"token_budget {self.token_budget} must be above max_seqs {self.max_seqs}, or no prompt gets computed"
            )

    def step_s(self, batch: int, context_tokens: int, prompt_tokens: int = 0) -> float:
        micros = self.cd_us * batch + self.cp_us * prompt_tokens
        return self.c0_ms * 1e-3 + micros * 1e-6 + self.ck_ns * 1e-9 * context_tokens

    def faster(self, speed: float) -> StepModel:
        """The same model on a time scale `speed` times as fast."""
        return replace(
            self, c0_ms=self.c0_ms / speed, cd_us=self.cd_us / speed, ck_ns=self.ck_ns / speed, cp_us=self.cp_us / speed
        )


# KV capacities: 90 % of 288 GB a GPU, less weights (65 GB; 671 GB over 8), at fp8 KV of 36.9 and 35.1 KB a token.
PRESETS: dict[str, StepModel] = {
    "demo": StepModel(
        c0_ms=9.0, cd_us=250.0, ck_ns=20.0, cp_us=20.0, max_seqs=64, token_budget=2048, kv_tokens=200_000
    ),
    "mi355x/gpt-oss-120b": StepModel(
        c0_ms=15.0, cd_us=23.0, ck_ns=7.0, cp_us=16.0, max_seqs=408, token_budget=8192, kv_tokens=5_260_000
    ),
    "mi355x-tp8/deepseek-r1": StepModel(
        c0_ms=23.6, cd_us=7.3, ck_ns=1.9, cp_us=6.0, max_seqs=3408, token_budget=65_536, kv_tokens=39_900_000
    ),
}  # fmt: skip
DEFAULT_PRESET = "demo"

#: KV cache of one token, as above; that of `demo` is fictitious like the rest of it.
KV_BYTES: dict[str, int] = {"demo": 40_000, "mi355x/gpt-oss-120b": 36_900, "mi355x-tp8/deepseek-r1": 35_100}
#: Of the link that brings KV caches into a decode replica: one 400 Gbit/s port, ASSUMED, nothing was measured.
KV_LINK_BYTES_PER_S = 50e9
