"""Gives up starting programs and processes, then runs a module of this interpreter.

    launch POLICY-JSON -- python -I -c ... shiplift.runtime.confinement.alone MODULE [ARGUMENT ...]

A program that `launch` starts has to be started by exec, so that policy allows programs. This takes them away before
the module meets anything of somebody else's. The policy `confines`, or the kernel refuses. No new program can start,
so what the module would start, such as the build of a source package, fails with PermissionError.
"""

import runpy
import sys
from dataclasses import replace

from shiplift.runtime.confinement import seccomp
from shiplift.runtime.confinement.policy import INSTALL


def main() -> None:
    """Runs the module that the command line names, with the rest of the command line."""
    own_pids = False  # it names no other process, whether or not any is visible
    without = sys.argv[1].split(",")
    try:
        seccomp.restrict(replace(INSTALL, programs=False, confines=False), own_pids=own_pids)
    except OSError:
        if "seccomp" not in without:
            raise
    sys.argv[:2] = []
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
