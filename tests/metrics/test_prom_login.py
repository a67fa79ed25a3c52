"""Who asks a Prometheus: tokens, passwords, headers, certificates of either side, and none of them in an error."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from asking import asking, closed_port, trouble
from prometheus_kit import PrometheusServer, prometheus, scraping, serving

from harness.metrics.gpu.base import SourceError
from harness.metrics.gpu.promquery import PromClient
from harness.metricspec import GpuSourceSpec

ASKED = "vector(1)"


@pytest.fixture(scope="module")
def server() -> Iterator[PrometheusServer]:
    with prometheus(scraping([])) as running:
        yield running


# --- tokens and headers --------------------------------------------------------------------------------------------------


@dataclass
class Gate:
    """Stands before a Prometheus, lets only the right token through, and remembers headers."""

    behind: str
    token: str
    seen: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append(dict(request.headers))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="who are you?")
        url = self.behind + request.path
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=await request.read(), headers={"Content-Type": request.content_type}) as answer,
        ):
            return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)


async def test_a_token_is_read_again_for_every_request_and_never_shown(server: PrometheusServer, tmp_path: Path) -> None:
    token, gate = tmp_path / "token", Gate(server.url, "first-token")
    token.write_text("first-token\n")
    with serving(gate.answer) as port:
        headers = {"X-Scope-OrgID": "team-7"}
        async with asking(f"http://127.0.0.1:{port}", bearer_file=str(token), headers=headers) as client:
            assert len((await client.instant(ASKED)).curves) == 1
            gate.token = "second-token"
            error = await trouble(client)
            token.write_text("second-token")
            assert len((await client.instant(ASKED)).curves) == 1
            token.unlink()
            missing = await trouble(client)
    assert gate.seen[0]["X-Scope-OrgID"] == "team-7"
    assert error.trouble == "unauthorized"
    assert f"{token} (metrics.gpu.bearer_file)" in str(error)
    assert missing.trouble == "setup"
    assert "bearer_file" in str(missing)
    for shown in (error, missing):
        assert "token" not in str(shown).replace(str(token), "").replace("the token in", "")


async def test_without_a_token_the_settings_are_named(server: PrometheusServer) -> None:
    with serving(Gate(server.url, "some-token").answer) as port:
        async with asking(f"http://127.0.0.1:{port}") as client:
            error = await trouble(client)
    assert error.trouble == "unauthorized"
    assert "metrics.gpu.bearer_file" in str(error)


async def test_proxies_of_the_environment_are_not_asked_for_loopback(
    server: PrometheusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    async with asking(server.url) as client:
        assert len((await client.instant(ASKED)).curves) == 1


# --- TLS -------------------------------------------------------------------------------------------------------

# bcrypt of "open sesame", four rounds of work
WEB_CONFIG = """\
tls_server_config:
  cert_file: {place}/server.pem
  key_file: {place}/server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: {place}/ca.pem
basic_auth_users:
  paceline: $2b$04$bqPTxSa1brNCsnYay4w4w.kV9CAqNmoqjuzx/dHzJ36bXU8VqotfS
"""


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA of our own, and what it signed: server.pem and client.pem."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH, which makes the certificates")
    place = tmp_path_factory.mktemp("papers")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=place, check=True, capture_output=True, timeout=30)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=a CA of our own")
    (place / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    (place / "password").write_text("open sesame\n")
    (place / "web.yml").write_text(WEB_CONFIG.format(place=place))
    return place


@contextmanager
def secured(papers: Path) -> Iterator[str]:
    with prometheus(scraping([]), arguments=[f"--web.config.file={papers / 'web.yml'}"], tls=tls_of(papers)) as running:
        yield running.url


def tls_of(papers: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=papers / "ca.pem")
    context.load_cert_chain(papers / "client.pem", papers / "client.key")
    return context


async def test_own_ca_client_certificate_and_password_are_used_and_each_is_named_when_missing(papers: Path) -> None:
    ca, cert = (
        {"ca_file": str(papers / "ca.pem")},
        {"cert_file": str(papers / "client.pem"), "key_file": str(papers / "client.key")},
    )
    who = {"username": "paceline", "password_file": str(papers / "password")}
    with secured(papers) as url:
        async with asking(url, **ca, **cert, **who) as client:
            assert (await client.instant("vector(1)")).kind == "vector"
        async with asking(url, **cert, **who) as client:
            no_ca = await trouble(client)
        async with asking(url, **ca, **who) as client:
            no_cert = await trouble(client)
        (papers / "password").write_text("close sesame")
        async with asking(url, **ca, **cert, **who) as client:
            wrong_password = await trouble(client)
    assert no_ca.trouble == "setup"
    assert "metrics.gpu.ca_file" in str(no_ca)
    assert "metrics.gpu.cert_file" in str(no_cert)
    assert wrong_password.trouble == "unauthorized"
    assert str(papers / "password") in str(wrong_password)
    assert "sesame" not in str(wrong_password)


@pytest.mark.parametrize("setting", ["ca_file", "cert_file"])
def test_a_certificate_that_is_none_is_refused_with_its_name(setting: str, tmp_path: Path) -> None:
    file = tmp_path / "junk.pem"
    file.write_text("junk")
    with pytest.raises(SourceError, match=rf"metrics\.gpu\.{setting}") as caught:
        PromClient(GpuSourceSpec.model_validate({"url": "https://127.0.0.1:1", setting: str(file)}))
    assert caught.value.trouble == "setup"
