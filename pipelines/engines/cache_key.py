"""The cache key of a stage's result: while it is the same, the result is still right.

A key is the SHA-256 of the step, the code that decides what it does, and the identity of the records it took. That code
is the step's closure (see `sources`): what it reaches by import, by name or by path, and nothing else of the project.
For the stages that start the bundled server, the closure includes what that server is built from. It includes the code
for both places that may serve, a machine and a cluster, whichever the site has: so engines share results.
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
        ShipliftError: a source file of the stage's code is missing.
    """
    body = json.dumps({name: identity(value) for name, value in arguments.items()}, sort_keys=True)
    return hashlib.sha256(f"{stage.entry}\n{_code(stage.step)}\n{body}".encode()).hexdigest()


def take_digests(stages: Iterable[Stage]) -> None:
    """Digests the code of stages now, so that a daemon's keys describe the code it imported, even if the files change.

    Raises:
        ShipliftError: a source file of a stage's code is missing.
    """
    for stage in stages:
        if has_key(stage):
            _code(stage.step)


def has_key(stage: Stage) -> bool:
    """Whether a stage's result is cached under a key."""
    return stage.at.keep != "never"


def code_digest(step: Callable[..., Any], sources: Sources) -> str:
    """The SHA-256, in hex, of the code that decides what a step does.

    The server's environment depends on the version of the Python that builds it, so a step that depends on that
    environment depends on the version too.
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
