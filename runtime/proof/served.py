"""The proof through the packaged server: what the original was asked is asked again, as clients will ask it.

Each row is asked alone, in batches of other rows at random places, and by many clients at once, whose requests the
server mixes as it likes. A lossless form must answer what the original answers. A lossy one has a score for that; but
each row must be answered in any company as it is answered alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from shiplift.runtime.model.tensors import filled
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare, counted, worst_of
from shiplift.runtime.proof.parts import parts
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import Ask, joined, rows_of, together
from shiplift.runtime.proof.tolerances import NOISE_FACTOR
from shiplift.runtime.records.proof import ColumnDifference, Counterexample, ServedProof, SettingAsked

CLIENTS = 16
SECONDS = 3.0  # for all settings
_PATIENCE_S = 30.0  # for one request of each client, if a server answers them in turn
_LARGEST = 8  # rows of a request
_SEED = 20240229

Asked = Sequence[tuple[Questions, Answers]]
Requests = list[tuple[int, list[int]]]  # each has rows of one set, which is given by its index


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a form is judged: by the original's answers, or if None by its own alone, within this share of a column."""

    lossy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row that is answered differently: of which set it is, and how."""

    of: int
    found: Counterexample


def prove_served(
    ask: Ask,
    asked: Asked,
    form: Form,
    *,
    most: int,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> ServedProof | Difference:
    """Asks the server, whose requests have at most `most` rows. What `ask` raises is taken for the answer."""
    draw = np.random.default_rng(_SEED)
    alone = [(of, [row]) for of, row in _drawn(asked, draw)]
    batches = list(_batches(asked, min(most, _LARGEST), draw)) if most > 1 else []
    share, started = seconds / (3 if batches else 2), clock()
    proving = _Proving(asked=asked, form=form, own={}, worst=[], settings=[], left_out=[])

    def found(name: str, requests: Requests, clients: int = 1) -> Difference | None:
        seen = _answers(ask, asked, requests, clients, clock() + share, clock)
        return proving.compare(name, requests, seen)

    if difference := found("alone", alone):
        return difference
    clients = _affordable((clock() - started) / max(1, proving.settings[0].rows))
    if batches and (difference := found("in batches", batches)):
        return difference
    crowd = _shuffled(alone, draw)
    return found(f"to {clients} clients at once", crowd, clients) or proving.proof(clients)


@dataclass(frozen=True, kw_only=True)
class _Proving:
    """What was seen so far; `own` are the form's answers to rows alone, by set and row."""

    asked: Asked
    form: Form
    own: dict[int, tuple[list[int], Answers]]
    worst: list[ColumnDifference | None]
    settings: list[SettingAsked]
    left_out: list[str]

    def compare(self, name: str, requests: Requests, seen: Sequence[Answers]) -> Difference | None:
        """Compares the answers to the first requests, as many as there are, and notes how many rows were late."""
        total = 0
        for of, (questions, right) in enumerate(self.asked):
            rows = [row for at, (own, each) in enumerate(requests[: len(seen)]) if own == of for row in each]
            if not rows:
                continue
            total += len(rows)
            served = joined([seen[at] for at, (own, _) in enumerate(requests[: len(seen)]) if own == of])
            served = _padded(served, right)
            if found := self._of(of, name, rows, right, served, questions.origins):
                return Difference(of=of, found=found)
        self.settings.append(SettingAsked(name=name, rows=total))
        if late := sum(len(rows) for _, rows in requests[len(seen) :]):
            self.left_out.append(f"{late} rows {name}: the time was up")
        return None

    def _of(
        self, of: int, name: str, rows: list[int], right: Answers, served: Answers, origins: Sequence[str]
    ) -> Counterexample | None:
        if self.form.lossy is None:
            compared = compare(right.take(rows), served, [origins[row] for row in rows], setting=name)
            self.worst.append(compared.worst)
            found = compared.first
        else:
            at, own = self.own.setdefault(of, (rows, served))
            places = {row: place for place, row in enumerate(at)}
            known = [place for place, row in enumerate(rows) if row in places]
            if not known:
                return None
            rows = [rows[place] for place in known]
            mine = own.take([places[row] for row in rows])
            found = unsteady(mine, served.take(known), [origins[row] for row in rows], self.form.lossy, name)
        return found.model_copy(update={"row": rows[found.row]}) if found else None

    def proof(self, clients: int) -> ServedProof:
        """What was asked, now that nothing differs."""
        origins = [origin.partition(":")[0] for questions, _ in self.asked for origin in questions.origins]
        return ServedProof(
            asked=counted(origins),
            settings=tuple(self.settings),
            clients=clients,
            worst=worst_of(self.worst),
            left_out=tuple(self.left_out),
        )


def _affordable(seconds_each: float) -> int:
    """How many clients: fewer if requests that wait for each other would take too long."""
    return max(2, min(CLIENTS, int(_PATIENCE_S / seconds_each))) if seconds_each > 0 else CLIENTS


def unsteady(
    alone: Answers, served: Answers, origins: Sequence[str], tolerance: float, setting: str
) -> Counterexample | None:
    """The first row that a lossy form answers otherwise than alone; None if it is steady.

    Floats may differ by `tolerance` of their column's largest, and that share of the rows in labels: rounding may tip a
    tie. Errors may not differ.
    """
    errors, *outputs = parts(_loosened(alone, tolerance), served)
    for part, allowed in ((errors, 0.0), *((each, 0.0 if each.worst else tolerance) for each in outputs)):
        if part.wrong.mean() > allowed:
            row = int(np.flatnonzero(part.wrong)[0])
            told = part.tell(row)
            said = {"original": f"{told['original']} alone", "served": f"{told['served']} then"}
            return Counterexample(row=row, origin=origins[row], setting=setting, **(told | said))
    return None


def _padded(served: Answers, right: Answers) -> Answers:
    """Shorter answers as they are kept beside longer ones."""
    shapes = {name: array.shape[1:] for name, array in right.outputs.items()}
    outputs = {
        name: filled(array, (len(array), *shapes[name])) if name in shapes else array
        for name, array in served.outputs.items()
    }
    return replace(served, outputs=outputs)


def _loosened(alone: Answers, tolerance: float) -> Answers:
    noise = {}
    for name, array in alone.outputs.items():
        if array.dtype.kind in "OSU":
            noise[name] = np.array([tolerance / NOISE_FACTOR])
        if array.dtype.kind == "f":
            sizes = np.abs(np.where(np.isfinite(array), array, 0)).reshape(len(array), -1).astype(np.float64)
            noise[name] = tolerance / NOISE_FACTOR * sizes.max(axis=0, initial=0.0)
    return replace(alone, noise=noise)


def _answers(
    ask: Ask, asked: Asked, requests: Requests, clients: int, end: float, clock: Callable[[], float]
) -> list[Answers]:
    """The answers to the first requests, until the time is up: to at least one."""
    seen: list[Answers | None] = [None] * len(requests)

    def send(at: int) -> None:
        if at < clients or clock() < end:
            of, rows = requests[at]
            seen[at] = together(ask, rows_of(asked[of][0].inputs, rows))

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(send, range(len(requests))))
    first_late = next((at for at, each in enumerate(seen) if each is None), len(seen))
    return [each for each in seen[:first_late] if each is not None]


def _drawn(asked: Asked, draw: np.random.Generator) -> list[tuple[int, int]]:
    """Every row of every set in any order, but first those that somebody gave as an example."""
    rows = [(of, row) for of, (questions, _) in enumerate(asked) for row in range(len(questions.origins))]
    mixed = [rows[at] for at in draw.permutation(len(rows))]
    return sorted(mixed, key=lambda each: asked[each[0]][0].origins[each[1]] != "example")


def _shuffled(requests: Requests, draw: np.random.Generator) -> Requests:
    return [requests[at] for at in draw.permutation(len(requests))]


def _batches(asked: Asked, most: int, draw: np.random.Generator) -> Iterator[tuple[int, list[int]]]:
    """Rows of each set in any order, in requests of several sizes, the sets in turn."""
    parts: Requests = []
    for of, (questions, right) in enumerate(asked):
        order = [row for row in draw.permutation(len(questions.origins)).tolist() if right.answered[row]]
        while order:
            size = int(draw.integers(2, most + 1))
            parts.append((of, order[:size]))
            order = order[size:]
    yield from _shuffled(parts, draw)
