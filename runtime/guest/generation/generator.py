"""Continues many requests at once, by whichever engine: gives them their numbers, and gathers what each got in a step.

Process: Triton's Python backend, as `generator.py`; Shiplift's sandbox, where a model is checked.
Python: the server's
Packages: none
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

Piece = tuple[int, list[int], str, str]  # a request's number, tokens, why it ended (`stop`, `length`), why it failed


class GenerationEngine(Protocol):
    """A model in a library that continues texts, and the requests under way; for one thread."""

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""

    def start(self, number: int, ask: Any) -> None:
        """Takes a request (`front.Ask`) under a number that no other one has."""

    def step(self) -> Iterable[Piece]:
        """One step of all requests: what some of them got."""

    def drop(self, number: int) -> None:
        """Gives up a request, if it is under way; what it used is freed."""


@dataclass(kw_only=True)
class New:
    """What a step added to a request: tokens, and why it ended (`stop`, `length`) or `failed`, if it did."""

    ids: list[int] = field(default_factory=list)
    ended: str = ""
    failed: str = ""


class Generator:
    """An engine and the requests that it continues; for one thread."""

    def __init__(self, engine: GenerationEngine) -> None:
        self._engine = engine
        self._next = 0

    def add(self, ask: Any) -> int:
        """Takes a request (`front.Ask`), and returns its number."""
        number, self._next = self._next, self._next + 1
        self._engine.start(number, ask)
        return number

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return self._engine.busy

    def step(self) -> dict[int, New]:
        """One step of all requests; what is new, by the request's number."""
        news: dict[int, New] = {}
        for number, ids, ended, failed in self._engine.step():
            new = news.setdefault(number, New())
            new.ids += ids
            new.ended, new.failed = ended, failed
        return {number: new for number, new in news.items() if new.ids or new.ended or new.failed}

    def drop(self, number: int) -> None:
        """Gives up a request; the next step frees what it used."""
        self._engine.drop(number)
