"""The proof through the packaged server: what the original was asked is asked again, as clients will ask it.

Each row is asked alone, in batches of other rows at random places, and by many clients at once, whose requests the
server mixes as it likes. A lossless form must answer what the original answers. A lossy one has a score for that; but
it must answer ordinary rows with numbers where the original does, and each row in any company as it is answered alone.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shiplift.runtime.model.tensors import filled
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare, counted, worst_of
from shiplift.runtime.proof.ordinary import ORDINARY
from shiplift.runtime.proof.parts import parts
from shiplift.runtime.proof.requests import AnsweredRequests, Asked, Requests, batches, drawn, send, shuffled
from shiplift.runtime.proof.settings import Ask, joined
from shiplift.runtime.proof.tolerances import NOISE_FACTOR
from shiplift.runtime.records.proof import ColumnDifference, Counterexample, ServedProof, SettingAsked

CLIENTS = 16
SECONDS = 3.0  # for all settings
PATIENCE_S = 30.0  # for the rows that a server has at once, if it answers them in turn
_LARGEST = 8  # rows of a request
_SEED = 20240229


@dataclass(frozen=True, kw_only=True)
class JudgedForm:
    """How a form is judged: by the original's answers, or if None by its own alone, within this share of a column."""

    lossy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row that is answered differently: of which set it is, and how.

    `company` are other rows of this set that were asked with it; `clients` asked at once.
    """

    of: int
    found: Counterexample
    company: tuple[int, ...]
    clients: int


def prove_served(
    ask: Ask,
    asked: Asked,
    form: JudgedForm,
    *,
    most: int,
    seconds: float = SECONDS,
    patience: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> ServedProof | Difference:
    """Asks the server, whose requests have at most `most` rows. What `ask` raises is taken for the answer.

    All settings together take about these `seconds`, of a slow model at least one request of each client. The server
    never has more rows at once than it answers in turn within its `patience`, in seconds.
    """
    draw = np.random.default_rng(_SEED)
    alone: Requests = [(of, [row]) for of, row in drawn(asked, draw)]
    share, started = seconds / (3 if most > 1 else 2), clock()
    proving = _Proving(asked=asked, form=form, own={}, worst=[], settings=[], left_out=[])

    def found(name: str, requests: Requests, clients: int = 1) -> Difference | None:
        return proving.compare(name, send(ask, asked, requests, clients, clock() + share, clock), clients)

    if difference := found("alone", alone):
        return difference
    each = (clock() - started) / max(1, proving.settings[0].rows)
    at_once = int(min(patience / each, CLIENTS)) if each > 0 else CLIENTS
    if at_once < 2:
        proving.left_out.append(f"all rows among others: each takes {each:.3g} s")
        return proving.proof(1, seconds)
    if most > 1 and (difference := found("in batches", list(batches(asked, min(most, _LARGEST, at_once), draw)))):
        return difference
    crowd = shuffled(alone, draw)
    return found(f"to {at_once} clients at once", crowd, at_once) or proving.proof(at_once, seconds)


@dataclass(frozen=True, kw_only=True)
class _Proving:
    """What was seen so far; `own` are the form's answers to rows alone, by set and row."""

    asked: Asked
    form: JudgedForm
    own: dict[int, tuple[list[int], Answers]]
    worst: list[ColumnDifference | None]
    settings: list[SettingAsked]
    left_out: list[str]

    def compare(self, name: str, seen: AnsweredRequests, clients: int) -> Difference | None:
        """Compares what was answered, and notes how many rows were not."""
        total = 0
        for of, (questions, right) in enumerate(self.asked):
            rows, answers = seen.of(of)
            if not rows:
                continue
            total += len(rows)
            served = padded(joined(answers), right)
            if found := self._of(of, name, rows, right, served, questions.origins):
                return Difference(of=of, found=found, company=seen.company(of, found.row), clients=clients)
        self.settings.append(SettingAsked(name=name, rows=total))
        for rows_out, why in ((seen.late, "the time was up"), (seen.busy, "the server took no more requests")):
            if rows_out:
                self.left_out.append(f"{rows_out} rows {name}: {why}")
        return None

    def _of(
        self, of: int, name: str, rows: list[int], right: Answers, served: Answers, origins: Sequence[str]
    ) -> Counterexample | None:
        if self.form.lossy is None:
            compared = compare(right.take(rows), served, [origins[row] for row in rows], setting=name)
            self.worst.append(compared.worst)
            found = compared.first
        else:
            first = of not in self.own
            at, own = self.own.setdefault(of, (rows, served))
            if first and (lacking := lost(right.take(rows), served, [origins[row] for row in rows], name)):
                return lacking.model_copy(update={"row": rows[lacking.row]})
            places = {row: place for place, row in enumerate(at)}
            known = [place for place, row in enumerate(rows) if row in places]
            if not known:
                return None
            rows = [rows[place] for place in known]
            mine = own.take([places[row] for row in rows])
            found = unsteady(mine, served.take(known), [origins[row] for row in rows], self.form.lossy, name)
        return found.model_copy(update={"row": rows[found.row]}) if found else None

    def proof(self, clients: int, seconds: float) -> ServedProof:
        """What was asked, now that nothing differs."""
        origins = [origin.partition(":")[0] for questions, _ in self.asked for origin in questions.origins]
        return ServedProof(
            asked=counted(origins),
            settings=tuple(self.settings),
            clients=clients,
            budget_s=seconds,
            worst=worst_of(self.worst),
            left_out=tuple(self.left_out),
        )


def lost(right: Answers, served: Answers, origins: Sequence[str], setting: str) -> Counterexample | None:
    """The first row that a lossy form refuses though the original answers it, or an ordinary one without its numbers.

    Rows with far-fetched values may overflow, since a lower precision has a smaller range.
    """
    bad, ordinary = right.answered & ~served.answered, np.array([origin in ORDINARY for origin in origins])
    for name, array in right.outputs.items():
        found = served.outputs.get(name)
        if array.dtype.kind == "f" and found is not None and found.shape == array.shape:
            gone = np.isfinite(array) & ~np.isfinite(found)
            bad |= right.answered & ordinary & gone.reshape(len(gone), -1).any(axis=1)
    for row in np.flatnonzero(bad).tolist():
        told = compare(right.take([row]), served.take([row]), [origins[row]], setting=setting).first
        if told:
            return told.model_copy(update={"row": row})
    return None


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


def padded(served: Answers, right: Answers) -> Answers:
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
