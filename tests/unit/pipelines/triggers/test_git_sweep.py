"""Which pushes the sweep makes up for, whatever was delivered, lost, restarted or rewritten."""

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.argo.workflows import Push, Run, read
from shiplift.pipelines.triggers.git_sweep import BranchDecision, GitSweep, Handled, HandledCommits, decide, reached
from shiplift.pipelines.triggers.settings import Reconciling, Repository
from shiplift.runtime.base.errors import NotFound, Temporary
from shiplift.runtime.base.names import push_name, repository_slug
from tests.unit.api_server import running

EVERY_S, GRACE_S = 60.0, 90.0


def commit(number: int) -> str:
    return hashlib.sha1(str(number).encode(), usedforsecurity=False).hexdigest()


A, B, C, D = (commit(number) for number in range(4))


def push(before: str, after: str, repository: str = "acme/models") -> Push:
    return Push(repository=repository, before=before, after=after)


@pytest.mark.parametrize(
    ("handled", "head", "pushes", "active", "stalled_s", "decision"),
    [
        (None, A, [], False, 999, BranchDecision.RECORD),  # its history is nobody's push
        (None, None, [], False, 999, BranchDecision.NOTHING),
        (A, None, [], False, 999, BranchDecision.NOTHING),  # the branch was deleted
        (A, A, [], False, 999, BranchDecision.NOTHING),
        (A, B, [], False, GRACE_S - 1, BranchDecision.NOTHING),  # its webhook is probably on its way
        (A, B, [], False, GRACE_S, BranchDecision.RELEASE),
        (A, B, [], True, 999, BranchDecision.NOTHING),
        (A, B, [push(A, B)], False, 999, BranchDecision.RECORD),
        (A, C, [push(B, C), push(A, B)], False, 999, BranchDecision.RECORD),  # in any order
        (A, C, [push(B, C), push(A, B)], True, 999, BranchDecision.NOTHING),
        (A, C, [push(B, C)], False, GRACE_S, BranchDecision.RELEASE),  # the one before was lost
        (A, C, [push(A, B)], False, GRACE_S, BranchDecision.RELEASE),
        (A, D, [push(A, B), push(B, A)], False, GRACE_S, BranchDecision.RELEASE),  # a circle, by force pushes
    ],
)
def test_a_branch_is_handled_once_pushes_lead_to_its_head(
    handled: str | None, head: str | None, pushes: list[Push], active: bool, stalled_s: float, decision: BranchDecision
) -> None:
    assert decide(handled, head, pushes, active=active, stalled_s=stalled_s, grace_s=GRACE_S) is decision


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20), st.randoms())
def test_what_pushes_lead_to_does_not_depend_on_their_order(edges: list[tuple[int, int]], random: Any) -> None:
    pushes = [push(commit(before), commit(after)) for before, after in edges]
    there = reached(A, pushes)
    assert A in there
    assert all(entry.after in there for entry in pushes if entry.before in there)
    random.shuffle(pushes)
    assert reached(A, pushes) == there


class Kept(HandledCommits):
    """The ConfigMap, as a dictionary."""

    def __init__(self) -> None:
        self.entries: dict[str, Handled | None] = {}

    def read(self) -> dict[str, Handled | None]:
        return dict(self.entries)

    def write(self, entries: Mapping[str, Handled | None]) -> None:
        self.entries |= entries
        self.entries = {slug: entry for slug, entry in self.entries.items() if entry}


def repository(name: str = "acme/models", **changes: Any) -> Repository:
    return Repository.model_validate({"name": name, "host": "github", "url": f"https://example.org/{name}"} | changes)


class World:
    """Repositories, the Workflows of their pushes, and a sweep with a clock."""

    def __init__(self, *repositories: Repository) -> None:
        self.repositories = repositories or (repository(),)
        self.heads: dict[str, str | Exception | None] = {}
        self.workflows: dict[str, Any] = {}
        self.asked: list[str] = []
        self.swept: list[Push] = []
        self.commits = Kept()
        self.now = 1_000_000.0
        self.sweep = self.restarted()

    def restarted(self) -> GitSweep:
        settings = Reconciling(git_every_s=EVERY_S, git_grace_s=GRACE_S)
        return GitSweep(
            self.repositories,
            settings,
            self.commits,
            self.start,
            head=self.head,
            clock=lambda: self.now,
            swept=lambda push, _: self.swept.append(push),
        )

    def head(self, repository: Repository) -> str | None:
        self.asked.append(repository.name)
        head = self.heads.get(repository.name)
        if isinstance(head, Exception):
            raise head
        return head

    def start(self, push: Push) -> Accepted:
        name = push_name(push.repository, push.before, push.after)
        created = name not in self.workflows
        if created:
            values = vars(push).items()
            self.workflows[name] = {
                "metadata": {"name": name, "uid": name},
                "status": {"phase": "Running"},
                "spec": {
                    "workflowTemplateRef": {"name": "git-push"},
                    "arguments": {"parameters": [{"name": key, "value": value} for key, value in values]},
                },
            }
        return Accepted(name=name, created=created, queued=created)

    def end(self, phase: str = "Succeeded") -> None:
        for workflow in self.workflows.values():
            if workflow["status"]["phase"] == "Running":
                workflow["status"]["phase"] = phase

    def turn(self, later_s: float = EVERY_S) -> list[str]:
        """A turn of the reconciler; returns errors."""
        self.now += later_s
        errors = []
        for part in self.sweep.parts([read(workflow) for workflow in self.workflows.values()]):
            try:
                part()
            except Temporary as error:
                errors.append(error.what)
        return errors

    @property
    def handled(self) -> dict[str, str]:
        return {slug: entry.commit for slug, entry in self.commits.entries.items() if entry}

    @property
    def runs(self) -> list[Run]:
        return [read(workflow) for workflow in self.workflows.values()]


def test_a_push_whose_webhook_was_lost_is_started_after_the_grace_and_recorded_at_its_end() -> None:
    world = World()
    world.heads["acme/models"] = A
    world.turn()
    assert (world.handled, world.swept) == ({"acme-models": A}, [])
    world.heads["acme/models"] = B
    world.turn()
    world.turn()
    assert world.swept == []  # 60 seconds
    for _ in range(3):
        world.turn()
        assert world.swept == [push(A, B)]
    assert world.handled == {"acme-models": A}  # not before its end: a Workflow may be deleted before it did anything
    world.end("Failed")  # it was tried, and says why it failed
    for _ in range(5):
        world.turn()
    assert world.handled == {"acme-models": B}
    assert world.swept == [push(A, B)]


def test_a_late_webhook_for_what_the_sweep_started_starts_nothing() -> None:
    world = World()
    world.heads["acme/models"] = A
    world.turn()
    world.heads["acme/models"] = B
    for _ in range(4):
        world.turn()
    assert not world.start(push(A, B)).created


def test_pushes_that_arrive_one_after_the_other_are_never_taken_for_lost() -> None:
    """However long they take together: each one that is handled shows that webhooks arrive."""
    world = World()
    world.heads["acme/models"] = commit(0)
    world.turn()
    for number in range(10):
        world.heads["acme/models"] = commit(number + 1)
        world.turn()  # before its webhook arrives
        world.start(push(commit(number), commit(number + 1)))
        world.end()
    world.turn()
    assert (world.swept, world.handled) == ([], {"acme-models": commit(10)})


def test_a_branch_that_moves_on_every_turn_is_released_all_the_same() -> None:
    world = World()
    for number in range(4):
        world.heads["acme/models"] = commit(number)
        world.turn()
    assert world.swept == [push(commit(0), commit(3))]


def test_other_branches_and_addresses_begin_with_a_first_sight() -> None:
    world = World()
    world.heads["acme/models"] = A
    world.turn()
    for changes in ({"branch": "other"}, {"url": "https://example.org/elsewhere"}):
        world.repositories = (repository(**changes),)
        world.sweep = world.restarted()
        world.heads["acme/models"] = commit(len(str(changes)))
        for _ in range(5):
            world.turn()
        assert world.handled == {"acme-models": commit(len(str(changes)))}
    assert world.swept == []


def test_a_repository_that_is_no_longer_listed_is_forgotten_and_a_deleted_branch_is_not() -> None:
    world = World(repository("acme/models"), repository("acme/other"))
    world.heads |= {"acme/models": A, "acme/other": B}
    world.turn()
    world.heads["acme/other"] = None
    world.turn()
    assert world.handled == {"acme-models": A, "acme-other": B}
    world.repositories = (repository("acme/other"),)
    world.sweep = world.restarted()
    world.turn()
    assert world.handled == {"acme-other": B}


def test_one_repository_that_fails_does_not_stop_the_others_and_each_is_asked_in_its_time() -> None:
    names = ["acme/a", "acme/b", "acme/c"]
    world = World(*map(repository, names))
    world.heads = {"acme/a": A, "acme/b": Temporary("b does not answer", do="Wait."), "acme/c": C}
    assert world.turn() == ["b does not answer"]
    assert world.handled == {"acme-a": A, "acme-c": C}
    world.turn(later_s=EVERY_S / 2)
    assert world.asked == names
    world.turn(later_s=EVERY_S / 2)
    assert world.asked == [*names, *names]


def test_who_was_not_asked_for_want_of_time_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"acme/{letter}" for letter in "abc"]
    world = World(*map(repository, names))
    monkeypatch.setattr("time.monotonic", lambda: 100.0 * len(world.asked))  # each takes that long to answer
    for number in (1, 2, 3):
        world.turn()
        assert world.asked == names[:number]


class Author:
    """Commits to the repository of a world; webhooks may be lost, the reconciler may restart."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history: list[str] = []
        self.lost()

    def lost(self) -> None:
        """A push, forced or not: the commits before it need not be there any more."""
        self.history.append(commit(len(self.history)))
        self.world.heads["acme/models"] = self.history[-1]

    def delivered(self) -> None:
        self.lost()
        self.world.start(push(*self.history[-2:]))

    def turn(self) -> None:
        self.world.turn()

    def end(self) -> None:
        self.world.end("Failed" if len(self.history) % 2 else "Succeeded")

    def restart(self) -> None:
        self.world.sweep = self.world.restarted()

    def handled(self, number: int) -> bool:
        """Whether a run covers a push."""
        pushes = [run.push for run in self.world.runs if run.push]
        spans = [(self.history.index(push.before), self.history.index(push.after)) for push in pushes]
        return any(first <= number < last for first, last in spans)


EVENTS = st.lists(st.sampled_from(["delivered", "delivered", "lost", "turn", "end", "restart"]), max_size=30)


@given(EVENTS)
def test_in_the_end_every_push_since_the_first_sight_was_handled(events: list[str]) -> None:
    world = World()
    author = Author(world)
    world.turn()
    for event in events:
        getattr(author, event)()
    for _ in range(8):
        world.turn()
        world.end()
    assert world.handled == {"acme-models": author.history[-1]}
    assert all(author.handled(number) for number in range(len(author.history) - 1))
    assert "lost" in events or not world.swept
    started = len(world.swept)
    for _ in range(4):
        world.turn()
    assert len(world.swept) == started


def test_the_commits_are_kept_in_a_config_map_that_is_never_created_here() -> None:
    with running() as server:
        commits = HandledCommits(server.api())
        for act in (commits.read, lambda: commits.write({"acme-models": None})):
            with pytest.raises(NotFound, match="'shiplift-git-commits' does not exist"):
                act()
        maps = server.objects["configmaps"]
        maps["shiplift-git-commits"] = {"metadata": {"name": "shiplift-git-commits"}}
        assert commits.read() == {}
        entry = Handled(commit=A, branch="main", url="https://example.org/acme/models")
        slug = repository_slug("Acme/Models")
        commits.write({slug: entry, "acme-other": entry})
        assert commits.read() == {"acme-models": entry, "acme-other": entry}
        commits.write({"acme-other": None})
        assert commits.read() == {"acme-models": entry}
        maps["shiplift-git-commits"]["data"]["acme-models"] = '{"commit": "HEAD"}'
        assert commits.read() == {"acme-models": None}  # not a commit: like a first sight
        assert {method for method, _ in server.asked} == {"GET", "PATCH"}
