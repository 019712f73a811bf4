"""A Python model's own process, asked in a sandbox by the code that will also host it in production."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.python.host import Host, ModelFailed
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import TensorSpec

_DO = "Load it in a fresh environment with its requirements, and call `mlflow.pyfunc.load_model(...).predict(example)`."


_SLOW_S = 0.05  # for a row: from there on, the time limits decide how much is asked
CLOCK_STEP_S = (
    (37 * 24 + 7) * 60 + 17
) * 60 + 23  # another year soon; another month, weekday, hour and minute each time


def settings_of(
    model: str,
    outputs: list[str],
    read: list[str],
    memory_mb: int,
    allow_without: list[str],
    answers_as: dict[str, Any],
) -> dict[str, Any]:
    """The settings of the model's process; `answers_as` is how it makes outputs (`PythonModel.answers_as`)."""
    return {
        "model": model,
        "outputs": outputs,
        **answers_as,
        "read": read,
        "memory_mb": memory_mb,
        "allow_without": allow_without,
    }


def with_leaping_clock(settings: dict[str, Any]) -> dict[str, Any]:
    """The same settings, of a process in which it is another day for each request."""
    return settings | {"clock_step_s": CLOCK_STEP_S}


def slowly(seconds: float) -> str:
    """What makes a release take long, if it is the author's own Python, which takes `seconds` for a row."""
    return f": the author's own Python takes about {1000 * seconds:.3g} ms a row" if seconds >= _SLOW_S else ""


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
