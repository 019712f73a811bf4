"""Part c: texts, images and Python."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.proof.case import Case, Logged
from benchmarks.zoo.cases.huggingface import _ranked, _scored
from shiplift.runtime.model.tensors import Arrays
from tests import huggingface

_NEEDS = ("transformers", "sentence_transformers")
_WORDS = [
    *[
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "lazy",
        "dog",
        "a",
        "good",
        "film",
        "Anna",
        "lives",
        "in",
        "Paris",
        "and",
        "works",
        "for",
        "Acme",
    ],
    *(
        "café",
        "naïve",
        "Łódź",
        "straße",
        "東京",
        "😀",
        "e\u0301tude",
        "ΑΘΗΝΑ",
        "İstanbul",
        "don't",
        "e-mail",
        "42",
        "3.14",
    ),
]
_ENDS = ["", " ", "  two  spaces ", "UPPER lower", "\ttab", "a" * 200, "dot. dot, dot!", "\u200bzero", "ﬁne"]


def texts(count: int, seed: int) -> list[str]:
    """Texts of 1 to 12 words, some with accents, other scripts, emoji and odd ends."""
    rng = np.random.default_rng(seed)
    made = [" ".join(rng.choice(_WORDS, rng.integers(1, 13))) for _ in range(count)]
    odd = rng.choice(len(_ENDS), count)
    return [f"{text}{_ENDS[end]}" if rng.random() < 0.1 else text for text, end in zip(made, odd, strict=True)]


def _pipeline(task: str, answer: Callable[[Any], Arrays], **settings: Any) -> Callable[[Path], Logged]:
    def build(_: Path) -> Logged:
        return Logged(model=huggingface.pipeline(task, **settings), rows=texts, answer=answer)

    return build


def _sentences(folder: Path) -> Logged:
    return Logged(
        model=huggingface.sentence_encoder(folder / "encoder"),
        rows=texts,
        answer=lambda prediction: {"embeddings": np.asarray(prediction)},
    )


def _images(_: Path) -> Logged:
    def pictures(count: int, seed: int) -> list[str]:
        rng = np.random.default_rng(seed)
        sizes = rng.integers(8, 90, (count, 2)).tolist()
        kinds = rng.choice(["JPEG", "PNG"], count)
        return [
            base64.b64encode(huggingface.image_file(width, height, str(kind))).decode()
            for (width, height), kind in zip(sizes, kinds, strict=True)
        ]

    return Logged(
        model=huggingface.image_classifier(),
        options={"input_example": pictures(3, 0)},
        rows=pictures,
        answer=_ranked,
    )


_SUMS = """\
import mlflow


class Sums(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input * 2.5 + model_input.sum(axis=1, keepdims=True)


mlflow.models.set_model(Sums())
"""
_BILLS = """\
import mlflow
import pandas as pd


class Bills(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        total = model_input["amount"] * model_input["count"]
        return pd.DataFrame({"total": total, "text": model_input["name"] + " owes " + total.round().astype(str)})


mlflow.models.set_model(Bills())
"""
SANDBOX = "admission: {python: sandbox}\nexport: {memory_mb: 2048}"


def python(code: str, example: Any, rows: Callable[[int, int], Any]) -> Callable[[Path], Logged]:
    """A Python model in a file of its own."""

    def build(folder: Path) -> Logged:
        import pandas as pd

        file = folder / "model.py"
        file.write_text(code)
        requirements = [f"numpy=={np.__version__}"]
        requirements += [f"pandas=={pd.__version__}"] if "pandas" in code else []
        return Logged(
            options={"python_model": str(file), "input_example": example, "pip_requirements": requirements}, rows=rows
        )

    return build


def floats(count: int, seed: int) -> Any:
    """Rows of 4 numbers."""
    return np.random.default_rng(seed).normal(scale=3, size=(count, 4)).astype(np.float32)


def _bills(count: int, seed: int) -> Any:
    import pandas as pd

    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "name": rng.choice(["Ada", "Bób", "Ève", ""], count),
            "amount": rng.normal(scale=100, size=count),
            "count": rng.integers(-3, 10, count),
        }
    )


def _case(name: str, flavor: str, about: str, build: Callable[[Path], Logged], **fields: Any) -> Case:
    return Case(name=name, part="c", flavor=flavor, about=about, build=build, **fields)


RIGHT_TEXTS: tuple[Case, ...] = (
    _case(
        "text-classifier",
        "transformers",
        "a text classifier",
        _pipeline("text-classification", _scored),
        needs=_NEEDS,
    ),
    _case("text-sentences", "sentence_transformers", "a sentence encoder", _sentences, needs=_NEEDS),
    _case("image-classifier", "transformers", "an image classifier", _images, needs=_NEEDS, fresh=500),
    _case(
        "python-tensor",
        "pyfunc",
        "code on a tensor",
        python(_SUMS, floats(8, 0), floats),
        spec=SANDBOX,
        forms=("python",),
    ),
    _case(
        "python-frame",
        "pyfunc",
        "code on columns",
        python(_BILLS, _bills(8, 0), _bills),
        spec=SANDBOX,
        forms=("python",),
    ),
)
