"""A stage without secrets and the broker beside it: what it may ask for, and that nothing else comes out of it."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest

from shiplift.pipelines.daemons.capture_keeper import KeeperApp
from shiplift.pipelines.engines.argo.broker import permissions, server
from shiplift.pipelines.engines.argo.broker.pod_permissions import PodPermissions
from shiplift.pipelines.engines.argo.pod import walk
from shiplift.pipelines.engines.argo.pod.call import Call, handover
from shiplift.pipelines.graph import FanOut, Placement, Stage
from shiplift.runtime.base.errors import ArtifactCorrupt, NotFound, Temporary, VersionReplaced
from shiplift.runtime.base.secrets import load_secrets
from shiplift.runtime.capture.elsewhere import RowsElsewhere
from shiplift.runtime.capture.keeping import Keeper
from shiplift.runtime.composition.incumbents import Incumbents, Members
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.spec.target import Fleet, Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.broker import GO_ON, Broker, brokered
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import VersionInfo
from shiplift.runtime.store.tuning_cache import SignedTuningCache, tuning_cache
from shiplift.runtime.store.version_files import version_files
from shiplift.steps.find_champion import find_champion
from tests.unit.examples import site
from tests.unit.runtime.capture.keepers import transport_to
from tests.unit.runtime.store.test_ledger import Runs

REQUEST = Request(model="digits", version=3)


class Taken(Record):
    file: Artifact
    tree: Artifact


class Given(Record):
    file: Artifact


def work(site: Site, taken: Taken) -> Given:
    store = ArtifactStore(site.artifacts_uri)
    return Given(file=store.put_bytes(store.read(taken.file) * 2))


class Ended(Record):
    file: Artifact


def work_on(site: Site, given: Given) -> Ended:
    store = ArtifactStore(site.artifacts_uri)
    return Ended(file=store.put_bytes(store.read(given.file) * 2))


class Tuned(Record):
    file: Artifact
    target: str


def find_one(taken: Taken) -> Fleet:
    return Fleet(targets=(Target(name="a"),))


def find_both(taken: Taken) -> Fleet:
    return Fleet(targets=(Target(name="a"), Target(name="b")))


def tune_it(site: Site, target: Target, given: Given, champion: Champion) -> Tuned:
    return Tuned(file=given.file, target=f"{target.name} after version {champion.version}")


class Models(Runs):
    """A registry with a version whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.asked: list[tuple[str, int]] = []
        self.registered_at = 0.0

    def version(self, name: str, version: int) -> VersionInfo:
        self.asked.append((name, version))
        return replace(super().version(name, version), created_at=self.registered_at)

    def download_model(self, info: VersionInfo, to: Path, *, limit_mb: float) -> Path:
        assert limit_mb == 16384
        (to / "data").mkdir(parents=True)
        (to / "MLmodel").write_text("flavors: {}")
        (to / "data" / "model.pkl").write_bytes(b"\x80")
        return to

    def download_run_file(self, run_id: str, path: str, to: Path) -> Path | None:
        if path == "away":
            raise Temporary("it is away", do="Wait.")
        if path != "shiplift/shiplift.yaml":
            return None
        (to / "shiplift.yaml").write_text(run_id)
        return to / "shiplift.yaml"


class Room:
    """A pod with its two containers: `cluster` is the site of the broker's, `inside` that of the stage's."""

    thread: threading.Thread

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *steps: Callable[..., Record], then: FanOut | None = None
    ) -> None:
        self.stages = tuple(
            Stage(
                step, Placement(sandbox=True, pod="group", keep="never" if step in (find_one, find_both) else "result")
            )
            for step in steps or (work,)
        )
        self.cluster = site(tmp_path / "broker")
        self.home = tmp_path / "main"
        self.home.mkdir()
        (tmp_path / "files").mkdir()
        self.store = ArtifactStore(self.cluster.artifacts_uri)
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "a").write_text("in a tree")
        self.taken = Taken(file=self.store.put_bytes(b"named"), tree=self.store.put_tree(tmp_path / "tree"))
        self.runs = Models(tmp_path / "files")
        arguments: dict[str, Any] = {"site": self.cluster, "request": REQUEST, "taken": self.taken}
        self.call = Call(stages=self.stages, out=tmp_path / "out", arguments=arguments, attempt="workflow-1", then=then)
        self.permissions = PodPermissions(self.call, tmp_path / "files", registry=cast("Registry", self.runs))
        self.server = server.server(self.permissions, 0)
        self.port = self.server.server_address[1]
        monkeypatch.setattr("shiplift.runtime.store.broker.PORT", self.port)
        self.inside = brokered(self.cluster).model_copy(update={"home": str(self.home)})
        self.client = Broker(self.inside.registry_uri)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.cluster, REQUEST, registry=cast("Registry", self.runs))

    def inside_call(self, stages: tuple[Stage, ...]) -> Call:
        arguments = {**self.call.arguments, "site": self.inside}
        return replace(self.call, stages=stages, arguments=arguments, broker=self.client)

    def run(self) -> int:
        return walk.run(self.inside_call(self.stages))

    def restart(self, folder: Path) -> None:
        """As in the next pod: its broker begins with the first stage."""
        self.permissions = PodPermissions(self.call, folder, registry=cast("Registry", self.runs))
        cast("Any", self.server).permissions = self.permissions

    def status(self, method: str, path: str, **content: Any) -> int:
        return httpx.request(method, f"http://127.0.0.1:{self.port}{path}", trust_env=False, **content).status_code


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    yield from opened(Room(tmp_path, monkeypatch))


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    """A pod of two stages."""
    yield from opened(Room(tmp_path, monkeypatch, work, work_on))


def opened(room: Room) -> Iterator[Room]:
    thread = threading.Thread(target=room.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    room.client.wait()
    room.thread = thread
    yield room
    room.server.shutdown()
    thread.join()
    room.server.server_close()


REAL_CLIENT = httpx.Client
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/shiplift/sha256"


def test_a_stage_leaves_the_record_that_it_leaves_with_the_ledger_itself(room: Room) -> None:
    assert room.run() == 0
    given = Given.model_validate_json((room.call.out / "given.json").read_text())
    assert room.store.read(given.file) == b"namednamed"
    assert room.ledger.get(room.permissions.now.key, "work", Given) == given
    assert not (room.home / "secrets.json").exists()
    assert runs_of(room)[0]["key"] == room.permissions.now.key


def test_what_is_done_is_a_hit_in_the_next_pod(room: Room) -> None:
    room.run()
    assert room.run() == 0
    assert runs_of(room)[0]["cached"]


def runs_of(room: Room) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads((room.call.out / "stage_runs.json").read_text())["runs"]
    return runs


def test_the_stages_of_a_pod_leave_their_records_one_after_another(shared: Room) -> None:
    assert shared.run() == 0
    ended = Ended.model_validate_json((shared.call.out / "ended.json").read_text())
    assert shared.store.read(ended.file) == b"named" * 4
    assert [(run["name"], run["cached"]) for run in runs_of(shared)] == [("work", False), ("work_on", False)]
    assert len(shared.runs.texts) == 2


def test_a_pod_that_was_lost_goes_on_from_the_ledger(shared: Room, tmp_path: Path) -> None:
    assert walk.run(shared.inside_call(shared.stages[:1])) == 0
    shared.restart(tmp_path)
    assert shared.run() == 0
    assert [(run["name"], run["cached"]) for run in runs_of(shared)] == [("work", True), ("work_on", False)]


def test_a_stage_can_not_touch_the_record_of_one_before_it_in_its_pod(shared: Room) -> None:
    key = shared.permissions.now.key
    assert walk.run(shared.inside_call(shared.stages[:1])) == 0
    before = dict(shared.runs.texts)
    forged = Given(file=shared.store.put_bytes(b"forged")).model_dump_json()
    assert shared.status("PUT", f"/records/work/{key}", content=forged) == 403
    assert shared.status("GET", f"/records/work/{key}") == 403
    assert shared.runs.texts == before


def test_a_stage_can_not_do_what_a_later_one_in_its_pod_may(shared: Room) -> None:
    assert walk.run(shared.inside_call(shared.stages[:1])) == 0
    later = shared.permissions.now.key
    given = json.loads((shared.call.out / "given.json").read_text())["file"]["sha256"]
    body = Ended(file=shared.taken.file).model_dump_json()
    shared.restart(shared.home)
    assert shared.status("PUT", f"/records/work_on/{later}", content=body) == 403
    assert shared.status("GET", f"/records/work_on/{later}") == 403
    assert shared.status("GET", f"{ARTIFACTS}/{given[:2]}/{given}") == 403


def test_a_stage_reads_only_what_its_own_records_name(shared: Room) -> None:
    assert walk.run(shared.inside_call(shared.stages[:1])) == 0
    named = shared.taken.tree.sha256  # by the record of the stage before
    assert shared.status("GET", f"{ARTIFACTS}/{named[:2]}/{named}") == 403


ON_TARGET = Stage(tune_it, Placement(sandbox=True, on_target=True))


def incumbents(version: int) -> Incumbents:
    return Incumbents(champion=Champion(version=version), members=Members())


CHAMPION = handover("workflow-1", Stage(find_champion))


def each(*, at_home: bool = True) -> FanOut:
    return FanOut(Target, "fleet", "targets", (ON_TARGET,), within="group", at_home=lambda _: at_home)


def going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Callable[..., Record] = find_one, *, at_home: bool = True
) -> Iterator[Room]:
    """A pod that may go on with its targets; the champion is looked for only once."""
    monkeypatch.setattr("shiplift.pipelines.engines.argo.broker.pod_permissions._MEET_S", 0)
    yield from opened(Room(tmp_path, monkeypatch, find, work, then=each(at_home=at_home)))


@pytest.fixture
def single(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    yield from going_on(tmp_path, monkeypatch)


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    yield from going_on(tmp_path, monkeypatch, find_both)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    yield from going_on(tmp_path, monkeypatch, at_home=False)


def stages_run(room: Room) -> list[tuple[str, str]]:
    return [(run["name"], run["target"]) for run in runs_of(room)]


def test_a_pod_goes_on_with_its_only_target_and_what_another_pod_handed_over(single: Room) -> None:
    single.ledger.put(CHAMPION, "find_champion", incumbents(2))
    assert single.run() == 0
    tuned = Tuned.model_validate_json((single.call.out / "tuned.json").read_text())
    assert (tuned.target, single.store.read(tuned.file)) == ("a after version 2", b"namednamed")
    assert stages_run(single) == [("find_one", ""), ("work", ""), ("tune_it", "a")]
    assert single.ledger.get(single.permissions.now.key, "tune_it", Tuned) == tuned


def test_a_pod_ends_before_its_target_if_the_champion_is_not_known_in_time(single: Room) -> None:
    assert single.run() == 0
    assert stages_run(single) == [("find_one", ""), ("work", "")]
    assert not (single.call.out / "tuned.json").exists()


@pytest.mark.parametrize("which", ["double", "elsewhere"])
def test_several_targets_and_those_with_nodes_of_their_own_get_pods(which: str, request: pytest.FixtureRequest) -> None:
    room: Room = request.getfixturevalue(which)
    room.ledger.put(CHAMPION, "find_champion", incumbents(2))
    assert room.run() == 0
    assert [name for name, _ in stages_run(room)][1:] == ["work"]
    assert room.status("PUT", GO_ON) == 404  # whatever runs in the stage's container


def test_a_stage_can_not_go_on_before_those_of_its_pod_are_done(single: Room) -> None:
    single.ledger.put(CHAMPION, "find_champion", incumbents(2))
    key = single.permissions.now.key
    assert single.status("PUT", GO_ON) == 404
    assert (single.permissions.now.stage.name, single.permissions.now.key) == ("work", key)


def test_a_pod_goes_on_only_once(single: Room) -> None:
    single.ledger.put(CHAMPION, "find_champion", incumbents(2))
    assert single.run() == 0
    assert single.status("PUT", GO_ON) == 404


def test_a_champion_that_was_signed_for_another_workflow_is_not_taken(single: Room) -> None:
    single.ledger.put(CHAMPION, "find_champion", incumbents(2))
    single.ledger.put(
        handover("workflow-0", Stage(find_champion)),
        "find_champion",
        incumbents(1),
    )
    own, other = single.runs.texts
    single.runs.texts[own] = single.runs.texts[other]  # an author may write to the run
    (Path(single.cluster.home) / "records" / f"{CHAMPION}.json").unlink()
    assert single.run() == 0
    assert stages_run(single) == [("find_one", ""), ("work", "")]


def test_pods_that_a_stage_creates_fetch_from_the_store_itself(room: Room) -> None:
    assert room.inside.artifacts_uri != room.cluster.artifacts_uri
    assert room.inside.artifacts_for_pods == room.cluster.artifacts_for_pods == room.cluster.artifacts_uri


def test_the_broker_ends_by_itself_after_its_stage(room: Room) -> None:
    room.client.end()
    room.thread.join(120)
    assert not room.thread.is_alive()
    room.client.end()  # a broker that is gone has ended


def test_only_artifacts_that_its_records_name_or_it_stored_are_read(room: Room) -> None:
    foreign = room.store.put_bytes(b"somebody else's model")
    inside = ArtifactStore(room.inside.artifacts_uri)
    assert inside.read(room.taken.file) == b"named"
    assert inside.read_from_tree(room.taken.tree, "a") == b"in a tree"
    own = inside.put_bytes(b"my own")
    assert inside.read(own) == b"my own"
    assert room.status("GET", f"{ARTIFACTS}/{foreign.sha256[:2]}/{foreign.sha256}") == 403


def test_bytes_are_stored_under_their_own_digest_alone(room: Room) -> None:
    digest = "ab" + "0" * 62
    answer = httpx.put(f"http://127.0.0.1:{room.port}{ARTIFACTS}/ab/{digest}", content=b"x", trust_env=False)
    assert answer.status_code == 422
    assert "ab0000" not in str(list(room.store.blobs("ab")))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/captured/digits/files"),
        ("GET", "/captured/another/files/1-2-3-ab.parquet"),
        ("PUT", f"/records/work/{'0' * 64}"),
        ("GET", f"/records/gate/{'0' * 64}"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/shiplift/named/abc"),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts?path=shiplift/named"),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts?path=1/2/artifacts"),
        ("GET", f"{ARTIFACTS}/../../../etc/passwd"),
        ("GET", "/api/2.0/mlflow/registered-models/search"),
        ("POST", "/api/2.0/mlflow/registered-models/alias"),
    ],
)
def test_what_is_not_the_stage_s_business_is_denied(room: Room, method: str, path: str) -> None:
    assert room.status(method, path, content=b"{}" if method == "PUT" else None) in (403, 501)
    assert room.runs.texts == {}


def test_an_admission_reads_what_was_captured_of_its_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturing = Capturing(share=1, limit_bytes=10**9, retention_s=86400)
    keeper = Keeper(tmp_path / "kept", "secret", lambda _: None)
    keeper.settle({"digits": capturing})
    rows = pa.table({"at": pa.array([1], pa.timestamp("us", tz="UTC")), "input/x": [1.0]})
    keeper.folder("digits").add(rows, "ab", 0, "secret")
    app = KeeperApp(keeper, dict, secret="secret", sender="send", reader="read")
    reached = transport_to(app.asgi)
    monkeypatch.setattr(
        f"{permissions.__name__}.httpx.Client", lambda **_: REAL_CLIENT(base_url="http://keeper", transport=reached)
    )
    monkeypatch.setenv("SHIPLIFT_CAPTURE_READER", "read")
    cluster = Cluster(namespace="n", serving_namespace="m", server_image="i", capture_uri="http://capture.n.svc:8009")

    def admission(stage: str) -> httpx.BaseTransport:
        version = SimpleNamespace(site=site(tmp_path, place=cluster), request=REQUEST)
        may = permissions.StagePermissions(stage=SimpleNamespace(name=stage), arguments={}, version=version)  # type: ignore[arg-type]

        def answered(request: httpx.Request) -> httpx.Response:
            status, reply = server.answer(may, request.method, request.url.raw_path.decode(), tmp_path / "sent")
            return httpx.Response(status, content=reply.body)

        return httpx.MockTransport(answered)

    def read(stage: str, model: str) -> int:
        with (
            REAL_CLIENT(base_url="http://broker", transport=admission(stage)) as client,
            RowsElsewhere(client, "").copied(model) as folder,
        ):
            assert folder.settings() == capturing
            return sum(file.rows for file in folder.files())

    assert read("admit", REQUEST.model) == 1
    for stage, model in (("admit", "another"), ("export", REQUEST.model)):
        with pytest.raises(Temporary, match="403"):
            read(stage, model)


def test_a_record_whose_artifacts_are_not_stored_is_not_signed(room: Room) -> None:
    forged = Given(file=Artifact(sha256="0" * 64, size_bytes=5))
    with pytest.raises(ArtifactCorrupt, match="not stored"):
        room.client.put(room.permissions.now.key, "work", forged)
    assert room.runs.texts == {}


def test_the_files_of_the_one_version_are_there(room: Room, tmp_path: Path) -> None:
    files = version_files(room.inside.registry_uri)
    info = files.version("digits", 3)
    assert (info.run_id, files.run_of(info)) == ("run-digits-3", "run-digits-3")
    to = files.download_model(info, tmp_path / "model", limit_mb=1)
    assert sorted(path.relative_to(to).as_posix() for path in to.rglob("*")) == ["MLmodel", "data", "data/model.pkl"]
    spec = files.download_run_file(info.run_id, "shiplift/shiplift.yaml", tmp_path / "logged")
    assert spec is not None
    assert spec.read_text() == "run-digits-3"
    assert files.download_run_file(info.run_id, "nothing", tmp_path / "logged") is None
    with pytest.raises(NotFound):
        files.version("other", 1)
    assert set(room.runs.asked) == {("digits", 3)}
    for name in ("../../secrets.json", "/etc/passwd", "data"):
        assert room.status("GET", "/model/file", params={"name": name}) == 404


def test_an_error_is_the_same_on_both_sides(room: Room, tmp_path: Path) -> None:
    files = version_files(room.inside.registry_uri)
    with pytest.raises(Temporary, match="it is away"):
        files.download_run_file("run-digits-3", "away", tmp_path)


def test_a_stage_learns_that_its_version_was_deleted_and_its_number_used_again(room: Room) -> None:
    record = Given(file=room.store.put_bytes(b"stored"))
    room.permissions.version.request = REQUEST.model_copy(update={"registered_at": 1.0})
    room.runs.registered_at = 2.0
    with pytest.raises(VersionReplaced, match="was deleted"):
        room.client.put(room.permissions.now.key, "work", record)
    assert room.runs.texts == {}


def test_the_tuning_cache_is_the_model_s_own(room: Room, tmp_path: Path) -> None:
    with tuning_cache(room.inside, "graph", tmp_path / "a") as folder:
        (folder / "tuned").write_text("slow")
    with tuning_cache(room.inside, "graph", tmp_path / "b") as folder:
        assert (folder / "tuned").read_text() == "slow"
    load_secrets(Path(room.cluster.home))
    assert SignedTuningCache(room.cluster).known("graph") is None  # another model's release would load it
    assert SignedTuningCache(room.cluster).known("digits: graph") is not None


def test_without_a_broker_the_stage_ends_as_a_temporary_failure(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiplift.runtime.store.broker._START_S", 0)
    with pytest.raises(Temporary, match="broker"):
        Broker("broker://127.0.0.1:1").wait()
