"""Credentials: which kubeconfig or pod they come from, what is wrong with them in words, and TLS as the kubeconfig wants it."""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from kube_server import TinyServer, kubeconfig, serving

from harness.cluster.base import ClusterError
from harness.cluster.kube.access import Access, access
from harness.cluster.kube.api import Api, ApiProblem

NOWHERE = "http://127.0.0.1:1"


def plugin(folder: Path, script: str) -> dict[str, object]:
    """A user whose credentials an exec plugin prints."""
    path = folder / "plugin.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}}


def credential(token: str, **more: str) -> str:
    status = {"token": token, **more}
    return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})


def test_an_explicit_kubeconfig_gives_server_token_and_namespace(tmp_path: Path) -> None:
    found = access(kubeconfig=kubeconfig(tmp_path, NOWHERE), environ={})
    assert (found.server, found.context, found.namespace) == (NOWHERE, "ctx", "ns")
    assert found.headers() == {"Authorization": "Bearer sesame"}
    assert found.ssl_context() is None
    assert "sesame" not in repr(found)


def test_files_of_kubeconfig_are_merged_and_missing_ones_skipped(tmp_path: Path) -> None:
    one = kubeconfig(tmp_path, NOWHERE, name="one")
    two = tmp_path / "two"
    raw = json.loads(one.read_text())
    raw["contexts"][0]["name"] = "other"
    two.write_text(json.dumps(raw))
    found = access("other", environ={"KUBECONFIG": f"{tmp_path / 'gone'}:{one}:{two}"})
    assert found.context == "other"


def test_the_home_of_the_environment_is_looked_at_last(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube", NOWHERE)
    assert access(environ={"HOME": str(tmp_path)}).context == "ctx"


def test_a_context_that_is_not_there_is_told_with_the_nearest(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, NOWHERE)
    with pytest.raises(ClusterError, match=r"cluster\.kubernetes\.context 'ctxx': .* did you mean 'ctx'\?"):
        access("ctxx", kubeconfig=path, environ={})
    with pytest.raises(ClusterError, match=r"no such context; there are ctx"):
        access("production", kubeconfig=path, environ={})


def test_a_kubeconfig_without_current_context_wants_one(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, NOWHERE)
    raw = json.loads(path.read_text())
    del raw["current-context"]
    path.write_text(json.dumps(raw))
    with pytest.raises(ClusterError, match=r"no current-context; set cluster\.kubernetes\.context to one of ctx"):
        access(kubeconfig=path, environ={})
    assert access("ctx", kubeconfig=path, environ={}).context == "ctx"


def test_nothing_at_all_names_what_was_looked_for_and_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ClusterError) as told:
        access(environ={"HOME": str(tmp_path)})
    assert str(tmp_path / ".kube" / "config") in str(told.value)
    assert "not a pod of a cluster" in str(told.value)
    assert "set KUBECONFIG" in str(told.value)
    with pytest.raises(ClusterError, match="kubeconfig /nowhere: there is no such file"):
        access(kubeconfig="/nowhere", environ={})


@pytest.mark.parametrize(
    "text",
    ["", "- a list", "{", "contexts: 7", "contexts: [{context: {}}]", "current-context: x\ncontexts: [{name: x}]", "\x00\x01"],
)
def test_a_kubeconfig_that_is_none_is_an_error_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClusterError, match="config"):
        access(kubeconfig=path, environ={})


def test_a_server_that_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"server 'nonsense' is not an address; write https://HOST:PORT"):
        access(kubeconfig=kubeconfig(tmp_path, "nonsense"), environ={})


def test_in_a_pod_the_service_account_is_used_and_its_rotated_token_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_text("a certificate")
    (tmp_path / "namespace").write_text("team-a\n")
    env = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    found = access("a-context-of-the-laptop", environ=env, service_account=tmp_path)
    assert (found.server, found.namespace, found.context) == ("https://10.0.0.1:443", "team-a", "")
    assert found.headers() == {"Authorization": "bearer first"}
    (tmp_path / "token").write_text("second")
    assert found.renew()
    assert found.headers() == {"Authorization": "bearer second"}
    assert not found.renew()  # just done: the server's no is final
    (tmp_path / "token").unlink()
    with pytest.raises(ClusterError, match="has no service account token"):
        access(environ=env, service_account=tmp_path)


def test_a_token_file_that_has_changed_is_read_when_renewed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    found = access(kubeconfig=kubeconfig(tmp_path, NOWHERE, user={"tokenFile": str(token)}), environ={})
    token.write_text("second")
    assert found.headers()["Authorization"] == "Bearer first"
    assert found.renew()
    assert found.headers()["Authorization"] == "Bearer second"


def test_an_exec_plugin_is_asked_again_once_its_token_has_expired(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("")
    script = f"echo x >> {count}; cat <<END\n{credential('TOKEN', expirationTimestamp='2020-01-01T00:00:00Z')}\nEND"
    user = plugin(tmp_path, script.replace("TOKEN", f"t$(wc -l < {count} | tr -d ' ')"))
    found = access(kubeconfig=kubeconfig(tmp_path, NOWHERE, user=user), environ={})
    first, second = found.headers(), found.headers()
    assert first != second
    assert second["Authorization"].startswith("Bearer t")


def test_a_failing_exec_plugin_is_told_in_its_own_words_and_not_on_the_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    user = plugin(tmp_path, "echo 'SSO session has ended, run cloud login' >&2; exit 3")
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(ClusterError, match="SSO session has ended, run cloud login; log in again"):
        access(kubeconfig=kubeconfig(tmp_path, NOWHERE, user=user), environ={})
    assert capfd.readouterr().err == ""
    assert logging.getLogger().handlers == handlers


def test_a_plugin_that_is_not_installed_is_told(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin-here"}}
    with pytest.raises(ClusterError, match=r"no credentials: .*no-such-plugin-here"):
        access(kubeconfig=kubeconfig(tmp_path, NOWHERE, user=user), environ={})


def test_a_proxy_is_taken_from_the_kubeconfig_but_never_for_this_machine(tmp_path: Path) -> None:
    far = kubeconfig(tmp_path, "https://203.0.113.9:6443", name="far", cluster={"proxy-url": "http://proxy.example:3128"})
    near = kubeconfig(tmp_path, "http://127.0.0.1:8001", name="near", cluster={"proxy-url": "http://proxy.example:3128"})
    assert access(kubeconfig=far, environ={}).proxy == "http://proxy.example:3128"
    assert access(kubeconfig=near, environ={}).proxy is None


# --- TLS ---------------------------------------------------------------------------------------------------------------


class Certificates(NamedTuple):
    ca: Path
    server: ssl.SSLContext
    client_cert: Path
    client_key: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A CA, a server certificate for the name `kube.test` alone, and a client certificate that the server demands."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificates can be made")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test ca")
    (folder / "san").write_text("subjectAltName=DNS:kube.test\n")
    (folder / "none").write_text("basicConstraints=CA:FALSE\n")
    for name, extensions in (("server", "san"), ("client", "none")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", extensions)
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    served.verify_flags &= ~ssl.VERIFY_X509_STRICT  # on in Python 3.13; these papers have no Authority Key Identifier
    served.verify_mode = ssl.CERT_REQUIRED
    served.load_cert_chain(folder / "server.crt", folder / "server.key")
    return Certificates(folder / "ca.crt", served, folder / "client.crt", folder / "client.key")


def data_of(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


async def version_over(found: Access) -> str:
    async with Api(found, timeout_s=5.0) as api:
        return await api.version()


@pytest.fixture
def tiny() -> TinyServer:
    made = TinyServer()
    made.answers("GET", "/version", {"gitVersion": "v1.36.2"})
    return made


async def test_client_certificates_ca_data_and_server_name_are_used(
    tmp_path: Path, certificates: Certificates, tiny: TinyServer
) -> None:
    client = {"client-certificate-data": data_of(certificates.client_cert), "client-key-data": data_of(certificates.client_key)}
    cluster = {"certificate-authority-data": data_of(certificates.ca), "tls-server-name": "kube.test"}
    async with serving(tiny, secured=certificates.server):
        found = access(kubeconfig=kubeconfig(tmp_path, tiny.url, user=client, cluster=cluster), environ={})
        assert await version_over(found) == "v1.36.2"
        before = found.ssl_context()
        assert found.ssl_context() is before


async def test_a_certificate_that_is_renewed_in_place_is_loaded_anew(
    tmp_path: Path, certificates: Certificates, tiny: TinyServer
) -> None:
    for name, source in (("me.crt", certificates.client_cert), ("me.key", certificates.client_key)):
        shutil.copy(source, tmp_path / name)
    client = {"client-certificate": "me.crt", "client-key": "me.key"}
    async with serving(tiny, secured=certificates.server):
        path = kubeconfig(tmp_path, tiny.url, user=client, cluster={"insecure-skip-tls-verify": True})
        found = access(kubeconfig=path, environ={})
        async with Api(found, timeout_s=5.0) as api:
            assert await api.version() == "v1.36.2"
            before = found.ssl_context()
            os.utime(tmp_path / "me.crt", ns=(1, 1))
            assert found.ssl_context() is not before
            assert await api.version() == "v1.36.2"


async def test_files_relative_to_the_kubeconfig_and_insecure_are_used(
    tmp_path: Path, certificates: Certificates, tiny: TinyServer
) -> None:
    shutil.copy(certificates.client_cert, tmp_path / "me.crt")
    shutil.copy(certificates.client_key, tmp_path / "me.key")
    client = {"client-certificate": "me.crt", "client-key": "me.key"}
    async with serving(tiny, secured=certificates.server):
        path = kubeconfig(tmp_path, tiny.url, user=client, cluster={"insecure-skip-tls-verify": True})
        assert await version_over(access(kubeconfig=path, environ={})) == "v1.36.2"


async def test_a_certificate_that_is_not_trusted_is_told_with_the_next_step(
    tmp_path: Path, certificates: Certificates, tiny: TinyServer
) -> None:
    async with serving(tiny, secured=certificates.server):
        with pytest.raises(ApiProblem, match=r"is not trusted: .*; check certificate-authority and tls-server-name"):
            await version_over(access(kubeconfig=kubeconfig(tmp_path, tiny.url), environ={}))
        other_name = kubeconfig(tmp_path, tiny.url, cluster={"certificate-authority": str(certificates.ca)})
        with pytest.raises(ApiProblem, match="is not trusted") as told:
            await version_over(access(kubeconfig=other_name, environ={}))
        assert told.value.reason == "Untrusted"


def test_a_certificate_file_that_is_missing_or_broken_is_told(tmp_path: Path) -> None:
    gone = kubeconfig(tmp_path, "https://127.0.0.1:1", cluster={"certificate-authority": "/nowhere/ca.crt"})
    with pytest.raises(ClusterError, match=r"/nowhere/ca\.crt"):
        access(kubeconfig=gone, environ={})
    (tmp_path / "ca.crt").write_text("rubbish")
    broken = access(
        kubeconfig=kubeconfig(tmp_path, "https://127.0.0.1:1", cluster={"certificate-authority": "ca.crt"}), environ={}
    )
    with pytest.raises(ClusterError, match="its certificates cannot be used"):
        broken.ssl_context()
