"""How a pod reaches its API server: with the service account's token and certificate, over real TLS."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import ClusterUnreachable, Temporary
from shiplift.runtime.serving.kubernetes import transport
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import POD
from tests.unit.api_server import ApiServer, running
from tests.unit.certificates import certificate, server_context

SAMPLE = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"a": 1}}


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's service account; `served` makes the server that its certificate belongs to."""
    folder = tmp_path / "account"
    certificate(folder)
    (folder / "token").write_text("first\n")
    monkeypatch.setattr(transport, "_ACCOUNT", folder)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    return folder


def served(server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.socket = server_context(folder).wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))


def test_a_pod_proves_itself_with_its_token_and_reads_a_new_one(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server:
        served(server, account, monkeypatch)
        client = KubernetesClient("shiplift")
        assert client.create(SAMPLE)["metadata"]["uid"] == "uid-of-x"
        assert server.proofs == {"Bearer first"}
        (account / "token").write_text("second")
        assert client.find(POD)
        assert server.proofs == {"Bearer first"}, "it is read once a minute"
        monkeypatch.setattr(transport, "_REREAD_S", 0.0)
        assert client.find(POD)
        assert server.proofs == {"Bearer first", "Bearer second"}


def test_an_api_server_with_a_foreign_certificate_gets_no_token(
    account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_PAUSE_S", 0.01)
    certificate(tmp_path / "impostor")
    with running() as server:
        served(server, tmp_path / "impostor", monkeypatch)
        with pytest.raises(Temporary, match=r"does not answer.*certificate verify failed"):
            KubernetesClient("shiplift").find(POD)
        assert server.proofs == set()


@pytest.mark.parametrize(("lost", "what"), [("ca.crt", "no certificate of the API server"), ("", "not the address")])
def test_half_an_account_says_what_is_missing(
    account: Path, monkeypatch: pytest.MonkeyPatch, lost: str, what: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443" if lost else "")
    if lost:
        (account / lost).unlink()
    with pytest.raises(ClusterUnreachable, match=what):
        KubernetesClient("shiplift").find(POD)


def test_an_address_of_ipv6_is_bracketed(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert transport.connect().host == "https://[fd00::1]:443"
    assert (account / "token").is_file()


def test_a_date_from_yaml_becomes_its_text_again_and_other_types_are_errors() -> None:
    assert (
        transport.encoded({"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}) == b'{"at": "2026-01-02T03:04:05+00:00"}'
    )
    with pytest.raises(TypeError, match="can't contain a set"):
        transport.encoded({"at": {1}})
