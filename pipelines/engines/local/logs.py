"""The logs of a home: those of the stack's components and of its releases."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.store.registry.terms import model_and_version

_POLL_S = 0.05


def log_lines(home: Path, name: str, *, lines: int, follow: bool) -> Iterator[str]:
    """Yields the last lines of a log and, with `follow`, new lines; an empty name is the dispatcher's log.

    Raises:
        NotFound: there is no such log.
    """
    file = _log_file(home, name or "dispatcher")
    with file.open(errors="replace") as log:
        yield from (line.rstrip("\n") for line in deque(log, maxlen=lines))
        while follow:
            line = log.readline()
            if line:
                yield line.rstrip("\n")
            else:
                time.sleep(_POLL_S)


def _log_file(home: Path, name: str) -> Path:
    if name in stack.NAMES:
        file = home / "logs" / f"{name}.log"
    else:
        releases = Releases(home)
        model, version = model_and_version(name)
        candidates = {*releases.of(model, version), *({name} & set(releases.names()))}
        files = [releases.folder(release) / "log.txt" for release in candidates]
        file = max((f for f in files if f.is_file()), key=lambda f: f.stat().st_mtime, default=home / "logs" / name)
    if not file.is_file():
        raise NotFound(f"there is no log of {name!r}", do=f"Logs are: {', '.join(stack.NAMES)}, or MODEL/VERSION.")
    return file
