"""A kubeconfig that cannot be used is told in one sentence with a next step, quickly, and never by a traceback."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.base import ClusterError
from harness.cluster.kube import plugins
from harness.cluster.kube.access import access
from harness.cluster.kube.api import once

NOWHERE = "http://127.0.0.1:1"


def config(place: Path, server: str = NOWHERE, *, user: dict[str, Any] | None = None, name: str = "me") -> Path:
    path = place / "config"
    found = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": user or {"token": "sesame"}}],
        "contexts": [{"name": "ctx", "context": {"cluster": "c", "user": name}}],
        "current-context": "ctx",
    }
    path.write_text(json.dumps(found))
    return path


def refused(path: Path) -> str:
    """By whatever comes first: reading it, or asking for the version with it."""
    with pytest.raises(ClusterError) as told:
        once(access(environ={"KUBECONFIG": str(path)}), lambda api: api.version(), timeout_s=20.0)
    return str(told.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "file is empty"),
        (b"- a\n- list\n", "it is not written as one"),
        (b"hello", "it is not written as one"),
        (b"contexts: 5\n", "it is not written as one"),
        (b"contexts: [{context: {}}]\n", "contexts has an entry without a name"),
        (b"\xff\xfe\x00binary", "can't decode"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_told_with_the_next_step(tmp_path: Path, text: bytes, why: str) -> None:
    (path := tmp_path / "config").write_bytes(text)
    said = refused(path)
    assert said.startswith(f"{path}: is no kubeconfig: ")
    assert why in said
    assert said.endswith("set KUBECONFIG to a file that `kubectl get pods` works with")


def test_a_folder_is_told_to_be_one(tmp_path: Path) -> None:
    assert refused(tmp_path).startswith(f"{tmp_path}: is a folder")


def test_a_user_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    assert "context ctx has user 'you', which is not there: me" in refused(config(tmp_path, name="you"))


@pytest.mark.parametrize("server", ["http://127.0.0.1:99999", "http://127.0.0.1:port", "ftp://x", "http:", "not an address"])
def test_a_server_that_is_no_address_is_told(tmp_path: Path, server: str) -> None:
    assert f"server {server!r} is not an address; write https://HOST:PORT" in refused(config(tmp_path, server))


@pytest.mark.parametrize("token", ["tökén", "two\nlines", "x\x00y"])
def test_a_token_that_no_header_can_carry_is_told(tmp_path: Path, token: str) -> None:
    said = refused(config(tmp_path, user={"token": token}))
    assert "the token has characters that no token has; log in again, then retry" in said
    assert token not in said


# --- exec plugins ------------------------------------------------------------------------------------------


def plugin(place: Path, script: str) -> Path:
    command = {"command": "sh", "args": ["-c", script]}
    return config(place, user={"exec": {"apiVersion": "client.authentication.k8s.io/v1", **command}})


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo go away >&2; exit 3", "sh ended with exit code 3: go away"),
        ("echo hello", "sh has printed no JSON: 'hello'"),
        ("echo []", "sh has printed no ExecCredential with a status"),
        ('echo \'{"apiVersion":"v0","status":{"token":"x"}}\'', "sh has printed a credential of v0, wanted is client.auth"),
    ],
)
def test_a_plugin_that_gives_no_credentials_is_told_in_its_words(tmp_path: Path, script: str, why: str) -> None:
    said = refused(plugin(tmp_path, script))
    assert why in said
    assert said.endswith("log in again, then retry")


def test_a_plugin_that_hangs_is_ended_with_all_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids, began_s = tmp_path / "pids", time.monotonic()
    for deadline in ("0.5", "2", "8", "32"):  # a shell that has not begun within one of them shows nothing: with the next, it may
        monkeypatch.setattr(plugins._Bounded, "deadline_s", float(deadline))
        said = refused(plugin(tmp_path, f"sleep 300 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"))
        assert f"sh has printed no credentials within {deadline} s; `kubectl get pods` in a terminal shows what it" in said
        if pids.exists():
            break
    assert time.monotonic() - began_s < 100
    until_s = time.monotonic() + 30
    while any(_runs(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < until_s, "the plugin goes on"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_a_plugin_that_reads_the_terminal_gets_none(tmp_path: Path) -> None:
    credential = json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "sesame"}})
    path = plugin(tmp_path, f"read line; echo '{credential}'")
    assert access(environ={"KUBECONFIG": str(path), "HOME": os.environ.get("HOME", "/")}).headers() == {
        "Authorization": "Bearer sesame"
    }


# --- servers that are no API servers -----------------------------------------------------------------------


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of somebody who answers every request with the bytes of the parameter."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def answer() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                    with client:
                        client.recv(65536)
                        client.sendall(request.param)
                except OSError:
                    return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def reply(status: str, body: bytes = b"", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("port", "why"),
    [
        (reply("200 OK", b"<html>Welcome</html>"), "is no API server: its reply to GET /version is not JSON"),
        (reply("200 OK", b"[]"), "is no API server: GET /version has no gitVersion"),
        (reply("200 OK", b'{"gitVersion": 5}'), "is no API server: GET /version has no gitVersion"),
        (reply("302 Found", more="Location: https://login.example.com/\r\n"), "it sends us to https://login.example.com/"),
        (reply("502 Bad", b"<html><title>Bad Gateway</title>" + b"x" * 900), "a web page, 'Bad Gateway', not from an API server"),
        (reply("500 Oops", b"boom"), "the API server failed (HTTP 500): boom"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"gitV', "does not answer: peer closed connection"),
        (b"SSH-2.0-OpenSSH_9\r\n", "does not answer"),
    ],
    indirect=["port"],
)
def test_something_else_at_the_address_of_the_server_is_told(tmp_path: Path, port: int, why: str) -> None:
    said = refused(config(tmp_path, f"http://127.0.0.1:{port}"))
    assert why in said
    assert len(said) < 300
