"""A Python model's answers, recorded in the sandbox by the process that will also serve it.

The judge is `mlflow.pyfunc` itself, asked each row alone. A second process is asked as production asks: in batches, and
at every place among neighbours. The model's code runs below this process, so the parent trusts nothing that this one
writes: another sandbox decides what is compared, and how (`python_proving.py`).
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.admission.known_rows import GIVEN, asked_of, known_rows
from shiplift.runtime.base.progress import progress
from shiplift.runtime.guest.python.host import Host, ModelFailed
from shiplift.runtime.guest.python.outputs import SQUEEZED, WHOLE
from shiplift.runtime.guest.python.values import all_missing, as_served
from shiplift.runtime.model.python.asking import asking, restored, settings_of, slowly, with_leaping_clock
from shiplift.runtime.model.samples import random_like
from shiplift.runtime.model.tensors import Arrays, concatenate, dump_npz, load_npz
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.questions.question import KnownRows, Questions
from shiplift.runtime.proof.served import padded
from shiplift.runtime.proof.settings import (
    Ask,
    alone,
    common_types,
    count_of,
    in_types,
    joined,
    rows_of,
    together,
)
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.scoring import AnswerForm
from shiplift.runtime.records.tensor import TensorSpec

ANSWERS = "answers.npz"
EXAMPLE, NEIGHBOURS, AGAIN, TODAY = "example", "neighbours", "again", "today"
_EXAMPLES, _FEWEST = 64, 8  # rows of the example; one of fewer gets random ones beside it: equal rows show nothing
_NEIGHBOURS, _AGAIN = 6, 16  # rows that are asked in each place of a batch, and once more
_ALONE_S, _OTHER_S = 4.0, 2.0  # for each row alone, and for another setting
_MISSING, _LARGE, _EXACT = "missing", "large", 1 << 53  # up to which all whole numbers are floats
_BYTES = "bytes"
_ALONE = "asking the model, each row alone"
_TIMES = (2, 3)  # how often the first row is asked in one batch
NO_ANSWER = ("Raised:", "Died:", "TookTooLong:", "Starting:")  # what the host raises instead of an answer
UNSERVABLE = "Raised: Unservable"  # what `guest/python/pyfunc.py` raises
_SHARE = 5  # of the time limit that one request may take


def answer(  # noqa: PLR0913 - an entry takes JSON by name
    *,
    code: str,
    environment: str,
    model: str,
    read: list[str],
    example: str,
    known: dict[str, Any] | None,
    inputs: list[dict[str, Any]],
    outputs: list[str],
    memory_mb: int,
    limit_s: float,
    allow_without: list[str],
    out: str,
) -> dict[str, Any]:
    """Writes `out/answers.npz`; returns its sets, outputs, places, what was left out, and the form of an answer.

    `seconds_each` is how long the model takes for a row alone.

    The file is as `proof.file` says. Of each set, the rows were asked alone. `again/SET` are some of these in a second
    process, the last first, with their numbers as `again/SET/rows`; it is another day there for each request. Where one
    differs, `today/SET` are the same rows in a third process, in which it is today. `batch/SET` are those that are
    answered alone, in batches. `again` is the first row in the first process, after all others. `place-N` are the rows
    of the set `neighbours` in one batch, turned by N. `repeat/place-N` and `repeat/batch/SET` are the same batches once
    more, where an answer differs from that alone. `shapes/NAME` are the shapes of an output's rows.

    `answers_as` is how the process makes outputs of an answer, which the author's rows show (`PythonModel.answers_as`).
    An output whose values are of several types, or of one that no tensor has, is JSON. Whether a list has an array for
    each output, and whether a value lacks the axis of rows always or only for one row, is what several rows show.
    Answers whose parts differ from row to row, or that have no parts at all, are documents: one output of JSON.

    `known` is where the author's data are, as `known_rows` takes it. A sandbox entry.

    Raises:
        ExportFailed: the model does not load.
        DataInvalid: the validation data do not match the model.
    """
    specs = [TensorSpec.model_validate(spec) for spec in inputs]
    given = known_rows(known, tuple(specs), restored(load_npz(Path(example)), specs))

    def hosting(answers_as: dict[str, Any]) -> AbstractContextManager[Host]:
        return asking(code, environment, settings_of(model, outputs, read, memory_mb, allow_without, answers_as))

    seen, answers_as = learned(hosting, given, specs, outputs, limit_s)
    settings = settings_of(model, outputs, read, memory_mb, allow_without, answers_as)
    form = seen.form()
    with asking(code, environment, with_leaping_clock(settings)) as host:
        progress(f"asking a second process, and in batches{slowly(seen.seconds)}")
        seen.in_places(host)
        differs = seen.again(host)
        seen.in_batches(host)
    if differs:
        with asking(code, environment, settings) as host:
            progress(f"asking a third process, whose clock is right{slowly(seen.seconds)}")
            seen.again(host, TODAY)
    (Path(out) / ANSWERS).write_bytes(dump_npz(seen.file()))
    names = list(seen.right[EXAMPLE].outputs)
    return {
        "sets": list(seen.rows),
        "outputs": names,
        "places": seen.places,
        "left_out": seen.left_out,
        "answer": form,
        "answers_as": answers_as,
        "seconds_each": seen.seconds,
    }


def learned(
    hosting: Callable[[dict[str, Any]], AbstractContextManager[Host]],
    given: KnownRows,
    specs: list[TensorSpec],
    outputs: Sequence[str],
    limit_s: float,
) -> tuple["_Seen", dict[str, Any]]:
    """What the model answers to each row alone, and how its process makes outputs of that, as the author's rows show.

    `hosting` gives a process that makes them in a certain way. A model whose answers need another one is asked again.
    """
    answers_as: dict[str, Any] = {"json": [], "listed": None, "axes": None, "document": False}
    while True:
        seen = _Seen(limit_s / _SHARE, answers_as["json"])
        with hosting(answers_as) as host:
            progress(_ALONE)
            seen.alone(host, given, specs)
            known = seen.learned(host, answers_as, outputs)
        if known == {**answers_as, "listed": bool(answers_as["listed"]), "axes": answers_as["axes"] or {}}:
            return seen, known
        answers_as = known


def unanswered(error: str) -> bool:
    """Whether a row's error is the model's own, instead of an answer that can't be served."""
    return error.startswith(NO_ANSWER) and not error.startswith(UNSERVABLE)


def _told(form: Any) -> dict[str, str]:
    """What each output holds, as the process told the form of its answer."""
    told = AnswerForm.told(form)
    return {part.tensor: part.holds for part in told.parts} if told else {}


class _Seen:
    """What has been asked and answered so far, by set. A request may take `limit_s`; `as_json` are served as JSON."""

    def __init__(self, limit_s: float, as_json: Sequence[str] = ()) -> None:
        self.rows: dict[str, Questions] = {}
        self.right: dict[str, Answers] = {}
        self.left_out: list[str] = []
        self.places = 0
        self._limit_s, self.seconds, self._json = limit_s, 0.0, set(as_json)
        self._others: Arrays = {}
        self._shapes: dict[str, set[tuple[int, ...]]] = {}
        self.types: dict[str, np.dtype[Any]] = {}
        self._latest: dict[str, tuple[str, int]] = {}
        self._held: dict[str, set[tuple[str, int]]] = {}
        self._told: Any = None
        self._forms: list[Any] = []
        self._several: list[AnswerForm] | None = None

    def alone(self, host: Host, given: KnownRows, specs: list[TensorSpec]) -> None:
        """Asks each row alone: the example, and questions made of it, the author's data and each column's kind."""
        ask, started = self._asker(host), time.monotonic()
        end = started + _ALONE_S
        self._ask_alone(EXAMPLE, ask, _example(given.example, specs), end, fewest=2)
        if slow := slowly(self.seconds):
            progress(_ALONE + slow)
        if self.several_types():
            return  # all is asked again, with these as JSON
        asked = asked_of(_facts(specs), given, self.seconds)
        self.left_out += asked.left_out
        for index, questions in enumerate(asked.questions):
            if time.monotonic() < end:
                whole = Questions(inputs=restored(questions.inputs, specs), origins=questions.origins)
                self._ask_alone(f"questions-{index}", ask, whole, end)
            else:
                self._late(len(questions.origins), "alone")
        first = rows_of(self.rows[EXAMPLE].inputs, [0])
        later = together(ask, first)
        self._have_common_types()
        self._keep("again", first, self._like(EXAMPLE, replace(later, outputs=self._in_their_types(later.outputs))))

    def learned(self, host: Host, answers_as: dict[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """How the process should make outputs of answers, as far as the author's rows show it: the same, or otherwise.

        What is to be seen is None there.
        """
        if answers_as["listed"] is None and self.listed(host):
            return {"json": [], "listed": True, "axes": {}, "document": False}
        more = self.several_types()
        axes = self._axes(host) if answers_as["axes"] is None else answers_as["axes"]
        settled = not more and (answers_as["axes"] is not None or not axes)
        if not answers_as["document"] and (self._parts_differ() or (settled and any(map(self._unservable, self.rows)))):
            name = outputs[0] if len(outputs) == 1 else "output"
            return {"json": [name], "listed": False, "axes": None, "document": True}
        json = [*answers_as["json"], *more]
        return {**answers_as, "json": json, "listed": bool(answers_as["listed"]), "axes": axes}

    def several_types(self) -> list[str]:
        """The outputs that answered the author's rows with values of several types, or of one that no tensor has."""
        return [name for name, held in self._held.items() if name not in self._json and _several(held)]

    def _parts_differ(self) -> bool:
        """Whether answers to the author's rows have other parts each."""
        forms = filter(None, map(AnswerForm.told, self._forms))
        return len({(form.kind, frozenset(part.name for part in form.parts)) for form in forms}) > 1

    def _unservable(self, name: str) -> bool:
        """Whether the model answers a row of the author's in this set, but with nothing that can be served."""
        pairs = zip(self.rows[name].origins, self.right[name].errors, strict=True)
        return any(origin in GIVEN and error and not unanswered(error) for origin, error in pairs)

    def listed(self, host: Host) -> bool:
        """Whether the first row twice, or three times, is answered with a list of arrays that each have all of these.

        Twice alone would not show it: two arrays may be those of two rows.
        """
        answered = AnswerForm.told(self._told)
        if self._told is not None and (answered is None or answered.kind != "array"):
            return False
        return any(told.kind == "list" for told in self._repeated(host))

    def _axes(self, host: Host) -> dict[str, str]:
        """The outputs that lack the axis of rows for one of the author's rows, or for several, and how."""
        forms = list(filter(None, map(AnswerForm.told, self._forms)))
        lacking = dict.fromkeys(part.tensor for form in forms for part in form.parts if part.axis)
        several = self._repeated(host)
        whole = [{part.tensor for part in form.parts if part.axis} for form in several]
        have = [{part.tensor for part in form.parts if not part.axis} for form in several]
        both = len(several) == len(_TIMES)
        found = {name: SQUEEZED if both and all(name in each for each in have) else WHOLE for name in lacking}
        if shorter := set.intersection(*whole) - found.keys() if both else set():
            # a mean of all rows looks like a row where there is one; but equal rows may be dropped, others are not
            other = self._batch(host, [0, 1])
            found |= {
                part.tensor: WHOLE for part in (other.parts if other else ()) if part.axis and part.tensor in shorter
            }
        return found

    def _repeated(self, host: Host) -> list[AnswerForm]:
        """The forms of the answers to the first row several times, where there is one; asked once."""
        if self._several is None:
            found = (self._batch(host, [0] * times) for times in _TIMES)
            self._several = list(filter(None, found))
        return self._several

    def _batch(self, host: Host, at: Sequence[int]) -> AnswerForm | None:
        """The form of the answer to rows of the example in one batch; None: there is none."""
        with contextlib.suppress(ModelFailed):
            host.start()
            host.ask(rows_of(self.rows[EXAMPLE].inputs, at), self._limit_s)
            return AnswerForm.told(host.form)
        return None

    def form(self) -> Any:
        """The form of an answer to one of the author's rows, with what its outputs hold in all of them."""
        form = AnswerForm.told(self._forms[0] if self._forms else self._told)
        if form is None:
            return self._told
        parts = [part.model_copy(update={"holds": self._holds(part.tensor)}) for part in form.parts]
        return form.model_copy(update={"parts": tuple(parts)}).model_dump(mode="json")

    def _holds(self, name: str) -> str:
        kinds = {kind for kind, _ in self._held.get(name, ())} - {_MISSING}
        if name in self._json:
            return "json"
        return "booleans" if kinds == {"b"} else _BYTES if kinds == {_BYTES} else ""

    def in_places(self, host: Host) -> None:
        """Asks rows that are answered alone in batches that begin with each of them."""
        name = next((name for name in self.rows if len(self._answered(name)) > 1), "")
        if not name:
            return
        at = self._answered(name)
        few = [at[index] for index in _spread(len(at), max(2, int(self._affordable(_NEIGHBOURS**2) ** 0.5)))]
        few.append(few[0])  # two clients may send the same row: a model that drops doubles or counts them shows it
        rows, self.places = rows_of(self.rows[name].inputs, few), len(few)
        self._keep(NEIGHBOURS, rows, self.right[name].take(few), [self.rows[name].origins[row] for row in few])
        for place in range(self.places):
            turned = rows_of(rows, np.roll(np.arange(len(few)), place))
            right = self.right[name].take(np.roll(few, place))
            self._in_a_batch(f"place-{place}", turned, right, partial(together, self._asker(host), turned))

    def again(self, host: Host, kept: str = AGAIN) -> bool:
        """Asks some rows of each set again, the last first; returns whether one is answered differently."""
        differs = False
        for name, questions in self.rows.items():
            few = _spread(len(questions.origins), self._affordable(_AGAIN))[::-1]
            rows = rows_of(questions.inputs, few)
            answers = self._like(name, again(self._asker(host), rows, self.right[name]))
            differs = differs or not compare(self.right[name].take(few), answers, ("",) * len(few)).same
            self._keep(f"{kept}/{name}", rows, answers)
            self._others[f"{kept}/{name}/rows"] = np.array(few, dtype=np.int64)
        return differs

    def in_batches(self, host: Host) -> None:
        """Asks all rows that are answered alone in batches, until the time is up."""
        end = time.monotonic() + _OTHER_S
        for name, questions in self.rows.items():
            rows, seconds = rows_of(questions.inputs, self._answered(name)), end - time.monotonic()
            done = 0
            if count_of(rows) and self.seconds < seconds:
                right = self.right[name].take(self._answered(name))
                ask = partial(answers_to, self._asker(host), rows, batches=True, seconds=seconds)
                done = self._in_a_batch(f"batch/{name}", rows, right, ask)
            self._late(count_of(rows) - done, "in batches")

    def _in_a_batch(self, name: str, rows: Arrays, right: Answers, ask: Callable[[], Answers]) -> int:
        """Keeps the answers to the first rows, and how many these are; if they differ from those alone, once more.

        A model that only sometimes answers otherwise seems to mix rows, but answers the same batch as before.
        """
        served = padded(ask(), right)
        done = len(served.errors)
        self._keep(name, rows_of(rows, range(done)), served)
        if compare(right.take(range(done)), served, ("",) * done).first:
            repeated = padded(ask(), right)
            self._keep(f"repeat/{name}", rows_of(rows, range(len(repeated.errors))), repeated)
        return done

    def file(self) -> Arrays:
        """Everything as arrays."""
        origins = {name: questions.origins for name, questions in self.rows.items()}
        named = in_file({name: each.inputs for name, each in self.rows.items()}, self.right, origins)
        return named | self._others | {f"shapes/{name}": self._shapes_of(name) for name in self._shapes}

    def _shapes_of(self, name: str) -> NDArray[np.int64]:
        """The shapes of an output's rows. One with another number of axes than the example's answer is an error."""
        known = self.right[EXAMPLE].outputs.get(name)
        seen = self._shapes[name]
        axes = len(next(iter(seen))) if known is None else known.ndim - 1
        return np.array(sorted(shape for shape in seen if len(shape) == axes), dtype=np.int64)

    def _ask_alone(self, name: str, ask: Ask, rows: Questions, end: float, *, fewest: int = 1) -> None:
        """The rows of a set, until the time is up; but at least the `fewest`."""
        ask = self._noting(ask, rows.origins)
        count, started = len(rows.origins), time.monotonic()
        parts = [alone(ask, rows_of(rows.inputs, range(min(fewest, count))))]
        if count > fewest and time.monotonic() < end:
            started = time.monotonic()  # the first answers take longer: libraries are imported
            rest = rows_of(rows.inputs, range(fewest, count))
            parts.append(answers_to(ask, rest, batches=False, seconds=end - time.monotonic()))
        right = joined(parts)
        done = len(right.errors)
        self.seconds = self.seconds or (time.monotonic() - started) / len(parts[-1].errors)
        self._late(count - done, "alone")
        self.rows[name] = Questions(inputs=rows_of(rows.inputs, range(done)), origins=rows.origins[:done])
        self.right[name] = right

    def _noting(self, ask: Ask, origins: Sequence[str]) -> Ask:
        """The same, for rows that are asked in this order, each alone: it notes what the author's are answered with."""
        left = iter(origins)

        def noting(inputs: Arrays) -> Arrays:
            given = next(left, "") in GIVEN
            answers = ask(inputs)
            if given:
                self._forms.append(self._told)
                for name, kind in self._latest.items():
                    self._held.setdefault(name, set()).add(kind)
            return answers

        return noting

    def _have_common_types(self) -> None:
        """Gives all answers the types that say what each of them says: a row by itself does not show an output's."""
        self.types = common_types([right.outputs for right in self.right.values()])
        self.right = {name: in_types(right, self.types) for name, right in self.right.items()}

    def _like(self, name: str, answers: Answers) -> Answers:
        """Answers to rows of a set: shorter ones as they are beside the set's longest."""
        return padded(answers, self.right[name])

    def _in_their_types(self, outputs: Arrays) -> Arrays:
        return {name: as_served(array, self.types.get(name, array.dtype)) for name, array in outputs.items()}

    def _asker(self, host: Host) -> Ask:
        def ask(inputs: Arrays) -> Arrays:
            host.start()  # a process that had to be killed loads the model again, which takes no time of the request
            answers: Arrays = host.ask(inputs, self._limit_s)
            self._told = host.form
            told = _told(host.form)
            self._latest = {name: _kind(array, told.get(name, "")) for name, array in answers.items()}
            for name, array in answers.items():
                self._shapes.setdefault(name, set()).add(array.shape[1:])
            return self._in_their_types(answers)

        return ask

    def _answered(self, name: str) -> list[int]:
        return [int(row) for row in np.flatnonzero(self.right[name].answered)]

    def _affordable(self, most: int) -> int:
        return max(1, min(most, int(_OTHER_S / self.seconds)))

    def _late(self, rows: int, setting: str) -> None:
        if rows:
            self.left_out.append(f"{rows} rows were not asked {setting}: each takes about {self.seconds:.2g} s")

    def _keep(self, name: str, rows: Arrays, answers: Answers, origins: Sequence[str] = ()) -> None:
        """Rows with their answers; those of `place-N` and others are known by their numbers, and have no origins."""
        self._others |= in_file({name: rows}, {name: answers}, {name: origins or ("",) * len(answers.errors)})


def _kind(array: NDArray[Any], holds: str) -> tuple[str, int]:
    """The type of an output as clients tell types apart, and its axes."""
    if holds == "json" or all_missing(array):
        return "json" if holds == "json" else _MISSING, 0
    if holds == _BYTES:
        return _BYTES, array.ndim
    if array.dtype.kind in "iu" and ((array > _EXACT) | (array < -_EXACT)).any():
        return _LARGE, array.ndim
    return {"i": "f", "u": "f"}.get(array.dtype.kind, array.dtype.kind), array.ndim


def _several(held: set[tuple[str, int]]) -> bool:
    """Whether no tensor has all these types: large whole numbers are no floats, which a missing one needs."""
    kinds = {kind for kind, _ in held}
    alike = {_LARGE: "f", _BYTES: "O"}  # base64 among texts is a text
    known = {(alike.get(kind, kind), axes) for kind, axes in held if kind != _MISSING}
    return len(known) > 1 or "json" in kinds or kinds >= {_LARGE, _MISSING}


def again(ask: Ask, rows: Arrays, right: Answers) -> Answers:
    """The answers to rows, each alone, which have to be of the type that the first answer in `right` has."""
    first = right.take(np.flatnonzero(right.answered)[:1])
    answers = joined([first, *(together(ask, rows_of(rows, [at])) for at in range(count_of(rows)))])
    return answers.take(range(len(first.errors), len(answers.errors)))


def _example(example: Arrays, specs: list[TensorSpec]) -> Questions:
    """The example's first rows, with random ones like it if it has few."""
    own = min(count_of(example), _EXAMPLES)
    rows, made = rows_of(example, range(own)), max(0, _FEWEST - own)
    if made:
        rows = concatenate([rows, random_like(example, tuple(specs), made, seed=0)])
    return Questions(inputs=rows, origins=("example",) * own + ("range",) * made)


def _facts(specs: list[TensorSpec]) -> ModelFacts:
    """Nothing is known, so NaN and infinity are asked, too: an error is an answer."""
    floats = (spec.name for spec in specs if spec.datatype.startswith("FP"))
    columns = tuple(ColumnFacts(input=name, missing=True, infinite=True) for name in floats)
    return ModelFacts(inputs=tuple(specs), columns=columns)


def _spread(count: int, most: int) -> list[int]:
    """Numbers of rows from all over, the first included."""
    return sorted({int(row) for row in np.linspace(0, count - 1, min(count, most))})
