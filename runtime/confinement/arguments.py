"""What system calls may be asked, argument by argument: call, values or flags, and why. Everything else is refused.

Flags are named as in the kernel's headers. A flag that the kernel gets in a later version is refused until it is here.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_INT, _POINTER = (1 << 32) - 1, (1 << 64) - 1  # the kernel reads only the lower half of an `int`


@dataclass(frozen=True)
class Argument:
    """What argument `index` may be: one of `values`, and in addition any of the flags in `free`."""

    index: int
    values: tuple[int, ...] = (0,)
    free: Mapping[str, int] | None = None
    width: int = _INT

    @property
    def mask(self) -> int:
        """The bits that must equal one of `values`."""
        return self.width & ~sum((self.free or {}).values())


@dataclass(frozen=True, kw_only=True)
class CallRule:
    """Calls that are allowed with these arguments, and why with no others; `error` is what the others meet."""

    calls: tuple[str, ...]
    arguments: tuple[Argument, ...]
    why: str
    error: int = errno.EPERM


SENDING: Final = {"MSG_DONTWAIT": 0x40, "MSG_EOR": 0x80, "MSG_NOSIGNAL": 0x4000, "MSG_MORE": 0x8000}
RECEIVING: Final = {
    "MSG_PEEK": 0x2,
    "MSG_TRUNC": 0x20,
    "MSG_DONTWAIT": 0x40,
    "MSG_WAITALL": 0x100,
    "MSG_ERRQUEUE": 0x2000,
    "MSG_NOSIGNAL": 0x4000,
    "MSG_WAITFORONE": 0x10000,
    "MSG_CMSG_CLOEXEC": 0x40000000,
}
# Some bits differ between architectures: O_DIRECT, O_DIRECTORY, O_NOFOLLOW and O_LARGEFILE trade places.
OPENING: Final = {
    "O_CREAT": 0o100,
    "O_EXCL": 0o200,
    "O_NOCTTY": 0o400,
    "O_TRUNC": 0o1000,
    "O_APPEND": 0o2000,
    "O_NONBLOCK": 0o4000,
    "O_DSYNC": 0o10000,
    "O_DIRECT": 0o40000,
    "O_LARGEFILE": 0o100000,
    "O_DIRECTORY": 0o200000,
    "O_NOFOLLOW": 0o400000,
    "O_CLOEXEC": 0o2000000,
    "__O_SYNC": 0o4000000,
    "O_PATH": 0o10000000,
}
THREAD: Final = 0x10000  # CLONE_THREAD
CLONING: Final = {
    "CLONE_VM": 0x100,
    "CLONE_FS": 0x200,
    "CLONE_FILES": 0x400,
    "CLONE_SIGHAND": 0x800,
    "CLONE_VFORK": 0x4000,
    "CLONE_SYSVSEM": 0x40000,
    "CLONE_SETTLS": 0x80000,
    "CLONE_PARENT_SETTID": 0x100000,
    "CLONE_CHILD_CLEARTID": 0x200000,
    "CLONE_DETACHED": 0x400000,
    "CLONE_CHILD_SETTID": 0x1000000,
}
PROTECTING: Final = {"PROT_READ": 1, "PROT_WRITE": 2, "PROT_EXEC": 4, "PROT_BTI": 0x10, "PROT_MTE": 0x20}
MAPPING: Final = {
    "MAP_FIXED": 0x10,
    "MAP_ANONYMOUS": 0x20,
    "MAP_32BIT": 0x40,
    "MAP_GROWSDOWN": 0x100,
    "MAP_DENYWRITE": 0x800,
    "MAP_EXECUTABLE": 0x1000,
    "MAP_LOCKED": 0x2000,
    "MAP_NORESERVE": 0x4000,
    "MAP_POPULATE": 0x8000,
    "MAP_NONBLOCK": 0x10000,
    "MAP_STACK": 0x20000,
    "MAP_SYNC": 0x80000,
    "MAP_FIXED_NOREPLACE": 0x100000,
}
_SHARED_PRIVATE_VALIDATED_DROPPABLE = (1, 2, 3, 8)
SOCKET_TYPE: Final = {"SOCK_NONBLOCK": 0o4000, "SOCK_CLOEXEC": 0o2000000}
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_STREAM, SOCK_DGRAM = 1, 2
PRCTLS: Final = {
    "PR_SET_PDEATHSIG": 1,
    "PR_GET_PDEATHSIG": 2,
    "PR_GET_DUMPABLE": 3,
    "PR_SET_DUMPABLE": 4,
    "PR_SET_NAME": 15,
    "PR_GET_NAME": 16,
    "PR_GET_SECCOMP": 21,
    "PR_CAPBSET_READ": 23,
    "PR_GET_SECUREBITS": 27,
    "PR_SET_TIMERSLACK": 29,
    "PR_GET_TIMERSLACK": 30,
    "PR_GET_CHILD_SUBREAPER": 37,
    "PR_SET_NO_NEW_PRIVS": 38,
    "PR_GET_NO_NEW_PRIVS": 39,
    "PR_GET_TID_ADDRESS": 40,
    "PR_SET_THP_DISABLE": 41,
    "PR_GET_THP_DISABLE": 42,
    "PR_SVE_SET_VL": 50,
    "PR_SVE_GET_VL": 51,
    "PR_PAC_RESET_KEYS": 54,
    "PR_SET_TAGGED_ADDR_CTRL": 55,
    "PR_GET_TAGGED_ADDR_CTRL": 56,
    "PR_GET_AUXV": 0x41555856,
    "PR_SET_VMA": 0x53564D41,
}
IOCTLS: Final = {
    "TCGETS": 0x5401,
    "TIOCGWINSZ": 0x5413,
    "FIONREAD": 0x541B,
    "FIONBIO": 0x5421,
    "FIONCLEX": 0x5450,
    "FIOCLEX": 0x5451,
}
FCNTLS: Final = {
    "F_DUPFD": 0,
    "F_GETFD": 1,
    "F_SETFD": 2,
    "F_GETFL": 3,
    "F_SETFL": 4,
    "F_GETLK": 5,
    "F_SETLK": 6,
    "F_SETLKW": 7,
    "F_OFD_GETLK": 36,
    "F_OFD_SETLK": 37,
    "F_OFD_SETLKW": 38,
    "F_DUPFD_CLOEXEC": 1030,
    "F_SETPIPE_SZ": 1031,
    "F_GETPIPE_SZ": 1032,
    "F_ADD_SEALS": 1033,
    "F_GET_SEALS": 1034,
}
SOCKET_OPTIONS: Final = {
    "SO_REUSEADDR": 2,
    "SO_SNDBUF": 7,
    "SO_RCVBUF": 8,
    "SO_KEEPALIVE": 9,
    "SO_LINGER": 13,
    "SO_REUSEPORT": 15,
    "SO_RCVLOWAT": 18,
    "SO_RCVTIMEO": 20,
    "SO_SNDTIMEO": 21,
}
TCP_OPTIONS: Final = {
    "TCP_NODELAY": 1,
    "TCP_CORK": 3,
    "TCP_KEEPIDLE": 4,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 6,
    "TCP_DEFER_ACCEPT": 9,
    "TCP_QUICKACK": 12,
    "TCP_USER_TIMEOUT": 18,
    "TCP_FASTOPEN": 23,  # of a listener
    "TCP_NOTSENT_LOWAT": 25,
    "TCP_INQ": 36,
}
IP_OPTIONS: Final = {"IP_TOS": 1, "IP_PKTINFO": 8, "IP_MTU_DISCOVER": 10, "IP_RECVERR": 11}
IPV6_OPTIONS: Final = {"IPV6_RECVERR": 25, "IPV6_V6ONLY": 26, "IPV6_RECVPKTINFO": 49, "IPV6_TCLASS": 67}
_SOL_SOCKET, _IPPROTO_IP, _IPPROTO_TCP, _IPPROTO_UDP, _IPPROTO_IPV6 = 1, 0, 6, 17, 41


def _options(level: int, options: Mapping[str, int], why: str) -> CallRule:
    given = (Argument(1, (level,)), Argument(2, tuple(options.values())))
    return CallRule(calls=("setsockopt",), arguments=given, why=why, error=errno.ENOPROTOOPT)


def _memory(calls: tuple[str, ...], *more: Argument) -> CallRule:
    why = "memory of huge pages counts for no limit"
    return CallRule(calls=calls, arguments=(Argument(2, free=PROTECTING), *more), why=why, error=errno.ENOMEM)


ALWAYS: Final = (
    CallRule(
        calls=("sendmsg",),
        arguments=(Argument(2, free=SENDING),),
        why="MSG_FASTOPEN connects without connect(2) and past Landlock; MSG_OOB was a way into the kernel",
    ),
    CallRule(calls=("sendmmsg",), arguments=(Argument(3, free=SENDING),), why="as sendmsg"),
    CallRule(calls=("recvfrom", "recvmmsg"), arguments=(Argument(3, free=RECEIVING),), why="MSG_OOB, as sendmsg"),
    CallRule(calls=("recvmsg",), arguments=(Argument(2, free=RECEIVING),), why="MSG_OOB, as sendmsg"),
    CallRule(
        calls=("open",),
        arguments=(Argument(1, (0, 1, 2), OPENING),),
        why="O_TMPFILE makes files without a name, FASYNC signals",
    ),
    CallRule(calls=("openat",), arguments=(Argument(2, (0, 1, 2), OPENING),), why="as open"),
    CallRule(
        calls=("preadv2", "pwritev2"), arguments=(Argument(5, free={"RWF_NOWAIT": 8}),), why="only NumPy's and glibc's"
    ),
    CallRule(
        calls=("renameat2",),
        arguments=(Argument(4, free={"RENAME_NOREPLACE": 1, "RENAME_EXCHANGE": 2}),),
        why="RENAME_WHITEOUT makes a device",
    ),
    _memory(("mmap",), Argument(3, _SHARED_PRIVATE_VALIDATED_DROPPABLE, MAPPING)),
    _memory(("mprotect", "pkey_mprotect")),
    CallRule(calls=("prlimit64",), arguments=(Argument(0),), why="its own limits: 0 is the caller"),
    CallRule(calls=("personality",), arguments=(Argument(0, (_INT,)),), why="asks only; others switch off protections"),
    CallRule(
        calls=("prctl",),
        arguments=(Argument(0, tuple(PRCTLS.values())),),
        why="PR_SET_MM, PR_SET_PTRACER, PR_SET_CHILD_SUBREAPER and others change what our own processes rely on",
    ),
    CallRule(
        calls=("fcntl",),
        arguments=(Argument(1, tuple(FCNTLS.values())),),
        why="F_SETOWN and F_SETSIG send signals, F_SETLEASE and F_NOTIFY watch other processes' files",
    ),
    CallRule(
        calls=("socketpair",),
        arguments=(Argument(0, (AF_UNIX,)), Argument(1, (SOCK_STREAM,), SOCKET_TYPE), Argument(2)),
        why="connected pairs only: an unconnected Unix socket could send to any other one on this machine",
    ),
    _options(_SOL_SOCKET, SOCKET_OPTIONS, "SO_ATTACH_FILTER and SO_ATTACH_BPF load programs into the kernel"),
)
# Whoever needs no DNS sends to its peer alone: without an address, no flag and no later kernel makes it another's.
CONNECTED: Final = (
    CallRule(
        calls=("sendto",),
        arguments=(Argument(3, free=SENDING), Argument(4, width=_POINTER)),
        why="as sendmsg, and an address sends to others",
    ),
)
ADDRESSED: Final = (CallRule(calls=("sendto",), arguments=(Argument(3, free=SENDING),), why="as sendmsg"),)
THREADS: Final = (
    CallRule(
        calls=("clone",),
        arguments=(Argument(0, (THREAD, THREAD | 17), CLONING),),
        why="threads alone: another process could outlive the one that is watched",
    ),
)
PROCESSES: Final = (
    CallRule(
        calls=("clone",),
        arguments=(Argument(0, (0, 17, THREAD, THREAD | 17), CLONING | {"CLONE_PIDFD": 0x1000}),),
        why="CLONE_NEW* make namespaces, CLONE_PARENT a sibling; a signal other than SIGCHLD could end the parent",
    ),
)
_FAMILIES = Argument(0, (AF_INET, AF_INET6))
NETWORK: Final = (
    CallRule(
        calls=("socket",),
        arguments=(_FAMILIES, Argument(1, (SOCK_STREAM,), SOCKET_TYPE), Argument(2, (0, _IPPROTO_TCP))),
        why="Landlock's rules for ports cover TCP alone: not MPTCP, SCTP or SMC",
    ),
    CallRule(calls=("accept4",), arguments=(Argument(3, free=SOCKET_TYPE),), why="as socket"),
    CallRule(
        calls=("memfd_create",),
        arguments=(Argument(1, free={"MFD_CLOEXEC": 1, "MFD_ALLOW_SEALING": 2, "MFD_NOEXEC_SEAL": 8, "MFD_EXEC": 16}),),
        why="MFD_HUGETLB: as mmap",
    ),
    _options(_IPPROTO_TCP, TCP_OPTIONS, "TCP_ULP, TCP_REPAIR and TCP_FASTOPEN_CONNECT change what a connection is"),
    _options(_IPPROTO_IP, IP_OPTIONS, "IPT_SO_SET_REPLACE and others change the firewall"),
    _options(_IPPROTO_IPV6, IPV6_OPTIONS, "as IP"),
)
DATAGRAMS: Final = (
    CallRule(
        calls=("socket",),
        arguments=(_FAMILIES, Argument(1, (SOCK_DGRAM,), SOCKET_TYPE), Argument(2, (0, _IPPROTO_UDP))),
        why="DNS",
    ),
)
CONFINES: Final = (
    CallRule(
        calls=("seccomp",),
        arguments=(Argument(0, (1,)), Argument(1, free={"TSYNC": 1, "LOG": 2, "SPEC_ALLOW": 4, "TSYNC_ESRCH": 16})),
        why="a filter can only take away; NEW_LISTENER would answer calls in another's place",
    ),
    CallRule(
        calls=("prctl",),
        arguments=(Argument(0, (36,)),),
        why="PR_SET_CHILD_SUBREAPER: whoever hosts another process ends what that leaves behind",
    ),
)
IOCTL: Final = (
    CallRule(
        calls=("ioctl",),
        arguments=(Argument(1, tuple(IOCTLS.values())),),
        why="TIOCSTI and TIOCLINUX type into a terminal; a file answers ENOTTY to what it does not know (ioctl(2))",
        error=errno.ENOTTY,
    ),
)
GPU_IOCTL: Final = tuple(
    CallRule(calls=("ioctl",), arguments=(request,), why=why, error=errno.ENOTTY)
    for request, why in (
        (Argument(1, (0x30000001, 0x30000002)), "UVM_INITIALIZE, UVM_DEINITIALIZE"),
        (Argument(1, (0x4600,), {"any direction, size and number": 0xFFFF00FF}), "the NVIDIA driver"),
        (Argument(1, (0,), {"any number": 0x1FF}), "its unified memory"),
    )
)
