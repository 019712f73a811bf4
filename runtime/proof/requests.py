"""The requests that a server is asked: which rows each has, and what is answered to them until the time is up."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import Ask, Busy, rows_of, together

Asked = Sequence[tuple[Questions, Answers]]
Requests = list[tuple[int, list[int]]]  # each has rows of one set, which is given by its index

_NEAR = 4  # requests before and after one


@dataclass(frozen=True, kw_only=True)
class AnsweredRequests:
    """The requests that were answered, with their answers, and how many rows were not.

    For `late` ones the time was up; for `busy` ones the server took no more requests.
    """

    answered: tuple[tuple[int, list[int], Answers], ...]
    late: int
    busy: int

    def of(self, index: int) -> tuple[list[int], list[Answers]]:
        """The rows of a set, and the answers to requests of them."""
        own = [(rows, answers) for of, rows, answers in self.answered if of == index]
        return [row for rows, _ in own for row in rows], [answers for _, answers in own]

    def company(self, index: int, row: int) -> tuple[int, ...]:
        """Other rows of a set that were asked with one: in its request, or in those just before and after it."""
        own = [rows for of, rows, _ in self.answered if of == index]
        at = next(at for at, rows in enumerate(own) if row in rows)
        near = own[at] if len(own[at]) > 1 else [each for rows in own[max(0, at - _NEAR) : at + _NEAR] for each in rows]
        return tuple(dict.fromkeys(each for each in near if each != row))


def send(
    ask: Ask, asked: Asked, requests: Requests, clients: int, end: float, clock: Callable[[], float]
) -> AnsweredRequests:
    """Sends the requests, from the first one on, until the time is up: at least one from each client."""
    answers: dict[int, Answers] = {}
    busy: list[int] = []

    def one(at: int) -> None:
        if at < clients or clock() < end:
            of, rows = requests[at]
            try:
                answers[at] = together(ask, rows_of(asked[of][0].inputs, rows))
            except Busy:
                busy.append(len(rows))

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, range(len(requests))))
    known = tuple((*requests[at], answers[at]) for at in sorted(answers))
    unknown = sum(len(rows) for at, (_, rows) in enumerate(requests) if at not in answers)
    return AnsweredRequests(answered=known, late=unknown - sum(busy), busy=sum(busy))


def drawn(asked: Asked, draw: np.random.Generator) -> list[tuple[int, int]]:
    """Every row of every set in any order, but first those that somebody gave as an example."""
    rows = [(of, row) for of, (questions, _) in enumerate(asked) for row in range(len(questions.origins))]
    mixed = [rows[at] for at in draw.permutation(len(rows))]
    return sorted(mixed, key=lambda each: asked[each[0]][0].origins[each[1]] != "example")


def shuffled(requests: Requests, draw: np.random.Generator) -> Requests:
    """The requests in any order."""
    return [requests[at] for at in draw.permutation(len(requests))]


def batches(asked: Asked, most: int, draw: np.random.Generator) -> Iterator[tuple[int, list[int]]]:
    """Rows of each set in any order, in requests of several sizes, the sets in turn."""
    parts: Requests = []
    for of, (questions, right) in enumerate(asked):
        order = [row for row in draw.permutation(len(questions.origins)).tolist() if right.answered[row]]
        while order:
            size = int(draw.integers(2, most + 1))
            parts.append((of, order[:size]))
            order = order[size:]
    yield from shuffled(parts, draw)
