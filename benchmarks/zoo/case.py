"""A case of the zoo: a model, how it is logged, the requests to it, and how its release should end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shiplift.runtime.model.tensors import Arrays

Right = Literal["promoted", "refused"]


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A model that is ready to be logged, and what it is asked afterwards.

    `log` calls a flavor's `log_model` with `name` and `registered_model_name`, and `save` its `save_model` with a path:
    a case without one is not exported by itself. `question` is what
    `mlflow.pyfunc.load_model(uri).predict` takes; `inputs` are the same samples for production, by input name, with
    samples along the first axis. `answer` turns pyfunc's prediction into arrays by output name (an unnamed one is "",
    which is production's first output). Without a `question`, MLflow can't ask the model: then `original` has its own
    answers. `noise` is how far off MLflow's answers are in each column, (columns,) by output, where FP64 tells.
    """

    log: Callable[..., Any]
    inputs: Arrays
    question: Any = None
    answer: Callable[[Any], Arrays] | None = None
    original: Arrays | None = None
    save: Callable[..., Any] | None = None
    noise: Arrays = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A line of the zoo's table.

    `build` gets an empty folder. `reason` is a part of the message with which a `refused` case has to be refused, and
    `why` says it in the documentation's words. `needs` are the modules to import, `install` what brings those beyond
    Shiplift's extra `all`. `spec` is added to the release spec. With `sequence`, the samples are the steps of one.
    `input` is the kind of data, in the cases that differ by it.
    """

    name: str
    flavor: str
    about: str
    build: Callable[[Path], Logged]
    right: Right = "promoted"
    reason: str = ""
    why: str = ""
    needs: tuple[str, ...] = ()
    install: str = ""
    spec: str = ""
    sequence: bool = False
    input: str = ""
