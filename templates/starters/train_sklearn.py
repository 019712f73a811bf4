"""An example: fits a scikit-learn pipeline to digits, logs it with MLflow and registers it. That is all.

Registering the model starts its release. Only the line that finds MLflow is specific to Shiplift.

    python train.py
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow
import numpy as np
from mlflow.models import infer_signature
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import shiplift


def main() -> None:
    """Trains, logs and registers the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="digits-sklearn", help="the registered model's name")
    parser.add_argument("--spec", type=Path, default=Path("shiplift.yaml"), help="a release spec to log with the model")
    arguments = parser.parse_args()

    features, labels = load_digits(return_X_y=True)
    features = (features / 16).astype(np.float32)
    train_x, valid_x, train_y, valid_y = train_test_split(features, labels, test_size=500, random_state=0)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(train_x, train_y)
    print(f"accuracy {model.score(valid_x, valid_y):.3f} on {len(valid_y)} images")
    example = valid_x[:8]

    mlflow.set_tracking_uri(shiplift.tracking_uri())  # MLFLOW_TRACKING_URI, or else the running stack's
    with mlflow.start_run(), TemporaryDirectory() as folder:
        data = Path(folder) / "validation.npz"  # it decides int8 and the accuracy gate
        np.savez(data, input=valid_x, label=valid_y)
        mlflow.log_artifact(str(data), "shiplift")
        if arguments.spec.is_file():
            mlflow.log_text(arguments.spec.read_text(), "shiplift/shiplift.yaml")
        logged = mlflow.sklearn.log_model(
            model,
            name="model",
            input_example=example,
            signature=infer_signature(example, model.predict(example)),
            registered_model_name=arguments.name,
        )
    version = f"{arguments.name}/{logged.registered_model_version}"
    print(f"registered {version} in {mlflow.get_tracking_uri()}; next:")
    print(f"  shiplift status {arguments.name} --watch")
    print(f"  shiplift report {version}")


if __name__ == "__main__":
    main()
