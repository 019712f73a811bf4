"""Every format that can be logged: admitted, exported in the sandbox, and verified against the original."""

import base64
import csv
import html
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.models import infer_signature
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from shiplift.runtime.base.errors import ExportFailed, NotAdmitted, SandboxLimit, ServerFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.records.kinds.exported import Exported, ExportedGraph
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.model import Conversion, Quality
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.admit import admit
from shiplift.steps.export import export
from tests.integration.conftest import FAST, Lab, digits, request

Log = Callable[..., Any]
TRUSTED = f"{FAST}\nadmission: {{pickle: sandbox}}"


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)).eval()


def images() -> Any:
    return digits()[0][:4].reshape(-1, 1, 8, 8)


def torch_as(lab: Lab, how: str) -> Log:
    model, x = network(), images()
    signature = infer_signature(x, model(torch.tensor(x)).detach().numpy())
    options: dict[str, Any] = {"signature": signature, "input_example": x}
    if how == "torchscript":
        model, options["input_example"] = torch.jit.script(model), None
    if how != "pt2":
        options["serialization_format"] = "pickle"
    return lambda **kwargs: lab.mlflow.pytorch.log_model(model, **options, **kwargs)


def sklearn_as(lab: Lab, how: str) -> Log:
    rows, labels = digits()
    if how == "regressor":
        model: Any = RandomForestRegressor(n_estimators=5, random_state=0).fit(rows[:200], labels[:200])
    else:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(rows[:200], labels[:200])
    options = {"signature": infer_signature(rows[:3], model.predict(rows[:3])), "input_example": rows[:3]}
    if how == "cloudpickle":
        options["serialization_format"] = "cloudpickle"
    else:
        options["skops_trusted_types"] = ["sklearn.tree._tree.Tree"] if how == "regressor" else None
    return lambda **kwargs: lab.mlflow.sklearn.log_model(model, **options, **kwargs)


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 200
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(np.float64),
            "income": rng.normal(3000, 500, n),
            "city": rng.choice(["Berlin", "Köln", "Ulm"], n),
        }
    )


def columns(lab: Lab) -> Log:
    """A pipeline over named columns, one of which is text."""
    frame = table()
    target = (frame["age"] + 20 * (frame["city"] == "Ulm") > 55).astype(np.int64)
    prepare = ColumnTransformer([("text", OneHotEncoder(), ["city"]), ("number", StandardScaler(), ["age", "income"])])
    model = make_pipeline(prepare, LogisticRegression()).fit(frame, target)
    example = frame.head(5)
    return lambda **kwargs: lab.mlflow.sklearn.log_model(
        model,
        signature=infer_signature(example, model.predict(example)),
        input_example=example,
        skops_trusted_types=["numpy.dtype"],
        **kwargs,
    )


def iris(lab: Lab) -> Log:
    """The first example of MLflow's documentation: no signature is given, and skops is the default."""
    features, species = load_iris(return_X_y=True, as_frame=True)
    model = LogisticRegression(max_iter=500).fit(features, species)
    return lambda **kwargs: lab.mlflow.sklearn.log_model(model, input_example=features, **kwargs)


def exported_of(lab: Lab, admitted: Admitted, conversion: Conversion | None = None) -> Exported:
    return export(
        lab.site,
        admitted.model_version,
        admitted.contract,
        conversion or admitted.conversion,
        admitted.datasets,
        admitted.data,
        admitted.recorded_requests,
    )


def admit_and_export(lab: Lab, name: str, log: Log, *, spec: str = FAST) -> tuple[Admitted, Exported]:
    """Logs, admits and exports a version; no release of it starts."""
    with lab.unannounced():
        version = lab.log(name, log, spec=spec)
    admitted = admit(lab.site, request(name, version))
    return admitted, exported_of(lab, admitted)


@pytest.mark.parametrize(
    ("name", "build", "spec"),
    [
        ("torch-pt2", lambda lab: torch_as(lab, "pt2"), FAST),
        pytest.param("torch-pickle", lambda lab: torch_as(lab, "pickle"), TRUSTED, marks=pytest.mark.slow),
        pytest.param("sklearn-skops", lambda lab: sklearn_as(lab, "skops"), FAST, marks=pytest.mark.slow),
        pytest.param(
            "sklearn-cloudpickle", lambda lab: sklearn_as(lab, "cloudpickle"), TRUSTED, marks=pytest.mark.slow
        ),
        pytest.param("sklearn-regressor", lambda lab: sklearn_as(lab, "regressor"), FAST, marks=pytest.mark.slow),
        pytest.param("sklearn-columns", columns, FAST, marks=pytest.mark.slow),
        pytest.param("sklearn-iris", iris, FAST, marks=pytest.mark.slow),
    ],
)
def test_a_logged_format_is_exported_with_parity(lab: Lab, name: str, build: Callable[[Lab], Log], spec: str) -> None:
    admitted, exported = admit_and_export(lab, name, build(lab), spec=spec)
    limit = Quality().parity
    assert [(case.inputs, case.batch) for case in exported.parity][1:] == [
        ("random-1", 1),
        ("random-2", 2),
        ("random-7", 7),
    ]
    for case in exported.parity:
        assert case.max_abs <= limit.max_abs or case.max_rel <= limit.max_rel, case
    assert all(spec.shape[0] == -1 for spec in (*exported.signature.inputs, *exported.signature.outputs))
    assert exported.isolation
    assert exported.isolation.network in ("namespace", "landlock")
    assert exported.isolation.files == "landlock"
    assert admitted.scan.files > 0


@pytest.mark.slow
def test_a_torchscript_file_is_exported_with_parity(lab: Lab, tmp_path: Path) -> None:
    """MLflow saves no example with TorchScript, so the test adds one to its folder."""
    import json

    from tests.integration.test_bad_input import log_folder

    folder, x = tmp_path / "m", images()
    model = torch.jit.script(network())
    lab.mlflow.pytorch.save_model(
        model,
        str(folder),
        signature=infer_signature(x, model(torch.tensor(x)).detach().numpy()),
        serialization_format="pickle",
        pip_requirements=[],
    )
    (folder / "input_example.json").write_text(json.dumps(x.tolist()))
    with (folder / "MLmodel").open("a") as meta:
        meta.write("saved_input_example_info:\n  artifact_path: input_example.json\n  type: ndarray\n")
    version = log_folder(lab, "torchscript", folder, spec=TRUSTED)
    admitted = admit(lab.site, request("torchscript", version))
    exported = exported_of(lab, admitted)
    assert max(case.max_abs for case in exported.parity) < 1e-4
    assert "older exporter" in exported.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "spec"), [("pt2", ""), pytest.param("pickle", "admission: {pickle: sandbox}", marks=pytest.mark.slow)]
)
def test_a_torch_model_is_kept_as_torchscript_that_takes_any_batch(
    lab: Lab, tmp_path: Path, how: str, spec: str
) -> None:
    """NVIDIA's PyTorch backend loads it; it comes from a `torch.export` program or from a module."""
    native = f"{FAST}\nexport: {{torchscript: true}}\n{spec}"
    _, exported = admit_and_export(lab, f"native-{how}", torch_as(lab, how), spec=native)
    assert isinstance(exported, ExportedGraph)
    assert exported.torchscript is not None
    folder = ArtifactStore(lab.site.artifacts_uri).fetch(exported.torchscript, tmp_path)
    script = torch.jit.load(str(folder / "model.pt"))
    for size in (1, 3, 7):
        x = torch.rand(size, 1, 8, 8)
        torch.testing.assert_close(script(x), network()(x), rtol=1e-4, atol=1e-5)


_STEPS = ["softmax", *(pytest.param(step, marks=pytest.mark.slow) for step in ("sigmoid", "argmax", "top_k"))]


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.slow
def test_post_processing_is_part_of_the_torchscript(lab: Lab, tmp_path: Path, step: str) -> None:
    """It is traced around the model, and answers what the graph answers, output by output."""
    native = f"{FAST}\nexport: {{torchscript: true, postprocess: {step}, top_k: 3}}"
    _, exported = admit_and_export(lab, f"native-post-{step}", torch_as(lab, "pt2"), spec=native)
    assert isinstance(exported, ExportedGraph)
    assert exported.torchscript is not None
    store = ArtifactStore(lab.site.artifacts_uri)
    script = torch.jit.load(str(store.fetch(exported.torchscript, tmp_path / "script") / "model.pt"))
    running = onnx_models.session(store.fetch(exported.model, tmp_path / "graph") / "model.onnx")
    for size in (1, 3, 7):
        x = torch.rand(size, 1, 8, 8)
        expected = onnx_models.answer(running, {exported.signature.inputs[0].name: x.numpy()})
        answers = torch.utils._pytree.tree_leaves(script(x))
        for spec, answer in zip(exported.signature.outputs, answers, strict=True):
            np.testing.assert_allclose(answer.detach().numpy(), expected[spec.name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("step", _STEPS)
def test_post_processing_is_part_of_the_graph(lab: Lab, step: str) -> None:
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 6]) for name in ("x", "scores")]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["scores"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    options = {"signature": infer_signature({"x": x}, {"scores": np.tanh(x)}), "input_example": {"x": x}}
    spec = f"{FAST}\nexport: {{postprocess: {step}, top_k: 3}}"
    _, exported = admit_and_export(
        lab,
        f"post-{step}",
        lambda **kwargs: lab.mlflow.onnx.log_model(model, **options, **kwargs),
        spec=spec,
    )
    names = {spec.name: spec.shape for spec in exported.signature.outputs}
    assert (
        names
        == {
            "softmax": {"probabilities": (-1, 6)},
            "sigmoid": {"probabilities": (-1, 6)},
            "argmax": {"label": (-1, 1)},
            "top_k": {"top_scores": (-1, 3), "top_labels": (-1, 3)},
        }[step]
    )
    assert max(case.max_abs for case in exported.parity) < 1e-6
    assert isinstance(model, onnx.ModelProto)


@pytest.mark.slow
def test_text_columns_are_served_as_text(lab: Lab) -> None:
    spec = f"{FAST}\ndata: {{metric: accuracy, validation: none.npz}}"
    version = lab.log("columns", columns(lab), spec=spec)
    report = lab.wait("columns", version)
    assert report.exit_code == 0, report.reason
    table = re.search(r'<pre id="load-test">(.*?)</pre>', Path(report.report).read_text(), re.DOTALL)
    assert table is not None
    runs = list(csv.DictReader(html.unescape(table.group(1)).splitlines()))
    assert "sweep" in {run["phase"] for run in runs}
    assert all(float(run["Inferences/Second"]) > 0 for run in runs)
    rows = {
        "age": np.array([[70.0], [20.0]], np.float32),
        "income": np.array([[3000.0], [3000.0]], np.float32),
        "city": np.array([["Ulm"], ["Köln"]]),
    }
    answer = lab.ask("columns", rows)
    assert [row[0] for row in answer["outputs"]["label"]] == [1, 0]


@pytest.mark.slow
def test_the_sandbox_ends_an_export_at_its_limits(lab: Lab) -> None:
    version = lab.log("limits", torch_as(lab, "pt2"))
    admitted = admit(lab.site, request("limits", version))
    small = admitted.conversion.model_copy(update={"memory_mb": 16, "fallback": "none"})
    with pytest.raises(SandboxLimit, match="the limit is 16 MiB"):
        exported_of(lab, admitted, small)
    wrong = Conversion(outputs=("no such output",), fallback="none")
    with pytest.raises(ExportFailed, match=r"export\.outputs names no such output"):
        exported_of(lab, admitted, wrong)


@pytest.mark.slow
def test_a_pickle_that_carries_its_authors_code_needs_the_specs_consent(lab: Lab) -> None:
    """A class defined in a notebook is pickled by value, with its author's code."""
    namespace: dict[str, Any] = {"torch": torch, "__name__": "__main__"}
    source = "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x.flatten(1)[:, :10] * 2\n"
    exec(source, namespace)
    model, x = namespace["Net"](), images()
    options = {"signature": infer_signature(x, x.reshape(4, -1)[:, :10]), "serialization_format": "pickle"}

    def log(**kwargs: Any) -> Any:
        return lab.mlflow.pytorch.log_model(model, input_example=x, **options, **kwargs)

    version = lab.log("by-value", log)
    with pytest.raises(NotAdmitted, match="cloudpickle"):
        admit(lab.site, request("by-value", version))
    _, exported = admit_and_export(lab, "by-value", log, spec=TRUSTED)
    assert max(case.max_abs for case in exported.parity) == 0


# --- shapes and types beyond one float tensor, each trained -----------------------------------------------------------


def boosted(lab: Lab, how: str) -> Log:
    import lightgbm

    rows, labels = digits()
    if how == "estimator":
        model: Any = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(rows[:300], labels[:300])
        answers: Any = model.predict_proba(rows[:3])
    else:
        classes = {"objective": "multiclass", "num_class": 10} if how == "classes" else {}
        parameters = {"verbose": -1, **classes}
        model = lightgbm.train(parameters, lightgbm.Dataset(rows[:300], labels[:300]), 5)
        answers = model.predict(rows[:3])
    options = {"signature": infer_signature(rows[:3], answers), "input_example": rows[:3]}
    return lambda **kwargs: lab.mlflow.lightgbm.log_model(model, **options, **kwargs)


@pytest.mark.parametrize(
    ("how", "outputs", "spec"),
    [
        pytest.param("classes", ["probabilities", "label"], FAST, marks=pytest.mark.slow),
        pytest.param("value", ["variable"], FAST, marks=pytest.mark.slow),
        ("estimator", ["probabilities", "label"], TRUSTED),
    ],
)
@pytest.mark.slow
def test_gradient_boosting_is_exported_with_parity(lab: Lab, how: str, outputs: list[str], spec: str) -> None:
    _, exported = admit_and_export(lab, f"boosted-{how}", boosted(lab, how), spec=spec)
    assert [output.name for output in exported.signature.outputs] == outputs
    assert all(case.max_abs < 1e-4 and not case.problem for case in exported.parity), exported.parity


def xgboosted(lab: Lab, how: str) -> Log:
    import xgboost

    rows, labels = digits()
    if how in ("estimator", "regressor"):
        kind = xgboost.XGBClassifier if how == "estimator" else xgboost.XGBRegressor
        model: Any = kind(n_estimators=5).fit(rows[:300], labels[:300])
        answers = model.predict(rows[:3])
    else:
        parameters = {"objective": how, **({"num_class": 10} if how.startswith("multi") else {})}
        targets = labels[:300] if how.startswith("multi") else labels[:300] > 4
        model = xgboost.train(parameters, xgboost.DMatrix(rows[:300], targets), 5)
        answers = model.predict(xgboost.DMatrix(rows[:3]))
    options = {"signature": infer_signature(rows[:3], answers), "input_example": rows[:3]}
    return lambda **kwargs: lab.mlflow.xgboost.log_model(model, **options, **kwargs)


@pytest.mark.parametrize(
    ("how", "outputs"),
    [
        ("estimator", ["label", "probabilities"]),
        pytest.param("regressor", ["variable"], marks=pytest.mark.slow),
        pytest.param("binary:logistic", ["probability", "label", "probabilities"], marks=pytest.mark.slow),
        ("multi:softprob", ["probabilities", "label"]),
        pytest.param("multi:softmax", ["label", "probabilities"], marks=pytest.mark.slow),
        pytest.param("reg:squarederror", ["variable"], marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_xgboost_is_exported_with_parity(lab: Lab, how: str, outputs: list[str]) -> None:
    _, exported = admit_and_export(lab, f"xgboost-{how.replace(':', '-')}", xgboosted(lab, how))
    assert [output.name for output in exported.signature.outputs] == outputs
    assert all(case.max_abs < 1e-4 and not case.problem for case in exported.parity), exported.parity


def keras_model(how: str) -> tuple[Any, Any]:
    """A trained Keras model and its example: images to classes, or two inputs to two outputs."""
    keras = pytest.importorskip("keras")
    rows, labels = digits()
    keras.utils.set_random_seed(0)
    layers = keras.layers
    if how == "images":
        x: Any = rows[:300].reshape(-1, 8, 8, 1)
        inner = [layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten()]
        model = keras.Sequential([keras.Input((8, 8, 1)), *inner, layers.Dense(10, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, labels[:300], epochs=2, verbose=0)
        return model, x[:4]
    left, right = keras.Input((64,), name="left"), keras.Input((64,), name="right")
    both = layers.Concatenate()([left, right])
    outputs = {"same": layers.Dense(1, name="same")(both), "sum": layers.Dense(1, name="sum")(both)}
    model = keras.Model([left, right], outputs)
    model.compile("adam", "mse")
    x = {"left": rows[:300], "right": rows[300:600]}
    same = (labels[:300] == labels[300:600]).astype(np.float32)
    model.fit(x, {"same": same, "sum": (labels[:300] + labels[300:600]).astype(np.float32)}, epochs=1, verbose=0)
    return model, {name: array[:4] for name, array in x.items()}


def _fix_mlflow_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow 3's `mlflow.keras` saves the input example before it creates the folder, so it can't log one at all."""
    from mlflow.keras import save

    original = save._save_example

    def save_example(model: Any, example: Any, path: str) -> None:
        Path(path).mkdir(exist_ok=True)
        original(model, example, path)

    monkeypatch.setattr(save, "_save_example", save_example)


@pytest.mark.parametrize(("how", "flavor"), [("images", "tensorflow"), ("images", "keras"), ("pairs", "tensorflow")])
def test_a_keras_model_is_exported_with_parity(
    lab: Lab, how: str, flavor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = keras_model(how)
    if flavor == "keras":
        _fix_mlflow_keras(monkeypatch)
    y = model(x) if how == "images" else model([x["left"], x["right"]])
    y = {name: np.asarray(array) for name, array in y.items()} if isinstance(y, dict) else np.asarray(y)
    options = {"signature": infer_signature(x, y), "input_example": x}
    _, exported = admit_and_export(
        lab, f"keras-{how}-{flavor}", lambda **kwargs: getattr(lab.mlflow, flavor).log_model(model, **options, **kwargs)
    )
    assert len(exported.signature.outputs) == (1 if how == "images" else 2)
    assert all(":" not in output.name for output in exported.signature.outputs)
    assert all(case.max_abs < 1e-4 and not case.problem for case in exported.parity), exported.parity


class Reader(torch.nn.Module):  # type: ignore[misc]
    """Text as token ids of any length, with a mask: two inputs, two outputs, two dynamic axes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = mask.unsqueeze(-1).to(torch.float32)
        pooled = (self.embedding(tokens) * weights).sum(1) / weights.sum(1).clamp(min=1)
        return self.head(pooled), pooled


def reader(to: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A trained reader as ONNX, with inputs and its answers to whether a text contains token 7."""
    import onnx

    torch.manual_seed(0)
    tokens, mask = torch.randint(0, 50, (256, 12)), torch.rand(256, 12) > 0.2
    labels = ((tokens == 7) & mask).any(1).long()
    model = Reader()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(150):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens, mask)[0], labels).backward()
        optimiser.step()
    model.eval()
    assert (model(tokens, mask)[0].argmax(1) == labels).float().mean() > 0.95
    length = torch.export.Dim("length", max=64)
    axes = {0: torch.export.Dim("batch"), 1: length}
    program = torch.onnx.export(
        model,
        (tokens[:4], mask[:4]),
        dynamo=True,
        input_names=["tokens", "mask"],
        output_names=["scores", "pooled"],
        dynamic_shapes=(axes, axes),
        verbose=False,
    )
    assert program is not None
    program.save(str(to / "reader.onnx"))
    inputs = {"tokens": tokens[:4].numpy(), "mask": mask[:4].numpy()}
    with torch.inference_mode():
        scores, pooled = model(tokens[:4], mask[:4])
    return onnx.load(to / "reader.onnx"), inputs, {"scores": scores.numpy(), "pooled": pooled.numpy()}


def any_length(signature: Any) -> Any:
    """Makes the length dynamic, as an author must, because MLflow infers a fixed one."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def free(schema: Any) -> Any:
        return Schema([TensorSpec(spec.type, (-1, -1), spec.name) for spec in schema.inputs])

    return ModelSignature(inputs=free(signature.inputs), outputs=signature.outputs)


@pytest.mark.slow
def test_several_inputs_outputs_and_dynamic_axes_are_served(lab: Lab, tmp_path: Path) -> None:
    model, inputs, answers = reader(tmp_path)
    options = {"signature": any_length(infer_signature(inputs, answers)), "input_example": inputs}
    version = lab.log("reader", lambda **kwargs: lab.mlflow.onnx.log_model(model, **options, **kwargs))
    report = lab.wait("reader", version)
    assert report.exit_code == 0, report.reason
    for length in (12, 5):
        prefixes = {name: array[:, :length] for name, array in inputs.items()}
        answer = lab.ask("reader", prefixes)["outputs"]
        assert np.asarray(answer["scores"]).shape == (4, 2)
        assert np.asarray(answer["pooled"]).shape == (4, 8)
    whole = lab.ask("reader", inputs)["outputs"]
    np.testing.assert_allclose(np.asarray(whole["scores"]), answers["scores"], atol=0.05)


@pytest.mark.slow
def test_weights_in_a_separate_file_are_exported_and_verified(lab: Lab, tmp_path: Path) -> None:
    """Models over 2 GB need this; here a small one is forced to."""
    import onnx

    model, inputs, answers = reader(tmp_path)
    folder = tmp_path / "logged"
    options = {"signature": any_length(infer_signature(inputs, answers)), "input_example": inputs}
    lab.mlflow.onnx.save_model(model, str(folder), save_as_external_data=False, pip_requirements=[], **options)
    onnx.save(
        onnx.load(folder / "model.onnx"),
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=128,
    )
    assert (folder / "weights.bin").stat().st_size > 1000

    from tests.integration.test_bad_input import log_folder

    version = log_folder(lab, "reader-apart", folder)
    admitted = admit(lab.site, request("reader-apart", version))
    exported = exported_of(lab, admitted)
    assert max(case.max_abs for case in exported.parity) < 1e-5


# --- encoded images ---

PREPROCESSED = f"""{FAST}
targets: [{{name: local-cpu, engine: onnxruntime, precisions: [fp32]}}]
export: {{preprocess: {{resize: 10, crop: 8, colors: gray, scale: 0.00392156862745098}}}}
data: {{validation: shiplift/validation.npz, jpeg_qualities: [95, 30]}}
quality: {{max_jpeg_drop: 0.5}}
"""


def _photographs(count: int) -> list[bytes]:
    files = []
    for seed in range(count):
        noise = np.random.default_rng(seed).integers(0, 256, (8 + seed, 12), dtype=np.uint8)
        noise_file = io.BytesIO()
        Image.fromarray(noise).resize((60, 40 + seed)).save(noise_file, "PNG" if seed % 2 else "JPEG")
        files.append(noise_file.getvalue())
    return files


@pytest.mark.slow
def test_a_model_of_pixels_takes_jpeg_and_png_if_the_spec_says_how(lab: Lab) -> None:
    """Validation data may be the pixels that it was trained on; what clients send are files."""
    rows, labels = digits()
    data = {"input": rows[:200].reshape(-1, 1, 8, 8), "label": labels[:200]}
    version = lab.log("preprocessed", torch_as(lab, "pt2"), spec=PREPROCESSED, data=data)
    report = lab.wait("preprocessed", version)
    assert report.exit_code == 0, report.reason
    checks = {check.name: check for check in report.checks}
    assert (checks["accuracy as JPEG 95"].limit, checks["accuracy as JPEG 30"].limit) == (0.5, 0.5)
    assert "as JPEG 30 an image has 0." in Path(report.report).read_text()
    model, files = network(), _photographs(6)
    with TritonClient(lab.grpc) as client:
        signature = client.signature("preprocessed")
        assert [(spec.name, spec.datatype) for spec in signature.inputs] == [("input", "BYTES")]
        for file in files:
            photo = Image.open(io.BytesIO(file)).convert("L")
            photo = photo.resize(
                (int(10 * photo.width / min(photo.size)), int(10 * photo.height / min(photo.size))),
                Image.Resampling.BILINEAR,
            )
            left, top = round((photo.width - 8) / 2), round((photo.height - 8) / 2)
            pixels = np.asarray(photo.crop((left, top, left + 8, top + 8)), np.float32)[None, None] / 255
            expected = model(torch.tensor(pixels)).detach().numpy()
            for sent in (file, base64.b64encode(file)):
                answer = client.infer("preprocessed", signature, {"input": np.array([[sent]], dtype=object)})
                np.testing.assert_allclose(next(iter(answer.values())), expected, rtol=1e-3, atol=1e-4)
        with pytest.raises(ServerFailed, match="not a JPEG or PNG"):
            client.infer("preprocessed", signature, {"input": np.array([[b"no image"]], dtype=object)})
