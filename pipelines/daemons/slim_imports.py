"""Runs a process of the control plane without packages that others would load for it and that it never uses.

    python -m shiplift.pipelines.daemons.slim_imports shiplift.pipelines.daemons.operator --site site.json ...

structlog and httpx load rich and pygments for a terminal.
"""

import contextlib
import ctypes
import runpy
import sys

UNUSED = ("pygments", "rich")  # their importers do without: each import is in a `try` for ImportError
_M_ARENA_MAX = -8  # in glibc's malloc.h
_ARENAS = 2  # glibc would make eight per core, each with memory that it keeps


def leave_out_unused() -> None:
    """Makes imports of the unused packages fail as if they were not installed, and limits malloc's arenas."""
    for name in UNUSED:
        sys.modules[name] = None  # type: ignore[assignment]  # what the import system's documentation says to do
    with contextlib.suppress(AttributeError, OSError):  # a C library other than glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def main() -> None:
    """Runs the module that the first argument names, with the other arguments."""
    module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    leave_out_unused()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
