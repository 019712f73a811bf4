"""An example: trains the two members of pipeline.yaml, logs them with MLflow and registers them. That is all.

Registering a model starts its release. Only the line that finds MLflow is specific to Shiplift. The pipeline itself is
registered once both serve, with the requests and the labels that this script writes.

    python train.py
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import shiplift


def graph_of(fitted: MLPClassifier) -> object:
    """The graph: float32 `image` (batch, 64) in, probabilities `scores` (batch, 10) out."""
    nodes, constants, before = [], [], "image"
    for at, (weights, bias) in enumerate(zip(fitted.coefs_, fitted.intercepts_, strict=True)):
        if at:
            nodes.append(helper.make_node("Relu", [before], [f"hidden{at}"]))
            before = f"hidden{at}"
        nodes.append(helper.make_node("Gemm", [before, f"weights{at}", f"bias{at}"], [f"layer{at}"]))
        constants.append(numpy_helper.from_array(weights.astype(np.float32), f"weights{at}"))
        constants.append(numpy_helper.from_array(bias.astype(np.float32), f"bias{at}"))
        before = f"layer{at}"
    nodes.append(helper.make_node("Softmax", [before], ["scores"]))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 64])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "digits", [image], [scores], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def main() -> None:
    """Trains, logs and registers the members."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="digits", help="how the members' names begin")
    parser.add_argument("--spec", type=Path, default=Path("shiplift.yaml"), help="a release spec to log with each")
    arguments = parser.parse_args()

    features, labels = load_digits(return_X_y=True)
    features = (features / 16).astype(np.float32)
    train_x, valid_x, train_y, valid_y = train_test_split(features, labels, test_size=500, random_state=0)
    np.savez("requests.npz", image=valid_x[:64])
    np.savez("labelled.npz", image=valid_x, label=valid_y)

    mlflow.set_tracking_uri(shiplift.tracking_uri())  # MLFLOW_TRACKING_URI, or else the running stack's
    for member, layers in {"small": (16,), "large": (512, 512)}.items():
        fitted = MLPClassifier(layers, max_iter=300, random_state=0).fit(train_x, train_y)
        print(f"{member}: accuracy {fitted.score(valid_x, valid_y):.3f} on {len(valid_y)} images")
        with mlflow.start_run(), TemporaryDirectory() as folder:
            data = Path(folder) / "validation.npz"  # it decides int8 and the accuracy gate
            np.savez(data, image=valid_x, label=valid_y)
            mlflow.log_artifact(str(data), "shiplift")
            if arguments.spec.is_file():
                mlflow.log_text(arguments.spec.read_text(), "shiplift/shiplift.yaml")
            name = f"{arguments.name}-{member}"
            logged = mlflow.onnx.log_model(
                graph_of(fitted), name="model", input_example={"image": valid_x[:8]}, registered_model_name=name
            )
            print(f"registered {name}/{logged.registered_model_version} in {mlflow.get_tracking_uri()}")
    print("next, when both serve:")
    print(f"  shiplift release {arguments.name}-large")
    print("  shiplift pipeline release pipeline.yaml --example requests.npz --validation labelled.npz")


if __name__ == "__main__":
    main()
