import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.feature_extraction.text import CountVectorizer

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion.locales import LOCALE, in_every_locale


def test_texts_are_lowered_on_a_machine_that_has_no_locale_but_the_c_library_s() -> None:
    texts = np.array(["Hello WORLD", "hello", "ÄRGER and ärger", ""], dtype=object)
    counts = CountVectorizer(token_pattern=r"[a-zA-Zä]+").fit(texts)
    converted = to_onnx(counts, initial_types=[("x", StringTensorType([None, 1]))])
    graph = in_every_locale(in_every_locale(converted))
    named = [a.s.decode() for node in graph.graph.node for a in node.attribute if a.name == "locale"]
    assert named == [LOCALE]
    answers = onnx_models.answer(onnx_models.session(graph.SerializeToString()), {"x": texts.reshape(-1, 1)})
    np.testing.assert_array_equal(next(iter(answers.values())), counts.transform(texts).toarray())
