"""A Python model's answers, recorded in the sandbox by the process that will also serve it.

The model's code runs below this process, so the parent trusts nothing that this one writes: another sandbox decides
what is compared, and how (`families/python/answers.py`).
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.guest.python.host import Host, ModelFailed, rows
from shiplift.runtime.model.samples import random_like
from shiplift.runtime.model.tensors import Arrays, concatenate, dump_npz, load_npz, one_by_one
from shiplift.runtime.records.tensor import TensorSpec

ROWS = 8  # as many as there are golden requests
_DO = "Load it in a fresh environment with its requirements, and call `mlflow.pyfunc.load_model(...).predict(example)`."


def answer(  # noqa: PLR0913 - an entry takes JSON by name
    *,
    code: str,
    environment: str,
    model: str,
    read: list[str],
    example: str,
    inputs: list[dict[str, Any]],
    outputs: list[str],
    memory_mb: int,
    limit_s: float,
    allow_without: list[str],
    out: str,
) -> dict[str, Any]:
    """Writes `out/answers.npz`, with arrays named `SET/input/NAME` and `SET/output/NAME`; returns the sets.

    `example` is the logged example, `again` the same from a second process, `rows` its first samples one by one, and
    `batch` those together, which is missing if the model does not answer it. An example of few samples gets random
    ones like it as neighbours, as far as the model answers them: equal ones would show nothing. A sandbox entry.

    Raises:
        ExportFailed: the model does not load, or does not answer.
    """
    specs = [TensorSpec.model_validate(spec) for spec in inputs]
    asked = restored(load_npz(Path(example)), specs)
    settings = settings_of(model, outputs, read, memory_mb, allow_without)
    sets: dict[str, tuple[Arrays, Arrays]] = {}
    with asking(code, environment, settings) as host:
        progress("running the model on its example")
        sets["example"] = asked, _ask(host, asked, limit_s)
    with asking(code, environment, settings) as host:
        progress("running a second process on it")
        sets["again"] = asked, _ask(host, asked, limit_s)
        first, alone = _alone(host, asked, specs, limit_s)
        sets["rows"] = first, alone
        with contextlib.suppress(ExportFailed):
            sets["batch"] = first, _ask(host, first, limit_s)
    named = {
        f"{name}/{kind}/{key}": array
        for name, pair in sets.items()
        for kind, arrays in zip(("input", "output"), pair, strict=True)
        for key, array in arrays.items()
    }
    (Path(out) / "answers.npz").write_bytes(dump_npz(named))
    return {"sets": list(sets)}


def settings_of(
    model: str, outputs: list[str], read: list[str], memory_mb: int, allow_without: list[str]
) -> dict[str, Any]:
    """The settings of the model's process."""
    return {"model": model, "outputs": outputs, "read": read, "memory_mb": memory_mb, "allow_without": allow_without}


@contextlib.contextmanager
def asking(code: str, environment: str, settings: dict[str, Any]) -> Iterator[Host]:
    """A model's process, as long as the context lasts.

    Raises:
        ExportFailed: the model does not load.
    """
    host = Host(Path(code), Path(environment), settings)
    try:
        host.start()
        yield host
    except ModelFailed as error:
        raise ExportFailed(f"the Python model does not load: {error}", do=_DO) from error
    finally:
        host.close()


def restored(arrays: Arrays, specs: list[TensorSpec]) -> Arrays:
    """Arrays from an NPZ file with text as object arrays again."""
    return {
        spec.name: arrays[spec.name].astype(object) if spec.datatype == "BYTES" else arrays[spec.name] for spec in specs
    }


def _alone(host: Host, asked: Arrays, specs: list[TensorSpec], limit_s: float) -> tuple[Arrays, Arrays]:
    """Samples, the example's first, and the answers to each by itself."""
    own = min(rows(asked), ROWS)
    made = random_like(asked, tuple(specs), ROWS - own, seed=0)
    samples = one_by_one({name: array[:own] for name, array in asked.items()})
    answers = [_ask(host, sample, limit_s) for sample in samples]
    for sample in one_by_one(made):
        with contextlib.suppress(ExportFailed):
            answers.append(_ask(host, sample, limit_s))
            samples.append(sample)
    return concatenate(samples), concatenate(answers)


def _ask(host: Host, inputs: Arrays, limit_s: float) -> Arrays:
    count = rows(inputs)
    try:
        answers = host.ask(inputs, limit_s)
    except ModelFailed as error:
        raise ExportFailed(f"the Python model does not answer {count} samples: {error}", do=_DO) from error
    for name, array in answers.items():
        if len(array) != count:
            raise ExportFailed(
                f"the Python model answers {len(array)} rows of {name!r} to {count} samples",
                do="Answer one row per sample: requests of several clients are answered together.",
            )
    return answers
