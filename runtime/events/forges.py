"""Commit statuses: how a forge is told what became of the release that a push started.

A forge is a format like a chat: a line of `FORGES`. Its API gets a state per commit and context, so the address is made
of the event's commit, and a repeated delivery changes nothing. Their clients (PyGithub, python-gitlab) would be two
dependencies for one request each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from shiplift.runtime.base.text import printable
from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.events.kinds import EventKind

State = Literal["pending", "success", "failure", "error", "cancelled"]
STATES: Mapping[EventKind, State] = {
    EventKind.STARTED: "pending",
    EventKind.WAITING: "pending",
    EventKind.PROMOTED: "success",
    EventKind.REFUSED: "failure",
    EventKind.REJECTED: "failure",
    EventKind.ABORTED: "failure",
    EventKind.FAILED: "error",
    EventKind.CANCELLED: "cancelled",
}


@dataclass(frozen=True, kw_only=True)
class Forge:
    """A forge's API for commit statuses.

    `api` is the address of the public one. `path` is that of a commit's statuses, `headers` are those with the token.
    `states` are its own names of states, `context` is its name of the field with a status's own name, and descriptions
    have at most `characters`. `known` is part of the answer (400) to a state that the commit has already.
    """

    api: str
    path: Callable[[str, str], str]
    headers: Callable[[str], Mapping[str, str]]
    states: Mapping[State, str]
    context: str
    characters: int
    known: str = ""

    def status(self, event: ModelEvent) -> dict[str, str]:
        """The body that tells of an event: each model that a commit releases has a status of its own."""
        state = STATES[event.kind]
        return {
            "state": self.states.get(state, state),
            self.context: f"shiplift/{event.model}"[:255],
            "description": printable(event.sentence, limit=self.characters),
            **({"target_url": event.link} if event.link else {}),
        }


FORGES: Mapping[str, Forge] = {
    "github": Forge(
        api="https://api.github.com",
        path=lambda repository, commit: f"/repos/{quote(repository)}/statuses/{commit}",
        headers=lambda token: {
            "accept": "application/vnd.github+json",
            "authorization": f"Bearer {token}",
            "x-github-api-version": "2022-11-28",
        },
        states={"cancelled": "error"},
        context="context",
        characters=140,
    ),
    "gitlab": Forge(
        api="https://gitlab.com/api/v4",
        path=lambda repository, commit: f"/projects/{quote(repository, safe='')}/statuses/{commit}",
        headers=lambda token: {"private-token": token},
        states={"failure": "failed", "error": "failed", "cancelled": "canceled"},
        context="name",
        characters=255,
        known="Cannot transition status",
    ),
}


def concerns(event: ModelEvent, repository: str) -> bool:
    """Whether an event says something about the state of a commit of this repository (`OWNER/NAME`)."""
    ours, pushed = repository.casefold(), event.repository.casefold()
    return bool(event.commit) and event.kind in STATES and (pushed == ours or pushed.endswith(f"/{ours}"))
