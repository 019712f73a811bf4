"""A workplace whose entry runs in the test's own process: for tests of what is built, where confinement is no question.

A sandbox costs each of them a second of imports. Files, JSON and errors are the same; each step has tests in the real
sandbox, too.
"""

import contextlib
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shiplift.runtime.confinement.policy import Entry, SandboxLimits
from shiplift.runtime.host.folders import scratch_folder


class Unconfined:
    """Has the sandbox's `run`, with `work` as the working directory."""

    def __init__(self, entry: Entry, work: Path) -> None:
        work.mkdir()
        self.entry, self.work = entry, work

    def run(self, arguments: dict[str, Any], _limits: SandboxLimits) -> tuple[dict[str, Any], None]:
        module, _, name = self.entry.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        with contextlib.chdir(self.work):
            result = function(**json.loads(json.dumps(arguments)))
        return json.loads(json.dumps(result)), None


class UnconfinedPlace:
    """Has a workplace's folder and sandbox."""

    def __init__(self, entry: Entry, folder: Path) -> None:
        self.folder, self.sandbox = folder, Unconfined(entry, folder / "work")


@contextmanager
def unconfined(entry: Entry, root: Path, *_: object, **__: object) -> Iterator[UnconfinedPlace]:
    """Takes the place of `workplace`."""
    with scratch_folder(root) as folder:
        yield UnconfinedPlace(entry, folder)
