"""The kernel calls that Python has no function for: namespaces, mounts, capabilities, `prctl`.

Each raises OSError, so that a mechanism that had no effect is never mistaken for one that took effect.
"""

import ctypes
import os
import signal
import struct

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_OPEN_TREE, _MOVE_MOUNT, _OPEN_TREE_CLONE, _MOVE_MOUNT_FROM_EMPTY = 428, 429, 1, 4
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _SECUREBITS, _SUBREAPER, _NO_NEW_PRIVS, _AMBIENT = 1, 4, 24, 28, 36, 38, 47
_AMBIENT_CLEAR_ALL = 4
# securebits(7): root gains no capabilities by exec, and all of this is locked
_NO_ROOT = 0b11101111
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, *arguments: int) -> None:
    """Changes this process; see prctl(2)."""
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    _check(libc.prctl(option, *words), f"prctl({option})")


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends."""
    prctl(_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends."""
    prctl(_SUBREAPER, 1)


def close_to_others() -> None:
    """Forbids the user's other processes to trace this process or read its memory."""
    prctl(_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Forbids this process and its descendants to gain privileges by exec (set-user-ID, file capabilities)."""
    prctl(_NO_NEW_PRIVS, 1)


def unshare(flags: int) -> None:
    """Enters new namespaces; see unshare(2)."""
    _check(libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mounts a file system; see mount(2)."""
    words = [text.encode() for text in (source, target, kind)]
    result = libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None)
    _check(result, f"mounting {kind or source} at {target}")


def clone_mount(path: str) -> int:
    """A descriptor of a detached copy of the mounts at and below `path`; see open_tree(2)."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    result = libc.syscall(ctypes.c_long(_OPEN_TREE), ctypes.c_int(_AT_FDCWD), path.encode(), ctypes.c_uint(flags))
    return _check(result, f"open_tree({path})")


def attach_mount(descriptor: int, target: str) -> None:
    """Attaches what `clone_mount` returned at `target`; see move_mount(2)."""
    result = libc.syscall(
        ctypes.c_long(_MOVE_MOUNT),
        ctypes.c_int(descriptor),
        b"",
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_MOVE_MOUNT_FROM_EMPTY),
    )
    _check(result, f"move_mount({target})")


def set_read_only(path: str, *, read_only: bool, recursive: bool) -> None:
    """Makes the mount at `path` read-only or writable; see mount_setattr(2)."""
    switch = (_ATTR_RDONLY, 0) if read_only else (0, _ATTR_RDONLY)
    attributes = struct.pack("=QQQQ", *switch, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    result = libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        path.encode(),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(result, f"mount_setattr({path})")


def drop_capabilities() -> None:
    """Gives up every capability for good: effective, permitted, inheritable, bounding and ambient.

    Raises:
        OSError: some capabilities are left.
    """
    for capability in range(_LAST_CAPABILITY + 1):
        if libc.prctl(_CAPBSET_DROP, *(ctypes.c_ulong(word) for word in (capability, 0, 0, 0))) < 0:
            break  # past the kernel's last capability, or this process has none to drop
    libc.prctl(_SECUREBITS, *(ctypes.c_ulong(word) for word in (_NO_ROOT, 0, 0, 0)))
    libc.prctl(_AMBIENT, *(ctypes.c_ulong(word) for word in (_AMBIENT_CLEAR_ALL, 0, 0, 0)))
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(libc.capset(header, bytes(24)), "capset")
    left = ctypes.create_string_buffer(24)
    _check(libc.capget(header, left), "capget")
    if any(left.raw):
        raise OSError(f"capabilities are left: {left.raw.hex()}")
