"""What the packaged server is asked: by kind of model, the requests that the export compared."""

from typing import Any

import numpy as np

from shiplift.runtime.families.packaging.questions import of_reference
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.file import from_file, sets_in
from shiplift.runtime.records.tensor import Signature, TensorSpec

TEXTS = np.array([["été"], ["👍🏽"], [""]], dtype=object)
TEXT = TensorSpec(name="text", datatype="BYTES", shape=(-1, 1))


def kept(reference: Any, outputs: tuple[TensorSpec, ...], inputs: tuple[TensorSpec, ...] = (TEXT,)) -> list[Any]:
    """The sets in the file that an export's reference becomes."""
    signature = Signature(inputs=inputs, outputs=outputs)
    arrays = load_npz(dump_npz(of_reference(reference, signature)))
    return [from_file(arrays, name) for name in sets_in(arrays)]


def test_texts_are_asked_in_one_set_and_numbers_in_their_json_may_be_rounded() -> None:
    found = np.array([['[{"score": 0.25}]'], ["[]"], ["[]"]], dtype=object)
    reference = {"input/text": TEXTS, "output/entities": found, "graph/input/ids": np.ones((8, 4))}
    ((questions, right),) = kept(reference, (TensorSpec(name="entities", datatype="BYTES", shape=(-1, 1)),))
    assert questions.inputs["text"].ravel().tolist() == TEXTS.ravel().tolist()
    assert questions.origins == ("example",) * 3
    for text, same in (('[{"score": 0.2501}]', True), ('[{"score": 0.26}]', False), ("[]", False)):
        served = type(right).of({"entities": np.array([[text], ["[]"], ["[]"]], dtype=object)})
        assert compare(right, served, questions.origins).same is same


def test_made_texts_are_a_set_of_their_own_and_features_are_judged_by_what_is_usual_in_both() -> None:
    reference = {
        "input/text": TEXTS,
        "output/features": np.ones((3, 7, 2), np.float32),
        "made/input/text": TEXTS[:2],
        "made/output/features": np.full((2, 4, 2), [100, 1], np.float32),
    }
    spec = TensorSpec(name="features", datatype="FP32", shape=(-1, -1, 2))
    (author, right), (made, _) = kept(reference, (spec,))
    assert (author.origins, made.origins) == (("example",) * 3, ("made",) * 2)
    for column, off, same in ((0, 5e-3, True), (1, 5e-3, False), (1, 1e-4, True)):
        served = np.ones((3, 7, 2), np.float32)
        served[1, 5, column] += off
        assert compare(right, type(right).of({"features": served}), author.origins).same is same


def test_prompts_are_asked_with_the_settings_that_make_their_answers_sure() -> None:
    outputs = {f"output/{spec.name}": np.ones((3, 1), np.int32) for spec in SIGNATURE.outputs}
    inputs = {"input/prompt": TEXTS, "input/max_tokens": np.full((3, 1), 8), "input/temperature": np.zeros((3, 1))}
    ((questions, right),) = kept(
        inputs | outputs | {"limit/max_tokens": np.ones((3, 1))}, SIGNATURE.outputs, SIGNATURE.inputs
    )
    assert set(questions.inputs) == {"prompt", "max_tokens", "temperature"}
    assert set(right.outputs) == {"text", "finish_reason", "tokens", "prompt_tokens"}
