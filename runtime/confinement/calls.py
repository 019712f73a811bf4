"""The system calls that confined code may make. Every other call is refused.

The names cover Python, numpy, torch, ONNX Runtime, OpenMP, TensorFlow and their libraries. On an architecture that
lacks a call, its name is skipped. What some of them may be asked, argument by argument, is in `arguments`.
"""

from typing import Final


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MEMORY = _names(
    "munmap mremap brk madvise mincore msync mlock munlock mlock2 membarrier pkey_alloc pkey_free "
    "get_mempolicy set_mempolicy mbind map_shadow_stack mseal"
)
FILES = _names(
    "read write readv writev pread64 pwrite64 preadv pwritev close close_range creat stat fstat "
    "lstat newfstatat statx access faccessat faccessat2 lseek getdents getdents64 getcwd chdir fchdir readlink "
    "readlinkat rename renameat mkdir mkdirat rmdir unlink unlinkat link linkat symlink symlinkat ftruncate "
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
SOCKETS = _names("shutdown getsockname getpeername getsockopt")
ALWAYS: Final = (*MEMORY, *FILES, *WAITING, *PROCESS, *CLOCK, *SOCKETS)
SERVER = _names("connect bind listen accept")
PROGRAMS = _names("fork vfork execve")
CONFINING = _names("landlock_create_ruleset landlock_add_rule landlock_restrict_self")
# Allowed only where a PID namespace hides every other process.
OTHERS = _names("kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal sched_setaffinity")
# These succeed and do nothing. Libraries set modes and times of files they copy, and neither matters in a sandbox.
IGNORED = _names("chmod fchmod fchmodat fchmodat2 utime utimes futimesat utimensat")
# glibc and libraries try these first, and fall back on ENOSYS. A filter can't read the structs behind the pointers that
# clone3 and openat2 take, so it could not check their flags; and io_uring does its I/O past any filter.
ABSENT = _names("clone3 openat2 cachestat io_uring_setup memfd_secret")
