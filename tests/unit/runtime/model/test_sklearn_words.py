from typing import Any

import numpy as np
import pytest
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import FeatureUnion, make_pipeline

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion.sklearn_words import LOCALE, in_every_locale, options

TEXTS = np.array(["Hello WORLD", "hello a b Straße", "ÄRGER and ärger", "x_1 \uff11\uff12 日本", ""], dtype=object)


@pytest.mark.parametrize(
    "vectorizer", [CountVectorizer(), CountVectorizer(ngram_range=(1, 2)), TfidfVectorizer(lowercase=False)]
)
def test_words_of_any_script_are_counted_as_by_scikit_learn_without_a_locale_to_install(vectorizer: Any) -> None:
    model = make_pipeline(vectorizer.fit(TEXTS))
    converted = to_onnx(model, initial_types=[("x", StringTensorType([None, 1]))], options=options(model))
    graph = in_every_locale(in_every_locale(converted))
    named = [a.s.decode() for node in graph.graph.node for a in node.attribute if a.name == "locale"]
    assert named == [LOCALE] * vectorizer.lowercase
    answers = onnx_models.answer(onnx_models.session(graph.SerializeToString()), {"x": TEXTS.reshape(-1, 1)})
    np.testing.assert_allclose(next(iter(answers.values())), vectorizer.transform(TEXTS).toarray(), rtol=1e-6)


def test_a_pattern_of_the_author_s_own_is_left_alone_and_others_are_found_at_any_depth() -> None:
    usual, own = CountVectorizer(), CountVectorizer(token_pattern=r"[a-z]+")
    union = FeatureUnion([("usual", usual), ("own", own), ("characters", CountVectorizer(analyzer="char"))])
    model = make_pipeline(ColumnTransformer([("words", make_pipeline(union), 0)]))
    model.fit(TEXTS.reshape(-1, 1))
    found = options(model)
    assert len(found) == 1
    assert id(usual) not in found  # scikit-learn fits a copy
