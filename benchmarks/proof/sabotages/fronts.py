"""Sabotages of the files around a graph of texts or images: settings, and the tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.proof.sabotages.mutation import Files, Mutation

_FOLDER = Path("written/text")
_SETTINGS = ("text.json", "image.json", "pixels.json")
_TOKENIZER = "tokenizer.json"

Change = Callable[[dict[str, Any]], str | None]


def _of_files(name: str, names: tuple[str, ...], change: Change) -> Mutation:
    """A mutation of the first of these JSON files that exists."""

    def apply(files: Files) -> str | None:
        folder = files.folder / _FOLDER
        file = next((folder / each for each in names if (folder / each).is_file()), None)
        if file is None:
            return None
        content = json.loads(file.read_text())
        what = change(content)
        file.write_text(json.dumps(content))
        return what

    return Mutation(name=name, of="front", apply=apply)


def labels_shifted(settings: dict[str, Any]) -> str | None:
    """The labels are in another order."""
    labels = settings.get("labels")
    if not labels or len(labels) < 2:
        return None
    settings["labels"] = (
        dict(zip(labels, [*list(labels.values())[1:], next(iter(labels.values()))], strict=True))
        if isinstance(labels, dict)
        else [*labels[1:], labels[0]]
    )
    return "the labels are shifted by one"


def case_changed(settings: dict[str, Any]) -> str | None:
    """Texts get a prefix, as if another encoder's were used."""
    if "prefix" not in settings:
        return None
    settings["prefix"] = "a " + settings["prefix"]
    return "texts begin with another prefix"


def cut_shorter(settings: dict[str, Any]) -> str | None:
    """Texts are cut to half their tokens."""
    if not settings.get("truncate"):
        return None
    settings["max_tokens"] //= 2
    return f"texts are cut to {settings['max_tokens']} tokens"


def mean_changed(settings: dict[str, Any]) -> str | None:
    """Another mean is taken from the pixels."""
    if not settings.get("mean"):
        return None
    settings["mean"] = [value + 0.05 for value in settings["mean"]]
    return "the pixels' mean is 0.05 higher"


def channels_swapped(settings: dict[str, Any]) -> str | None:
    """Red and blue are scaled as each other: visible where they have other deviations."""
    deviations = settings.get("std")
    if not deviations or len(set(deviations)) < 2:
        return None
    settings["std"] = deviations[::-1]
    return "the deviations of red and blue are swapped"


def filter_changed(settings: dict[str, Any]) -> str | None:
    """Images are resized by another filter."""
    if not settings.get("resize") or "filter" not in settings:
        return None
    settings["filter"] = 2 if settings["filter"] != 2 else 3
    return f"images are resized by filter {settings['filter']}"


def normalization_missing(settings: dict[str, Any]) -> str | None:
    """Neither mean nor deviation is taken from the pixels."""
    if not settings.get("mean"):
        return None
    settings["mean"] = settings["std"] = None
    return "pixels have no mean and deviation"


def scale_missing(settings: dict[str, Any]) -> str | None:
    """Pixels are not scaled."""
    if not settings.get("scale"):
        return None
    settings["scale"] = 1.0
    return "pixels are not scaled"


def normalizer_dropped(tokenizer: dict[str, Any]) -> str | None:
    """The tokenizer keeps accents and capitals."""
    if not tokenizer.get("normalizer"):
        return None
    tokenizer["normalizer"] = None
    return "the tokenizer has no normalizer"


def words_swapped(tokenizer: dict[str, Any]) -> str | None:
    """The two last words of the vocabulary have each other's ids."""
    words = tokenizer.get("model", {}).get("vocab")
    if not isinstance(words, dict) or len(words) < 2:
        return None
    left, right = sorted(words, key=words.__getitem__)[-2:]
    words[left], words[right] = words[right], words[left]
    return f"{left!r} and {right!r} have each other's ids"


def ids_off_by_one(tokenizer: dict[str, Any]) -> str | None:
    """The words of the vocabulary, but for special ones, have the next one's ids."""
    vocabulary = tokenizer.get("model", {}).get("vocab")
    if not isinstance(vocabulary, dict):
        return None
    special = {token["content"] for token in tokenizer.get("added_tokens", ())}
    words = sorted((word for word in vocabulary if word not in special), key=vocabulary.__getitem__)
    ids = [vocabulary[word] for word in words]
    vocabulary.update(zip(words, [*ids[1:], ids[0]], strict=True))
    return f"the ids of {len(words)} words are off by one"


def ends_missing(tokenizer: dict[str, Any]) -> str | None:
    """The tokenizer adds no special tokens."""
    if not tokenizer.get("post_processor"):
        return None
    tokenizer["post_processor"] = None
    return "no special tokens are added"


FRONTS = tuple(
    _of_files(f"front-{name}", files, change)
    for name, files, change in (
        ("labels-shifted", _SETTINGS, labels_shifted),
        ("prefix-changed", _SETTINGS, case_changed),
        ("cut-shorter", _SETTINGS, cut_shorter),
        ("mean-changed", _SETTINGS, mean_changed),
        ("channels-swapped", _SETTINGS, channels_swapped),
        ("filter-changed", _SETTINGS, filter_changed),
        ("scale-missing", _SETTINGS, scale_missing),
        ("normalization-missing", _SETTINGS, normalization_missing),
        ("normalizer-dropped", (_TOKENIZER,), normalizer_dropped),
        ("words-swapped", (_TOKENIZER,), words_swapped),
        ("ids-off-by-one", (_TOKENIZER,), ids_off_by_one),
        ("ends-missing", (_TOKENIZER,), ends_missing),
    )
)
