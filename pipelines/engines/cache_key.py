"""The cache key of a stage's result: while it is the same, the result is still right.

A key is the SHA-256 of the stage, the installed package, and the identity of the records that the stage takes. Any
change of the package makes new keys: it was tried to find out which code decides which stage, and a stage was missed
now and then. What is expensive and true whatever the code (environments, layer sensitivities, kernel timings, measured
trials) has keys of its own, so an upgrade doesn't lose it. A machine and a cluster share results: their keys are the
same.
"""

import hashlib
import json
from typing import Any

from shiplift.pipelines.graph import Stage
from shiplift.runtime.host.installed import package_digest
from shiplift.runtime.records.base import identity


def key(stage: Stage, arguments: dict[str, Any]) -> str:
    """The key of one call of a stage, as 64 hex digits."""
    body = json.dumps({name: identity(value) for name, value in arguments.items()}, sort_keys=True)
    return hashlib.sha256(f"{stage.entry}\n{package_digest()}\n{body}".encode()).hexdigest()


def has_key(stage: Stage) -> bool:
    """Whether a stage's result is cached under a key."""
    return stage.at.keep != "never"
