"""What people log without knowing Shiplift: released from what the file itself says, with the original's answers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from mlflow.models import infer_signature
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.serving.triton.client import TritonClient, infer_one_by_one
from tests.integration.conftest import FAST, Lab
from tests.integration.test_formats import Reader


def notes(lab: Lab, name: str, version: int) -> str:
    exported = lab.engine.story(lab.wait(name, version)).exported
    assert exported is not None
    return " ".join(exported.notes)


@pytest.mark.slow
def test_a_pt2_model_of_two_tensors_is_released_with_the_example_in_its_file(lab: Lab) -> None:
    """MLflow keeps no input example of several tensors; torch.export does."""
    torch.manual_seed(0)
    model, ids, mask = Reader().eval(), torch.randint(0, 50, (3, 12)), torch.ones(3, 12, dtype=torch.int64)
    with torch.inference_mode():
        scores, pooled = (output.numpy() for output in model(ids, mask))
    x = {"ids": ids.numpy(), "mask": mask.numpy()}
    signature = infer_signature(x, {"scores": scores, "pooled": pooled})
    version = lab.log(
        "pairs",
        lambda **kwargs: lab.mlflow.pytorch.log_model(model, signature=signature, input_example=(ids, mask), **kwargs),
    )
    report = lab.wait("pairs", version)
    assert report.exit_code == 0, report.reason
    assert "pt2 file" in notes(lab, "pairs", version)
    answer = lab.ask("pairs", x)["outputs"]
    np.testing.assert_allclose(np.asarray(answer["scores"]), scores, atol=1e-3)


@pytest.mark.slow
def test_a_pt2_model_logged_with_one_sample_takes_batches(lab: Lab) -> None:
    """torch.export fixes a batch of 1, so `input_example=x[:1]` gives a program that takes no other."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    x = np.random.default_rng(0).normal(size=(5, 8, 8)).astype(np.float32)
    with torch.inference_mode():
        expected = model(torch.tensor(x)).numpy()
    signature = infer_signature(x[:1], expected[:1])
    version = lab.log(
        "single",
        lambda **kwargs: lab.mlflow.pytorch.log_model(model, signature=signature, input_example=x[:1], **kwargs),
    )
    report = lab.wait("single", version)
    assert report.exit_code == 0, report.reason
    assert "made dynamic" in notes(lab, "single", version)
    (answer,) = lab.ask("single", {"input": x})["outputs"].values()
    np.testing.assert_allclose(np.asarray(answer), expected, atol=1e-3)


def flat(batch: int, *, mixed: bool) -> onnx.ModelProto:
    """A graph with a fixed batch, whose answer to a sample depends on the others in the batch if it is `mixed`."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(16, 3)).astype(np.float32), "w"),
        numpy_helper.from_array(np.array([batch, 16]), "flat"),
        numpy_helper.from_array(np.array([0, 1]), "axes"),
    ]
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["rows"]), helper.make_node("MatMul", ["rows", "w"], ["y0"])]
    if mixed:
        nodes.append(helper.make_node("ReduceMax", ["y0", "axes"], ["top"], keepdims=1))
        nodes.append(helper.make_node("Sub", ["y0", "top"], ["y"]))
    else:
        nodes.append(helper.make_node("Tanh", ["y0"], ["y"]))
    values = [
        helper.make_tensor_value_info(*v)
        for v in (("x", TensorProto.FLOAT, [batch, 4, 4]), ("y", TensorProto.FLOAT, [batch, 3]))
    ]
    graph = helper.make_graph(nodes, "flat", values[:1], values[1:], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def answers(model: onnx.ModelProto, x: Any) -> Any:
    """The graph's own answers to single samples."""
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString())
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])


@pytest.mark.parametrize("mixed", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_a_graph_with_a_batch_of_1_is_released_and_batched_only_if_that_changes_nothing(
    lab: Lab, *, mixed: bool
) -> None:
    name, model = f"flat-{mixed}".lower(), flat(1, mixed=mixed)
    x = np.random.default_rng(1).normal(size=(1, 4, 4)).astype(np.float32)
    signature = infer_signature({"x": x}, {"y": answers(model, x)})
    version = lab.log(
        name, lambda **kwargs: lab.mlflow.onnx.log_model(model, signature=signature, input_example={"x": x}, **kwargs)
    )
    report = lab.wait(name, version)
    assert report.exit_code == 0, report.reason
    assert ("one sample at a time" if mixed else "made dynamic") in notes(lab, name, version)
    rows = np.random.default_rng(2).normal(size=(5, 4, 4)).astype(np.float32)
    with TritonClient(lab.grpc) as client:
        served = client.signature(serving_name(name))
        one_by_one = infer_one_by_one(client, serving_name(name), served, {"x": rows})["y"]
        np.testing.assert_allclose(one_by_one, answers(model, rows), atol=1e-3)
    if not mixed:
        np.testing.assert_allclose(lab.ask(name, {"x": rows})["outputs"]["y"], answers(model, rows), atol=1e-3)


@pytest.mark.slow
def test_a_graph_without_signature_and_example_is_released_from_what_it_says(lab: Lab) -> None:
    version = lab.log("bare", lambda **kwargs: lab.mlflow.onnx.log_model(flat(1, mixed=False), **kwargs))
    report = lab.wait("bare", version)
    assert report.exit_code == 0, report.reason
    assert "made from its signature" in notes(lab, "bare", version)


SEQUENCES = FAST.replace("concurrency: [1, 4]", "concurrency: [1, 4], sequence_length: 4")


@pytest.mark.slow
def test_a_voice_detector_is_released_as_a_sequence_model(lab: Lab) -> None:
    """silero-vad: a state of (2, batch, 128), a scalar sampling rate, and two models in the branches of an If."""
    silero_vad = pytest.importorskip("silero_vad")
    import onnxruntime as ort

    file = Path(silero_vad.__file__).parent / "data" / "silero_vad.onnx"
    session, rng = ort.InferenceSession(file), np.random.default_rng(0)
    sound = rng.normal(scale=0.1, size=(6, 512)).astype(np.float32)
    state, rate = np.zeros((2, 1, 128), np.float32), np.array(16000, np.int64)
    x = {"input": sound[:1], "state": state, "sr": rate}
    y = dict(zip(["output", "stateN"], session.run(None, x), strict=True))
    version = lab.log(
        "voice",
        lambda **kwargs: lab.mlflow.onnx.log_model(
            onnx.load(file), signature=infer_signature(x, y), input_example=x, **kwargs
        ),
        spec=SEQUENCES,
    )
    report = lab.wait("voice", version)
    assert report.exit_code == 0, report.reason
    assert "state from stateN" in notes(lab, "voice", version)
    expected = []
    for row in sound:
        answer, state = session.run(None, {"input": row[None], "state": state, "sr": rate})
        expected.append(answer[0])
    with TritonClient(lab.grpc) as client:
        served = client.signature(serving_name("voice"))
        assert [spec.name for spec in (*served.inputs, *served.outputs)] == ["input", "sr", "output"]
        asked = {"input": sound, "sr": np.full(6, 16000)}
        answer = infer_one_by_one(client, serving_name("voice"), served, asked, sequence=True)
    np.testing.assert_allclose(answer["output"], expected, atol=1e-3)


def flats(count: int = 300) -> tuple[Any, Any]:
    """A data frame with a categorical column, and which of its flats are dear."""
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, count),
            "city": pd.Categorical(rng.choice(["Ulm", "Berlin", "Rom"], count), categories=["Ulm", "Berlin", "Rom"]),
            "rooms": rng.integers(1, 9, count),
        }
    )
    return frame, (100 - frame["age"] + 60 * (frame["city"] == "Rom") + 9 * frame["rooms"] > 110).astype(int)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["lightgbm", pytest.param("xgboost", marks=pytest.mark.slow)])
def test_boosting_on_a_data_frame_is_released_with_its_categories(lab: Lab, library: str) -> None:
    frame, dear = flats()
    if library == "lightgbm":
        import lightgbm

        model: Any = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1).fit(frame, dear)
    else:
        import xgboost

        model = xgboost.XGBClassifier(n_estimators=10, enable_categorical=True).fit(frame, dear)
    signature, flavor = infer_signature(frame.head(), model.predict(frame.head())), getattr(lab.mlflow, library)
    version = lab.log(
        f"flats-{library}",
        lambda **kwargs: flavor.log_model(model, signature=signature, input_example=frame.head(20), **kwargs),
    )
    report = lab.wait(f"flats-{library}", version)
    assert report.exit_code == 0, report.reason
    rows = frame.head(8).astype({"city": str})
    asked = {name: np.array(rows[name].tolist()).reshape(-1, 1) for name in rows}
    answer = lab.ask(f"flats-{library}", asked)["outputs"]
    assert np.asarray(answer["label"]).reshape(-1).tolist() == model.predict(frame.head(8)).tolist()
    np.testing.assert_allclose(answer["probabilities"], model.predict_proba(frame.head(8)), atol=1e-4)


@pytest.mark.slow
def test_a_catboost_model_is_released(lab: Lab) -> None:
    import catboost

    frame, dear = flats()
    frame = frame[["age", "rooms"]]
    model = catboost.CatBoostClassifier(iterations=10, verbose=0, allow_writing_files=False).fit(frame, dear)
    signature = infer_signature(frame.head(), model.predict(frame.head()))
    version = lab.log(
        "catboost",
        lambda **kwargs: lab.mlflow.catboost.log_model(
            model, signature=signature, input_example=frame.head(20), **kwargs
        ),
    )
    report = lab.wait("catboost", version)
    assert report.exit_code == 0, report.reason
    asked = {name: np.array(frame[name].head(8)).reshape(-1, 1) for name in frame}
    answer = lab.ask("catboost", asked)["outputs"]
    assert np.asarray(answer["label"]).reshape(-1).tolist() == model.predict(frame.head(8)).tolist()
    np.testing.assert_allclose(answer["probabilities"], model.predict_proba(frame.head(8)), atol=1e-4)
