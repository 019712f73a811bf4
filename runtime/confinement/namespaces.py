"""Private namespaces: no network, no view of other processes, and a file system on which only the work is writable.

`enter` runs in the outer process, `arrange_mounts` in the first process of the new PID namespace.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shiplift.runtime.confinement import kernel
from shiplift.runtime.confinement.policy import ConfinementPolicy

_TEMPORARY = "/tmp"  # noqa: S108 - a private one
_RESERVED_PIDS = 301  # after PIDs wrap round, the kernel assigns none below this (RESERVED_PIDS + 1)


def enter(policy: ConfinementPolicy) -> None:
    """Leaves this process's namespaces: user, PID (for its children), mount, IPC, UTS, and network unless needed.

    Raises:
        OSError: the kernel refuses.
    """
    uid, gid = os.getuid(), os.getgid()
    own = kernel.NEWPID | kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS | (0 if policy.network else kernel.NEWNET)
    try:
        kernel.unshare(kernel.NEWUSER | own)
    except OSError:
        if uid != 0:
            raise
        kernel.unshare(own)  # root needs no user namespace for the others
        return
    # Without privileges, gid_map can only be written once setgroups is denied (user_namespaces(7)).
    with suppress(OSError):  # kernels before 3.19 have no such file
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def arrange_mounts(policy: ConfinementPolicy) -> tuple[str, str]:
    """Makes everything except `policy.write` read-only, and mounts a /proc that shows only this PID namespace.

    Returns for each of the two why it failed, or an empty string. Neither is essential: Landlock forbids writing
    elsewhere and hides the folders of other processes, and seccomp refuses the calls that change a file's metadata.
    """
    try:
        # Private first: no mount made here may spread to the machine (mount_namespaces(7)).
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        _read_only_but(policy.write)  # before the next two, since it makes every existing mount read-only
        _shared_memory(policy)
        _temporary(policy)
        mounts = ""
    except OSError as error:
        mounts = str(error)
    try:
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        proc = ""
    except OSError as error:
        proc = str(error)
    return mounts, proc


def limit_tasks(tasks: int) -> None:
    """Limits the processes and threads of this PID namespace, if the kernel can (Linux 6.14). Needs its own /proc.

    A few hundred more than `tasks` are possible at first: the watcher outside kills whatever exceeds `tasks`.
    """
    with suppress(OSError):
        Path("/proc/sys/kernel/pid_max").write_text(str(tasks + _RESERVED_PIDS))


def _shared_memory(policy: ConfinementPolicy) -> None:
    if policy.shared_memory_mb:
        _mount_memory("/dev/shm", policy.shared_memory_mb)  # noqa: S108 - a private one


def _temporary(policy: ConfinementPolicy) -> None:
    """Mounts a private /tmp that still shows the policy's own paths below the machine's /tmp."""
    if not policy.temporary_mb:
        return
    paths = [Path(path) for path in (*policy.read, *policy.write)]
    kept = {path for path in paths if path.is_relative_to(_TEMPORARY) and path.exists()}
    outermost = [path for path in sorted(kept) if not kept & set(path.parents)]
    trees = [(path, path.is_dir(), kernel.clone_mount(str(path))) for path in outermost]
    _mount_memory(_TEMPORARY, policy.temporary_mb)
    for path, is_folder, tree in trees:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_folder:
            path.mkdir()
        else:
            path.touch()
        kernel.attach_mount(tree, str(path))
        os.close(tree)


def _mount_memory(at: str, size_mb: int) -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", at, "tmpfs", flags, f"size={size_mb}m,mode=1777")


def _read_only_but(write: Sequence[str]) -> None:
    folders = [path for path in write if Path(path).exists()]
    for path in folders:
        kernel.mount(path, path, "", kernel.MS_BIND | kernel.MS_REC)
    kernel.set_read_only("/", read_only=True, recursive=True)
    for path in folders:
        kernel.set_read_only(path, read_only=False, recursive=False)
    os.chdir(Path.cwd())  # enter it again by its path, because another mount may now cover it
