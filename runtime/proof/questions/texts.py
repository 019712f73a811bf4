"""Columns of texts."""

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.proof.questions.column import Candidates, Column, texts

_SPECIAL = (
    "",
    " ",
    "a",
    "été à Zürich, naïve Ærøskøbing",
    "e\u0301te\u0301",  # decomposed: the accents are characters of their own
    "İstanbul ISPARTA \u0131ss\u0131z STRASSE straße",
    "日本語のテキスト",
    "مرحبا بالعالم",
    "👍🏽 👩‍👩‍👧 ☃",
    "tabs\tand\nnew lines\r\n",
    "don't stop-now: 3,141.59 e-mail@example.com",
    "UPPER lower MiXeD",
    "zero\u200bwidth soft\u00adhyphen no\u00a0break",
    "∑ ﬁ Ⅷ ½ ²",
)
_ACCENTS = {"a": "á", "c": "ç", "e": "é", "i": "ï", "n": "ñ", "o": "ö", "s": "š", "u": "ü", "y": "ý", "z": "ž"}
_LONG = 2_000  # characters of the longest text: arrays of texts take as much for each
_SOME = 60  # words of a vocabulary, and known texts, that are varied


class Texts:
    """Texts: empty, long, with accents and emoji, and made of the words of the model's vocabulary."""

    def recognises(self, column: Column) -> bool:
        """Whether it holds texts, one to a row."""
        return column.datatype == "BYTES" and column.shape == ()

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Special texts, known ones with a change, and words with and without their accents."""
        known = [str(value) for value in np.asarray(column.known).ravel()]
        some = [known[at] for at in rng.permutation(len(known))[:_SOME]]
        words = _words(column, rng)
        changed = [form for text in some for form in _changed(text, words, rng)]
        return {"text": texts([*_SPECIAL, *_long(some), *(form for word in words for form in _forms(word)), *changed])}

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Texts of the words of known texts and of the vocabulary, as long as known ones."""
        known = [str(value) for value in np.asarray(column.known).ravel()] or list(_SPECIAL)
        words = np.array(
            [*_words(column, rng), *(word for text in known[:1000] for word in text.split())] or [""], object
        )
        lengths = [max(1, len(known[at].split())) for at in rng.integers(0, len(known), count)]
        made = np.empty(count, object)
        made[:] = [" ".join(rng.choice(words, length)) for length in lengths]
        return made


def _words(column: Column, rng: np.random.Generator) -> list[str]:
    """Words of the vocabulary, those that aren't ASCII first; without one, words of known texts."""
    words = list(column.facts.words)
    if not words:
        texts_known = [str(value) for value in np.asarray(column.known).ravel()[:100]]
        words = list(dict.fromkeys(word for text in texts_known for word in text.split()))
    shuffled = [words[at] for at in rng.permutation(len(words))]
    return sorted(shuffled, key=str.isascii)[:_SOME]


def _forms(word: str) -> list[str]:
    """A word as it is, with accents composed, decomposed and taken off, and in other cases."""
    accented = "".join(_ACCENTS.get(letter, letter) for letter in word)
    decomposed = unicodedata.normalize("NFD", accented)
    bare = "".join(letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter))
    return [word, accented, decomposed, bare, word.upper(), accented.upper()]


def _changed(text: str, words: list[str], rng: np.random.Generator) -> list[str]:
    """A text with another word, with accents, in capitals, without spaces around it, and with an emoji."""
    parts = text.split() or [""]
    swapped = list(parts)
    if words:
        swapped[int(rng.integers(len(parts)))] = words[int(rng.integers(len(words)))]
    return [" ".join(swapped), _forms(text)[1], text.upper(), f"  {text}\n", f"{text} 👍🏽"]


def _long(some: list[str]) -> list[str]:
    text = next((text for text in some if text.strip()), "word")
    return [" ".join([text] * times)[:_LONG] for times in (3, 50, 1 + _LONG // (len(text) + 1))]
