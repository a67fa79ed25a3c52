"""pods/portforward over a websocket (v4.channel.k8s.io): two channels a port, data and error, to a local process."""

from __future__ import annotations

import asyncio
import contextlib
import struct

from aiohttp import WSMsgType, web

from .errors import ApiError, Json

_PROTOCOL = "v4.channel.k8s.io"
_PIECE = 32 * 1024


class Forwards:
    """Where the ports of pods really listen. A pod that is not told of is taken at 127.0.0.1, the same port."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, dict[int, int]]] = {}
        self._open: set[web.WebSocketResponse] = set()

    def set(self, uid: str, host: str, ports: dict[int, int] | None = None) -> None:
        """`ports`: port of the pod → port of the host, where they differ."""
        self._places[uid] = (host, ports or {})

    def drop(self, uid: str) -> None:
        self._places.pop(uid, None)

    def place(self, uid: str, port: int) -> tuple[str, int]:
        host, ports = self._places.get(uid, ("127.0.0.1", {}))
        return host, ports.get(port, port)

    async def cut(self) -> None:
        """Break every connection that is being forwarded."""
        for socket in list(self._open):
            await socket.close()

    async def serve(self, request: web.Request, pod: Json) -> web.StreamResponse:
        ports = [int(text) for piece in request.query.getall("ports", []) for text in piece.split(",") if text.isdigit()]
        if not ports:
            raise ApiError(400, "BadRequest", 'query parameter "ports" is required')
        if pod.get("status", {}).get("phase") != "Running":
            why = f"unable to forward port because pod is not running. Current status={pod.get('status', {}).get('phase')}"
            raise ApiError(400, "BadRequest", why)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise ApiError(400, "BadRequest", "Upgrade request required")
        socket = web.WebSocketResponse(protocols=(_PROTOCOL,), max_msg_size=0)
        await socket.prepare(request)
        self._open.add(socket)
        forwards = [_Forward(socket, 2 * i, port, self.place(pod["metadata"]["uid"], port)) for i, port in enumerate(ports)]
        try:
            for forward in forwards:
                await forward.begin()
            async for message in socket:
                if message.type is not WSMsgType.BINARY or not message.data:
                    continue
                channel = message.data[0]
                if channel % 2 == 0 and channel // 2 < len(forwards):
                    await forwards[channel // 2].send(message.data[1:])
        finally:
            self._open.discard(socket)
            for forward in forwards:
                await forward.end()
        return socket


class _Forward:
    """One port: bytes of the websocket's channel to a TCP connection and back."""

    def __init__(self, socket: web.WebSocketResponse, channel: int, port: int, place: tuple[str, int]) -> None:
        self._socket = socket
        self._data, self._error = bytes((channel,)), bytes((channel + 1,))
        self._port, self._place = port, place
        self._writer: asyncio.StreamWriter | None = None
        self._pump: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        number = struct.pack("<H", self._port)
        await self._socket.send_bytes(self._data + number)
        await self._socket.send_bytes(self._error + number)
        try:
            reader, self._writer = await asyncio.open_connection(*self._place)
        except OSError as error:
            text = f"failed to connect to localhost:{self._port} inside namespace: {error.strerror or error}"
            await self._socket.send_bytes(self._error + text.encode())
            return
        self._pump = asyncio.create_task(self._back(reader))

    async def send(self, data: bytes) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.write(data)
                await self._writer.drain()

    async def _back(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                await self._socket.send_bytes(self._data + data)
        await self._socket.close()

    async def end(self) -> None:
        if self._pump is not None and self._pump is not asyncio.current_task():
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
