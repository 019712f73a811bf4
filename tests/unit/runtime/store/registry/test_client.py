"""The registry client without a registry: names, and what happens if no server answers."""

import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.errors import NotAdmitted, RegistryDenied, Temporary, UsageError
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.records.figure import Figure
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import VersionInfo, check_name, model_and_version


@pytest.mark.parametrize("name", ["digits", "My Model", "模型", "a" * 256, "..", "a.b-c_d", "x@y"])
def test_a_name_that_mlflow_takes_is_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", "models:/x", "a" * 257, " a", "a ", "a\n", "\x00", "a\tb", "\ud800"]
)
def test_a_name_that_could_be_a_path_or_an_address_is_refused(name: str) -> None:
    with pytest.raises(NotAdmitted, match="can't be a model's name"):
        check_name(name)


@given(st.text(max_size=300))
def test_a_name_is_taken_or_refused_and_a_taken_one_is_one_line_without_slashes(name: str) -> None:
    try:
        taken = check_name(name)
    except NotAdmitted:
        return
    assert taken == name
    assert not set("/:\n\r\x00") & set(taken)


class Answers(BaseHTTPRequestHandler):
    """Answers with the status that the test set, and keeps what it was asked."""

    status: ClassVar[int] = 200
    body: ClassVar[bytes] = b"{}"
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *words: Any) -> None:
        """Says nothing."""


@pytest.fixture
def uri(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    Answers.asked.clear()
    Answers.body = b"{}"
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join(timeout=120)
    server.server_close()


@pytest.mark.parametrize(("status", "there"), [(200, True), (404, False), (400, False)])
def test_a_version_is_there_or_not(uri: str, status: int, there: bool) -> None:
    Answers.status = status
    Answers.body = b'{"model_version": {"name": "My Model", "version": "3", "creation_timestamp": 1500}}'
    info = RestRegistry(uri).version("My Model", 3)
    assert (info is not None) is there
    assert info is None or info.created_at == 1.5
    ((path, who),) = Answers.asked
    assert path.replace("+", "%20") == "/api/2.0/mlflow/model-versions/get?name=My%20Model&version=3"
    assert who is None


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_registry_that_does_not_say_is_asked_again_later(uri: str, status: int) -> None:
    Answers.status = status
    with pytest.raises(Temporary, match=f"it answered {status}"):
        RestRegistry(uri).version("digits", 3)


def test_a_registry_that_wants_to_know_who_asks_is_told(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Answers.status = 200
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    RestRegistry(uri).version("digits", 3)
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ana")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    RestRegistry(uri).version("digits", 3)
    assert [who for _, who in Answers.asked] == ["Bearer abc", "Basic YW5hOnNlY3JldA=="]


def test_a_registry_that_is_down_is_temporary() -> None:
    with pytest.raises(Temporary, match="the registry does not answer"):
        RestRegistry(f"http://127.0.0.1:{free_port()}", timeout_s=2).version("digits", 3)


class Files(Registry):
    """A registry whose run has one file."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def download_run_file(self, run_id: str, path: str, to: Path, *, limit_mb: float = 0) -> Path | None:
        (to / "file").write_bytes(self.body)
        return to / "file"


def test_a_text_that_an_author_wrote_as_bytes_is_read_all_the_same() -> None:
    assert Files("größe".encode()).read_text("run", "a") == "größe"
    assert Files(b"\xff{}").read_text("run", "a") == "\ufffd{}"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Bad gateway</html>",
        b"",
        b"[]",
        b"null",
        b'{"model_version": {"name": "a"}}',
        b'{"model_version": {"name": "a", "version": "x"}}',
        b'{"model_version": {"name": "a", "version": "1", "tags": 3}}',
    ],
)
def test_an_odd_answer_is_temporary(uri: str, body: bytes) -> None:
    Answers.status, Answers.body = 200, body
    with pytest.raises(Temporary, match="the registry"):
        RestRegistry(uri).version("a", 1)


def test_a_registry_s_refusal_is_said_with_its_reason(uri: str) -> None:
    Answers.status, Answers.body = 400, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "no private addresses"}'
    with pytest.raises(UsageError, match="no private addresses"):
        RestRegistry(uri).tag("a", 1, release="x")
    Answers.status = 503
    with pytest.raises(Temporary, match="it answered 503 no private addresses"):
        RestRegistry(uri).tag("a", 1, release="x")


@pytest.mark.parametrize(
    ("name", "parts"),
    [("digits", ("digits", None)), ("digits/3", ("digits", 3)), ("My Model/12", ("My Model", 12)), ("a/01", ("a", 1))],
)
def test_a_name_is_a_model_or_one_version_of_it(name: str, parts: tuple[str, int | None]) -> None:
    assert model_and_version(name) == parts


@pytest.mark.parametrize(
    "name",
    ["digits/", "digits/x", "digits/0", "digits/-1", "digits/1.0", "digits/²", "digits/٣", "digits/" + "9" * 5000],
)
def test_a_version_is_a_positive_number(name: str) -> None:
    with pytest.raises(UsageError, match="is not a version number"):
        model_and_version(name)


@pytest.mark.parametrize("name", ["", "/3", "../x/3", "a/b/3", "a:b", " a"])
def test_a_name_that_no_model_has_is_refused(name: str) -> None:
    with pytest.raises(NotAdmitted, match="can't be a model's name"):
        model_and_version(name)


REFUSALS = {
    "MLflow's": (403, b"Permission denied"),
    "MLflow's to who has no account": (401, b"You are not authenticated."),
    "MLflow's as JSON": (403, b'{"error_code": "PERMISSION_DENIED", "message": "no"}'),
    "a proxy's page": (403, b"<html>no</html>"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_model_that_is_forbidden_or_absent_for_this_account_is_denied_and_not_temporary(
    uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refusal: str
) -> None:
    status, body = REFUSALS[refusal]
    monkeypatch.setattr(Answers, "status", status)
    monkeypatch.setattr(Answers, "body", body)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)  # a stub of it, from a scanner that another test ran
    registry = Registry(uri.rstrip("/"))
    info = VersionInfo(name="m", version=1, source="", run_id="r", created_at=0)
    calls: list[Callable[[], object]] = [
        lambda: registry.version("m", 1),
        lambda: registry.versions("m"),
        lambda: registry.alias("m", "champion"),
        lambda: registry.tag("m", 1, release="r"),
        lambda: registry.read_text("r", "shiplift/x.txt"),
        lambda: registry.write_text("r", "shiplift/x.txt", "x"),
        lambda: registry.download_model(info, tmp_path, limit_mb=1),
        lambda: registry.metrics("r", (Figure(name="p99_ms", value=1),)),
    ]
    for call in calls:
        with pytest.raises(RegistryDenied, match=f"it answered {status}") as denied:
            call()
        assert denied.value.exit_code == 55
