"""Part a: texts with accents, and authors' Python that mixes, samples, remembers or answers oddly."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.proof.case import Case, Logged
from benchmarks.proof.cases.making import probabilities, trusted_types
from benchmarks.proof.cases.right_sklearn import made
from benchmarks.proof.cases.right_texts import SANDBOX, floats, python, texts


def _words(vectorizer: str, **settings: Any) -> Callable[[Path], Logged]:
    """Words counted or weighed, then a logistic regression; pyfunc gives a data frame of one column as texts."""

    def build(_: Path) -> Logged:
        import pandas as pd
        from mlflow.models import infer_signature
        from sklearn.compose import ColumnTransformer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        words = made(f"feature_extraction.text.{vectorizer}", **settings)()
        model = make_pipeline(ColumnTransformer([("words", words, "text")]), LogisticRegression())
        known = pd.DataFrame({"text": texts(300, 1)})
        model.fit(known, [len(text) % 3 for text in known["text"]])
        return Logged(
            model=model,
            options={
                "signature": infer_signature(known.head(), model.predict(known.head())),
                "input_example": known.head(),
                "skops_trusted_types": trusted_types(model),
            },
            rows=lambda count, seed: pd.DataFrame({"text": texts(count, seed)}),
            more=probabilities,
        )

    return build


def _model(body: str) -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"""\
import mlflow
import numpy as np


class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
{lines}


mlflow.models.set_model(Model())
"""


_CODES = {
    "centred": ("centring by the batch", "return model_input - model_input.mean(axis=0)"),
    "ranked": ("ranks within the batch", "return np.argsort(np.argsort(model_input[:, 0])).astype(np.float32)"),
    "sampling": ("it samples", "return model_input[:, 0] + np.random.default_rng().normal(size=len(model_input))"),
    "counting": (
        "it counts its calls",
        "self.calls = getattr(self, 'calls', 0) + 1\nreturn model_input[:, 0] + self.calls",
    ),
    "nan": ("NaN for some rows", "return np.where(model_input[:, 0] > 0, np.sqrt(np.abs(model_input[:, 1])), np.nan)"),
    "none": ("None for some rows", "return [float(row[1]) if row[0] > 0 else None for row in model_input]"),
    "types": ("texts for some rows", "return ['many' if row[0] > 3 else float(row[0]) for row in model_input]"),
    "raising": (
        "it raises for some rows",
        "if (model_input[:, 0] < -4).any():\n    raise ValueError('too small')\nreturn model_input[:, 0] * 2",
    ),
    "widths": (
        "texts of any length",
        "return np.array(['x' * int(abs(row[0])) for row in model_input])",
    ),
    "whole": ("whole numbers beyond 2^53", "return (model_input[:, 0] * 1000).astype(np.int64) * (2**53 + 1)"),
}
_MIXING = ("centred", "ranked", "sampling", "counting", "types", "raising", "widths")

_text = partial(Case, part="a", flavor="sklearn")
WRONG_TEXTS: tuple[Case, ...] = (
    _text(name="a-text-count", about="CountVectorizer, accents", build=_words("CountVectorizer")),
    _text(name="a-text-tfidf", about="TfidfVectorizer, accents", build=_words("TfidfVectorizer")),
    _text(
        name="a-text-stripped",
        about="accents are stripped",
        build=_words("CountVectorizer", strip_accents="unicode"),
    ),
    _text(
        name="a-text-characters",
        about="characters within words",
        build=_words("TfidfVectorizer", analyzer="char_wb", ngram_range=(2, 3)),
    ),
    _text(
        name="a-text-pairs",
        about="pairs of words, capitals kept",
        build=_words("CountVectorizer", lowercase=False, ngram_range=(1, 2), binary=True),
    ),
    *(
        Case(
            name=f"a-python-{name}",
            part="a",
            flavor="pyfunc",
            about=about,
            build=python(_model(body), floats(8, 0), floats),
            spec=SANDBOX,
            forms=("python",),
            alone=name in _MIXING,
        )
        for name, (about, body) in _CODES.items()
    ),
)
