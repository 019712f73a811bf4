"""The reconciler with real repositories: pushes that no webhook announced."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.daemons.reconciler import Reconciler
from shiplift.pipelines.engines.argo.layout import GIT_COMMITS
from shiplift.pipelines.engines.argo.workflows import Push
from shiplift.pipelines.triggers.git_sweep import HandledCommits
from shiplift.pipelines.triggers.settings import Reconciling, Repository
from shiplift.runtime.base.names import push_name
from shiplift.runtime.store.registry.lease import LeaseHolder
from tests.unit.api_server import ApiServer, running
from tests.unit.pipelines.daemons.test_reconciler import NOW, Lab
from tests.unit.pipelines.triggers.test_git_push import SPEC, Author

NAME = "acme/models"


class RepositoryLab(Lab):
    """A lab with repositories, on this machine."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        super().__init__(server, folder)
        self.author = Author(folder / "origin")
        self.head = self.author.commit(digits=SPEC.format("digits", 10))
        server.objects["configmaps"][GIT_COMMITS] = {"metadata": {"name": GIT_COMMITS}}
        self.listed(repository(NAME, self.author.origin.url))

    def listed(self, *repositories: Repository) -> None:
        reconciling = Reconciling(since=NOW)
        self.settings = self.settings.model_copy(update={"repositories": repositories, "reconciler": reconciling})
        self.reconciler = self.restarted()

    def restarted(self) -> Reconciler:
        api: Any = self.server.api()
        registry: Any = self.registry
        return Reconciler(
            self.settings, self.releases, registry, lambda: (), commits=HandledCommits(api), clock=lambda: self.now
        )

    def commit(self) -> tuple[str, str]:
        """Commits; returns the commit before and the new one."""
        before, self.head = self.head, self.author.commit()
        return before, self.head

    @property
    def recorded(self) -> list[str]:
        entries = HandledCommits(self.server.api()).read().values()
        return [entry.commit for entry in entries if entry]


def repository(name: str, url: str) -> Repository:
    return Repository(name=name, host="github", url=url)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RepositoryLab]:
    with running() as server:
        yield RepositoryLab(server, tmp_path)


def test_a_push_that_no_webhook_announced_is_processed_once(lab: RepositoryLab) -> None:
    lab.turn()
    assert (lab.recorded, lab.server.workflows) == ([lab.head], {})
    before, after = lab.commit()
    lab.turn(later_s=60)
    assert lab.server.workflows == {}
    lab.turn(later_s=60)
    name = push_name(NAME, before, after)
    (workflow,) = lab.server.workflows.values()
    assert workflow["metadata"]["name"] == name
    assert workflow["spec"]["workflowTemplateRef"] == {"name": "git-push"}
    parameters = {item["name"]: item["value"] for item in workflow["spec"]["arguments"]["parameters"]}
    assert parameters == {"repository": NAME, "before": before, "after": after}
    assert lab.metric("shiplift_swept_pushes_total") == 1
    lab.turn(later_s=60)
    lab.server.end(name, "Failed")
    for _ in range(3):
        lab.turn(later_s=60)
    assert (lab.recorded, list(lab.server.workflows)) == ([after], [name])
    assert lab.metric("shiplift_swept_pushes_total") == 1


def test_a_push_whose_webhook_arrived_is_left_to_it(lab: RepositoryLab) -> None:
    lab.turn()
    before, after = lab.commit()
    lab.turn(later_s=60)
    name = lab.releases.push(Push(repository=NAME, before=before, after=after)).name
    lab.turn(later_s=600)
    assert lab.recorded == [before]
    lab.server.end(name)
    lab.turn(later_s=60)
    assert (lab.recorded, list(lab.server.workflows)) == ([after], [name])


def test_a_restart_forgets_no_commit(lab: RepositoryLab) -> None:
    lab.turn()
    lab.commit()
    lab.reconciler = lab.restarted()
    for _ in range(2):
        lab.turn(later_s=60)
    assert len(lab.server.workflows) == 1


def test_one_repository_that_does_not_answer_keeps_no_other_waiting(lab: RepositoryLab, tmp_path: Path) -> None:
    lab.listed(repository("acme/away", (tmp_path / "none").as_uri()), repository(NAME, lab.author.origin.url))
    lab.turn()
    assert lab.recorded == [lab.head]
    assert lab.metric("shiplift_reconciler_failures_total", part="git") == 1
    assert lab.reconciler.healthy()


def test_without_its_config_map_nothing_is_started_and_the_rest_goes_on(lab: RepositoryLab) -> None:
    del lab.server.objects["configmaps"][GIT_COMMITS]
    lab.registry.add("digits", 3)
    for _ in range(5):
        lab.commit()
        lab.turn(later_s=60)
    assert [name for name in lab.server.workflows if name.startswith("git-")] == []
    assert len(lab.server.workflows) == 1  # the registered version's
    assert lab.metric("shiplift_reconciler_failures_total", part="git") == 5


def test_no_push_is_started_while_another_installation_holds_the_registry(lab: RepositoryLab) -> None:
    lab.turn()
    lab.settings = lab.settings.model_copy(update={"reconciler": Reconciling(webhook_url="http://receiver")})
    lab.reconciler = lab.restarted()
    other = LeaseHolder(holder="other", place="the stack of ana", since=NOW, expires_at=lab.now + 1000)
    lab.registry.description = other.model_dump_json()
    lab.commit()
    for _ in range(3):
        lab.turn(later_s=60)
    assert lab.server.workflows == {}
