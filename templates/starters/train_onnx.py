"""An example: makes an ONNX graph that reads digits, logs it with MLflow and registers it. That is all.

Registering the model starts its release. Only the line that finds MLflow is specific to Shiplift.

    python train.py
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import shiplift


def graph_of(weights: np.ndarray, bias: np.ndarray) -> object:
    """The graph: float32 `image` (batch, 64) in, probabilities `scores` (batch, 10) out. The graph is the contract."""
    shapes = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("image", len(weights)), ("scores", len(bias)))
    }
    nodes = [
        helper.make_node("Gemm", ["image", "weights", "bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"]),
    ]
    constants = [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")]
    graph = helper.make_graph(nodes, "digits", [shapes["image"]], [shapes["scores"]], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def main() -> None:
    """Trains, logs and registers the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="digits-onnx", help="the registered model's name")
    parser.add_argument("--spec", type=Path, default=Path("shiplift.yaml"), help="a release spec to log with the model")
    arguments = parser.parse_args()

    features, labels = load_digits(return_X_y=True)
    features = (features / 16).astype(np.float32)
    train_x, valid_x, train_y, valid_y = train_test_split(features, labels, test_size=500, random_state=0)
    fitted = LogisticRegression(max_iter=500).fit(train_x, train_y)
    print(f"accuracy {fitted.score(valid_x, valid_y):.3f} on {len(valid_y)} images")
    model = graph_of(fitted.coef_.T.astype(np.float32), fitted.intercept_.astype(np.float32))

    mlflow.set_tracking_uri(shiplift.tracking_uri())  # MLFLOW_TRACKING_URI, or else the running stack's
    with mlflow.start_run(), TemporaryDirectory() as folder:
        data = Path(folder) / "validation.npz"  # it decides int8 and the accuracy gate
        np.savez(data, image=valid_x, label=valid_y)
        mlflow.log_artifact(str(data), "shiplift")
        if arguments.spec.is_file():
            mlflow.log_text(arguments.spec.read_text(), "shiplift/shiplift.yaml")
        logged = mlflow.onnx.log_model(
            model, name="model", input_example={"image": valid_x[:8]}, registered_model_name=arguments.name
        )
    version = f"{arguments.name}/{logged.registered_model_version}"
    print(f"registered {version} in {mlflow.get_tracking_uri()}; next:")
    print(f"  shiplift status {arguments.name} --watch")
    print(f"  shiplift report {version}")


if __name__ == "__main__":
    main()
