"""OpenAIEngine: a replica whose tokens come from a server, over HTTP.

One task a request, no task, timer or parsing a chunk (client.py says why). Nothing is repeated here: whatever goes wrong
becomes FAILED and the driver dispatches the sample again under a new try, so a sample cannot come twice. The one
exception is a Retry-After, waited for once, before anything was received.

Times are this process's: the prefill of an answer is the time until its first fragment, its queue the Retry-After it
waited for (a server's own queue is not told per request).
"""

from __future__ import annotations

import asyncio
import logging
import time
from math import inf
from typing import Any

import aiohttp

from harness.engines.base import EngineContext, EngineError, EngineStats, Events, Key, Request, argument_facts
from harness.engines.openai import health
from harness.engines.openai.args import WHERE, OpenAIArgs, filled, parse_args
from harness.engines.openai.body import Bodies
from harness.engines.openai.client import Client, Exchange, own_version
from harness.engines.openai.counts import Counts
from harness.engines.openai.scrape import Scraped, read_page
from harness.engines.openai.server import Server, free_port, why_taken
from harness.engines.openai.stream import Choice, StreamError, read_answer, read_handoff
from harness.engines.openai.tokens import Tokens, read_tokenizer
from harness.wire.data import PREFILL

log = logging.getLogger("paceline.engine.openai")

#: A refusal is told this late: told at once, a broken replica would be the emptiest and draw more samples than others.
REFUSED_AFTER_S = 0.25
ENDING_S = 1.0
WATCH_S = (0.02, 0.5)  # how often streams are looked at: a quarter of the shortest deadline, within these


class OpenAIEngine:
    many_per_process = True
    synthetic = False

    def __init__(self, context: EngineContext, events: Events) -> None:
        self._context, self._events = context, events
        self._args = parse_args(context.args or context.spec.fleet.engine_args, context.spec)
        self._open: dict[Key, Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # of requests, cancelled ones included until they end
        self._background: list[asyncio.Task[None]] = []
        self._counts = Counts()
        self._scraped = Scraped()
        self._client: Client | None = None
        self._server: Server | None = None
        self._suspect = asyncio.Event()
        self._version = ""
        self._gone = "the engine has not started"  # why nothing is accepted; "" while it serves

    # -- Engine ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    def submit(self, request: Request) -> None:
        if self._gone:
            self._counts.failed += 1
            self._events.failed(request.key, self._gone)
            return
        if request.key in self._open:
            return  # the same try twice: it is being answered
        exchange = Exchange(request, begun_s=time.monotonic())
        exchange.deadline_s = exchange.begun_s + self._args.first_token_s
        self._open[request.key] = exchange
        exchange.task = asyncio.get_running_loop().create_task(self._answer(exchange))
        self._tasks.add(exchange.task)
        exchange.task.add_done_callback(self._tasks.discard)

    def cancel(self, key: Key) -> None:
        exchange = self._open.get(key)
        if exchange is not None:
            self._close(exchange)
            if exchange.task is not None:
                exchange.task.cancel()

    def stats(self) -> EngineStats:
        own = self._counts.take(time.monotonic(), outstanding=len(self._open))
        if not self._scraped.usable:
            return own
        stats = self._scraped.take()
        stats.outstanding, stats.failed = own.outstanding, own.failed
        return stats

    def versions(self) -> dict[str, str]:
        versions = {"engine": "openai", "paceline": own_version(), "aiohttp": aiohttp.__version__}
        if self._version:
            versions[self._args.server] = self._version
        if self._args.token_ids != "server":
            versions["token_ids"] = {"tokenizer": "answers tokenised again", "count": "counted only"}[self._args.token_ids]
        return versions

    def facts(self) -> dict[str, Any]:
        args = self._args
        return {
            "synthetic": False,
            "engine": "openai",
            "server": args.server,
            "base_url": self._client.base_url if self._client is not None else "",
            "started_here": bool(args.command),
            "token_ids": args.token_ids,
            "token_ids_are_real": args.token_ids == "server",
            "statistics": "the server's metrics" if self._scraped.usable else "own counts, steps estimated",
            **argument_facts(args.in_force()),
        }

    async def stop(self) -> None:
        self._gone = self._gone or "the engine was stopped"
        for exchange in list(self._open.values()):
            self._close(exchange)
        try:
            mine = asyncio.current_task()
            tasks = {task for task in (*self._tasks, *self._background) if task is not mine}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if self._client is not None:
                await self._client.close()
        finally:
            if self._server is not None:
                await self._server.stop()

    # -- start and watch ---------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        args, context = self._args, self._context
        path = args.tokenizer or context.spec.model.path
        self._tokens = Tokens(args.token_ids, read_tokenizer(str(path)) if args.needs_tokenizer else None)
        self._bodies = Bodies(args, context.spec, self._tokens.detokenised if args.endpoint == "chat" else None)
        if args.command:
            base_url = self._start_server(args)
        else:
            base_url = args.base_url(context)
        client = self._client = Client(args, base_url)
        await health.wait_until_healthy(client, args, self._server, self._events.loading)
        await health.check_model(client, args)
        self._version = await health.version_of(client)
        if args.metrics_path and not args.shared:  # each replica would count the work of all
            await self._scrape(client)
            if not self._scraped.usable:
                log.warning("%s%s has no metrics that are known here: own counts, steps estimated", base_url, args.metrics_path)
        self._gone = ""
        loop = asyncio.get_running_loop()
        self._background = [
            loop.create_task(self._watch_streams(client), name="streams"),
            loop.create_task(self._watch_server(client), name="server"),
        ]
        if self._scraped.usable:
            self._background.append(loop.create_task(self._keep_scraping(client), name="metrics"))

    def _start_server(self, args: OpenAIArgs) -> str:
        if args.port is not None:
            port = args.port + self._context.gpu
            if taken := why_taken(port):
                raise EngineError(
                    f"{WHERE}.port: {port} is not free for the server of {self._context.slot} ({taken}); end what listens there, "
                    "give another one, or leave it out for any free one"
                )
        else:
            port = free_port()
        places = args.places(self._context, port)
        env = {name: filled(value, places) for name, value in args.env.items()}
        self._server = Server([filled(word, places) for word in args.command], env, args.stop_s)
        self._server.start()
        return f"http://127.0.0.1:{port}"

    async def _watch_server(self, client: Client) -> None:
        """Ends the incarnation when the server is gone: its own process ended, or its health page says so."""
        looking = asyncio.ensure_future(health.watch(client, self._args, self._suspect))
        waiting = {looking}
        ending: asyncio.Task[str] | None = None
        if self._server is not None:
            ending = asyncio.ensure_future(self._server.ended())
            waiting.add(ending)
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if ending is not None:
                await asyncio.wait({ending}, timeout=ENDING_S)  # its own last line says more than a refused connection
            if self._server is None or ending is None:
                self._die(looking.result())
            elif ending.done():
                self._die(f"the server {ending.result()}")
            else:
                self._die(f"{looking.result()}; its last line: {self._server.last_line}")
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    def _die(self, reason: str) -> None:
        self._gone = reason
        for exchange in list(self._open.values()):
            self.cancel(exchange.request.key)
        self._events.died(reason)

    async def _watch_streams(self, client: Client) -> None:
        least_s, most_s = WATCH_S
        every_s = min(max(min(self._args.read_s, self._args.first_token_s) / 4, least_s), most_s)
        while True:
            await asyncio.sleep(every_s)
            now_s = time.monotonic()
            for exchange in self._open.values():
                if exchange.reason or exchange.complete:
                    continue  # its task has been told
                client.look(exchange, now_s)
                if (exchange.reason or exchange.complete) and exchange.task is not None:
                    exchange.task.cancel()

    async def _keep_scraping(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self._args.scrape_s)
            await self._scrape(client)

    async def _scrape(self, client: Client) -> None:
        try:
            status, text = await client.get(self._args.metrics_path, health.PROBE_S)
        except health.UNREACHABLE:
            return  # the watch of the server judges, not this
        page = read_page(text) if status == 200 else None
        if page is not None:
            self._scraped.add(page)

    # -- one request -------------------------------------------------------------------------------------------------

    async def _answer(self, exchange: Exchange) -> None:
        client = self._client
        assert client is not None, "submit() refuses before start()"
        try:
            if exchange.request.stage == PREFILL:
                await self._prefill(client, exchange)
            else:
                await self._generate(client, exchange)
            return
        except asyncio.CancelledError:
            if not exchange.reason:
                raise
            reason = exchange.reason
        except StreamError as error:
            reason = str(error)
        except health.UNREACHABLE as error:
            reason = health.in_words(error)
            if isinstance(error, aiohttp.ClientConnectorError):
                self._suspect.set()
        except Exception as error:
            log.exception("request %s", exchange.request.key)
            reason = f"{type(error).__name__}: {error}"
        exchange.content, exchange.deadline_s = None, inf  # nothing left to watch
        if not exchange.first_s:
            await asyncio.sleep(REFUSED_AFTER_S)
        if self._close(exchange):
            self._counts.failed += 1
            self._events.failed(exchange.request.key, reason)

    async def _prefill(self, client: Client, exchange: Exchange) -> None:
        request = exchange.request
        handoff = read_handoff(await client.whole(exchange, self._bodies.of(request)))
        took_us = _micros(time.monotonic() - exchange.begun_s)
        if self._close(exchange):
            self._events.prefilled(request.key, handoff, _micros(exchange.waited_s), took_us)

    async def _generate(self, client: Client, exchange: Exchange) -> None:
        request = exchange.request

        def on_first(choice: Choice) -> None:
            self._counts.began(exchange.first_s, memoryview(request.prompt).nbytes // 4)
            token = self._tokens.first(choice)
            self._events.first(request.key, token, _micros(exchange.waited_s), _micros(exchange.first_s - exchange.begun_s))

        raw = await client.streamed(exchange, self._bodies.of(request), on_first)
        ended_s = time.monotonic()
        tokens = self._tokens.all(read_answer(raw))
        if not exchange.first_s:
            raise StreamError("an answer without a token")
        queue_us, prefill_us = _micros(exchange.waited_s), _micros(exchange.first_s - exchange.begun_s)
        decode_s = ended_s - exchange.first_s
        if self._close(exchange, len(tokens) // 4, decode_s):
            self._events.complete(request.key, tokens, queue_us, prefill_us, _micros(decode_s))

    def _close(self, exchange: Exchange, tokens: int = 0, decode_s: float = 0.0) -> bool:
        """True for the first who ends it; whoever comes later has nothing to tell."""
        if self._open.pop(exchange.request.key, None) is None:
            return False
        if exchange.first_s:
            self._counts.ended(time.monotonic(), tokens, decode_s)
        return True


def _micros(seconds: float) -> int:
    return max(round(seconds * 1e6), 0)
