"""Pipelines of models that several tests begin with: the text of a definition, and packages for its members."""

from typing import Any

from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.tensor import Signature, TensorSpec
from tests.unit.examples import artifact, config, package, tensor

STATIC = """
name: ranked
inputs: {x: {datatype: FP32, shape: [-1, 4]}}
outputs: {label: {datatype: INT64, shape: [-1, 1]}}
members:
  encode: {model: encoder}
  classify: {model: classifier, version: 3, follow: pinned}
steps:
  embed:
    member: encode
    inputs: {input: x}
    outputs: {features: embedding}
  rank:
    member: classify
    inputs: {features: embedding}
    outputs: {label: label}
"""
CASCADE = """
name: cascade
inputs: {x: {datatype: FP32, shape: [1, 4]}}
outputs: {score: {datatype: FP32, shape: [1, 3]}}
members:
  small: {model: small}
  large: {model: large}
steps:
  guess:
    member: small
    inputs: {input: x}
    outputs: {score: quick, confidence: confidence}
  think:
    member: large
    inputs: {input: x}
    outputs: {score: score}
    when: {tensor: confidence, below: 0.8}
    otherwise: {score: quick}
    on_error: skip
"""
OCR = """
name: ocr
admission: {python: sandbox}
inputs: {image: {datatype: UINT8, shape: [1, -1, -1, 3]}}
outputs: {text: {datatype: BYTES, shape: [1, 1]}}
members:
  detect: {model: ocr-detect}
  recognise: {model: ocr-recognise}
steps:
  find:
    member: detect
    inputs: {image: image}
    outputs: {heat: heat}
    timeout_s: 5
  crop:
    python: crop.py
    inputs: {image: image, heat: heat}
    outputs: {lines: {datatype: FP32, shape: [-1, 3, 48, 320]}}
  read:
    member: recognise
    inputs: {x: lines}
    outputs: {logits: logits}
    for_each: {over: lines, max: 64}
    on_error: default
    defaults: {logits: {value: 0, shape: [1, 40, 97]}}
  vote:
    python: vote.py
    function: best
    inputs: {logits: logits}
    outputs: {text: {datatype: BYTES, shape: [1, 1]}}
"""
SOURCES = {"crop.py": b"def crop(image, heat): ...", "vote.py": b"def best(logits): ..."}


def member(model: str, inputs: list[TensorSpec], outputs: list[TensorSpec], **changes: Any) -> Package:
    return package(model=model, signature=Signature(inputs=tuple(inputs), outputs=tuple(outputs)), **changes)


def members() -> dict[str, Package]:
    """The packages of the members of all three."""
    return {
        "encode": member("encoder", [tensor("input", -1, 4)], [tensor("features", -1, 8)]),
        "classify": member(
            "classifier",
            [tensor("features", -1, 8)],
            [tensor("label", -1, datatype="INT64")],
            version=3,
            config=config(max_batch=4),
            repository=artifact("b", kind="tree"),
        ),
        "small": member("small", [tensor("input", -1, 4)], [tensor("score", -1, 3), tensor("confidence", -1)]),
        "large": member("large", [tensor("input", -1, 4)], [tensor("score", -1, 3)]),
        "detect": member(
            "ocr-detect", [tensor("image", 1, -1, -1, 3, datatype="UINT8")], [tensor("heat", 1, 1, -1, -1)]
        ),
        "recognise": member("ocr-recognise", [tensor("x", -1, 3, 48, -1)], [tensor("logits", -1, -1, 97)]),
    }
