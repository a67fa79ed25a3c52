"""What the engine knows of its server's work by itself: tokens and streams, and an estimate of steps for lack of /metrics.

A stream that decodes gets one token a step, so the mean time between tokens is a step, the mean number of decoding streams
is the batch, and steps are the time in which any decoded over that. Between two calls nothing may have completed; then the
last known step holds.
"""

from __future__ import annotations

from harness.engines.base import EngineStats


class Counts:
    def __init__(self) -> None:
        self.tokens_out = 0
        self.failed = 0
        self._prompts = 0
        self._decoding = 0
        self._changed_s = 0.0
        self._busy_s = 0.0  # streams x time
        self._active_s = 0.0  # time with at least one
        self._decode_s = 0.0
        self._gaps = 0  # tokens after the first
        self._step_s = 0.0

    def began(self, now_s: float, prompt_tokens: int) -> None:
        """The first token of a stream."""
        self._settle(now_s)
        self._prompts += prompt_tokens
        self._decoding += 1

    def ended(self, now_s: float, tokens: int = 0, decode_s: float = 0.0) -> None:
        """A stream that had begun: complete with its tokens, or broken off."""
        self._settle(now_s)
        self._decoding -= 1
        self.tokens_out += tokens
        if tokens > 1:
            self._gaps += tokens - 1
            self._decode_s += decode_s

    def take(self, now_s: float, *, outstanding: int) -> EngineStats:
        """Since the previous call."""
        self._settle(now_s)
        if self._gaps and self._decode_s > 0:
            self._step_s = self._decode_s / self._gaps
        steps = round(self._active_s / self._step_s) if self._step_s else 0
        if self.tokens_out:
            steps = max(steps, 1)
        stats = EngineStats(
            running=self._decoding,
            waiting=outstanding - self._decoding,
            outstanding=outstanding,
            tokens_out=self.tokens_out,
            steps=steps,
            step_ms=self._step_s * 1e3 if steps else 0.0,
            batch=self._busy_s / self._active_s if self._active_s else 0.0,
            prefill_tokens=self._prompts / steps if steps else 0.0,
            failed=self.failed,
        )
        self.tokens_out = self.failed = self._prompts = self._gaps = 0
        self._busy_s = self._active_s = self._decode_s = 0.0
        return stats

    def _settle(self, now_s: float) -> None:
        if self._decoding > 0:
            passed_s = now_s - self._changed_s
            self._active_s += passed_s
            self._busy_s += passed_s * self._decoding
        self._changed_s = now_s
