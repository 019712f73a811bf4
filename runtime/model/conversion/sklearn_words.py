"""Words of texts in a graph: found as scikit-learn finds them, and lowered in a locale that every machine has.

ONNX Runtime takes en_US.UTF-8 if a graph names none, which most images and many servers lack, and then loads no such
graph. C.UTF-8 has the same rules for upper and lower case, those of Unicode, and comes with the C library.
"""

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import helper

LOCALE = "C.UTF-8"
_USUAL = r"(?u)\b\w\w+\b"  # scikit-learn's default
_WORD = r"[\p{L}\p{N}_]{2,}"  # the same for ONNX Runtime; skl2onnx's own knows no letters but those of English


def options(model: Any) -> dict[int, dict[str, str]]:
    """What skl2onnx is to be told about the vectorizers within a model, by their ids."""
    return {
        id(part): {"tokenexp": _WORD} for part in _parts(model, set()) if getattr(part, "token_pattern", "") == _USUAL
    }


def in_every_locale(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, changed in place, whose operators name a locale that needs no installation."""
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            kept = [attribute for attribute in node.attribute if attribute.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("locale", LOCALE)])
    return model


def _parts(value: Any, seen: set[int]) -> Iterator[Any]:
    """The fitted vectorizers in a model, however deep."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item, seen)
    elif hasattr(value, "get_params"):
        if hasattr(value, "vocabulary_") and getattr(value, "analyzer", "") == "word" and value.tokenizer is None:
            yield value
        for item in vars(value).values():
            yield from _parts(item, seen)
