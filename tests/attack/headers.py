"""Every flag and request of the families of system calls that a filter reads, as the kernel's headers (6.18) name them.

Each family says which call and which argument has it, and the call's other arguments.
"""

from dataclasses import dataclass

MSG = {
    "MSG_OOB": 0x1,
    "MSG_PEEK": 0x2,
    "MSG_DONTROUTE": 0x4,
    "MSG_CTRUNC": 0x8,
    "MSG_PROBE": 0x10,
    "MSG_TRUNC": 0x20,
    "MSG_DONTWAIT": 0x40,
    "MSG_EOR": 0x80,
    "MSG_WAITALL": 0x100,
    "MSG_FIN": 0x200,
    "MSG_SYN": 0x400,
    "MSG_CONFIRM": 0x800,
    "MSG_RST": 0x1000,
    "MSG_ERRQUEUE": 0x2000,
    "MSG_NOSIGNAL": 0x4000,
    "MSG_MORE": 0x8000,
    "MSG_WAITFORONE": 0x10000,
    "MSG_SENDPAGE_NOPOLICY": 0x10000 << 1,
    "MSG_BATCH": 0x40000,
    "MSG_NO_SHARED_FRAGS": 0x80000,
    "MSG_SENDPAGE_DECRYPTED": 0x100000,
    "MSG_SOCK_DEVMEM": 0x2000000,
    "MSG_ZEROCOPY": 0x4000000,
    "MSG_SPLICE_PAGES": 0x8000000,
    "MSG_FASTOPEN": 0x20000000,
    "MSG_CMSG_CLOEXEC": 0x40000000,
    "MSG_CMSG_COMPAT": 0x80000000,
}
OPEN = {
    "O_CREAT": 0o100,
    "O_EXCL": 0o200,
    "O_NOCTTY": 0o400,
    "O_APPEND": 0o2000,
    "O_NONBLOCK": 0o4000,
    "O_DSYNC": 0o10000,
    "FASYNC": 0o20000,
    "O_DIRECT": 0o40000,
    "O_LARGEFILE": 0o100000,
    "O_DIRECTORY": 0o200000,
    "O_NOFOLLOW": 0o400000,
    "O_NOATIME": 0o1000000,
    "O_CLOEXEC": 0o2000000,
    "__O_SYNC": 0o4000000,
    "O_PATH": 0o10000000,
    "__O_TMPFILE": 0o20000000,
}
CLONE = {
    "CLONE_VM": 0x100,
    "CLONE_FS": 0x200,
    "CLONE_FILES": 0x400,
    "CLONE_SIGHAND": 0x800,
    "CLONE_PIDFD": 0x1000,
    "CLONE_PTRACE": 0x2000,
    "CLONE_VFORK": 0x4000,
    "CLONE_PARENT": 0x8000,
    "CLONE_NEWNS": 0x20000,
    "CLONE_SYSVSEM": 0x40000,
    "CLONE_SETTLS": 0x80000,
    "CLONE_PARENT_SETTID": 0x100000,
    "CLONE_CHILD_CLEARTID": 0x200000,
    "CLONE_DETACHED": 0x400000,
    "CLONE_UNTRACED": 0x800000,
    "CLONE_CHILD_SETTID": 0x1000000,
    "CLONE_NEWCGROUP": 0x2000000,
    "CLONE_NEWUTS": 0x4000000,
    "CLONE_NEWIPC": 0x8000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
    "CLONE_IO": 0x80000000,
}
MAP = {
    "MAP_FIXED": 0x10,
    "MAP_ANONYMOUS": 0x20,
    "MAP_32BIT": 0x40,
    "MAP_ABOVE4G": 0x80,
    "MAP_GROWSDOWN": 0x100,
    "MAP_DENYWRITE": 0x800,
    "MAP_EXECUTABLE": 0x1000,
    "MAP_LOCKED": 0x2000,
    "MAP_NORESERVE": 0x4000,
    "MAP_POPULATE": 0x8000,
    "MAP_NONBLOCK": 0x10000,
    "MAP_STACK": 0x20000,
    "MAP_HUGETLB": 0x40000,
    "MAP_SYNC": 0x80000,
    "MAP_FIXED_NOREPLACE": 0x100000,
    "MAP_UNINITIALIZED": 0x4000000,
}
PROT = {
    "PROT_READ": 1,
    "PROT_WRITE": 2,
    "PROT_EXEC": 4,
    "PROT_SEM": 8,
    "PROT_BTI": 0x10,
    "PROT_MTE": 0x20,
    "PROT_GROWSDOWN": 0x01000000,
    "PROT_GROWSUP": 0x02000000,
}
IOCTL = {
    **{name: 0x5401 + number for number, name in enumerate(["TCGETS", "TCSETS", "TCSETSW", "TCSETSF", "TCGETA"])},
    "TIOCEXCL": 0x540C,
    "TIOCSCTTY": 0x540E,
    "TIOCSPGRP": 0x5410,
    "TIOCSTI": 0x5412,
    "TIOCGWINSZ": 0x5413,
    "TIOCSWINSZ": 0x5414,
    "FIONREAD": 0x541B,
    "TIOCLINUX": 0x541C,
    "TIOCCONS": 0x541D,
    "FIONBIO": 0x5421,
    "TIOCNOTTY": 0x5422,
    "TIOCSETD": 0x5423,
    "FIONCLEX": 0x5450,
    "FIOCLEX": 0x5451,
    "FIOASYNC": 0x5452,
    "FIOSETOWN": 0x8901,
    "SIOCSPGRP": 0x8902,
    "SIOCGIFCONF": 0x8912,
    "SIOCSIFFLAGS": 0x8914,
    "SIOCSIFADDR": 0x8916,
    "FS_IOC_SETFLAGS": 0x40086602,
    "FICLONE": 0x40049409,
    "FIDEDUPERANGE": 0xC0189436,
    "FIFREEZE": 0xC0045877,
    "FITRIM": 0xC0185879,
    "FS_IOC_ENABLE_VERITY": 0x40806685,
    "FS_IOC_SET_ENCRYPTION_POLICY": 0x800C6613,
    "NS_GET_USERNS": 0xB701,
    "NS_GET_PARENT": 0xB702,
    "PIDFD_GET_INFO": 0xC040FF0B,
    "KVM_CREATE_VM": 0xAE01,
    "UFFDIO_API": 0xC018AA3F,
    "TUNSETIFF": 0x400454CA,
    "SG_IO": 0x2285,
    "BLKDISCARD": 0x1277,
    "LOOP_SET_FD": 0x4C00,
}
PRCTL = {
    "PR_SET_UNALIGN": 6,
    "PR_SET_KEEPCAPS": 8,
    "PR_SET_FPEMU": 10,
    "PR_SET_TIMING": 14,
    "PR_SET_NAME": 15,
    "PR_GET_NAME": 16,
    "PR_SET_ENDIAN": 20,
    "PR_GET_SECCOMP": 21,
    "PR_SET_SECCOMP": 22,
    "PR_CAPBSET_READ": 23,
    "PR_CAPBSET_DROP": 24,
    "PR_SET_TSC": 26,
    "PR_GET_SECUREBITS": 27,
    "PR_SET_SECUREBITS": 28,
    "PR_SET_TIMERSLACK": 29,
    "PR_GET_TIMERSLACK": 30,
    "PR_TASK_PERF_EVENTS_DISABLE": 31,
    "PR_TASK_PERF_EVENTS_ENABLE": 32,
    "PR_MCE_KILL": 33,
    "PR_SET_MM": 35,
    "PR_SET_CHILD_SUBREAPER": 36,
    "PR_GET_CHILD_SUBREAPER": 37,
    "PR_SET_NO_NEW_PRIVS": 38,
    "PR_GET_NO_NEW_PRIVS": 39,
    "PR_GET_TID_ADDRESS": 40,
    "PR_SET_THP_DISABLE": 41,
    "PR_GET_THP_DISABLE": 42,
    "PR_MPX_ENABLE_MANAGEMENT": 43,
    "PR_SET_FP_MODE": 45,
    "PR_CAP_AMBIENT": 47,
    "PR_SVE_SET_VL": 50,
    "PR_GET_SPECULATION_CTRL": 52,
    "PR_SET_SPECULATION_CTRL": 53,
    "PR_PAC_RESET_KEYS": 54,
    "PR_SET_IO_FLUSHER": 57,
    "PR_SET_SYSCALL_USER_DISPATCH": 59,
    "PR_SCHED_CORE": 62,
    "PR_SET_MDWE": 65,
    "PR_SET_MEMORY_MERGE": 67,
    "PR_RISCV_V_SET_CONTROL": 69,
    "PR_SET_SHADOW_STACK_STATUS": 75,
    "PR_FUTEX_HASH": 78,
    "PR_SET_PTRACER": 0x59616D61,
    "PR_GET_AUXV": 0x41555856,
    "PR_SET_VMA": 0x53564D41,
}
FCNTL = {
    **{f"number {number}": number for number in range(8)},
    "F_SETOWN": 8,
    "F_SETSIG": 10,
    "F_SETOWN_EX": 15,
    "F_SETLEASE": 1024,
    "F_NOTIFY": 1026,
    "F_CANCELLK": 1029,
    "F_SET_RW_HINT": 1036,
    "F_CREATED_QUERY": 1028,
}
RENAME = {"RENAME_NOREPLACE": 1, "RENAME_EXCHANGE": 2, "RENAME_WHITEOUT": 4}
RWF = {
    "RWF_HIPRI": 1,
    "RWF_DSYNC": 2,
    "RWF_SYNC": 4,
    "RWF_NOWAIT": 8,
    "RWF_APPEND": 16,
    "RWF_NOAPPEND": 32,
    "RWF_ATOMIC": 64,
    "RWF_DONTCACHE": 128,
}
SOCKET_OPTION = {f"SO number {number}": number for number in range(1, 84)}
SOCKET_FAMILY = {f"AF number {number}": number for number in range(46)}
SOCKET_KIND = {f"SOCK number {number}": number for number in range(1, 11)}
PROTOCOL = {f"IPPROTO {number}": number for number in (1, 6, 17, 33, 58, 132, 136, 255, 256, 262)}


@dataclass(frozen=True)
class Family:
    """The flags of one argument of a call; `others` are its arguments up to there, with which it is allowed."""

    call: str
    flags: dict[str, int]
    others: tuple[int, ...]
    allowed: frozenset[str]


def _family(call: str, flags: dict[str, int], others: tuple[int, ...], allowed: str) -> Family:
    return Family(call, flags, others, frozenset(allowed.split()))


_SEND = "MSG_DONTWAIT MSG_EOR MSG_NOSIGNAL MSG_MORE"
_RECEIVE = "MSG_PEEK MSG_TRUNC MSG_DONTWAIT MSG_WAITALL MSG_ERRQUEUE MSG_NOSIGNAL MSG_WAITFORONE MSG_CMSG_CLOEXEC"
_OPEN = (
    "O_CREAT O_EXCL O_NOCTTY O_APPEND O_NONBLOCK O_DSYNC O_DIRECT O_LARGEFILE O_DIRECTORY O_NOFOLLOW O_CLOEXEC "
    "__O_SYNC O_PATH"
)
_PROT = "PROT_READ PROT_WRITE PROT_EXEC PROT_BTI PROT_MTE"
# What a sandbox for a model's conversion may ask
FAMILIES = (
    _family("sendto", MSG, (0, 0, 0), _SEND),
    _family("sendmsg", MSG, (0, 0), _SEND),
    _family("sendmmsg", MSG, (0, 0, 0), _SEND),
    _family("recvfrom", MSG, (0, 0, 0), _RECEIVE),
    _family("recvmsg", MSG, (0, 0), _RECEIVE),
    _family("recvmmsg", MSG, (0, 0, 0), _RECEIVE),
    _family("open", OPEN, (0,), _OPEN),
    _family("openat", OPEN, (0, 0), _OPEN),
    _family(
        "clone",
        CLONE,
        (),
        "CLONE_VM CLONE_FS CLONE_FILES CLONE_SIGHAND CLONE_PIDFD CLONE_VFORK CLONE_SYSVSEM CLONE_SETTLS "
        "CLONE_PARENT_SETTID CLONE_CHILD_CLEARTID CLONE_DETACHED CLONE_CHILD_SETTID",
    ),
    _family(
        "mmap",
        {name: flag | 2 for name, flag in MAP.items()},
        (0, 0, 0),
        "MAP_FIXED MAP_ANONYMOUS MAP_32BIT MAP_GROWSDOWN MAP_DENYWRITE MAP_EXECUTABLE MAP_LOCKED MAP_NORESERVE "
        "MAP_POPULATE MAP_NONBLOCK MAP_STACK MAP_SYNC MAP_FIXED_NOREPLACE",
    ),
    _family("mprotect", PROT, (0, 0), _PROT),
    _family("pkey_mprotect", PROT, (0, 0), _PROT),
    _family("ioctl", IOCTL, (0,), "TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX"),
    _family(
        "prctl",
        PRCTL,
        (),
        "PR_SET_NAME PR_GET_NAME PR_GET_SECCOMP PR_CAPBSET_READ PR_GET_SECUREBITS PR_SET_TIMERSLACK PR_GET_TIMERSLACK "
        "PR_GET_CHILD_SUBREAPER PR_SET_NO_NEW_PRIVS PR_GET_NO_NEW_PRIVS PR_GET_TID_ADDRESS PR_SET_THP_DISABLE "
        "PR_GET_THP_DISABLE PR_SVE_SET_VL PR_PAC_RESET_KEYS PR_GET_AUXV PR_SET_VMA",
    ),
    Family("fcntl", FCNTL, (0,), frozenset(f"number {number}" for number in range(8))),
    _family("renameat2", RENAME, (0, 0, 0, 0), "RENAME_NOREPLACE RENAME_EXCHANGE"),
    _family("preadv2", RWF, (0, 0, 0, 0, 0), "RWF_NOWAIT"),
    _family("pwritev2", RWF, (0, 0, 0, 0, 0), "RWF_NOWAIT"),
    _family("socket", SOCKET_FAMILY, (), ""),
    Family("socketpair", SOCKET_FAMILY, (), frozenset()),
    Family("socketpair", SOCKET_KIND, (1,), frozenset({"SOCK number 1"})),
    Family("socketpair", PROTOCOL, (1, 1), frozenset()),
    Family(
        "setsockopt",
        SOCKET_OPTION,
        (0, 1),
        frozenset(f"SO number {number}" for number in (2, 7, 8, 9, 13, 15, 18, 20, 21)),
    ),
)
