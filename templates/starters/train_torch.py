"""An example: trains a small CNN on scikit-learn's digits, logs it with MLflow and registers it. That is all.

Registering the model starts its release. Only the line that finds MLflow is specific to Shiplift.

    python train.py --epochs 20
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow
import numpy as np
import torch
from mlflow.models import infer_signature
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import shiplift


def build() -> torch.nn.Module:
    """A CNN for 8 x 8 grayscale images: float32 (batch, 1, 8, 8) in, logits (batch, 10) out."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """Trains with Adam on batches of 64."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def main() -> None:
    """Trains, logs and registers the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="digits", help="the registered model's name")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1200, help="how many training images to use")
    parser.add_argument("--spec", type=Path, default=Path("shiplift.yaml"), help="a release spec to log with the model")
    parser.add_argument("--answers", type=Path, help="where to write some images and torch's answers, as NPZ")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    train_x, valid_x, train_y, valid_y = train_test_split(images, digits.target, test_size=500, random_state=0)
    model = build()
    train(
        model, torch.tensor(train_x[: arguments.samples]), torch.tensor(train_y[: arguments.samples]), arguments.epochs
    )
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor(valid_x)).numpy()
    print(f"accuracy {np.mean(logits.argmax(axis=1) == valid_y):.3f} on {len(valid_y)} images")
    if arguments.answers:
        np.savez(arguments.answers, image=valid_x[:32], logits=logits[:32])

    mlflow.set_tracking_uri(shiplift.tracking_uri())  # MLFLOW_TRACKING_URI, or else the running stack's
    with mlflow.start_run(), TemporaryDirectory() as folder:
        data = Path(folder) / "validation.npz"
        np.savez(data, image=valid_x, label=valid_y)
        mlflow.log_artifact(str(data), "shiplift")
        if arguments.spec.is_file():
            mlflow.log_text(arguments.spec.read_text(), "shiplift/shiplift.yaml")
        example = valid_x[:8]
        logged = mlflow.pytorch.log_model(
            model,
            name="model",
            input_example=example,
            signature=infer_signature(example, logits[:8]),
            registered_model_name=arguments.name,
            pip_requirements=[
                f"{package.__name__}=={package.__version__.partition('+')[0]}" for package in (torch, np)
            ],
        )
    version = f"{arguments.name}/{logged.registered_model_version}"
    print(f"registered {version} in {mlflow.get_tracking_uri()}; next:")
    print(f"  shiplift status {arguments.name} --watch")
    print(f"  shiplift report {version}")


if __name__ == "__main__":
    main()
