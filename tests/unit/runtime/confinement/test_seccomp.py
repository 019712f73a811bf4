"""The filter of system calls, call by call on both architectures, by running its program here."""

import errno
import functools
import struct

import pytest
from seccompy.syscalls import AARCH64_SYSCALLS, X86_64_SYSCALLS

from shiplift.runtime.confinement import arguments, calls, seccomp
from shiplift.runtime.confinement.policy import (
    CONVERT,
    INSTALL,
    PARSE,
    PYTHON_HOST,
    PYTHON_MODEL,
    QUANTIZE,
    TRITON,
    ConfinementPolicy,
)
from shiplift.runtime.confinement.seccomp import rules
from tests.attack.headers import FAMILIES, MSG, PROTOCOL, SOCKET_FAMILY, SOCKET_KIND

TABLES = {"x86_64": X86_64_SYSCALLS, "aarch64": AARCH64_SYSCALLS}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
AF_NETLINK, AF_PACKET, AF_VSOCK, AF_ALG = 16, 17, 40, 38
# What would let code out of its confinement, harm neighbours, or reach little-used parts of the kernel
FORBIDDEN = [
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "process_madvise",
    "kcmp",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "keyctl",
    "add_key",
    "request_key",
    "io_uring_enter",
    "io_uring_register",
    "name_to_handle_at",
    "open_by_handle_at",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
    "swapoff",
    "init_module",
    "finit_module",
    "delete_module",
    "acct",
    "quotactl",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "sethostname",
    "setdomainname",
    "syslog",
    "setpriority",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
    "ioprio_set",
    "shmget",
    "shmat",
    "shmctl",
    "semget",
    "semop",
    "semctl",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "mq_open",
    "mq_unlink",
    "memfd_create",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "removexattr",
    "setuid",
    "setgid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setgroups",
    "setfsuid",
    "setfsgid",
    "capset",
    "seccomp",
    "landlock_create_ruleset",
    "mknod",
    "mknodat",
    "truncate",
    "fanotify_init",
    "inotify_init1",
    "migrate_pages",
    "move_pages",
    "personality",
    "iopl",
    "ioperm",
    "modify_ldt",
    "uselib",
    "ustat",
    "nfsservctl",
    "lookup_dcookie",
    "vhangup",
    "execveat",
    "sync",
    "syncfs",
]
NEEDED = [
    "read",
    "write",
    "openat",
    "mmap",
    "futex",
    "clone",
    "execve",
    "exit_group",
    "wait4",
    "rt_sigaction",
    "socketpair",
    "getrandom",
    "statx",
    "prctl",
]


@functools.cache
def instructions(policy: ConfinementPolicy, machine: str, *, own_pids: bool) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("<HBBI", seccomp.build(policy, own_pids=own_pids, machine=machine).program))


def decide(
    policy: ConfinementPolicy, machine: str, number: int, *arguments: int, own_pids: bool = True, foreign: bool = False
) -> int:
    """What the kernel would do: runs the classic BPF program on a `struct seccomp_data`."""
    program = instructions(policy, machine, own_pids=own_pids)
    architecture = program[1][3] ^ foreign
    padded = [word & 0xFFFFFFFFFFFFFFFF for word in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<iIQ6Q", number, architecture, 0, *padded)
    position = accumulator = 0
    while True:
        code, true, false, k = program[position]
        position += 1
        if code == 0x06:
            return int(k)
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif code == 0x54:
            accumulator &= k
        elif code == 0x05:
            position += k
        else:
            holds = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}
            position += true if holds[code] else false


@pytest.fixture(params=sorted(TABLES))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_dangerous_is_refused(machine: str) -> None:
    decisions = {
        (name, policy.name): decide(policy, machine, TABLES[machine][name])
        for name in FORBIDDEN
        if name in TABLES[machine]
        for policy in (PARSE, CONVERT, QUANTIZE)
    }
    assert decisions == dict.fromkeys(decisions, ERRNO | errno.EPERM)


def test_what_everything_needs_is_there_on_every_architecture(machine: str) -> None:
    asked = {"clone": (17,), "mmap": (0, 4096, 3, 0x22), "socketpair": (1, 1), "prctl": (15,)}
    decisions = {name: decide(CONVERT, machine, TABLES[machine][name], *asked.get(name, ())) for name in NEEDED}
    assert decisions == dict.fromkeys(NEEDED, ALLOW)


def test_every_name_is_one_of_a_system_call() -> None:
    listed = {
        *calls.ALWAYS,
        *calls.SERVER,
        *calls.PROGRAMS,
        *calls.CONFINING,
        *calls.OTHERS,
        *calls.IGNORED,
        *calls.ABSENT,
        *(
            name
            for policy in (PARSE, CONVERT, QUANTIZE, TRITON, INSTALL)
            for rule in rules(policy)
            for name in rule.calls
        ),
    }
    assert listed <= set(X86_64_SYSCALLS) | set(AARCH64_SYSCALLS)


def test_of_every_family_of_flags_only_what_the_table_names_is_let_through(machine: str) -> None:
    for family in FAMILIES:
        number = TABLES[machine].get(family.call)
        let = {
            name
            for name, flag in family.flags.items()
            if number is not None and decide(CONVERT, machine, number, *family.others, flag) == ALLOW
        }
        assert number is None or let == family.allowed, family.call


def test_a_flag_that_no_header_knows_is_refused(machine: str) -> None:
    """Whatever a later kernel does with a bit of these arguments, it is refused until the table names it."""
    for name, index, start, known in (
        ("sendmsg", 2, 0, arguments.SENDING),
        ("sendto", 3, 0, arguments.SENDING),
        ("sendmmsg", 3, 0, arguments.SENDING),
        ("openat", 2, 2, arguments.OPENING),
        ("mmap", 3, 2, arguments.MAPPING | {"MAP_SHARED": 1}),
        ("clone", 0, 17, arguments.CLONING | {"CLONE_PIDFD": 0x1000, "CLONE_THREAD": 0x10000}),
    ):
        for bit in (1 << shift for shift in range(32)):
            words = [0] * index + [start | bit]
            allowed = decide(CONVERT, machine, TABLES[machine][name], *words) == ALLOW
            assert allowed == bool(bit & (sum(known.values()) | start)) or bit == 1, (name, hex(bit))


def test_no_policy_fast_opens_a_connection_or_reads_urgent_data(machine: str) -> None:
    for policy in (PARSE, CONVERT, PYTHON_HOST, PYTHON_MODEL, TRITON, INSTALL):
        for name, index in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3), ("recvfrom", 3), ("recvmsg", 2)):
            for flag in ("MSG_FASTOPEN", "MSG_OOB", "MSG_SPLICE_PAGES"):
                for beside in (0, MSG["MSG_NOSIGNAL"], 1 << 32):
                    words = [0] * index + [MSG[flag] | beside]
                    assert decide(policy, machine, TABLES[machine][name], *words) == ERRNO | errno.EPERM
    assert decide(CONVERT, machine, TABLES[machine]["sendto"], 0, 0, 0, 0, 1 << 40) == ERRNO | errno.EPERM
    assert decide(INSTALL, machine, TABLES[machine]["sendto"], 0, 0, 0, 0, 1 << 40) == ALLOW


def test_sockets_are_of_tcp_and_where_pip_runs_of_udp(machine: str) -> None:
    """Landlock's rules for ports do not cover another protocol, such as MPTCP (262)."""
    number = TABLES[machine]["socket"]
    asked = {
        (family, kind, protocol)
        for family in SOCKET_FAMILY.values()
        for kind in SOCKET_KIND.values()
        for protocol in (0, *(PROTOCOL.values() if family in (2, 10) else (6, 17)))
    }
    streams = {(family, 1, protocol) for family in (2, 10) for protocol in (0, 6)}
    datagrams = {(family, 2, protocol) for family in (2, 10) for protocol in (0, 17)}
    for policy, allowed in ((TRITON, streams), (INSTALL, streams | datagrams), (CONVERT, set())):
        assert {each for each in asked if decide(policy, machine, number, *each) == ALLOW} == allowed


def test_a_call_that_nobody_knows_is_refused(machine: str) -> None:
    for number in (999, 0x40000000, 0x40000000 | TABLES[machine]["read"], -1):
        assert decide(TRITON, machine, number) == ERRNO | errno.EPERM


def test_a_call_of_another_architecture_ends_the_process(machine: str) -> None:
    assert decide(TRITON, machine, TABLES[machine]["read"], foreign=True) == KILL


@pytest.mark.parametrize(
    ("name", "words", "allowed"),
    [
        ("clone", (17,), True),
        ("clone", (0x3D0F00,), True),
        ("clone", (0x10000000 | 17,), False),
        ("clone", (0x20000 | 17,), False),
        ("clone", (0x40000000,), False),
        ("clone", (0x02000000,), False),
        ("socketpair", (1, 1), True),
        ("socketpair", (1, 1 | 0o2000000), True),
        ("socketpair", (1, 2), False),
        ("socketpair", (1, 5), False),
        ("socketpair", (2, 1), False),
        ("socket", (1, 1), False),
        ("socket", (2, 1), False),
        ("socket", (AF_NETLINK, 3), False),
        ("socket", (AF_PACKET, 3), False),
        ("socket", (AF_VSOCK, 1), False),
        ("socket", (AF_ALG, 5), False),
        ("prlimit64", (0, 7, 0), True),
        ("prlimit64", (1, 7, 0), False),
        ("prctl", (15,), True),
        ("prctl", (22,), False),
        ("prctl", (28,), False),
        ("prctl", (0x59616D61,), False),
        ("prctl", (47,), False),
        ("prctl", (36,), False),
        ("ioctl", (0, 0x5401), True),
        ("fcntl", (0, 8), False),
        ("fcntl", (0, 1026), False),
        ("fcntl", (0, 1024), False),
        ("fcntl", (0, 2), True),
        ("openat", (0, 0, 0o1000), False),
        ("openat", (0, 0, 0o1001), True),
        ("openat", (0, 0, 0o102), True),
        ("personality", (0xFFFFFFFF,), True),
        ("personality", (0x40000,), False),
        ("kill", (5, 9), True),
        ("sched_setaffinity", (5,), True),
    ],
)
def test_arguments_decide(machine: str, name: str, words: tuple[int, ...], allowed: bool) -> None:
    decision = decide(CONVERT, machine, TABLES[machine][name], *words)
    assert (decision == ALLOW) == allowed
    if not allowed:
        assert decision == ERRNO | errno.EPERM


@pytest.mark.parametrize("name", ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"])
def test_only_what_hosts_python_models_lets_others_confine_themselves_further(machine: str, name: str) -> None:
    decisions = {
        policy.name: decide(policy, machine, TABLES[machine][name], 1) == ALLOW
        for policy in (
            CONVERT,
            PYTHON_MODEL,
            PYTHON_HOST,
            TRITON,
        )
    }
    assert decisions == {"convert": False, "python model": False, "python host": True, "triton": True}
    if name == "seccomp":
        assert decide(TRITON, machine, TABLES[machine][name], 0) == ERRNO | errno.EPERM


def test_a_python_model_starts_threads_alone_and_has_no_socket(machine: str) -> None:
    calls_ = {"fork": (), "vfork": (), "execve": (), "clone": (17,), "socket": (2, 1), "connect": (), "bind": ()}
    for name, words in calls_.items():
        if name in TABLES[machine]:
            assert decide(PYTHON_MODEL, machine, TABLES[machine][name], *words) == ERRNO | errno.EPERM
    assert decide(PYTHON_MODEL, machine, TABLES[machine]["clone"], 0x3D0F00) == ALLOW
    assert decide(PYTHON_MODEL, machine, TABLES[machine]["kill"], 1, 9, own_pids=False) == ERRNO | errno.EPERM


def test_without_a_pid_namespace_only_what_hosts_a_process_may_end_another(machine: str) -> None:
    kill = TABLES[machine]["kill"]
    decisions = {
        policy.name: decide(policy, machine, kill, 1, 9, own_pids=False) == ALLOW
        for policy in (
            PARSE,
            CONVERT,
            PYTHON_MODEL,
            PYTHON_HOST,
            TRITON,
        )
    }
    assert decisions == {"parse": False, "convert": False, "python model": False, "python host": True, "triton": True}
    assert decide(PYTHON_HOST, machine, TABLES[machine]["tgkill"], 1, 1, 9, own_pids=False) == ERRNO | errno.EPERM


def test_only_pip_sends_datagrams(machine: str) -> None:
    for policy, allowed in ((INSTALL, True), (TRITON, False), (CONVERT, False)):
        assert (decide(policy, machine, TABLES[machine]["socket"], 2, 2) == ALLOW) == allowed


def test_typing_into_a_terminal_is_not_possible(machine: str) -> None:
    for policy in (CONVERT, QUANTIZE, TRITON):
        assert decide(policy, machine, TABLES[machine]["ioctl"], 0, 0x5412) == ERRNO | errno.ENOTTY


def test_only_a_policy_with_a_gpu_talks_to_its_driver(machine: str) -> None:
    ioctl = TABLES[machine]["ioctl"]
    for request in (0xC020462A, 0x30000001, 0x25):
        assert decide(CONVERT, machine, ioctl, 3, request) == ERRNO | errno.ENOTTY
        assert decide(QUANTIZE, machine, ioctl, 3, request) == ALLOW


def test_a_parser_starts_threads_and_nothing_else(machine: str) -> None:
    table = TABLES[machine]
    assert decide(PARSE, machine, table["clone"], 0x3D0F00) == ALLOW
    for name, words in (("clone", (17,)), ("execve", ()), ("fork", ()), ("vfork", ())):
        if name in table:
            assert decide(PARSE, machine, table[name], *words) == ERRNO | errno.EPERM


def test_a_server_opens_tcp_and_nothing_else(machine: str) -> None:
    number = TABLES[machine]["socket"]
    for family in (2, 10):
        assert decide(TRITON, machine, number, family, 1 | 0o2000000) == ALLOW
        assert decide(TRITON, machine, number, family, 2) == ERRNO | errno.EPERM
    for family in (1, AF_NETLINK, AF_PACKET, AF_VSOCK, AF_ALG):
        assert decide(TRITON, machine, number, family, 1) == ERRNO | errno.EPERM


def test_where_other_processes_are_visible_it_reaches_only_itself(machine: str) -> None:
    import os

    for name in ("kill", "tgkill"):
        assert decide(CONVERT, machine, TABLES[machine][name], os.getpid(), 9, own_pids=False) == ALLOW
        assert decide(CONVERT, machine, TABLES[machine][name], 1, 9, own_pids=False) == ERRNO | errno.EPERM
    for name in ("tkill", "pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo"):
        assert decide(CONVERT, machine, TABLES[machine][name], 1, own_pids=False) == ERRNO | errno.EPERM
    assert decide(CONVERT, machine, TABLES[machine]["sched_setaffinity"], 1, own_pids=False) == ERRNO | errno.EPERM


def test_modes_and_times_are_ignored_and_new_calls_absent(machine: str) -> None:
    for name in ("fchmod", "fchmodat", "utimensat"):
        assert decide(CONVERT, machine, TABLES[machine][name]) == ERRNO
    for name in ("clone3", "openat2"):
        assert decide(CONVERT, machine, TABLES[machine][name]) == ERRNO | errno.ENOSYS
