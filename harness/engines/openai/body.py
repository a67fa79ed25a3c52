"""What is asked of the server: one JSON body a request, most of it the same every time and encoded once.

Sampling is said in full. A vLLM or SGLang server otherwise fills in what the model's generation_config.json recommends
(top_k, repetition_penalty, min_p), and the run would not be the one of its spec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from harness.engines.base import Request
from harness.engines.openai.args import OpenAIArgs
from harness.engines.vllmterms import MOST_SEED, REMOTE_DECODE
from harness.spec import RunSpec
from harness.wire.data import DECODE, PREFILL

_encode = msgspec.json.Encoder().encode
_NO_TOP_K = {"vllm": 0, "sglang": -1, "trtllm": 0}
_WARM_UP_EPOCH = 0


class Bodies:
    """`detokenise` is for chat, whose prompts are text."""

    def __init__(self, args: OpenAIArgs, spec: RunSpec, detokenise: Callable[[list[int]], str] | None) -> None:
        self._args, self._spec, self._detokenise = args, spec, detokenise
        self._fixed_lengths = args.server in ("vllm", "sglang")
        self._streamed = self._common(stream=True)
        self._whole = self._common(stream=False)

    def of(self, request: Request) -> bytes:
        if request.stage == PREFILL:
            return self._joined(self._whole, request, {"max_tokens": 1, "kv_transfer_params": REMOTE_DECODE})
        sampling = self._spec.sampling
        most = request.max_tokens
        varying: dict[str, Any] = {"max_tokens": most}
        if sampling.seed is not None:  # of its own for every sample, and the same for its tries
            varying["seed"] = (sampling.seed + request.index) & MOST_SEED
        if request.key.epoch == _WARM_UP_EPOCH and self._fixed_lengths:
            varying |= {"min_tokens": most, "ignore_eos": True}
        elif self._args.server != "openai":
            if sampling.min_tokens:
                varying["min_tokens"] = min(sampling.min_tokens, most)
            if sampling.ignore_eos:
                varying["ignore_eos"] = True
        if request.stage == DECODE:
            varying["kv_transfer_params"] = msgspec.Raw(request.handoff)
        return self._joined(self._streamed, request, varying)

    def _joined(self, common: bytes, request: Request, varying: dict[str, Any]) -> bytes:
        ids: list[int] = np.frombuffer(request.prompt, "<i4").tolist()
        if self._detokenise is not None:
            varying["messages"] = [{"role": "user", "content": self._detokenise(ids)}]
        else:
            varying["prompt"] = ids
        return common + _encode(varying)[1:]

    def _common(self, *, stream: bool) -> bytes:
        """Up to and with the comma after it."""
        args, sampling = self._args, self._spec.sampling
        body: dict[str, Any] = {"model": args.served_model, "temperature": sampling.temperature, "top_p": sampling.top_p}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if args.server != "openai":
            body["top_k"] = sampling.top_k or _NO_TOP_K[args.server]
            if sampling.stop_token_ids:
                body["stop_token_ids"] = list(sampling.stop_token_ids)
        if args.server in ("vllm", "sglang"):
            body |= {"repetition_penalty": 1.0, "min_p": 0.0}
        if args.token_ids == "server":
            body |= {"return_token_ids": True} if args.server == "vllm" else {"detokenize": False}
        return _encode(body)[:-1] + b","
