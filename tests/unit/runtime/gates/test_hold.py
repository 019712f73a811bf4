"""A wait that people end in the registry, whose tags have no time and no author, with processes that die in between."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.errors import AwaitingApproval, Rejected, ShipliftError
from shiplift.runtime.gates.hold import require_approval
from shiplift.runtime.gates.registry_orders import noted
from shiplift.runtime.records.decision import Approval, Decision
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import RegistryApprovals, SitePolicy
from shiplift.runtime.store.registry.terms import APPROVE_TAG, REJECT_TAG, VersionInfo
from tests.unit.examples import site

POLICY = SitePolicy(approvals=RegistryApprovals(tags="trusted", alias="ok"))
REQUEST = Request(model="digits", version=4)


class Killed(BaseException):
    """The process died."""


@dataclass
class World:
    """A registry with one version, its ledger, and the releases of it. `dies_at` counts down writes to a death."""

    tags: dict[str, str] = field(default_factory=dict)
    aliases: set[str] = field(default_factory=set)
    known: Approval | None = None
    champion: int = 3
    policy: SitePolicy = POLICY
    dies_at: int = -1
    order: Decision | None = None  # with which the release that was killed, or runs, was started

    @property
    def registry(self) -> "World":
        return self

    def info(self) -> VersionInfo:
        tags, aliases = dict(self.tags), tuple(self.aliases)
        return VersionInfo(name="digits", version=4, source="", run_id="", created_at=1.0, tags=tags, aliases=aliases)

    def version(self, *_: object) -> VersionInfo:
        return self.info()

    def alias(self, _name: str, alias: str) -> int:
        return 4 if alias in self.aliases else 0

    def approval(self) -> Approval | None:
        return self.known

    def put_approval(self, approval: Approval) -> None:
        self._write()
        self.known = approval

    def tag(self, _name: str, _version: int, **tags: str) -> None:
        self._write()
        self.tags.update({f"shiplift.{key}": text for key, text in tags.items()})

    def untag(self, _name: str, _version: int, key: str) -> None:
        self._write()
        del self.tags[key]

    def move_alias(self, _name: str, alias: str, _version: int) -> None:
        self._write()
        self.aliases.remove(alias)

    def _write(self) -> None:
        self.dies_at -= 1
        if self.dies_at == 0:
            raise Killed

    def sweep(self) -> None:
        """Starts the release with what the registry says, as the sweep does."""
        self.order = noted(self.info(), self.policy, 1.0).decision or self.order

    def release(self) -> ShipliftError | None:
        """Runs the release to its end, again and again if it is killed; the error with which it ended."""
        asked = Approval(digest="a", package="p", champion=self.champion, since=1.0, until=9e9)
        where: Any = self
        while True:
            try:
                trigger = Trigger(decision=self.order)
                require_approval(site(Path("/nowhere"), policy=self.policy), REQUEST, trigger, where, asked)
            except Killed:
                continue
            except (AwaitingApproval, Rejected) as error:
                self.order = None
                return error
            self.order = None
            return None


@pytest.mark.parametrize("dies_at", range(6))
@pytest.mark.parametrize("by", ["tag", "alias"])
def test_a_version_is_promoted_by_what_was_set_after_its_wait_began(by: str, dies_at: int) -> None:
    world = World(tags={APPROVE_TAG: "set before"}, aliases={"ok"}, dies_at=dies_at)
    assert isinstance(world.release(), AwaitingApproval)
    assert set(world.tags) == {"shiplift.approval"}
    assert not world.aliases
    world.tags |= {APPROVE_TAG: "checked"} if by == "tag" else {}
    world.aliases |= {"ok"} if by == "alias" else set()
    world.dies_at = dies_at
    world.sweep()
    assert world.release() is None
    assert world.tags == {
        "shiplift.approval": f"approved by a{'' if by == 'tag' else 'n'} {by} in the registry: "
        f"{'checked' if by == 'tag' else 'ok'}"
    }
    assert not world.aliases
    world.champion = 7
    assert isinstance(world.release(), AwaitingApproval)


@pytest.mark.parametrize("dies_at", range(6))
def test_a_rejection_wins_over_an_approval_that_its_release_was_started_with(dies_at: int) -> None:
    world = World()
    world.release()
    world.tags[APPROVE_TAG] = "checked"
    world.sweep()
    world.tags[REJECT_TAG] = "wrong labels"
    world.dies_at = dies_at
    error = world.release()
    assert isinstance(error, Rejected)
    assert "rejected by a tag in the registry: wrong labels" in str(error)
    assert isinstance(world.release(), AwaitingApproval)


def test_a_decision_from_the_registry_counts_only_while_the_site_trusts_it() -> None:
    world = World()
    world.release()
    world.tags[APPROVE_TAG] = "checked"
    world.sweep()
    world.policy = SitePolicy()
    error = world.release()
    assert isinstance(error, AwaitingApproval)
    assert "none in the registry may decide" in str(error)


EVENTS = st.sampled_from(["approve", "reject", "alias", "sweep", "release", "other champion", "dies"])


@given(st.lists(EVENTS, max_size=14))
def test_nothing_is_promoted_but_what_was_approved_as_it_is_and_not_rejected(events: list[str]) -> None:
    world = World()
    for event in events:
        if event in {"approve", "reject"}:
            world.tags[APPROVE_TAG if event == "approve" else REJECT_TAG] = "why"
        elif event == "alias":
            world.aliases.add("ok")
        elif event == "sweep":
            world.sweep()
        elif event == "other champion":
            world.champion += 1
        elif event == "dies":
            world.dies_at = 2
        else:
            recorded, rejected = world.known, REJECT_TAG in world.tags
            if world.release() is None:
                assert world.known is not None
                made = world.known.decision
                assert made is not None
                assert made.approved
                assert world.known.champion == world.champion
                assert recorded is not None  # something waited before
                assert recorded.champion == world.champion
                assert recorded.decision == made or not rejected
