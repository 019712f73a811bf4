"""Texts that are made for a model of texts: what is odd, and the words of its own vocabulary."""

import time
from collections.abc import Iterator

import numpy as np

from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.tensors import MADE, Arrays, concatenate
from shiplift.runtime.proof.questions.column import Column
from shiplift.runtime.proof.questions.texts import Texts
from shiplift.runtime.records.facts import ColumnFacts

_SEED = 20240229
_MOST, _BYTES, _SECONDS = 128, 4 << 20, 2.0  # texts, their answers, and for all of them
_WORDS = 8  # of a text


def made_texts(original: Original, example: Arrays) -> Arrays:
    """Texts as `made/input/NAME` with the original's answers as `made/output/NAME`, as many as time and bytes allow.

    Nothing for a model that takes none.
    """
    end, size = time.monotonic() + _SECONDS, 0
    asked: list[Arrays] = []
    answers: list[Arrays] = []
    for inputs, outputs in original.answered_texts(_texts(original.words(), example)):
        asked.append(inputs)
        answers.append(outputs)
        size += sum(array.nbytes for array in outputs.values())
        if len(asked) == _MOST or size > _BYTES or time.monotonic() > end:
            break
    pairs = (("input", asked), ("output", answers)) if asked else ()
    return {f"{MADE}{kind}/{name}": array for kind, each in pairs for name, array in concatenate(each).items()}


def _texts(words: tuple[str, ...], example: Arrays) -> Iterator[str]:
    """In turn, a text of the next words and an odd one."""
    rng = np.random.default_rng(_SEED)
    known = np.array([str(item) for array in example.values() for item in array.ravel()], object)
    column = Column(input="", index=None, name="", datatype="BYTES", shape=(), known=known, facts=ColumnFacts(input=""))
    odd = iter(Texts().candidates(column, rng)["text"].tolist())
    mixed = [words[at] for at in rng.permutation(len(words))]
    for start in range(0, len(mixed), _WORDS):
        yield " ".join(mixed[start : start + _WORDS])
        yield from (text for text in (next(odd, None),) if text is not None)
    yield from odd
