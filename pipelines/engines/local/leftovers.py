"""What an interrupted stage may leave behind: processes that it had just started, and folders it was just removing.

A signal can arrive between any two lines: after a server was started and before anyone noted that, or in the middle of
a temporary folder's removal. No stage can close all of these windows itself, so the release's process does at its end.
"""

import contextlib
from pathlib import Path

import psutil

from shiplift.runtime.host import folders

_EXIT_S = 5


def clear(home: Path) -> None:
    """Kills everything that this process started and is still running, and removes its scratch folders and dead ones'.

    Only for a process that does nothing but run a release. What another process uses, such as a rollback from the
    command line, is locked and stays.
    """
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(children, timeout=_EXIT_S)
    folders.close_all()
    folders.sweep(home)
