"""The four models of `make bench`: created, saved in a form that rivals load, and released by Shiplift.

The digits CNN and the boosting model are trained. ResNet-50 and the encoder have random weights and are labelled with
their own fp32 answers, so that the accuracy budget still limits what quantization may change.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.names import release_name, serving_name
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.targets import machine

NAMES = ("digits-cnn", "boosting", "encoder", "resnet50")  # quick ones first
_RELEASE_S = 1200
_LARGE_SAMPLE = 100_000  # numbers
QUICK_SPEC = "search: {time_budget_s: 6}\nload: {concurrency: [1, 16], window_ms: 300, attempts: 1, open_loop_s: 0}\n"
FULL_SPEC = "search: {time_budget_s: 30}\nload: {concurrency: [1, 4, 16, 64], open_loop_s: 0}\n"


class Failed(Exception):
    """A model or side can't be measured, with the reason; the others still can."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model in the folder `folder` (from which `benchmarks.rivals.model` loads it), and its requests.

    `samples` are the samples to send (count, *shape), `answers` the original model's answers to them.
    """

    name: str
    folder: Path
    samples: NDArray[Any]
    answers: NDArray[Any]
    about: str
    torch: bool  # whether it has a torch form


@dataclass(frozen=True, kw_only=True)
class Champion:
    """What Shiplift promoted: its served name, the logged model, and what the release decided."""

    name: str
    logged: Path
    report: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A model before it is logged; `log` calls MLflow's `log_model` for its flavor."""

    samples: NDArray[Any]
    answers: NDArray[Any]
    validation: dict[str, NDArray[Any]]
    calibration: dict[str, NDArray[Any]]
    log: Callable[..., Any]
    spec: dict[str, Any]
    save: Callable[[Path], None]
    about: str
    yaml: str = ""


# --- creating ---------------------------------------------------------------------------------------------------------


def _digits() -> _Model:
    from benchmarks.architectures import trained_digits

    digits = trained_digits()
    validation = {"input": digits.images[1200:], "label": digits.labels[1200:]}
    about = "trained on scikit-learn's digits, 1x8x8"
    return _torch("digits-cnn", digits.model, digits.images[1200:1264], validation, digits.images[:256], about)


def _resnet50() -> _Model:
    import torch

    from benchmarks.architectures import Architecture, resnet50, seeded

    def images(batch: int) -> Any:
        return torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(batch))

    model = seeded(Architecture("resnet50", resnet50, images))
    return _labelled_by_itself("resnet50", model, images(160).numpy(), 32, 8, "random weights, 3x224x224")


def _encoder() -> _Model:
    import torch

    from benchmarks.architectures import Architecture, seeded, served

    def tokens(batch: int) -> Any:
        return torch.randint(0, 8192, (batch, 128), generator=torch.Generator().manual_seed(batch))

    model = seeded(Architecture("encoder", lambda: served("encoder"), tokens))
    about = "random weights, 6 layers of width 384, 128 tokens"
    return _labelled_by_itself("encoder", model, tokens(320).numpy(), 64, 64, about)


def _labelled_by_itself(
    name: str, model: Any, inputs: NDArray[Any], calibration: int, requests: int, about: str
) -> _Model:
    labels = np.concatenate([_answer(model, part) for part in np.array_split(inputs[calibration:], 16)]).argmax(1)
    validation = {"input": inputs[calibration:], "label": labels}
    return _torch(
        name, model, inputs[-requests:], validation, inputs[:calibration], f"{about}, labelled by its fp32 answers"
    )


def _answer(model: Any, inputs: NDArray[Any]) -> NDArray[Any]:
    import torch

    with torch.inference_mode():
        return model(torch.from_numpy(inputs)).numpy()  # type: ignore[no-any-return]


def _torch(
    name: str,
    model: Any,
    samples: NDArray[Any],
    validation: dict[str, NDArray[Any]],
    calibration: NDArray[Any],
    about: str,
) -> _Model:
    import mlflow
    import torch

    return _Model(
        samples=samples,
        answers=_answer(model, samples),
        validation=validation,
        calibration={"input": calibration},
        log=lambda **options: mlflow.pytorch.log_model(model, **options),
        spec={"kind": "torch", "name": name, "dtype": str(samples.dtype), "shape": samples.shape[1:]},
        save=lambda folder: torch.save(model.state_dict(), folder / "weights.pt"),
        about=about,
    )


def _boosting() -> _Model:
    """300 trees of 31 leaves on Friedman's first regression (1991), with 20 features of which 5 matter."""
    import lightgbm
    import mlflow
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(6000, 20, noise=0.5, random_state=0)
    x = x.astype(np.float32)
    parameters = {"objective": "regression", "verbose": -1, "seed": 0, "num_threads": 2, "deterministic": True}
    booster = lightgbm.train(parameters, lightgbm.Dataset(x[:5000], y[:5000]), 300)
    return _Model(
        samples=x[5000:5064],
        answers=np.asarray(booster.predict(x[5000:5064]), np.float32).reshape(-1, 1),
        validation={"input": x[5000:], "label": y[5000:]},
        calibration={"input": x[:256]},
        log=lambda **options: mlflow.lightgbm.log_model(booster, **options),
        spec={"kind": "lightgbm", "name": "boosting", "dtype": "float32", "shape": (20,)},
        save=lambda folder: booster.save_model(folder / "booster.txt"),
        about="LightGBM, 300 trees, trained on Friedman's first regression (20 features)",
        yaml="data: {metric: mae}\n",
    )


_MAKERS: dict[str, Callable[[], _Model]] = {
    "digits-cnn": _digits,
    "resnet50": _resnet50,
    "encoder": _encoder,
    "boosting": _boosting,
}


# --- releasing ------------------------------------------------------------------------------------------------------


def release(home: Path, running: stack.Stack, name: str, folder: Path, *, quick: bool) -> tuple[Subject, Champion]:
    """Creates a model, logs it and waits until Shiplift has promoted it; `folder` gets what rivals load.

    Raises:
        Failed: the release did not end with a promotion.
    """
    folder.mkdir(parents=True)
    model = _MAKERS[name]()
    model.save(folder)
    (folder / "spec.json").write_text(json.dumps(model.spec))
    kind = machine.accelerator_of(machine.this_machine())
    spec = f"targets: [{{name: {kind}, accelerator: {kind}}}]\n" + (QUICK_SPEC if quick else FULL_SPEC) + model.yaml
    version = _log(running, name, model, folder, spec)
    report = wait_for(Releases(home), release_name(name, version, ""))
    if report.exit_code:
        raise Failed(f"the release of {name} ended with {report.exit_code}: {report.reason}")
    subject = Subject(
        name=name,
        folder=folder,
        samples=model.samples,
        answers=model.answers,
        about=model.about,
        torch=model.spec["kind"] == "torch",
    )
    registry = Registry(running.registry_uri)
    logged = registry.download_model(registry.version(name, version), folder / "logged", limit_mb=16384)
    decisions = _decisions(home, running, report, folder)
    return subject, Champion(name=serving_name(name), logged=logged, report=decisions)


def _log(running: stack.Stack, name: str, model: _Model, folder: Path, spec: str) -> int:
    import mlflow
    from mlflow.models import infer_signature

    mlflow.set_tracking_uri(running.registry_uri)
    mlflow.set_registry_uri(running.registry_uri)
    example = model.samples[: 4 if model.samples[0].size < _LARGE_SAMPLE else 2]  # MLflow writes it as text, twice
    with mlflow.start_run():
        for dataset, arrays in (("validation", model.validation), ("calibration", model.calibration)):
            np.savez(folder / f"{dataset}.npz", **arrays)  # type: ignore[arg-type]
            mlflow.log_artifact(str(folder / f"{dataset}.npz"), "shiplift")
        mlflow.log_text(spec, "shiplift/shiplift.yaml")
        info = model.log(
            name="model",
            registered_model_name=name,
            input_example=example,
            pip_requirements=[],
            signature=infer_signature(example, model.answers[: len(example)]),
        )
    return int(info.registered_model_version)


def wait_for(releases: Releases, name: str) -> ReleaseReport:
    """Waits for the release that a registration starts, and returns its report.

    Raises:
        Failed: it takes too long.
    """
    deadline = time.monotonic() + _RELEASE_S
    while time.monotonic() < deadline:
        if releases.folder(name).is_dir() and not releases.active(name) and (report := releases.result(name)):
            return report
        time.sleep(0.2)
    raise Failed(f"release {name} has not ended after {_RELEASE_S} s")


def _decisions(home: Path, running: stack.Stack, report: ReleaseReport, folder: Path) -> dict[str, Any]:
    """What the release decided; `folder` gets the exported fp32 model, for rivals to load."""
    store, history = ArtifactStore(stack.site(home, running).artifacts_uri), LocalEngine(home).history(report)
    exported, candidates, tuned = history.last(Exported), history.last(Candidates), history.last(Tuned)
    assert exported is not None
    assert candidates is not None
    assert tuned is not None
    for file in store.fetch(exported.model, folder / "exported").iterdir():
        file.rename(folder / file.name)
    chosen = next(candidate for candidate in candidates.candidates if candidate.variant == tuned.best.variant)
    return {
        "engine": chosen.engine,
        "precision": chosen.precision,
        "method": chosen.method,
        "float_layers": len(chosen.float_layers),
        "score": chosen.score,
        "config": tuned.best.config.model_dump(),
        "tuning_trials": tuned.configurations,
        "release_seconds": round(report.seconds, 1),
    }
