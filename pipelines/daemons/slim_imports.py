"""Runs a process of the control plane without packages that its dependencies would load but that it never uses.

    python -m shiplift.pipelines.daemons.slim_imports shiplift.pipelines.daemons.operator --site site.json ...

structlog and httpx load rich and pygments, which they need only for output to a terminal.
"""

import contextlib
import ctypes
import runpy
import sys

UNUSED = ("pygments", "rich")  # optional for those who import them: each import is in a `try` for ImportError
_M_ARENA_MAX = -8  # from glibc's malloc.h
_ARENAS = 2  # by default glibc makes eight per core, and each keeps memory that was freed


def leave_out_unused() -> None:
    """Makes imports of the unused packages fail as if they were not installed, and limits malloc's arenas."""
    for name in UNUSED:
        sys.modules[name] = None  # type: ignore[assignment]  # as the import system's documentation says
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
