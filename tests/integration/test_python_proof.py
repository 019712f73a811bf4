"""What the proof of a Python model finds: models of every character, asked in the processes that would serve them."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.admission.python_answers import ANSWERS, answer
from shiplift.runtime.admission.python_proving import prove
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.python.environments import readable
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.proof.file import from_file, sets_in
from tests.unit.examples import tensor

EXAMPLE = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
EXAMPLE[1] = -np.abs(EXAMPLE[1])  # a row on the other side of every condition below
EXAMPLE[0] = np.abs(EXAMPLE[0])
# In place of `guest/python/pyfunc.py`, so that no process has to import MLflow.
SERVED = """
import datetime
import time
import numpy as np

class Unservable(ValueError):
    pass

def load(settings):
    return Model(settings["model"])

class Model:
    def __init__(self, kind):
        self.answer, self.calls = getattr(self, kind), 0

    def doubling(self, inputs):
        return {"y": 2 * inputs["x"]}

    def strict(self, inputs):
        if not np.isfinite(inputs["x"]).all():
            raise ValueError("no numbers")
        return {"y": inputs["x"].sum(axis=1), "text": np.array(["yes"] * len(inputs["x"]), dtype=object)}

    def centring(self, inputs):
        return {"y": inputs["x"] - inputs["x"].mean(axis=0, keepdims=True)}

    def singular(self, inputs):
        if len(inputs["x"]) > 1:
            raise ValueError("one at a time")
        return {"y": inputs["x"]}

    def sampling(self, inputs):
        return {"y": inputs["x"] + np.random.default_rng().normal()}

    def counting(self, inputs):
        self.calls += 1
        return {"y": inputs["x"] + (self.calls > 20)}

    def silent(self, inputs):
        if (inputs["x"][:, 0] < 0).any():
            raise Unservable("predict answered None as 'y'")
        return {"y": inputs["x"]}

    def changing(self, inputs):
        return {"y": inputs["x"] if inputs["x"][0, 0] < 0 else inputs["x"].astype(str).astype(object)}

    def remembering(self, inputs):
        before, self.last = getattr(self, "last", inputs["x"][-1:]), inputs["x"][-1:]
        return {"y": inputs["x"] + before}

    def silent_for_some(self, inputs):
        if not np.isfinite(inputs["x"]).all():
            raise Unservable("predict answered None as 'y'")
        return {"y": inputs["x"]}

    def changing_for_some(self, inputs):
        return {"y": inputs["x"] if np.isfinite(inputs["x"]).all() else inputs["x"].astype(str).astype(object)}

    def unknown_for_some(self, inputs):
        return {"y": np.where(inputs["x"] < 0, np.nan, inputs["x"])}

    def dated(self, inputs):
        return {"y": inputs["x"] + datetime.date.today().month}

    def weekly(self, inputs):
        return {"y": inputs["x"] + (datetime.datetime.now().weekday() > 4)}

    def slow(self, inputs):
        time.sleep(0.4 * len(inputs["x"]))
        return {"y": inputs["x"]}
"""


def judged(folder: Path, kind: str) -> dict[str, Any]:
    """The verdict on a model of a kind, and where its reference is."""
    served = folder / "stub.py"
    served.write_text(SERVED)
    return proved(folder, write_bundle(folder / "code", served), kind)


def proved(folder: Path, code: Path, model: str, *read: str) -> dict[str, Any]:
    """The verdict on what the host's code serves, and where its reference is."""
    example, environment = folder / "example.npz", Path(sys.prefix)
    example.write_bytes(dump_npz({"x": EXAMPLE}))
    inputs = [tensor("x", -1, 2).model_dump(mode="json")]
    recorded = answer(
        code=str(code),
        environment=str(environment),
        model=model,
        read=[*readable(environment, code), *read],
        example=str(example),
        known=None,
        inputs=inputs,
        outputs=[],
        memory_mb=2048,
        limit_s=60,
        allow_without=[],
        out=str(folder),
    )
    for unasked in ("answer", "answers_as"):  # of what form it is, which no proof asks
        recorded.pop(unasked)
    return prove(answers=str(folder / ANSWERS), inputs=inputs, out=str(folder), **recorded)


def test_a_model_is_asked_in_every_setting_with_rows_that_it_refuses_among_them(tmp_path: Path) -> None:
    result = judged(tmp_path, "strict")
    asked = {each["origin"]: each["rows"] for each in result["proof"]["asked"]}
    assert asked["example"] >= len(EXAMPLE)
    assert min(asked["missing"], asked["infinite"], asked["zero"], asked["range"]) > 0
    settings = {each["name"]: each["rows"] for each in result["proof"]["settings"]}
    assert settings["alone"] == sum(asked.values())
    assert 0 < settings["in batches"] < settings["alone"]  # of the others each is an error by itself
    assert settings["at every place of a batch"] == 49
    assert result["notes"] == []
    assert [(spec["name"], spec["datatype"], spec["shape"]) for spec in result["signature"]["outputs"]] == [
        ("y", "FP32", [-1]),
        ("text", "BYTES", [-1]),
    ]
    np.testing.assert_allclose(load_npz(tmp_path / "reference.npz")["output/y"], EXAMPLE.sum(axis=1))


@pytest.mark.slow
def test_an_exported_program_of_torch_loads_where_nothing_can_be_written(tmp_path: Path) -> None:
    import mlflow
    import torch

    class Doubling(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    model = tmp_path / "model"
    signature = mlflow.models.infer_signature(EXAMPLE, EXAMPLE)
    mlflow.pytorch.save_model(Doubling(), model, signature=signature, input_example=EXAMPLE, serialization_format="pt2")
    assert proved(tmp_path, write_bundle(tmp_path / "code"), str(model), str(model))["notes"] == []
    np.testing.assert_allclose(load_npz(tmp_path / "reference.npz")["output/output"], 2 * EXAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [("centring", "the original answers 0.0 for 'y', column 0"), ("singular", "one at a time")],
)
def test_a_model_whose_rows_mix_is_told_to_get_one_at_a_time(tmp_path: Path, kind: str, told: str) -> None:
    result = judged(tmp_path, kind)
    assert told in result["notes"][0]
    assert not result["proof"]["batches"]
    assert result["signature"]["inputs"][0]["shape"] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("sampling", r"not repeatable: to row 0 of the example rows \(asked again, after other rows\)"),
        ("counting", r"not repeatable: to row 0 of the example rows \(asked again, after other rows\)"),
        ("remembering", r"not repeatable: to row 0 of the example rows"),
        ("silent", r"can't be served: row 1 of the example rows: predict answered None as 'y'"),
        (
            "changing",
            r"can't be served: row 1 of the example rows: 'y' is float32, the first row has object",
        ),
        ("dated", r"depend on when it is asked: to row \d of the \w+ rows .* whose clock was set ahead"),
        ("weekly", r"depend on when it is asked: to row \d of the \w+ rows .* whose clock was set ahead"),
    ],
)
def test_a_model_that_nobody_can_rely_on_is_refused(tmp_path: Path, kind: str, told: str) -> None:
    with pytest.raises(ExportFailed, match=told):
        judged(tmp_path, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("silent_for_some", "predict answered None as 'y'"),
        ("changing_for_some", "'y' is object, the first row has float32"),
        ("unknown_for_some", ""),
    ],
)
def test_rows_that_nobody_gave_may_have_no_answer_and_numbers_may_be_missing(
    tmp_path: Path, kind: str, told: str
) -> None:
    result = judged(tmp_path, kind)
    assert result["proof"]["batches"]
    assert [told in note for note in result["notes"]] == ([True] if told else [])
    kept = load_npz(tmp_path / "asked.npz")
    right = [from_file(kept, name)[1] for name in sets_in(kept)]
    assert all(each.answered.all() for each in right)
    assert sum(len(each.errors) for each in right) >= len(EXAMPLE)


@pytest.mark.slow
def test_a_slow_model_is_asked_fewer_rows_and_the_rest_is_told(tmp_path: Path) -> None:
    proof = judged(tmp_path, "slow")["proof"]
    assert proof["batches"]
    assert {each["name"]: each["rows"] for each in proof["settings"]}["at every place of a batch"] == 9
    assert any("were not asked: each takes about 0.4" in reason for reason in proof["left_out"])
