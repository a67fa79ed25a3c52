"""Socket options that measurements asked for, in one place.

Found by storms of 64 to 2,048 registering peers on loopback: without HANDOVER a new pod with a known identity is
ignored for ever while the old peer hangs; without MANDATORY a message to a peer that is not connected yet vanishes;
a default backlog of 100 makes a fleet that starts together wait for SYN retries; a file-descriptor limit of 1,024
loses every replica above it without a word, hence `raise_fd_limit` with a check.
"""

from __future__ import annotations

import resource
import secrets

import zmq

from harness.wire.keys import ClientKeys, ServerKeys

BACKLOG = 4096
MAX_SOCKETS = 65_000


def context() -> zmq.Context[zmq.Socket[bytes]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    made.max_sockets = min(MAX_SOCKETS, int(made.get(zmq.SOCKET_LIMIT)))
    return made


def server_router(
    ctx: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys, address: str, *, domain: str, high_water: int = 0
) -> tuple[zmq.Socket[bytes], str]:
    """A bound CURVE ROUTER and its real endpoint (port 0 = any free port)."""
    socket = ctx.socket(zmq.ROUTER)
    _server_options(socket, keys, domain, high_water)
    socket.router_mandatory = 1
    socket.router_handover = 1
    return socket, _bind(socket, address)


def server_pub(
    ctx: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys, address: str, *, domain: str, high_water: int
) -> tuple[zmq.Socket[bytes], str]:
    socket = ctx.socket(zmq.PUB)
    _server_options(socket, keys, domain, high_water)
    return socket, _bind(socket, address)


def client_dealer(ctx: zmq.Context[zmq.Socket[bytes]], keys: ClientKeys, endpoint: str) -> zmq.Socket[bytes]:
    """A connected DEALER with a random identity: the slot is in the payload, so no two peers can ever collide."""
    socket = ctx.socket(zmq.DEALER)
    socket.routing_id = b"p" + secrets.token_bytes(12)
    _client_options(socket, keys)
    socket.connect(endpoint)
    return socket


def client_sub(ctx: zmq.Context[zmq.Socket[bytes]], keys: ClientKeys, endpoint: str) -> zmq.Socket[bytes]:
    socket = ctx.socket(zmq.SUB)
    _client_options(socket, keys)
    socket.rcvhwm = 64  # a console that is suspended drops frames; the head never waits for it
    socket.subscribe(b"")
    socket.connect(endpoint)
    return socket


def _server_options(socket: zmq.Socket[bytes], keys: ServerKeys, domain: str, high_water: int) -> None:
    socket.curve_server = 1
    socket.curve_publickey = keys.server.public
    socket.curve_secretkey = keys.server.secret
    socket.zap_domain = domain.encode()
    socket.backlog = BACKLOG
    socket.sndhwm = high_water
    socket.rcvhwm = high_water
    _liveness(socket)


def _client_options(socket: zmq.Socket[bytes], keys: ClientKeys) -> None:
    keys.apply(socket)
    socket.reconnect_ivl = 100
    socket.reconnect_ivl_max = 5000
    socket.sndhwm = 0
    socket.rcvhwm = 0
    _liveness(socket)


def _liveness(socket: zmq.Socket[bytes]) -> None:
    socket.linger = 500
    socket.heartbeat_ivl = 2000
    socket.heartbeat_timeout = 6000
    socket.heartbeat_ttl = 10000
    socket.tcp_keepalive = 1


def _bind(socket: zmq.Socket[bytes], address: str) -> str:
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise CannotListen(f"cannot listen on {address}: {error.strerror}") from error
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.decode().rstrip("\0")


class CannotListen(Exception):
    """An address that a server socket cannot be bound to."""


def why_no_listening(host: str) -> str:
    """Why no server socket can be bound to this host (address, interface name or *); "" when one can."""
    probe: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    try:
        probe.bind(f"tcp://{host}:0")
    except zmq.ZMQError as error:
        return error.strerror.partition(" (addr=")[0]
    finally:
        probe.close(linger=0)
    return ""


class TooFewFiles(Exception):
    """The file-descriptor limit cannot carry the fleet."""


def raise_fd_limit(needed: int) -> int:
    """Raise the soft limit as far as allowed; TooFewFiles when that is still below `needed`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 1_048_576)
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):
            pass
    if soft < needed:
        raise TooFewFiles(
            f"{needed} open files are needed for this fleet, the limit is {soft}: raise it (ulimit -n {needed}, or LimitNOFILE)"
        )
    return soft
