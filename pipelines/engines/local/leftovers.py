"""Cleans up after an interrupted stage: processes that it had just started, and folders that it was removing.

A signal can arrive between any two lines: after a server was started but before that was noted, or halfway through the
removal of a temporary folder. A stage can't close all of these windows itself, so its process cleans up at its end.
"""

import contextlib
from pathlib import Path

import psutil

from shiplift.runtime.host import folders
from shiplift.runtime.host.processes import wait_for

_EXIT_S = 5


def clear(home: Path) -> None:
    """Kills every child of this process, and removes its scratch folders and those of processes that have died.

    Call it only in a process that does nothing but run a release. Folders that another process uses, such as a rollback
    from the command line, are locked and stay.
    """
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    wait_for(children, limit_s=_EXIT_S)
    folders.close_all()
    folders.sweep(home)
