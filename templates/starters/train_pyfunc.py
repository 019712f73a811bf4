"""An example: a model of plain Python and NumPy, which knows digits by their centroids. That is all.

Registering the model starts its release. `shiplift.yaml` has `admission: {python: sandbox}`, which accepts its code.
The code runs with the packages that are logged with it, and no others.

    python train.py
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
import numpy as np
from mlflow.models import infer_signature
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import shiplift


class Centroids(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """The probability of each class, from the distances to the classes' means."""

    def __init__(self, means: Any) -> None:
        self.means = means

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:  # noqa: ARG002 - MLflow's signature
        """Probabilities, float32 of shape (samples, classes); `model_input` is float32 of shape (samples, features)."""
        distances = ((model_input[:, None, :] - self.means) ** 2).sum(axis=2)
        scores = np.exp(distances.min(axis=1, keepdims=True) - distances)
        return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)


def main() -> None:
    """Trains, logs and registers the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="digits-pyfunc", help="the registered model's name")
    parser.add_argument("--spec", type=Path, default=Path("shiplift.yaml"), help="a release spec to log with the model")
    arguments = parser.parse_args()

    features, labels = load_digits(return_X_y=True)
    features = (features / 16).astype(np.float32)
    train_x, valid_x, train_y, valid_y = train_test_split(features, labels, test_size=500, random_state=0)
    model = Centroids(np.stack([train_x[train_y == label].mean(axis=0) for label in range(10)]))
    answers = model.predict(None, valid_x)
    print(f"accuracy {np.mean(answers.argmax(axis=1) == valid_y):.3f} on {len(valid_y)} images")

    mlflow.set_tracking_uri(shiplift.tracking_uri())  # MLFLOW_TRACKING_URI, or else the running stack's
    with mlflow.start_run(), TemporaryDirectory() as folder:
        data = Path(folder) / "validation.npz"  # it decides the accuracy gate
        np.savez(data, input=valid_x, label=valid_y)
        mlflow.log_artifact(str(data), "shiplift")
        if arguments.spec.is_file():
            mlflow.log_text(arguments.spec.read_text(), "shiplift/shiplift.yaml")
        logged = mlflow.pyfunc.log_model(
            name="model",
            python_model=model,
            input_example=valid_x[:8],
            signature=infer_signature(valid_x[:8], answers[:8]),
            pip_requirements=[f"numpy=={np.__version__}"],
            registered_model_name=arguments.name,
        )
    version = f"{arguments.name}/{logged.registered_model_version}"
    print(f"registered {version} in {mlflow.get_tracking_uri()}; next:")
    print(f"  shiplift status {arguments.name} --watch")
    print(f"  shiplift report {version}")


if __name__ == "__main__":
    main()
