"""What tests of the PromQL client share: a client that is closed again, and what it says when it fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.metrics.gpu.base import SourceError
from harness.metrics.gpu.promquery import PromClient
from harness.metricspec import GpuSourceSpec


@asynccontextmanager
async def asking(url: str, **settings: Any) -> AsyncIterator[PromClient]:
    client = PromClient(GpuSourceSpec.model_validate({"url": url, **settings}))
    try:
        async with asyncio.timeout(20):
            yield client
    finally:
        await client.close()


async def trouble(client: PromClient, query: str = "power") -> SourceError:
    with pytest.raises(SourceError) as caught:
        await client.instant(query)
    return caught.value


def closed_port() -> int:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port: int = closed.getsockname()[1]
        return port
