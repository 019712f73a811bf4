import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shiplift.runtime.admission.conversion import convert
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import graphs, loaders
from shiplift.runtime.model.samples import BATCHES
from shiplift.runtime.model.tensors import Arrays, dump_npz, feeds, load_npz
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Conversion
from tests.unit.examples import perceptron, save, signature, tensor

EXAMPLE = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


class Logged:
    """A model logged as ONNX, and its conversion in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "source"
        self.work = folder / "work"
        self.example: Arrays = {"input": EXAMPLE}
        self.promised = signature()
        self.file = perceptron(self.folder / "model.onnx")
        (self.folder / "MLmodel").write_text("flavors: {onnx: {data: model.onnx}}\n")
        (folder / "example.npz").touch()

    def convert(self, **settings: Any) -> dict[str, Any]:
        example = self.folder.parent / "example.npz"
        example.write_bytes(dump_npz(self.example))
        return convert(
            folder=str(self.folder),
            flavor="onnx",
            signature=self.promised.model_dump(mode="json"),
            example=str(example),
            out=str(self.work),
            settings=Conversion(**settings).model_dump(mode="json"),
            tabular=False,
            seed=1,
        )

    @property
    def answers(self) -> Arrays:
        return load_npz(self.work / "answers.npz")

    @property
    def model(self) -> Any:
        return onnx.load(self.work / "model" / "model.onnx")


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    return Logged(tmp_path)


def test_the_original_s_answers_are_noted_for_the_example_and_every_batch_size(logged: Logged) -> None:
    result = logged.convert()
    assert result["sets"] == ["example", *(f"random-{size}" for size in BATCHES)]
    assert Signature.model_validate(result["graphs"][0]["signature"]) == signature()
    sizes = {"example": 3, **{f"random-{size}": size for size in BATCHES}}
    for name, size in sizes.items():
        assert logged.answers[f"{name}/input/input"].shape == (size, 4)
        assert logged.answers[f"{name}/output/output"].shape == (size, 3)
    np.testing.assert_array_equal(logged.answers["example/input/input"], EXAMPLE)


def test_the_written_model_answers_as_the_original_did(logged: Logged) -> None:
    logged.convert()
    running = onnx_models.session(logged.work / "model" / "model.onnx")
    for name in ("example", *(f"random-{size}" for size in BATCHES)):
        got = onnx_models.answer(running, {"input": logged.answers[f"{name}/input/input"]})["output"]
        assert onnx_models.differences(logged.answers[f"{name}/output/output"], got)[0] < 1e-6


def test_the_same_version_is_converted_to_the_same_bytes(logged: Logged) -> None:
    logged.convert()
    first = (logged.work / "model" / "model.onnx").read_bytes(), logged.answers.keys()
    logged.convert()
    assert ((logged.work / "model" / "model.onnx").read_bytes(), logged.answers.keys()) == first


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_weights_too_large_for_one_file_are_streamed_beside_it(
    logged: Logged, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Wherever they lay: in folders, in several files. What is small is written into the model itself."""
    monkeypatch.setattr(graphs, "INLINE_BYTES", limit)
    model = onnx.load(logged.file)
    (logged.folder / "data").mkdir()
    for at, weight in enumerate(model.graph.initializer):
        onnx.external_data_helper.set_external_data(weight, f"data/w{at}", offset=0, length=len(weight.raw_data))
        (logged.folder / "data" / f"w{at}").write_bytes(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
    logged.file.write_bytes(model.SerializeToString())
    logged.convert(postprocess=["softmax"])
    written = sorted(path.name for path in (logged.work / "model").iterdir())
    assert written == (["model.onnx"] if limit else ["model.onnx", "weights-0.bin", "weights-1.bin"])
    running = onnx_models.session(logged.work / "model" / "model.onnx")
    got = onnx_models.answer(running, {"input": EXAMPLE})["probabilities"]
    np.testing.assert_allclose(got, logged.answers["example/output/probabilities"], rtol=1e-5)


def test_postprocessing_is_in_the_graph_and_in_the_answers(logged: Logged) -> None:
    logged.convert(postprocess=["softmax", "top_k"], top_k=2)
    assert [output.name for output in logged.model.graph.output] == ["top_scores", "top_labels"]
    assert logged.answers["example/output/top_labels"].shape == (3, 2)


def test_only_a_pytorch_model_has_a_torchscript_form(logged: Logged) -> None:
    with pytest.raises(ExportFailed, match="only PyTorch models have a TorchScript form"):
        logged.convert(torchscript=True)


def branching(logged: Logged) -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in ("input", "same", "twice")]
    nodes = [helper.make_node("Identity", ["input"], ["same"]), helper.make_node("Add", ["input", "input"], ["twice"])]
    save(helper.make_graph(nodes, "g", values[:1], values[1:]), logged.file)


def test_only_the_outputs_asked_for_are_kept_in_the_order_asked(logged: Logged) -> None:
    branching(logged)
    logged.convert(outputs=["twice"])
    assert [output.name for output in logged.model.graph.output] == ["twice"]
    np.testing.assert_array_equal(logged.answers["example/output/twice"], 2 * EXAMPLE)
    logged.convert(outputs=["twice", "same"])
    assert [output.name for output in logged.model.graph.output] == ["twice", "same"]


def test_an_output_that_the_model_does_not_have_is_told_with_those_it_has(logged: Logged) -> None:
    branching(logged)
    with pytest.raises(ExportFailed, match=r"export\.outputs names thrice; the model has same, twice"):
        logged.convert(outputs=["thrice"])


def test_nothing_of_the_author_s_machine_stays_in_the_graph(logged: Logged) -> None:
    model = onnx.load(logged.file)
    model.doc_string = model.graph.node[0].doc_string = "/home/ana/project/train.py"
    onnx.save(model, logged.file)
    logged.convert()
    assert b"/home/ana" not in (logged.work / "model" / "model.onnx").read_bytes()


def test_a_batch_of_one_in_the_graph_is_freed(logged: Logged) -> None:
    model = onnx.load(logged.file)
    model.graph.output[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    onnx.save(model, logged.file)
    logged.convert()
    shape = logged.model.graph.output[0].type.tensor_type.shape
    assert shape.dim[0].dim_param == "batch"


def fixed(logged: Logged, size: int) -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size, 4]) for n in ("input", "output")]
    save(
        helper.make_graph([helper.make_node("Identity", ["input"], ["output"])], "g", values[:1], values[1:]),
        logged.file,
    )


@pytest.mark.parametrize("size", [2, 7])
def test_a_model_of_one_batch_size_does_not_convert(logged: Logged, size: int) -> None:
    fixed(logged, size)
    logged.example = {"input": EXAMPLE[:1].repeat(size, axis=0)}
    with pytest.raises(ExportFailed, match=r"does not answer a batch of|has the fixed batch size"):
        logged.convert()


def test_text_goes_through(logged: Logged) -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.STRING, ["batch", 1]) for n in ("input", "output")]
    save(
        helper.make_graph([helper.make_node("Identity", ["input"], ["output"])], "g", values[:1], values[1:]),
        logged.file,
    )
    logged.promised = Signature(
        inputs=(tensor("input", -1, 1, datatype="BYTES"),), outputs=(tensor("output", -1, 1, datatype="BYTES"),)
    )
    logged.example = {"input": np.array([["ä"], ["b"]], dtype=object)}
    logged.convert()
    assert logged.answers["example/output/output"].tolist() == [["ä"], ["b"]]
    assert set(logged.answers["random-7/output/output"].ravel()) <= {"ä", "b"}


def test_a_model_that_does_not_load_says_why_and_what_to_try(logged: Logged) -> None:
    logged.file.write_bytes(b"not a model")
    with pytest.raises(ExportFailed, match="the model does not load: ") as error:
        logged.convert()
    assert "ONNX" in error.value.do


def test_arrays_are_fed_by_name_and_else_in_their_order() -> None:
    specs = (tensor("a", -1), tensor("b", -1, datatype="INT64"))
    first, second = np.ones(1), np.zeros(1)
    by_name = feeds({"b": second, "a": first}, specs)
    assert (by_name["a"].tolist(), by_name["b"].tolist(), by_name["b"].dtype) == ([1], [0], np.dtype(np.int64))
    by_order = feeds({"x": first, "y": second}, specs)
    assert (by_order["a"].tolist(), by_order["b"].tolist()) == ([1], [0])


@pytest.mark.parametrize("objective", ["multiclass", "binary", "regression"])
def test_a_booster_answers_in_onnx_as_it_does_itself(tmp_path: Path, objective: str) -> None:
    import lightgbm
    import mlflow.lightgbm
    from sklearn.datasets import load_digits

    data = load_digits()
    rows, labels = (data.data / 16).astype(np.float32)[:300], data.target[:300]
    targets = labels % 2 if objective == "binary" else labels
    parameters = {"objective": objective, "verbose": -1} | ({"num_class": 10} if objective == "multiclass" else {})
    model = lightgbm.train(parameters, lightgbm.Dataset(rows, targets), 5)
    mlflow.lightgbm.save_model(model, str(tmp_path / "model"), pip_requirements=[])
    promised = (tensor("input", -1, 64),)
    original = loaders.load(tmp_path / "model", "lightgbm", promised, (), tabular=False)
    onnx.save(original.to_onnx({"input": rows}, 20, tmp_path), tmp_path / "made.onnx")
    answers = original.answer({"input": rows})
    got = onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), {"input": rows})
    second = ["probability"] if objective == "binary" else []
    names = ["variable"] if objective == "regression" else ["label", "probabilities", *second]
    assert set(got) == set(answers) == set(names)
    for name, wanted_ in answers.items():
        np.testing.assert_allclose(got[name], wanted_, atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        "SVC",
        pytest.param("LinearSVC", marks=pytest.mark.slow),
        pytest.param("RidgeClassifier", marks=pytest.mark.slow),
        pytest.param("SGDClassifier", marks=pytest.mark.slow),
        "a pipeline",
    ],
)
def test_a_classifier_without_probabilities_answers_labels_alone(tmp_path: Path, kind: str) -> None:
    """skl2onnx adds scores, which the model itself does not answer."""
    import mlflow.sklearn
    from sklearn.datasets import load_digits
    from sklearn.linear_model import RidgeClassifier, SGDClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC, LinearSVC

    kinds = {
        "SVC": SVC(),
        "LinearSVC": LinearSVC(),
        "RidgeClassifier": RidgeClassifier(),
        "SGDClassifier": SGDClassifier(),
        "a pipeline": make_pipeline(StandardScaler(), LinearSVC()),
    }
    data = load_digits()
    rows = (data.data / 16).astype(np.float32)[:300]
    model = kinds[kind].fit(rows, data.target[:300])
    mlflow.sklearn.save_model(model, str(tmp_path / "model"), pip_requirements=[], serialization_format="cloudpickle")
    original = loaders.load(tmp_path / "model", "sklearn", (tensor("input", -1, 64),), (), tabular=False)
    onnx.save(original.to_onnx({"input": rows}, 20, tmp_path), tmp_path / "made.onnx")
    answers = original.answer({"input": rows})
    got = onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), {"input": rows})
    assert list(got) == list(answers) == ["label"]
    np.testing.assert_array_equal(got["label"], answers["label"])


LOADED = """
import importlib.util, pathlib, sys
from shiplift.runtime.model.conversion import loaders
loaders.load(pathlib.Path(sys.argv[1]), "sklearn", (), (), tabular=False)
print("skops" in sys.modules, "torch" in sys.modules)
assert importlib.util.find_spec("sklearn.externals.array_api_compat.torch")
"""


@pytest.mark.slow
def test_loading_a_scikit_learn_model_imports_no_torch(tmp_path: Path) -> None:
    """skops would, by a walk through all of scikit-learn; other code still gets the shim for torch's arrays."""
    import mlflow.sklearn
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    mlflow.sklearn.save_model(model, str(tmp_path / "model"), serialization_format="skops", pip_requirements=[])
    allowed = {**os.environ, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "true"}
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path / "model")], check=True, capture_output=True, text=True, env=allowed
    )
    assert loaded.stdout.split() == ["True", "False"]
