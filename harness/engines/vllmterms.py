"""What vLLM is told in the same words in its own process and over HTTP."""

from __future__ import annotations

from typing import Any

#: `kv_transfer_params` of a prefill whose KV cache another replica will fetch.
REMOTE_DECODE: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
MOST_SEED = (1 << 63) - 1
