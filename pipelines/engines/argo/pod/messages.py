"""What a pod reports while it runs and when it ends: lines in its log, Argo's progress, its termination message."""

import contextlib
import os
import sys
from pathlib import Path

from shiplift.pipelines.engines.argo.following import lines
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.release import Event

_MESSAGE = Path("/dev/termination-log")
_MESSAGE_BYTES = 4000


def tell(event: Event) -> None:
    """Prints an event, for people and for `--watch`, and passes progress on to Argo."""
    went_wrong = event.kind == "finished" and event.outcome != "ok"
    print(printable(lines.line(event)), file=sys.stderr if went_wrong else sys.stdout, flush=True)
    file = os.environ.get("ARGO_PROGRESS_FILE")
    if file and event.done is not None:
        with contextlib.suppress(OSError):
            Path(file).write_text(f"{round(100 * event.done)}/100")


def explain(message: str) -> None:
    """Writes the pod's termination message, which Argo shows at the node."""
    with contextlib.suppress(OSError):  # outside a pod the file does not exist
        _MESSAGE.write_bytes(printable(message, lines=True).encode()[:_MESSAGE_BYTES])
