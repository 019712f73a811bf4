"""The locale in which a graph changes the case of texts: one that every machine has.

ONNX Runtime takes en_US.UTF-8 if a graph names none, which most images and many servers lack, and then loads no such
graph. C.UTF-8 has the same rules for upper and lower case, those of Unicode, and comes with the C library.
"""

import onnx
from onnx import helper

LOCALE = "C.UTF-8"


def in_every_locale(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, changed in place, whose operators name a locale that needs no installation."""
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            kept = [attribute for attribute in node.attribute if attribute.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("locale", LOCALE)])
    return model
