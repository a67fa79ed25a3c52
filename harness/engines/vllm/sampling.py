"""How vLLM is to choose the tokens of a request: the spec's sampling, the stage, and what the context leaves.

Warm-up (epoch 0) goes to its output length whatever the model says, so that its rounds compare. A prefill replica makes
one token, not to be told from an end of text (connectors hand over only what was cut off by its length); what it gives is
the KV cache. Every sample has a seed of its own, the run's plus its index, so that its tries give the same tokens.
Stages other than WHOLE have not been run on GPUs here.
"""

from __future__ import annotations

import json
from typing import Any

from harness.engines.base import Request
from harness.engines.vllmterms import MOST_SEED, REMOTE_DECODE
from harness.spec import SamplingSpec
from harness.wire.data import DECODE, PREFILL


class CannotServe(Exception):
    """This request is not for this model; the text is for people."""


class Sampling:
    """Made once a replica; `params` is called for every request."""

    def __init__(self, spec: SamplingSpec, names: frozenset[str], max_model_len: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._make: Any = SamplingParams
        self._spec, self._max_model_len = spec, max_model_len
        self._common: dict[str, Any] = {
            "temperature": spec.temperature,
            "top_p": spec.top_p,
            "top_k": spec.top_k,
            "output_kind": RequestOutputKind.DELTA,
            "detokenize": False,
        }
        if "skip_clone" in names:  # each request has its own object: vLLM need not copy it
            self._common["skip_clone"] = True

    def params(self, request: Request, prompt_tokens: int) -> Any:
        left = self._max_model_len - prompt_tokens
        if left < 1:
            raise CannotServe(
                f"a prompt of {prompt_tokens} tokens leaves no room for output in a context of {self._max_model_len} "
                "(max_model_len)"
            )
        spec, common = self._spec, self._common
        most = 1 if request.stage == PREFILL else min(max(request.max_tokens, 1), left)
        warming = request.key[0] == 0
        through = warming or request.stage == PREFILL
        extra = transfer_params(request, warming=warming)
        return self._make(
            **common,
            max_tokens=most,
            min_tokens=most if through else min(spec.min_tokens, most),
            ignore_eos=through or spec.ignore_eos,
            stop_token_ids=None if through else list(spec.stop_token_ids),
            seed=None if spec.seed is None or not spec.temperature else (spec.seed + request.index) & MOST_SEED,
            extra_args=None if extra is None else {"kv_transfer_params": extra},
        )


def transfer_params(request: Request, *, warming: bool = False) -> dict[str, Any] | None:
    """`kv_transfer_params` of a request. A warm-up leaves nothing behind for a decode replica that will not come."""
    if request.stage == PREFILL and not warming:
        return dict(REMOTE_DECODE)
    if request.stage == DECODE and request.handoff:
        try:
            params = json.loads(bytes(request.handoff))
        except ValueError:
            params = ()
        if not isinstance(params, dict):
            raise CannotServe("the handoff of the prefill replica is not what vLLM gave (a JSON table)")
        return params or None  # a prompt too short to hand over: it is computed here
    return None


def handoff_of(params: Any) -> bytes:
    """What a prefill replica's vLLM gave for fetching its KV cache, as the bytes that travel."""
    try:
        return json.dumps(params or {}, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise CannotServe(f"kv_transfer_params of this connector do not fit into JSON: {error}") from None
