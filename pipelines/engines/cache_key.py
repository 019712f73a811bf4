"""When a finished stage is still right: the key of its result.

A key is the SHA-256 of the step, the code that decides what it does and the identity of the records it took. That code
is the step's closure (see `sources`): what it reaches by import, by name or by path, and nothing else of the project.
So is what the bundled server is made of, for the stages that start it. Both places where a site may serve are reached,
whichever it has: engines share results.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from shiplift.pipelines.engines.sources import Sources
from shiplift.pipelines.graph import Stage
from shiplift.runtime.records.base import identity
from shiplift.runtime.serving.triton import environment


def key(stage: Stage, arguments: dict[str, Any]) -> str:
    """The key of one call of a stage, as 64 hex digits.

    Raises:
        ShipliftError: a source file of the stage's code is not there.
    """
    body = json.dumps({name: identity(value) for name, value in arguments.items()}, sort_keys=True)
    return hashlib.sha256(f"{stage.entry}\n{_code(stage.step)}\n{body}".encode()).hexdigest()


def take_digests(stages: Iterable[Stage]) -> None:
    """Digests the code of stages now: what a daemon has imported is what its keys speak of until it ends.

    Raises:
        ShipliftError: a source file of a stage's code is not there.
    """
    for stage in stages:
        if kept(stage):
            _code(stage.step)


def kept(stage: Stage) -> bool:
    """Whether a stage's result has a key."""
    return stage.at.keep != "never"


def code_digest(step: Callable[..., Any], sources: Sources) -> str:
    """The SHA-256, in hex, of the code that decides what a step does.

    The server's environment is made for the Python that makes it, so this counts where the environment does.
    """
    digest = sources.digest(step)
    if sources.file_of(environment.__name__) in sources.closure(step):
        digest = hashlib.sha256(f"{digest} {environment.PYTHON}".encode()).hexdigest()
    return digest


@cache
def _sources() -> Sources:
    return Sources()


@cache
def _code(step: Callable[..., Any]) -> str:
    return code_digest(step, _sources())
