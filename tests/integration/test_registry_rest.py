"""The registry over REST agrees with MLflow's own client."""

import operator
import time
from pathlib import Path

import pytest

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.settings import Settings
from shiplift.pipelines.triggers import registry_sweep
from shiplift.runtime.base.errors import NotFound, RegistryHeld, UsageError
from shiplift.runtime.base.secrets import load_secrets
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.store.registry.lease import WEBHOOK, RegistryLease
from shiplift.runtime.store.registry.rest import RestRegistry
from tests.integration.conftest import Lab


def test_versions_are_what_the_client_says(lab: Lab) -> None:
    rest = RestRegistry(lab.running.registry_uri)
    model = "rest of it"
    lab.mlflow.MlflowClient().create_registered_model(model)
    with pytest.raises(NotFound, match="has no versions"):
        rest.newest_of(model)
    assert model not in {info.name for info in rest.newest()}
    before = time.time() - 1
    for version in (1, 2):
        lab.mlflow.MlflowClient().create_model_version(model, source="s3://nowhere/x")
        lab.wait(model, version)  # its release would tag it during the comparison
    rest.tag(model, 2, release="release-x", reason="größe " + "x" * 6000)
    info = rest.version(model, 2)
    assert info == lab.registry.version(model, 2)
    assert info is not None
    assert (info.tags["shiplift.release"], info.created_at > before) == ("release-x", True)
    assert rest.newest_of(model) == info
    assert [newest for newest in rest.newest() if newest.name == model] == [info]
    lab.mlflow.MlflowClient().set_registered_model_alias(model, "champion", "1")
    assert rest.aliases(model) == {"champion": 1}
    assert rest.aliases("none") == {}
    assert [entry for entry in rest.models() if entry[0] == model] == [(model, 2, {"champion": 1})]
    key = operator.attrgetter("version")
    assert sorted(rest.versions(model), key=key) == sorted(lab.registry.versions(model), key=key)
    assert (rest.version(model, 3), rest.version("none", 1)) == (None, None)
    with pytest.raises(NotFound):
        rest.tag(model, 9, release="x")
    with pytest.raises(NotFound):
        rest.newest_of("none")
    with pytest.raises(NotFound):
        rest.versions("none")


def test_a_sweep_finds_a_version_without_a_release(lab: Lab) -> None:
    """The stack's webhook may be quicker, so the test only notes what the sweep would accept."""
    since = time.time() - 1
    lab.mlflow.MlflowClient().create_registered_model("swept")
    lab.mlflow.MlflowClient().create_model_version("swept", source="s3://nowhere/x")
    swept: list[tuple[str, int]] = []

    def accept(request: Request, trigger: Trigger) -> Accepted:
        swept.append((request.model, request.version))
        assert trigger.kind == "sweep"
        return Accepted(name="x", created=True, queued=True)

    registry_sweep.sweep(RestRegistry(lab.running.registry_uri), accept, since=since, tell=print)
    assert swept.count(("swept", 1)) in (0, 1)  # 0: its release has ended by now


def test_the_webhook_is_created_once_and_corrected(lab: Lab) -> None:
    rest = RestRegistry(lab.running.registry_uri)
    client = lab.mlflow.MlflowClient()

    def mine() -> list[str]:
        return [webhook.url for webhook in client.list_webhooks(max_results=100) if webhook.name == "rest"]

    def answered(webhook_id: str) -> tuple[bool, int]:
        result = client.test_webhook(webhook_id)
        return result.success, result.response_status

    rest.ensure_webhook("rest", "http://127.0.0.1:9/a", "secret", renew=False)
    rest.ensure_webhook("rest", "http://127.0.0.1:9/a", "secret", renew=False)
    assert mine() == ["http://127.0.0.1:9/a"]
    rest.ensure_webhook("rest", "http://127.0.0.1:9/b", "secret", renew=False)
    assert mine() == ["http://127.0.0.1:9/b"]
    url = f"http://127.0.0.1:{lab.running.receiver_port}/webhooks/mlflow"
    rest.ensure_webhook("rest", url, "wrong", renew=True)
    (hook,) = [webhook for webhook in client.list_webhooks(max_results=100) if webhook.name == "rest"]
    assert answered(hook.webhook_id) == (False, 401)
    client.update_webhook(hook.webhook_id, status="DISABLED")
    rest.ensure_webhook("rest", url, load_secrets(lab.home).webhook, renew=True)
    assert client.get_webhook(hook.webhook_id).status == "ACTIVE"
    assert answered(hook.webhook_id) == (True, 200)
    client.delete_webhook(hook.webhook_id)
    with pytest.raises(UsageError, match="the registry refused POST"):
        rest.ensure_webhook("rest", "ftp://nowhere", "secret", renew=False)
    assert WEBHOOK in {webhook.name for webhook in client.list_webhooks(max_results=100)}


def test_a_second_stack_on_the_same_registry_is_refused_until_it_takes_over(lab: Lab, tmp_path: Path) -> None:
    """Before it starts anything: the first stack keeps its webhook."""
    settings = Settings(home=tmp_path / "second", free_ports=True, registry_uri=lab.running.registry_uri)
    before = RestRegistry(lab.running.registry_uri).webhook(WEBHOOK)
    with pytest.raises(RegistryHeld, match=f"the stack in {lab.home}"):
        stack.up(settings)
    assert RestRegistry(lab.running.registry_uri).webhook(WEBHOOK) == before
    assert not (tmp_path / "second" / "stack.json").exists()
    other = RegistryLease(RestRegistry(lab.running.registry_uri), "second", "here")
    other.take_over()
    try:
        with pytest.raises(RegistryHeld, match="here"):
            stack.lease(lab.home, lab.running).check()
    finally:
        stack.renew_lease(lab.home, lab.running, take_over=True)
