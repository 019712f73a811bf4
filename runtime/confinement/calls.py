"""The system calls that confined code may make, by name. Every other call is refused.

The list covers Python, numpy, torch, ONNX Runtime, OpenMP, TensorFlow and their libraries. On an architecture that
lacks a call, its name is skipped.
"""

from typing import Final


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MEMORY = _names(
    "mmap mprotect munmap mremap brk madvise mincore msync mlock munlock mlock2 membarrier pkey_mprotect pkey_alloc "
    "pkey_free get_mempolicy set_mempolicy mbind map_shadow_stack mseal"
)
FILES = _names(
    "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 close close_range creat stat fstat "
    "lstat newfstatat statx access faccessat faccessat2 lseek getdents getdents64 getcwd chdir fchdir readlink "
    "readlinkat rename renameat renameat2 mkdir mkdirat rmdir unlink unlinkat link linkat symlink symlinkat ftruncate "
    "fallocate fsync fdatasync sync_file_range flock dup dup2 dup3 pipe pipe2 statfs fstatfs getxattr lgetxattr "
    "fgetxattr listxattr llistxattr flistxattr umask copy_file_range sendfile splice fadvise64 readahead"
)
WAITING = _names(
    "poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd "
    "eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime futex futex_waitv futex_wake "
    "futex_wait futex_requeue set_robust_list get_robust_list rseq pause alarm setitimer getitimer timer_create "
    "timer_settime timer_gettime timer_getoverrun timer_delete restart_syscall nanosleep clock_nanosleep"
)
PROCESS = _names(
    "exit exit_group wait4 waitid getpid getppid gettid getpgrp getpgid setpgid setsid getsid getuid geteuid getgid "
    "getegid getresuid getresgid getgroups set_tid_address sched_yield sched_getaffinity sched_getparam "
    "sched_getscheduler sched_getattr sched_get_priority_max sched_get_priority_min sched_rr_get_interval getpriority "
    "getrlimit setrlimit getrusage times sysinfo uname getcpu arch_prctl capget rt_sigaction rt_sigprocmask "
    "rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack"
)
CLOCK = _names("clock_gettime clock_getres gettimeofday time getrandom")
# Harmless, because the only sockets are connected pairs inside this sandbox, or those of a policy with `network`.
SOCKETS = _names(
    "recvfrom recvmsg recvmmsg sendto sendmsg sendmmsg shutdown getsockname getpeername getsockopt setsockopt"
)
ALWAYS: Final = (*MEMORY, *FILES, *WAITING, *PROCESS, *CLOCK, *SOCKETS)
SERVER = _names("connect bind listen accept accept4 memfd_create")
PROGRAMS = _names("fork vfork execve")
CONFINING = _names("landlock_create_ruleset landlock_add_rule landlock_restrict_self")
SECCOMP_SET_FILTER: Final = 1
# Allowed only where a PID namespace hides every other process.
OTHERS = _names("kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal sched_setaffinity")
# These succeed and do nothing. Libraries set modes and times of files they copy, and neither matters in a sandbox.
IGNORED = _names("chmod fchmod fchmodat fchmodat2 utime utimes futimesat utimensat")
# glibc and libraries try these first, and fall back on ENOSYS. A filter can't read the structs behind the pointers that
# clone3 and openat2 take, so it could not check their flags; and io_uring does its I/O past any filter.
ABSENT = _names("clone3 openat2 cachestat io_uring_setup memfd_secret")
# Arguments that the filter compares by value
IOCTLS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
GPU_IOCTLS: Final = (0x30000001, 0x30000002)  # UVM_INITIALIZE UVM_DEINITIALIZE
# F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_GETLK F_SETLK F_SETLKW, their OFD forms, F_DUPFD_CLOEXEC, pipe sizes, seals
FCNTLS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032, 1033, 1034)
# PDEATHSIG DUMPABLE NAME SECCOMP(get) CAPBSET_READ SECUREBITS(get) TIMERSLACK SUBREAPER(get) NO_NEW_PRIVS TID_ADDRESS
# THP_DISABLE SVE, pointer authentication (arm), AUXV, VMA names
PRCTLS: Final = (
    1,
    2,
    3,
    4,
    15,
    16,
    21,
    23,
    27,
    29,
    30,
    37,
    38,
    39,
    40,
    41,
    42,
    50,
    51,
    54,
    55,
    56,
    0x41555856,
    0x53564D41,
)
NAMESPACES: Final = 0x7E020000  # clone's CLONE_NEW*
THREAD: Final = 0x10000  # CLONE_THREAD
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_STREAM, SOCK_DGRAM, SOCK_TYPE = 1, 2, 0xF
O_ACCMODE, O_TRUNC = 0o3, 0o1000
QUERY_PERSONALITY: Final = 0xFFFFFFFF
