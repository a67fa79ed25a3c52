"""The request path of `vllm bench serve` alone, as a child of the client bench: its own function, its own kind of session.

Its start (16 CPU seconds of imports), data set, progress bar and tables are left out: what is measured is what a request
costs. It says ready, then runs a round for each line it is told and says the CPU seconds and tokens of that round.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import aiohttp

from tests.bench.rig import child_config


async def one_round(config: dict[str, Any]) -> dict[str, Any]:
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncInput, async_request_openai_completions

    asked = RequestFuncInput(
        prompt=list(range(10, 10 + config["prompt_tokens"])),
        api_url=f"{config['url']}/v1/completions",
        prompt_len=config["prompt_tokens"],
        output_len=config["output_tokens"],
        model=config["model"],
        model_name=config["model"],
        ignore_eos=True,
        extra_body={"temperature": 0.0},
    )
    room = asyncio.Semaphore(config["at_once"])
    # as vllm/benchmarks/serve.py makes them
    connector = aiohttp.TCPConnector(
        limit=config["at_once"],
        limit_per_host=config["at_once"],
        ttl_dns_cache=300,
        use_dns_cache=True,
        keepalive_timeout=60,
        enable_cleanup_closed=True,
        force_close=False,
    )
    timeout = aiohttp.ClientTimeout(total=6 * 60 * 60)
    async with aiohttp.ClientSession(connector=connector, trust_env=True, timeout=timeout) as session:

        async def limited() -> Any:
            async with room:
                return await async_request_openai_completions(asked, session)

        before_s = time.process_time()
        answers = await asyncio.gather(*(limited() for _ in range(config["requests"])))
        cpu_s = time.process_time() - before_s
    good = [answer for answer in answers if answer.success]
    return {"cpu_s": cpu_s, "answered": len(good), "tokens": sum(answer.output_tokens or 0 for answer in good)}


def main() -> None:
    config = child_config()
    import vllm.benchmarks.lib.endpoint_request_func  # noqa: F401

    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(asyncio.run(one_round(config))), flush=True)


if __name__ == "__main__":
    main()
