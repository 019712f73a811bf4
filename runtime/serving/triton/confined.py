"""Confines the bundled server, so that a model that takes it over can reach only the server's own files.

The server can't see other processes or other users' files. It writes only to a private /tmp and /dev/shm, listens on
its own ports and opens no connections. It shares the network of its machine or pod, because clients reach it there.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shiplift.runtime.confinement import kernel, landlock, seccomp
from shiplift.runtime.confinement.launch import launch_command
from shiplift.runtime.confinement.policy import TRITON, ConfinementPolicy
from shiplift.runtime.serving.triton.environment import ServerEnvironment


def confined(
    program: Sequence[str | Path],
    environment: ServerEnvironment,
    repository: Path,
    *,
    ports: Sequence[int],
    ends_with_parent: bool,
    allow_without: tuple[str, ...],
) -> list[str]:
    """The command that starts the server confined."""
    policy = replace(
        _policy(environment, repository, ports), ends_with_parent=ends_with_parent, allow_without=allow_without
    )
    return launch_command(policy, [str(word) for word in program])


def confine_in_pod(environment: ServerEnvironment, repository: Path, ports: Sequence[int]) -> dict[str, str]:
    """Confines this process before it becomes a pod's server; returns the mechanisms that failed, and why.

    The container has its own processes and mounts, and no privileges. If the node's kernel lacks Landlock, the
    container's read-only files and the runtime's seccomp profile remain.
    """
    policy, missing = _policy(environment, repository, ports), {}
    kernel.no_new_privileges()
    mechanisms: dict[str, Callable[[], object]] = {
        "landlock": lambda: landlock.restrict(policy, own_proc=True),
        "seccomp": lambda: seccomp.restrict(policy, own_pids=True),
    }
    for name, restrict in mechanisms.items():
        try:
            restrict()
        except OSError as error:
            missing[name] = str(error)
    return missing


def _policy(environment: ServerEnvironment, repository: Path, ports: Sequence[int]) -> ConfinementPolicy:
    own = (environment.root, *environment.root.glob("*"))  # its entries may be links
    python = environment.environments
    with suppress(OSError):  # an image's files are read-only
        python.mkdir(exist_ok=True)  # a rule needs an existing folder, and covers environments made in it later
    read = tuple(str(path.resolve()) for path in (*own, Path(sys.base_prefix), repository, python))
    return replace(TRITON, read=read, ports=tuple(ports))
