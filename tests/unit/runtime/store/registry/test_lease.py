"""Only one installation at a time releases from a registry, and its webhook says so."""

from typing import Any, cast

import pytest

from shiplift.runtime.base.errors import RegistryDenied, RegistryHeld
from shiplift.runtime.store.registry.lease import LASTS_S, WEBHOOK, RegistryLease
from shiplift.runtime.store.registry.rest import RestRegistry

URL = "http://127.0.0.1:8090/webhooks/mlflow"


class Webhooks:
    """A registry with one webhook at most."""

    def __init__(self) -> None:
        self.hook: dict[str, Any] | None = None
        self.secrets: list[str] = []

    def webhook(self, name: str) -> dict[str, Any] | None:
        assert name == WEBHOOK
        return self.hook

    def ensure_webhook(self, name: str, url: str, secret: str, *, renew: bool, description: str) -> None:
        if renew or self.hook is None or self.hook["url"] != url:
            self.secrets.append(secret)
        self.hook = {"name": name, "url": url, "description": description}

    def describe_webhook(self, name: str, description: str) -> None:
        if self.hook:
            self.hook["description"] = description


class World:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.registry = Webhooks()

    def lease(self, holder: str) -> RegistryLease:
        return RegistryLease(cast("RestRegistry", self.registry), holder, f"host {holder}", clock=lambda: self.now)


@pytest.fixture
def world() -> World:
    world = World()
    world.lease("ana").renew(URL, "ana's secret")
    return world


def test_a_second_installation_is_refused_and_told_who_holds_the_registry(world: World) -> None:
    world.now += 100
    for act in (world.lease("ben").check, lambda: world.lease("ben").renew("http://other", "ben's secret")):
        with pytest.raises(RegistryHeld, match=r"host ana \(ana\), .* since 2027-01-15 08:00:00 UTC") as caught:
            act()
        assert caught.value.exit_code == 53
        assert "wait 200 s" in caught.value.do
        assert "`shiplift up --take-over`" in caught.value.do
    assert world.registry.secrets == ["ana's secret"]
    world.lease("ana").check()


def test_a_holder_renews_and_keeps_its_beginning(world: World) -> None:
    world.now += 100
    world.lease("ana").renew(URL, "ana's secret", secret_changed=False)
    lease = world.lease("ben").current()
    assert lease is not None
    assert (lease.since, lease.expires_at) == (world.now - 100, world.now + LASTS_S)
    assert world.registry.secrets == ["ana's secret"]


@pytest.mark.parametrize("ending", ["expired", "released"])
def test_a_holder_that_is_gone_holds_nothing(world: World, ending: str) -> None:
    if ending == "expired":
        world.now += LASTS_S
    else:
        world.lease("ben").release()  # not its own: changes nothing
        with pytest.raises(RegistryHeld):
            world.lease("ben").check()
        world.lease("ana").release()
    world.lease("ben").check()
    world.lease("ben").renew("http://other", "ben's secret")
    with pytest.raises(RegistryHeld):
        world.lease("ana").check()


def test_a_registry_can_be_taken_over(world: World) -> None:
    world.lease("ben").renew("http://other", "ben's secret", take_over=True)
    assert world.registry.secrets[-1] == "ben's secret"
    with pytest.raises(RegistryHeld):
        world.lease("ana").renew(URL, "ana's secret")
    world.lease("ana").take_over()
    with pytest.raises(RegistryHeld):
        world.lease("ben").check()
    world.lease("ana").renew(URL, "ana's secret", secret_changed=False)
    assert world.registry.hook is not None
    assert world.registry.hook["url"] == URL


@pytest.mark.parametrize("description", [None, "", "somebody's own words", "{}", "[" * 10000])
def test_a_description_that_is_no_lease_holds_nothing(world: World, description: str | None) -> None:
    assert world.registry.hook is not None
    world.registry.hook["description"] = description
    world.lease("ben").check()


def test_an_account_that_may_not_see_webhooks_finds_nothing_to_object_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_name: str) -> None:
        raise RegistryDenied("403", do="-")

    monkeypatch.setattr(world.registry, "webhook", denied)
    world.lease("mine").check()
