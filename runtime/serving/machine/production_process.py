"""The process of production's server on a machine, which the stack notes at each start of it."""

import json
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from shiplift.runtime.records.process import Process


def production_process(home: Path) -> Process | None:
    """The server's process; None if none was started, or while the stack's file is being replaced."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, ValidationError):
        return Process.model_validate(json.loads((home / "stack.json").read_text())["processes"]["triton"])
    return None
