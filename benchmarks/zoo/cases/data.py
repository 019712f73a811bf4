"""The data that small models are trained on: digits as rows, and a data frame with a categorical column."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# What skops does not load unless it is named: trees, and the state in which a neural network's training ended.
TRUSTED = ["sklearn.tree._tree.Tree", "sklearn.neural_network._stochastic_optimizers.AdamOptimizer"]


def digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """scikit-learn's digits: FP32 (1797, 64) from 0 to 1, and their classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target


def flats(*, categorical: bool = True) -> tuple[Any, Any]:
    """300 flats with age, city and number of rooms, and whether each is dear (0 or 1)."""
    import pandas as pd

    rng, count = np.random.default_rng(0), 300
    city = rng.choice(["Ulm", "Berlin", "Rom"], count)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, count),
            "city": pd.Categorical(city, categories=["Ulm", "Berlin", "Rom"]) if categorical else city,
            "rooms": rng.integers(1, 9, count).astype(np.float64),
        }
    )
    return frame, (100 - frame["age"] + 60 * (frame["city"] == "Rom") + 9 * frame["rooms"] > 110).astype(int)


def columns(frame: Any) -> dict[str, NDArray[Any]]:
    """A data frame as production takes it: an input (samples, 1) per column, categories as text."""
    return {
        name: np.array(
            frame[name].astype(str if frame[name].dtype.kind not in "biuf" else frame[name].dtype).tolist()
        ).reshape(-1, 1)
        for name in frame.columns
    }
