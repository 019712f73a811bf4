"""Finds pushes whose webhook was lost. Git hosts send a push only once, so each branch's latest commit is compared.

A ConfigMap keeps the last handled commit of each repository. `install` creates it, and only the reconciler writes to
it. For a repository that is seen for the first time, no push can have been lost: its latest commit is only recorded.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from math import inf

from pydantic import ValidationError

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.argo.layout import GIT_COMMITS
from shiplift.pipelines.engines.argo.record_map import missing, write_records
from shiplift.pipelines.engines.argo.workflows import Push, Run
from shiplift.pipelines.triggers.pushes import Commit
from shiplift.pipelines.triggers.settings import Reconciling, Repository
from shiplift.runtime.base.git import latest_commit
from shiplift.runtime.base.names import repository_slug
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import CONFIG_MAP

_ANSWER_S = 20.0  # time limit for one repository
_TURN_S = 60.0  # time limit for all of them together: the rest wait for the next turn

Start = Callable[[Push], Accepted]
Head = Callable[[Repository], str | None]


class BranchDecision(Enum):
    """What to do about a branch."""

    NOTHING = "nothing"
    RECORD = "record"  # write down its latest commit as handled
    RELEASE = "release"  # release the push from the last handled commit to the latest one


def decide(
    handled: str | None, head: str | None, pushes: Iterable[Push], *, active: bool, stalled_s: float, grace_s: float
) -> BranchDecision:
    """Decides what to do about a branch whose latest commit is `head` (None: the branch does not exist).

    `pushes` are the repository's pushes that have a Workflow; `active` says whether one of these is still running. A
    push with a Workflow counts as handled even if it failed: it was tried, and its Workflow says why it failed.
    `stalled_s` is how long the branch has been ahead of all of them. Until `grace_s`, the webhook may still arrive.
    """
    if head is None or head == handled:
        return BranchDecision.NOTHING
    if handled is None:
        return BranchDecision.RECORD
    if active:
        return BranchDecision.NOTHING
    if head in reached(handled, pushes):
        return BranchDecision.RECORD
    return BranchDecision.RELEASE if stalled_s >= grace_s else BranchDecision.NOTHING


def reached(commit: str, pushes: Iterable[Push]) -> frozenset[str]:
    """A commit, and every commit that an unbroken chain of pushes leads to from it, in whatever order they ran."""
    pushes = tuple(pushes)
    commits, last = {commit}, {commit}
    while last := {push.after for push in pushes if push.before in last} - commits:
        commits |= last
    return frozenset(commits)


class Handled(Record):
    """The last handled commit of a repository's branch."""

    commit: Commit
    branch: str
    url: str

    def is_of(self, repository: Repository) -> bool:
        """Whether the commit belongs to this branch: another branch or URL has another history."""
        return (self.branch, self.url) == (repository.branch, repository.url)


class HandledCommits:
    """The last handled commits in the ConfigMap, by repository."""

    def __init__(self, api: KubernetesClient) -> None:
        self._api = api

    def read(self) -> dict[str, Handled | None]:
        """The commits by the repository's slug; None for an entry that can't be read.

        Raises:
            NotFound: the ConfigMap does not exist.
        """
        body = self._api.get(CONFIG_MAP, GIT_COMMITS)
        if body is None:
            raise missing(GIT_COMMITS)
        return {slug: _parsed(text) for slug, text in (body.get("data") or {}).items()}

    def write(self, entries: Mapping[str, Handled | None]) -> None:
        """Records commits; None removes an entry.

        Raises:
            NotFound: the ConfigMap does not exist.
        """
        write_records(self._api, GIT_COMMITS, entries)


def _parsed(text: str) -> Handled | None:
    try:
        return Handled.model_validate_json(text)
    except ValidationError:
        return None


def ask(repository: Repository) -> str | None:
    """A branch's latest commit; None if the branch does not exist.

    Raises:
        Temporary: the repository does not respond in time, or refuses access.
    """
    return latest_commit(repository.origin(_ANSWER_S), repository.branch)


class GitSweep:
    """The sweep of a cluster's repositories. It keeps only timing in memory, so a restart loses nothing that matters.

    `start` starts a push's Workflow, `swept` is called for each one that was started, `head` asks a repository.
    """

    def __init__(
        self,
        repositories: Sequence[Repository],
        settings: Reconciling,
        commits: HandledCommits,
        start: Start,
        *,
        swept: Callable[[Push, Accepted], object],
        head: Head = ask,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._repositories = repositories
        self._settings = settings
        self._commits = commits
        self._start = start
        self._swept = swept
        self._head = head
        self._clock = clock
        self._asked_at: dict[str, float] = {}
        self._ahead_of: dict[str, tuple[frozenset[str], float]] = {}

    def parts(self, runs: Iterable[Run]) -> Iterator[Callable[[], None]]:
        """Yields a call for each repository that is due. If one fails, the others can still run.

        Repositories that were asked longest ago come first, so those that don't respond can't hold up the others.

        Raises:
            NotFound: the ConfigMap does not exist.
            Temporary: the cluster does not respond.
        """
        if not self._repositories:
            return
        runs = [run for run in runs if run.push is not None]
        handled = self._commits.read()
        if removed := handled.keys() - {repository_slug(repository.name) for repository in self._repositories}:
            self._commits.write(dict.fromkeys(removed))
        until = time.monotonic() + _TURN_S
        for repository in self._due():
            if time.monotonic() > until:
                return
            entry = handled.get(repository_slug(repository.name))
            yield partial(self._look, repository, entry, runs)

    def _due(self) -> list[Repository]:
        asked_at = {repository.name: self._asked_at.get(repository.name, -inf) for repository in self._repositories}
        latest = self._clock() - self._settings.git_every_s
        due = (repository for repository in self._repositories if asked_at[repository.name] <= latest)
        return sorted(due, key=lambda repository: asked_at[repository.name])

    def _look(self, repository: Repository, entry: Handled | None, runs: Iterable[Run]) -> None:
        """Compares a branch's latest commit with the handled one, and acts on the difference."""
        self._asked_at[repository.name] = self._clock()
        head = self._head(repository)
        handled = entry.commit if entry and entry.is_of(repository) else None
        own = [run for run in runs if run.push and run.push.repository.casefold() == repository.name.casefold()]
        pushes = [run.push for run in own if run.push]
        decision = decide(
            handled,
            head,
            pushes,
            active=any(run.active for run in own),
            grace_s=self._settings.git_grace_s,
            stalled_s=self._stalled_s(repository.name, handled, head, pushes),
        )
        if decision is BranchDecision.RECORD and head:
            new = Handled(commit=head, branch=repository.branch, url=repository.url)
            self._commits.write({repository_slug(repository.name): new})
        elif decision is BranchDecision.RELEASE and head and handled:
            push = Push(repository=repository.name, before=handled, after=head)
            accepted = self._start(push)
            if accepted.created:
                self._swept(push, accepted)

    def _stalled_s(self, name: str, handled: str | None, head: str | None, pushes: Iterable[Push]) -> float:
        """How long the branch has been ahead while no push arrived. Every push resets it: webhooks still arrive."""
        commits = reached(handled, pushes) if handled else frozenset[str]()
        if head is None or head in commits:
            self._ahead_of.pop(name, None)
            return 0.0
        ahead_of = self._ahead_of.get(name)
        if ahead_of is None or ahead_of[0] != commits:
            ahead_of = self._ahead_of[name] = (commits, self._clock())
        return self._clock() - ahead_of[1]
