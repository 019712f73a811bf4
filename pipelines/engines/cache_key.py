"""The cache key of a stage's result: while it is the same, the result is still right.

A key is the SHA-256 of the stage, the installed package, and the identity of the records that the stage takes. Any
change to the package makes new keys. An earlier version worked out which code each stage depends on, and missed some
now and then. Expensive results that don't depend on the code (environments, layer sensitivities, kernel timings,
measured trials) have keys of their own, so they survive an upgrade. A machine and a cluster compute the same keys, and
can share results.
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
