"""Cases from a recipe: data of a kind, a model fitted on it, and how it is logged and asked."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.proof.case import Case, Logged, Part
from benchmarks.proof.fresh import rows_like
from shiplift.runtime.model.tensors import Arrays

Data = tuple[Any, NDArray[Any]]  # rows and targets
_EXAMPLE = 8


def probabilities(model: Any, rows: Any) -> Arrays:
    """A classifier's own probabilities."""
    return {"probabilities": np.asarray(model.predict_proba(rows), np.float32)}


def fitted(  # noqa: PLR0913 - a case has many sides, all of them named
    name: str,
    part: Part,
    flavor: str,
    about: str,
    make: Callable[[], Any],
    data: Callable[[], Data],
    *,
    classifies: bool = False,
    odd: Sequence[Any] = (),
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> Case:
    """A model with `fit`, and signature and example as MLflow's documentation shows."""

    def build(_: Path) -> Logged:
        from mlflow.models import infer_signature

        rows, targets = data()
        model = make().fit(rows, targets)
        example = rows[:_EXAMPLE]
        chosen = {"signature": infer_signature(example, model.predict(example)), "input_example": example}
        trusted = {"skops_trusted_types": trusted_types(model)} if flavor == "sklearn" else {}
        probable = classifies and hasattr(model, "predict_proba")
        return Logged(
            model=model,
            options=chosen | trusted | (options or {}),
            rows=lambda count, seed: rows_like(rows, count, seed, odd=odd),
            more=probabilities if probable else None,
        )

    return Case(name=name, part=part, flavor=flavor, about=about, build=build, **fields)


def trusted_types(model: Any) -> list[str]:
    """What skops has to be told to trust, as its error says."""
    from skops.io import dumps, get_untrusted_types

    return [str(name) for name in get_untrusted_types(data=dumps(model))]


# --- data -------------------------------------------------------------------------------------------------------------


def numbers(
    *,
    rows: int = 400,
    columns: int = 6,
    classes: int = 0,
    seed: int = 0,
    kind: Any = np.float32,
    positive: bool = False,
) -> Callable[[], Data]:
    """Rows of numbers of different sizes, with targets that depend on them: floats, or classes."""

    def made() -> Data:
        rng = np.random.default_rng(seed)
        sizes = np.array([1.0, 10.0, 0.1, 100.0, 1.0, 3.0, 0.5, 7.0, 1.0, 2.0])[:columns]
        x = (rng.normal(size=(rows, columns)) * sizes).astype(kind)
        x = np.abs(x) if positive else x
        score = np.tanh(x[:, 0] / sizes[0]) + 0.5 * np.sin(x[:, 1] / sizes[1]) * x[:, 2] / sizes[2]
        score = score + 0.1 * rng.normal(size=rows)
        if not classes:
            return x, np.asarray(score, np.float64)
        edges = np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1])
        return x, np.digitize(score, edges)

    return made


def flats(*, rows: int = 400, classes: bool = True, categorical: bool = False, seed: int = 0) -> Callable[[], Data]:
    """A data frame of numbers, whole numbers and texts, and whether each flat is dear, or its price."""

    def made() -> Data:
        import pandas as pd

        rng = np.random.default_rng(seed)
        cities = ["Ulm", "Berlin", "Rom", "Łódź", "São Paulo"]
        city = rng.choice(cities, rows)
        frame = pd.DataFrame(
            {
                "age": rng.uniform(0, 100, rows),
                "city": pd.Categorical(city, categories=cities) if categorical else city,
                "rooms": rng.integers(1, 9, rows).astype(np.float64),
                "heated": rng.integers(0, 2, rows),
            }
        )
        price = 100 - frame["age"] + 60 * (frame["city"].astype(str) == "Rom") + 9 * frame["rooms"]
        price = price + 5 * frame["heated"] + rng.normal(size=rows)
        return frame, (price > 110).astype(int).to_numpy() if classes else price.to_numpy()

    return made


def with_missing(data: Callable[[], Data], share: float = 0.15, value: float = np.nan) -> Callable[[], Data]:
    """The same rows of numbers, some of which are missing, or have a sentinel."""

    def made() -> Data:
        rows, targets = data()
        holes = np.random.default_rng(1).random(rows.shape) < share
        return np.where(holes, np.asarray(value, rows.dtype), rows), targets

    return made
