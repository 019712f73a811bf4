"""Words of texts in a graph: found as scikit-learn finds them, and lowered in a locale that every machine has.

ONNX Runtime takes en_US.UTF-8 if a graph names none, which most images and many servers lack, and then loads no such
graph. C.UTF-8 has the same rules for upper and lower case, those of Unicode, and comes with the C library.
"""

from typing import Any

import onnx
from onnx import helper

from shiplift.runtime.model.conversion.sklearn_trees import within

LOCALE = "C.UTF-8"
_USUAL = r"(?u)\b\w\w+\b"  # scikit-learn's default
_WORD = r"[\p{L}\p{N}_]{2,}"  # the same for ONNX Runtime; skl2onnx's own knows no letters but those of English


def options(model: Any) -> dict[int, dict[str, str]]:
    """What skl2onnx is to be told about the vectorizers within a model, by their ids."""
    return {id(part): {"tokenexp": _WORD} for part in within(model) if _finds_words(part)}


def _finds_words(part: Any) -> bool:
    """Whether it is a fitted vectorizer of words as scikit-learn finds them by default."""
    fitted = hasattr(part, "vocabulary_") and getattr(part, "analyzer", "") == "word" and part.tokenizer is None
    return fitted and bool(part.token_pattern == _USUAL)


def in_every_locale(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, changed in place, whose operators name a locale that needs no installation."""
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            kept = [attribute for attribute in node.attribute if attribute.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("locale", LOCALE)])
    return model
