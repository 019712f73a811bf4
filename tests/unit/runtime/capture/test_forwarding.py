"""From a pod's ring to the keeper's disk: nothing is lost or doubled, and no part is believed."""

import struct
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from shiplift.runtime.base.errors import DataInvalid, NotFound, ShipliftError, StorageFull
from shiplift.runtime.capture import asked
from shiplift.runtime.capture import folder as folders
from shiplift.runtime.capture.forwarding import Captured, Forwarder
from shiplift.runtime.capture.keeping import Keeper, KeptPackage
from shiplift.runtime.capture.parts import NotKept, Part, Unreadable
from shiplift.runtime.capture.ring import Ring
from shiplift.runtime.records.capturing import Capturing
from tests.unit.runtime.capture.rings import CAPACITY, NOW, Server

M = Capturing(share=1.0, limit_bytes=10**9, retention_s=86400, hash=("email",), omit=("name",), key="email")
DIGEST = "ab" * 32


class Cluster:
    """A pod with a ring, and a keeper that may be away; the network between them is a call."""

    def __init__(self, work: Path) -> None:
        self.rings, self.now, self.away = work / "rings", 0.0, False
        self.rings.mkdir(exist_ok=True)
        self.known = {DIGEST: KeptPackage(served="m", capturing=M)}
        self.keeper = Keeper(work / "kept", "secret", self.package, clock=lambda: NOW)
        self.forwarder = self.starts()
        self.server = Server(self.rings)

    def package(self, digest: str) -> KeptPackage | None:
        """What the cluster's revisions say now."""
        return self.known.get(digest)

    def starts(self) -> Forwarder:
        """A new forwarder, as after a kill of the one before."""
        models = [Captured(model="m", package=DIGEST, share=1.0)]
        return Forwarder(self.rings, models, self, capacity=CAPACITY, flush_s=0, steady=lambda: self.now)

    def send(self, part: Part, records: bytes) -> int:
        """What `Sender` and the keeper's process do."""
        if self.away:
            raise NotKept("it is away")
        try:
            return self.keeper.put(part, records)
        except DataInvalid as error:
            raise Unreadable(str(error)) from error
        except ShipliftError as error:
            raise NotKept(str(error)) from error

    def looks(self) -> bool:
        self.now += 20
        return self.forwarder.look()

    @property
    def rows(self) -> list[dict[str, object]]:
        table = self.keeper.folder("m").read()
        return table.to_pylist() if table is not None else []

    @property
    def amounts(self) -> list[object]:
        return sorted(row["input/amount"] for row in self.rows)  # type: ignore[type-var]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_the_keeper_hashes_and_leaves_out_what_the_package_says(cluster: Cluster) -> None:
    cluster.server.puts(b"ada@example.org", 2.5)
    assert cluster.looks()
    (row,) = cluster.rows
    assert set(row) == {"at", "version", "failed", "request", "input/email", "input/amount", "output/score"}
    assert (row["input/amount"], len(str(row["input/email"]))) == (2.5, 64)


def test_a_forwarder_or_a_keeper_that_is_killed_at_any_line_loses_and_doubles_nothing(cluster: Cluster) -> None:
    cluster.server.puts(b"a", 1)
    with mock.patch.object(Ring, "advance", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        cluster.looks()
    cluster.server.puts(b"b", 2)
    cluster.forwarder = cluster.starts()
    cluster.away = True
    assert not cluster.looks()
    cluster.away = False
    cluster.looks()
    assert cluster.looks()
    assert cluster.amounts == [1.0, 2.0]


def test_a_package_that_nobody_captures_and_a_full_disk_only_make_rows_wait(cluster: Cluster) -> None:
    cluster.server.puts(b"a", 1)
    known, cluster.known = cluster.known, {}
    assert not cluster.looks()
    cluster.known = known
    with mock.patch.object(folders, "_write", side_effect=StorageFull("no space is left", do="Free some.")):
        assert not cluster.looks()
    assert "no space is left" in cluster.keeper.folder("m").state().problem
    assert cluster.looks()
    assert (cluster.amounts, cluster.keeper.folder("m").state().problem) == ([1.0], "")


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(struct.pack("<II", 1, 8), id="short"),
        pytest.param(struct.pack("<IIQqIIQ", 1, 48, 0, 0, 0, 9, 0) + bytes(range(8)), id="too many tensors"),
        pytest.param(b"\xff" * 64, id="all ones"),
    ],
)
def test_a_hostile_ring_is_emptied(cluster: Cluster, record: bytes) -> None:
    cluster.server.raw(record)
    cluster.looks()
    cluster.server.puts(b"a", 1)
    assert cluster.looks()
    assert cluster.amounts == [1.0]


@pytest.mark.parametrize("cut", [lambda body: body[:-8], lambda body: body + b"\1\0\0\0\0\0\0\0", lambda _: b"\0"])
def test_a_part_that_makes_no_sense_is_refused_and_told_of(cluster: Cluster, cut: Callable[[bytes], bytes]) -> None:
    part = Part(model="m", package=DIGEST, identity="1-2-3", tail=0, after=8)
    with pytest.raises(DataInvalid, match="can't be read"):
        cluster.keeper.put(part, cut(struct.pack("<IIQqIIQ", 1, 40, 0, 0, 0, 0, 0)))
    assert "can't be read" in cluster.keeper.folder("m").state().problem
    with pytest.raises(NotFound):
        cluster.keeper.put(part.model_copy(update={"model": "another"}), b"")


def test_a_record_that_a_killed_server_left_unfinished_is_skipped(cluster: Cluster) -> None:
    cluster.server.puts(b"a", 1, ready=False)
    assert not cluster.looks()
    assert not cluster.looks()
    cluster.server.puts(b"b", 2)
    assert cluster.looks()
    assert cluster.amounts == [2.0]


def test_rows_of_two_pods_have_different_request_numbers(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    pods = [Cluster(tmp_path / name) for name in ("a", "b")]
    for pod in pods:
        pod.keeper = pods[0].keeper
        pod.server.puts(b"a", 1)
        pod.server.puts(b"b", 1)
        pod.looks()
    assert len({row["request"] for row in pods[0].rows}) == 4


def test_what_was_dropped_is_counted_once(cluster: Cluster) -> None:
    cluster.server.puts(b"a", 1)
    cluster.server.counts(captured=1, dropped=5, too_large=2)
    with mock.patch.object(Ring, "advance", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        cluster.looks()
    cluster.looks()
    cluster.server.puts(b"b", 1)
    cluster.server.counts(captured=2, dropped=6, too_large=2)
    cluster.looks()
    state = cluster.keeper.folder("m").state()
    assert (state.captured, state.dropped, state.too_large) == (2, 6, 2)


def test_a_deletion_holds_for_rows_that_are_still_in_a_ring(cluster: Cluster) -> None:
    cluster.server.puts(b"ada", 1, NOW - 10)
    cluster.looks()
    cluster.server.puts(b"ada", 2, NOW - 1)
    assert asked.delete(cluster.keeper.folder("m"), "m", "ada", "secret").deleted == 1
    cluster.server.puts(b"bob", 3, NOW - 1)
    assert cluster.looks()
    assert cluster.amounts == [3.0]


def test_all_models_together_have_a_limit_and_settings_are_those_that_serve(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.keeper = Keeper(tmp_path / "kept", "secret", cluster.package, limit_bytes=100, clock=lambda: NOW)
    cluster.server.puts(b"a", 1)
    assert not cluster.looks()
    assert "of the 0 MB" in cluster.keeper.folder("m").state().problem
    cluster.keeper.settle({"m": M.model_copy(update={"retention_s": 60})})
    kept = cluster.keeper.folder("m").settings()
    assert kept is not None
    assert kept.retention_s == 60
