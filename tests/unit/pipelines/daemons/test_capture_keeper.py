"""Who may add captured rows on a cluster, who may read and delete them, and what of which packages is kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shiplift.pipelines.daemons.capture_keeper import CapturedPackages, KeeperApp
from shiplift.runtime.base.errors import NotFound, Temporary, UsageError
from shiplift.runtime.capture.elsewhere import RowsElsewhere
from shiplift.runtime.capture.forwarding import Captured, Forwarder
from shiplift.runtime.capture.keeping import Keeper, KeptPackage
from shiplift.runtime.capture.parts import TOKEN_HEADER, NotKept, Part, Sender, Unreadable
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.serving.operator.resources import RevisionSpec, revision_object
from tests.unit.api_server import running
from tests.unit.examples import package
from tests.unit.runtime.capture.keepers import client_of, transport_to
from tests.unit.runtime.capture.rings import CAPACITY, NOW, Server

DIGEST = "ab" * 32
CAPTURING = Capturing(share=1.0, limit_bytes=10**9, retention_s=86400, hash=("email",), key="email")


class Site:
    """A keeper, and a pod whose server captured the requests of two people."""

    def __init__(self, work: Path, capturing: Capturing = CAPTURING) -> None:
        known = KeptPackage(served="m", capturing=capturing)
        self.keeper = Keeper(work / "kept", "secret", lambda digest: known if digest == DIGEST else None)
        self.app = KeeperApp(self.keeper, lambda: {"m": capturing}, secret="secret", sender="send", reader="read").asgi
        self.client = client_of(self.app)
        (work / "rings").mkdir()
        models = [Captured(model="m", package=DIGEST, share=1.0)]
        self.forwarder = Forwarder(work / "rings", models, self.sender("send"), capacity=CAPACITY, flush_s=0)
        server = Server(work / "rings")
        for email in (b"ada", b"bob"):
            server.puts(email, 1)

    def sender(self, token: str) -> Sender:
        return Sender("http://keeper", token, transport=transport_to(self.app))

    def rows(self, token: str = "read") -> RowsElsewhere:
        return RowsElsewhere(self.client, token)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    assert site.forwarder.look()
    return site


def test_rows_are_shown_exported_and_deleted_by_key(site: Site, tmp_path: Path) -> None:
    shown = site.rows().summary("m")
    assert (shown.model, shown.on, shown.rows, shown.files, shown.share) == ("m", True, 2, 1, 1.0)
    assert site.rows().export("m", tmp_path / "out.parquet").rows == 2
    assert oct((tmp_path / "out.parquet").stat().st_mode & 0o777) == "0o600"
    assert pq.read_table(tmp_path / "out.parquet").column("input/amount").to_pylist() == [1.0, 1.0]
    assert site.rows().delete("m", "ada").deleted == 1
    assert site.rows().summary("m").rows == 1


def test_copies_are_read_as_a_machines_own_and_only_those_that_are_new_enough(site: Site) -> None:
    with site.rows().copied("m") as folder:
        assert (folder.settings(), len(folder.files())) == (CAPTURING, 1)
    with site.rows().copied("m", since=NOW + 60) as folder:
        assert folder.files() == []


@pytest.mark.parametrize("token", ["", "send", "reader"])
def test_only_the_readers_token_reads_and_deletes(site: Site, tmp_path: Path, token: str) -> None:
    rows = site.rows(token)
    asked: tuple[Callable[[], Any], ...] = (
        lambda: rows.summary("m"),
        lambda: rows.export("m", tmp_path / "out.parquet"),
        lambda: rows.delete("m", "ada"),
    )
    for ask in asked:
        with pytest.raises(Temporary, match="401"):
            ask()
    assert site.rows().summary("m").rows == 2


@pytest.mark.parametrize("token", ["", "read"])
def test_only_the_senders_token_adds(site: Site, token: str) -> None:
    part = Part(model="m", package=DIGEST, identity="1-2-3", tail=0, after=8)
    with pytest.raises(NotKept, match="401"):
        site.sender(token).send(part, b"")
    with pytest.raises(NotKept, match="404"):
        site.sender("send").send(part.model_copy(update={"package": "cd" * 32}), b"")
    with pytest.raises(Unreadable, match="can't be read"):
        site.sender("send").send(part, b"nonsense")
    with pytest.raises(Unreadable, match="more than"):
        site.sender("send").send(part, bytes(18 << 20))


def test_nobody_gets_in_if_a_token_is_missing(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, "secret", lambda _: None)
    client = client_of(KeeperApp(keeper, dict, secret="secret", sender="", reader="").asgi)
    with pytest.raises(Temporary, match="401"):
        RowsElsewhere(client, "").summary("m")
    assert client.get("/healthz").status_code == 200


def test_what_is_not_kept_and_what_has_no_key_is_said(tmp_path: Path, site: Site) -> None:
    for ask in (lambda: site.rows().delete("x", "1"), lambda: site.rows().summary("x"), lambda: list(_export(site))):
        with pytest.raises(NotFound, match="no rows of 'x' are kept"):
            ask()
    assert not (tmp_path / "kept" / "x").exists()
    (tmp_path / "another").mkdir()
    keyless = Site(tmp_path / "another", CAPTURING.model_copy(update={"key": ""}))
    keyless.forwarder.look()
    with pytest.raises(UsageError, match=r"names no `capture.key`"):
        keyless.rows().delete("m", "ada")


def _export(site: Site) -> Any:
    yield site.rows().export("x", Path("never.parquet"))


@pytest.mark.parametrize(
    "path", ["/captured/../files", "/captured/%2e%2e/files", "/captured/.lock", "/captured/m/files/state.json"]
)
def test_no_other_file_is_reached(site: Site, path: str) -> None:
    answer = site.client.get(path, headers={TOKEN_HEADER: "read"})
    assert answer.status_code in (404, 422)


def test_the_packages_of_revisions_say_what_is_kept() -> None:
    spec = RevisionSpec(artifacts_uri="s3://x", package=package(capturing=CAPTURING).model_dump(mode="json"))
    other = RevisionSpec(artifacts_uri="s3://x", package=package(model="plain").model_dump(mode="json"))
    with running() as server:
        for name, each in (("digits-2-aaaaaaaa", spec), ("plain-2-aaaaaaaa", other)):
            server.objects["tritonrevisions"][name] = revision_object(name, "models", each)
        packages = CapturedPackages(server.api("models"), steady=lambda: 0.0)
        found = packages.find(package().repository.sha256)
        assert found == KeptPackage(served="digits", capturing=CAPTURING)
        assert packages.find("0" * 64) is None
