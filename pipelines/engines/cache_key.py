"""When a finished stage is still right: the key of its result.

A key is the SHA-256 of the step, the code it may have run and the identity of the records it took. The code is the
step's own module and all of `runtime`: a changed line there runs the stage again, a changed line elsewhere does not.
"""

import hashlib
import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

from shiplift import runtime
from shiplift.pipelines.graph import Stage
from shiplift.runtime.records.base import identity


def key(stage: Stage, arguments: dict[str, Any]) -> str:
    """The key of one call of a stage, as 64 hex digits."""
    body = json.dumps({name: identity(value) for name, value in arguments.items()}, sort_keys=True)
    return hashlib.sha256(f"{stage.entry}\n{_code(inspect.getfile(stage.step))}\n{body}".encode()).hexdigest()


@cache
def _code(step: str) -> str:
    return hashlib.sha256(Path(step).read_bytes() + code_version().encode()).hexdigest()


@cache
def code_version() -> str:
    """The digest of `runtime`, taken once a process: a daemon keeps that of the code it runs."""
    folder = Path(runtime.__file__).parent
    seen = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".py", ".txt"):
            seen.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()
