"""MLflow with accounts, as `install` sets it up on a cluster: who may read, write and move `champion`."""

import inspect
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet

from shiplift.pipelines.installation import accounts, manifests, webhook_secrets
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.base.errors import NotFound, RegistryDenied, UsageError
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.records.figure import Figure
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.service_proxy import FORWARDED
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import MEMBER_TAG, PIPELINE_TAG
from shiplift.steps.export import export
from tests.integration.conftest import digits, until

pytestmark = pytest.mark.slow  # an MLflow of its own, with accounts
API = "/api/2.0/mlflow"


@dataclass(frozen=True)
class Guarded:
    """A running MLflow with accounts."""

    uri: str
    passwords: dict[str, str]
    environment: dict[str, str]

    def ask(self, method: str, path: str, *, name: str = "", **content: Any) -> httpx.Response:
        auth = (name, self.passwords[name]) if name else None
        return httpx.request(method, self.uri + path, auth=auth, trust_env=False, timeout=60, **content)

    def move(self, alias: str, version: int, *, name: str = "") -> int:
        body = {"name": "digits", "alias": alias, "version": str(version)}
        return self.ask("POST", f"{API}/registered-models/alias", name=name, json=body).status_code

    def run(self, *words: str) -> str:
        command = [sys.executable, "-m", accounts.__name__, *words]
        return subprocess.run(
            command, env=self.environment, check=True, capture_output=True, text=True, timeout=120
        ).stdout


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    guarded = Guarded(
        uri=f"http://127.0.0.1:{port}",
        passwords={name: secrets.token_urlsafe(16) for name in (accounts.ADMIN, accounts.RELEASE, accounts.READER)},
        environment={
            **os.environ,
            "MLFLOW_AUTH_CONFIG_PATH": str(_config(folder)),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "x" * 32,
            "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
            "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
            "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        },
    )
    for name, password in guarded.passwords.items():
        (folder / "accounts" / name).mkdir(parents=True)
        (folder / "accounts" / name / accounts.USERNAME).write_text(name)
        (folder / "accounts" / name / accounts.PASSWORD).write_text(password)
    guarded.run("ensure", str(folder / "accounts"))
    command = [
        str(Path(sys.executable).parent / "mlflow"),
        "server",
        "--app-name=basic-auth",
        "--workers=1",
        f"--port={port}",
        f"--backend-store-uri=sqlite:///{folder}/mlflow.db",
        f"--artifacts-destination={folder}/artifacts",
    ]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=guarded.environment, stdout=log, stderr=log, cwd=folder)
    try:
        until(lambda: _answers(guarded.uri), seconds=120)
        guarded.passwords["ana"] = guarded.run("add", "ana").strip()
        assert guarded.ask("POST", f"{API}/registered-models/create", name="ana", json={"name": "digits"}).is_success
        for _ in range(2):
            body = {"name": "digits", "source": "s3://nowhere/x"}
            assert guarded.ask("POST", f"{API}/model-versions/create", name="ana", json=body).is_success
        yield guarded
    finally:
        server.terminate()
        server.wait(30)


def _config(folder: Path) -> Path:
    """The configuration that `install` gives it, with its database in a folder of ours."""
    bodies = manifests.part_of(Values(), "mlflow")
    (text,) = (body["data"]["basic_auth.ini"] for body in bodies if body["kind"] == "ConfigMap")
    file = folder / "basic_auth.ini"
    file.write_text(text.replace("sqlite:////data/", f"sqlite:///{folder}/"))
    return file


def _answers(uri: str) -> bool:
    try:
        return httpx.get(f"{uri}/health", trust_env=False).is_success  # without credentials: probes have none
    except httpx.HTTPError:
        return False


def _log_in(monkeypatch: pytest.MonkeyPatch, mlflow: Guarded, name: str) -> None:
    monkeypatch.setenv(accounts.USERNAME, name)
    monkeypatch.setenv(accounts.PASSWORD, mlflow.passwords[name])


def test_without_credentials_nothing_can_be_read_or_changed(mlflow: Guarded) -> None:
    assert mlflow.move("champion", 2) == 401
    for path in (
        f"{API}/registered-models/search",
        f"{API}/webhooks",
        f"{API}/users/list",
        "/",
        "/api/2.0/mlflow-artifacts/artifacts/0/shiplift/sha256/ab/abc",
        "/get-artifact?run_uuid=a&path=b",
    ):
        assert mlflow.ask("GET", path).status_code == 401
    assert mlflow.ask("PUT", "/api/2.0/mlflow-artifacts/artifacts/0/shiplift/x", content=b"x").status_code == 401
    wrong = (accounts.ADMIN, "guessed")
    assert httpx.get(f"{mlflow.uri}{API}/webhooks", auth=wrong, trust_env=False).status_code == 401


def test_the_reader_reads_and_changes_nothing(mlflow: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    _log_in(monkeypatch, mlflow, accounts.RELEASE)
    stored = ArtifactStore(_artifacts(mlflow)).put_bytes(b"package")
    _log_in(monkeypatch, mlflow, accounts.READER)
    rest, store = RestRegistry(mlflow.uri), ArtifactStore(_artifacts(mlflow))
    assert rest.newest_of("digits").version == 2
    assert store.read(stored) == b"package"
    assert (rest.version("nothing of that name", 1), rest.version("digits", 99)) == (None, None)
    assert mlflow.move("champion", 2, name=accounts.READER) == 403
    with pytest.raises(RegistryDenied, match="does not let this account"):
        rest.tag("digits", 1, release="forged")
    with pytest.raises(NotFound, match="version 1 of model 'nothing of that name'"):
        Registry(mlflow.uri).version("nothing of that name", 1)  # MLflow itself answers 403 to this account
    assert Registry(mlflow.uri).alias("nothing of that name", "champion") == 0
    with pytest.raises(RegistryDenied):
        store.put_bytes(b"forged")
    with pytest.raises(RegistryDenied):
        rest.ensure_webhook("mine", "http://127.0.0.1:1/x", "s" * 32, renew=False)


def test_a_release_writes_to_anybody_s_versions_and_runs(mlflow: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    created = mlflow.ask("POST", f"{API}/experiments/create", name="ana", json={"name": "team"}).json()
    run = mlflow.ask("POST", f"{API}/runs/create", name="ana", json={"experiment_id": created["experiment_id"]}).json()[
        "run"
    ]["info"]["run_id"]
    _log_in(monkeypatch, mlflow, accounts.RELEASE)
    registry = Registry(mlflow.uri)
    registry.tag("digits", 1, release="release-digits-1")
    registry.move_alias("digits", "champion", 1)
    registry.move_alias("digits", "champion", 0)
    registry.move_alias("digits", "champion", 1)
    registry.write_text(run, "shiplift/x.txt", "text")
    registry.metrics(run, (Figure(name="p99_ms", value=1.0),))
    assert registry.read_text(run, "shiplift/x.txt") == "text"
    assert registry.run_of(registry.version("digits", 2))  # ana logged none: one of Shiplift's own
    assert mlflow.ask("GET", f"{API}/webhooks", name=accounts.RELEASE).status_code == 403
    itself = {"username": accounts.RELEASE, "is_admin": True}
    assert mlflow.ask("PATCH", f"{API}/users/update-admin", name=accounts.RELEASE, json=itself).status_code == 403


@pytest.mark.slow
def test_a_person_changes_what_is_theirs_and_neither_others_models_nor_a_release_s_artifacts(
    mlflow: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow.passwords["ben"] = mlflow.run("add", "ben").strip()
    assert mlflow.move("champion", 2, name="ben") == 403
    _log_in(monkeypatch, mlflow, "ben")
    with pytest.raises(RegistryDenied):
        ArtifactStore(_artifacts(mlflow)).put_bytes(b"forged")
    assert RestRegistry(mlflow.uri).newest_of("digits").version == 2


def test_the_administrator_keeps_the_webhook(mlflow: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    _log_in(monkeypatch, mlflow, accounts.ADMIN)
    RestRegistry(mlflow.uri).ensure_webhook("shiplift", "http://127.0.0.1:9/x", "s" * 32, renew=False)
    assert len(mlflow.ask("GET", f"{API}/webhooks", name=accounts.ADMIN).json()["webhooks"]) == 1


def test_behind_the_api_server_s_proxy_credentials_have_another_name(mlflow: Guarded) -> None:
    signed = httpx.BasicAuth(accounts.READER, mlflow.passwords[accounts.READER])
    header = next(signed.auth_flow(httpx.Request("GET", mlflow.uri))).headers["Authorization"]
    path = f"{API}/registered-models/search"
    assert mlflow.ask("GET", path, headers={FORWARDED: header}).status_code == 200
    assert mlflow.ask("GET", path, headers={FORWARDED: "Basic eDp5"}).status_code == 401
    assert mlflow.ask("GET", path, headers={FORWARDED: header, "Authorization": "Basic eDp5"}).status_code == 401


@pytest.mark.slow
def test_a_changed_secret_changes_the_password(mlflow: Guarded, tmp_path: Path) -> None:
    folder = tmp_path / "accounts" / "rotated"
    folder.mkdir(parents=True)
    (folder / accounts.USERNAME).write_text("rotated")
    for password in ("first-password-1", "second-password-2"):
        (folder / accounts.PASSWORD).write_text(password)
        mlflow.run("ensure", str(tmp_path / "accounts"))
    path = f"{mlflow.uri}{API}/registered-models/search"
    assert httpx.get(path, auth=("rotated", "second-password-2"), trust_env=False).status_code == 200
    assert httpx.get(path, auth=("rotated", "first-password-1"), trust_env=False).status_code == 401


def _artifacts(mlflow: Guarded) -> str:
    return f"mlflow-artifacts://{mlflow.uri.removeprefix('http://')}/0/shiplift"


@pytest.mark.slow
def test_people_and_releases_register_pipelines_each_with_runs_of_their_own(
    mlflow: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One person may not write to another's experiment; a release registers a pipeline of anybody's again."""
    files = {"MLmodel": b"flavors: {shiplift_pipeline: {file: pipeline.yaml}}\n", "pipeline.yaml": b"name: x\n"}
    mlflow.passwords["ben"] = mlflow.run("add", "ben").strip()
    for person in ("ana", "ben"):
        _log_in(monkeypatch, mlflow, person)
        made = RestRegistry(mlflow.uri).register(f"of-{person}", files, {PIPELINE_TAG: "yes"})
        assert (made.name, made.version) == (f"of-{person}", 1)
    _log_in(monkeypatch, mlflow, accounts.RELEASE)
    registry = Registry(mlflow.uri)
    assert {info.name for info in registry.pipelines()} >= {"of-ana", "of-ben"}
    again = registry.register_again(registry.version("of-ana", 1), "part/2")
    assert (again.version, again.tags[MEMBER_TAG]) == (2, "part/2")


@pytest.mark.slow
def test_a_stage_without_credentials_works_through_the_broker_beside_it(
    mlflow: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a pod, with the same command lines: admission and the export of a real model, and nothing to steal."""
    _log_in(monkeypatch, mlflow, "ana")
    _log_a_model(mlflow)
    here = Pod(mlflow, tmp_path)
    admitted = here.run("admit")
    taken = {name: admitted[name] for name in inspect.signature(export).parameters if name != "site"}
    exported = here.run("export", **taken)["exported"]
    assert exported["parity"]
    assert not (tmp_path / "main" / "secrets.json").exists()
    assert (tmp_path / "broker" / "secrets.json").is_file()
    _log_in(monkeypatch, mlflow, accounts.RELEASE)
    texts = RestRegistry(mlflow.uri)
    run_id = texts.newest_of("model").run_id
    key = here.key("export")
    assert (
        exported["opset"]
        == json.loads(json.loads(texts.read_text(run_id, f"shiplift/records/export-{key[:16]}.json") or "")["record"])[
            "opset"
        ]
    )


def _log_a_model(guarded: Guarded) -> None:
    import mlflow
    from sklearn.linear_model import LogisticRegression

    images, labels = digits()
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()  # of this process, which other tests share
    mlflow.set_tracking_uri(guarded.uri)
    mlflow.set_registry_uri(guarded.uri)
    experiment = mlflow.create_experiment("of-ana")
    model = LogisticRegression(max_iter=50).fit(images[:300], labels[:300])
    signature = mlflow.models.infer_signature(images[:4], model.predict(images[:4]))
    with mlflow.start_run(experiment_id=experiment):
        mlflow.sklearn.log_model(
            model,
            name="model",
            registered_model_name="model",
            signature=signature,
            input_example=images[:4],
            pip_requirements=[],
        )
    mlflow.set_tracking_uri(before[0])
    mlflow.set_registry_uri(before[1])


@dataclass(frozen=True)
class Pod:
    """The two containers of a stage's pod, as processes with a home each."""

    mlflow: Guarded
    folder: Path

    def run(self, stage: str, **records: Any) -> dict[str, Any]:
        """Runs a stage; returns its records by name."""
        out = self.folder / stage
        words = {"request": {"model": "model", "version": 1}, **records}
        arguments = [word for name, value in words.items() for word in (f"--{name}", json.dumps(value))]
        release = (accounts.RELEASE, self.mlflow.passwords[accounts.RELEASE])
        broker = subprocess.Popen(
            self._command("broker.server", stage, "broker", arguments),
            env={**_anonymous(), accounts.USERNAME: release[0], accounts.PASSWORD: release[1]},
        )
        try:
            command = [*self._command("pod", stage, "main", arguments), "--broker", "here"]
            done = subprocess.run(command, env=_anonymous(), capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            broker.terminate()
            assert broker.wait(30) == 0
        return {file.stem: json.loads(file.read_text()) for file in out.iterdir()}

    def key(self, stage: str) -> str:
        return str(json.loads((self.folder / stage / "stage_runs.json").read_text())["runs"][0]["key"])

    def _command(self, module: str, stage: str, home: str, arguments: list[str]) -> list[str]:
        place = Cluster(namespace="a", serving_namespace="b", server_image="c")
        site = Site(
            home=str(self.folder / home),
            registry_uri=self.mlflow.uri,
            artifacts_uri=_artifacts(self.mlflow),
            server_environment="/nowhere",
            place=place,
        )
        (self.folder / home).mkdir(exist_ok=True)
        head = [sys.executable, "-m", f"shiplift.pipelines.engines.argo.{module}", stage]
        return [*head, "--out", str(self.folder / stage), "--site", site.model_dump_json(), *arguments]


def _anonymous() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}


@pytest.mark.slow
def test_webhooks_of_a_lost_key_are_disabled_and_the_registry_lists_them_again(tmp_path: Path) -> None:
    """What `shiplift install` finds over a database that outlived `shiplift uninstall --data`."""
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    database = f"sqlite:///{tmp_path}/mlflow.db"
    assert webhook_secrets.disable_unreadable(database, new) == ()  # before MLflow made any table
    _webhooks(database, old, create="before")
    with pytest.raises(subprocess.CalledProcessError):
        _webhooks(database, new)
    command = [sys.executable, "-m", webhook_secrets.__name__]
    environment = {**os.environ, webhook_secrets.DATABASE: database, webhook_secrets.KEY: new}
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    assert "webhook 'before' is disabled" in ended.stderr
    assert _webhooks(database, new, create="after") == {"before": ["DISABLED", None], "after": ["ACTIVE", "s" * 32]}
    assert webhook_secrets.disable_unreadable(database, new) == ()


def test_a_key_that_is_none_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a Fernet key"):
        webhook_secrets.disable_unreadable(f"sqlite:///{tmp_path}/mlflow.db", "short")


_STORE = """
import json, sys
from mlflow.entities.webhook import WebhookAction, WebhookEntity, WebhookEvent
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

store = SqlAlchemyStore(sys.argv[1])
if sys.argv[2]:
    event = WebhookEvent(WebhookEntity.MODEL_VERSION, WebhookAction.CREATED)
    store.create_webhook(sys.argv[2], "https://example.com/hook", [event], secret="s" * 32)
print(json.dumps({hook.name: [hook.status.value, hook.secret] for hook in store.list_webhooks()}))
"""


def _webhooks(database: str, key: str, *, create: str = "") -> dict[str, list[Any]]:
    """The status and secret of each webhook, as MLflow's own store reads them with a key; creates one first."""
    environment = {**os.environ, webhook_secrets.KEY: key, "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true"}
    command = [sys.executable, "-c", _STORE, database, create]
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120)
    hooks: dict[str, list[Any]] = json.loads(ended.stdout.splitlines()[-1])
    return hooks
