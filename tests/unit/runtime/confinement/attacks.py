"""Attacks from inside a sandbox on its neighbours, and how they went: run as root, as a user, as in a pod.

    python -m tests.unit.runtime.confinement.attacks FOLDER

prints JSON: what each attack met, how the sandbox was isolated, and what the neighbours look like afterwards.
"""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from shiplift.runtime.confinement.policy import CONVERT, Entry, SandboxLimits
from shiplift.runtime.confinement.sandbox import Sandbox

# Each runs with the names of `PRELUDE`; `done` means that no exception stopped it.
ATTACKS = {
    # neighbours: processes of the same user
    "limit production": "resource.prlimit(PRODUCTION, resource.RLIMIT_CPU, (1, 1))",
    "limit our process": "resource.prlimit(OURS, resource.RLIMIT_CPU, (1, 1))",
    "pin production": "os.sched_setaffinity(PRODUCTION, {0})",
    "slow production down": "os.setpriority(os.PRIO_PROCESS, PRODUCTION, 19)",
    "slow the user down": "os.setpriority(os.PRIO_USER, os.getuid(), 19)",
    "reschedule production": "os.sched_setscheduler(PRODUCTION, os.SCHED_IDLE, os.sched_param(0))",
    "slow its disk down": "call(251, 1, PRODUCTION, 3 << 13)",
    "kill production": "os.kill(PRODUCTION, 9)",
    "kill everything": "os.kill(-1, 0) if os.getppid() == 0 else os.kill(PRODUCTION, 0)",
    "open production": "os.pidfd_open(PRODUCTION)",
    "read its memory": "call(310, PRODUCTION, 0, 0, 0, 0, 0)",
    "trace it": "call(101, 16, PRODUCTION, 0, 0)",
    "compare with it": "call(312, PRODUCTION, PRODUCTION, 0, 0, 0)",
    "read its command line": "assert SECRET in open(f'/proc/{PRODUCTION}/cmdline').read()",
    "find its command line": "assert any(SECRET in text for text in command_lines())",
    "read our environment": "assert open(f'/proc/{OURS}/environ').read()",
    "read a namespace of ours": "os.readlink(f'/proc/{OURS}/ns/net')",
    # neighbours: files of the same user
    "open secrets to all": "os.chmod(FILE, 0o666); assert os.stat(FILE).st_mode & 0o777 == 0o666",
    "open them by descriptor": "handle = os.open(FILE, os.O_RDONLY)",
    "open a folder to all": "os.chmod(os.path.dirname(FILE), 0o777); assert os.stat(MODEL).st_mode & 0o777 == 0o777",
    "open what it may read": "os.chmod(MODEL + '/weights', 0o666); assert os.stat(MODEL + '/weights').st_mode & 2",
    "give them away": "os.chown(FILE, 1, 1)",
    "give away what it may read": "os.chown(MODEL + '/weights', os.getuid(), os.getgid())",
    "mark them": "os.setxattr(FILE, 'user.x', b'x')",
    "mark what it may read": "os.setxattr(MODEL + '/weights', 'user.x', b'x')",
    "date them back": "os.utime(FILE, (0, 0)); assert os.stat(FILE).st_mtime == 0",
    "date back what it may read": "os.utime(MODEL, (0, 0)); assert os.stat(MODEL).st_mtime == 0",
    "empty what it may read": "os.close(os.open(MODEL + '/weights', os.O_RDONLY | os.O_TRUNC))",
    "cut what it may read": "os.truncate(MODEL + '/weights', 0)",
    "link what it may read": "os.link(MODEL + '/weights', 'weights'); open('weights', 'a').write('x')",
    "replace it": "os.rename('own', MODEL + '/weights')",
    # sockets
    "send to a named socket": "pair('SOCK_DGRAM')[0].sendto(b'x', NAMED)",
    "send to an abstract socket": "pair('SOCK_DGRAM')[0].sendto(b'x', ABSTRACT)",
    "connect to a named socket": "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect(NAMED)",
    "send from a connected pair": "pair('SOCK_STREAM')[0].sendto(b'x', NAMED)",
    "connect a pair": "pair('SOCK_STREAM')[0].connect(NAMED)",
    "send urgent data": "pair('SOCK_STREAM')[0].send(b'x', socket.MSG_OOB)",
    "read urgent data": "pair('SOCK_STREAM')[0].recv(1, socket.MSG_OOB)",
    "fast-open by a pair": "pair('SOCK_STREAM')[0].sendto(b'x', 0x20000000, NAMED)",
    "filter a pair with a program": "pair('SOCK_STREAM')[0].setsockopt(1, 26, bytes(16))",
    "use a sequential pair": "pair('SOCK_SEQPACKET')",
    "use TCP": "socket.socket()",
    "use UDP": "socket.socket(type=socket.SOCK_DGRAM)",
    "see packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "change the firewall": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)",
    "talk to the host": "socket.socket(40, socket.SOCK_STREAM)",
    "use the kernel's ciphers": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    # the kernel
    "make a user namespace": "call(272, 0x10000000)",
    "clone into one": "call(56, 0x10000000 | 17, 0, 0, 0, 0) or os._exit(0)",
    "clone into one the new way": "call(435, 0, 0)",
    "join a namespace": "call(308, os.open('/proc/self/ns/user', os.O_RDONLY), 0)",
    "mount": "call(165, b'none', b'/usr', b'tmpfs', 0, 0)",
    "change root": "os.chroot('.')",
    "use a ring": "call(425, 8, ctypes.create_string_buffer(120))",
    "load a program into the kernel": "call(321, 0, ctypes.create_string_buffer(64), 64)",
    "count events": "call(298, ctypes.create_string_buffer(120), 0, -1, -1, 0)",
    "handle faults": "call(323, 0)",
    "keep keys": "call(248, b'user', b'x', b'x', 1, -2)",
    "open by handle": "call(304, -100, ctypes.create_string_buffer(64), 0)",
    "stop swapping": "call(168, b'/none')",
    "become another": "os.setuid(1)",
    "lower the mask of filters": "call(317, 1, 0, 0)",
    "own descriptors' signals": "fcntl.fcntl(0, fcntl.F_SETOWN, 1)",
    "type into a terminal": "fcntl.ioctl(0, 0x5412, b'x')",
    "allow a tracer": "assert ctypes.CDLL(None, use_errno=True).prctl(0x59616D61, -1, 0, 0, 0) == 0",
    # memory that no limit counts
    "take System V memory": "call(29, 0, 1 << 20, 0o1600)",
    "take System V semaphores": "call(64, 0, 1, 0o1600)",
    "take System V messages": "call(68, 0, 0o1600)",
    "take a message queue": "call(240, b'x', 0o102, 0o600, 0)",
    "take huge pages": "__import__('mmap').mmap(-1, 1 << 21, flags=0x40022)",
    "take a file without a name": "os.open('.', os.O_TMPFILE | os.O_RDWR)",
    "make a device by renaming": "call(316, -100, b'own', -100, b'white', 4)",
    "take anonymous files": "os.memfd_create('x')",
    "take shared memory": "open('/dev/shm/x', 'w')",
    "make a pipe in a folder": "os.mkfifo('pipe')",
    "make a device": "os.mknod('device', 0o60600, 1 << 8)",
    "make a socket in a folder": "os.mknod('socket', 0o140600)",
    # its own limits
    "raise its limits": "resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)",
    "dump core": "assert resource.getrlimit(resource.RLIMIT_CORE) != (0, 0)",
    "keep a capability": "assert capabilities() != {'0000000000000000'}",
}
ALLOWED = {
    "read the model": "assert open(MODEL + '/weights').read() == 'weights'",
    "write its work": "open('own', 'w').write('x')",
    "copy with its mode": "shutil.copy2(MODEL + '/weights', 'copy')",
    "copy a folder": "shutil.copytree(MODEL, 'folder')",
    "make temporary files": "tempfile.mkstemp()",
    "set a mode": "os.chmod('own', 0o600)",
    "cut its file": "open('own', 'r+').truncate(1)",
    "start a program": "subprocess.run([sys.executable, '-c', 'import json'], check=True)",
    "fork": "os.waitpid(os.fork() or os._exit(0), 0)",
    "signal its child": "subprocess.Popen(['/bin/sleep', '60']).kill()",
    "use threads": "threading.Thread(target=print).start()",
    "pin itself": "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "use a pair of sockets": "a, b = socket.socketpair(); a.sendall(b'x'); assert b.recv(1) == b'x'",
    "run an event loop": "import asyncio; asyncio.run(asyncio.sleep(0))",
    "read the processor": "assert open('/proc/cpuinfo').read() and os.cpu_count()",
    "read its memory use": "assert open('/proc/self/status').read() and open('/proc/meminfo').read()",
    "use libraries": "import xml.dom.minidom, sqlite3; sqlite3.connect('db').execute('create table t (x)')",
    "zip": "import zipfile; zipfile.ZipFile('z', 'w').write('own'); zipfile.ZipFile('z').extractall('unzipped')",
}
# Harmless if /proc is its own.
OPTIONAL = {"list processes": "assert len([pid for pid in os.listdir('/proc') if pid.isdigit()]) < 10"}
PRELUDE = """
import ctypes, fcntl, json, os, resource, shutil, socket, subprocess, sys, tempfile, threading

def call(number, *arguments):
    words = [a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) for a in arguments]
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result

def pair(kind):
    return socket.socketpair(socket.AF_UNIX, getattr(socket, kind))

def capabilities():
    return {line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")}

def command_lines():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield open(f"/proc/{pid}/cmdline").read()
        except OSError:
            pass
"""
_LOOP = """
outcomes, scope = {}, {**globals(), **locals()}
for name, attempt in CODE.items():
    try:
        exec(attempt, scope)
    except Exception as error:
        outcomes[name] = f"{type(error).__name__}: {error}"
    else:
        outcomes[name] = "done"
open("outcomes", "w").write(json.dumps(outcomes))
"""


def run(folder: Path) -> dict[str, Any]:
    """Tries everything once, beside files, sockets and a process that stand for ours."""
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("weights")
    (folder / "secrets.json").write_text("secret")
    (folder / "secrets.json").chmod(0o600)
    before = _files(folder)
    with contextlib.ExitStack() as stack:
        named, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) for _ in range(2))
        named.bind(str(folder / "named"))
        abstract.bind(f"\0shiplift-{os.getpid()}")
        production = stack.enter_context(subprocess.Popen(["sleep", "600.0815"]))
        stack.callback(production.kill)
        while psutil.Process(production.pid).status() == psutil.STATUS_DISK_SLEEP:  # it is only just being started
            time.sleep(0.01)
        state = _state(production.pid)
        names = {
            "PRODUCTION": production.pid,
            "OURS": os.getpid(),
            "SECRET": "600.0815",
            "FILE": str(folder / "secrets.json"),
            "MODEL": str(folder / "model"),
            "NAMED": str(folder / "named"),
            "ABSTRACT": abstract.getsockname().decode(),
            "CODE": ALLOWED | ATTACKS | OPTIONAL,
        }
        code = PRELUDE + "".join(f"{name} = {value!r}\n" for name, value in names.items()) + _LOOP
        policy = replace(CONVERT, allow_without=tuple(os.environ.get("ATTACKED_WITHOUT", "").split()))
        box = Sandbox(Entry("timeit:timeit"), read=[folder / "model"], work=folder / "work", policy=policy)
        with contextlib.closing(box):
            _, isolation = box.run({"stmt": code, "number": 1}, SandboxLimits(memory_mb=1024, timeout_s=60))
        return {
            "uid": os.getuid(),
            "outcomes": json.loads((folder / "work" / "outcomes").read_text()),
            "own_proc": _own_proc(json.loads((folder / "work" / "outcomes").read_text())),
            "isolation": isolation.model_dump(),
            "heard": _heard(named) or _heard(abstract),
            "production": [state, _state(production.pid)],
            "files": [before, _files(folder)],
        }


def _own_proc(outcomes: dict[str, str]) -> bool:
    """Whether the sandbox had a /proc of its own; else Landlock keeps it from listing ours."""
    return outcomes["list processes"] == "done"


def _state(pid: int) -> list[Any]:
    process = psutil.Process(pid)
    limits = [process.rlimit(limit) for limit in (psutil.RLIMIT_CPU, psutil.RLIMIT_NOFILE)]
    alive = process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)
    return [alive, process.nice(), process.cpu_affinity(), process.ionice().value, limits]


def _files(folder: Path) -> dict[str, list[Any]]:
    files = {}
    for path in (folder / "secrets.json", folder / "model", folder / "model" / "weights"):
        status = path.stat()
        files[path.name] = [status.st_mode, status.st_uid, status.st_mtime, status.st_nlink, os.listxattr(path)]
    return files


def _heard(server: socket.socket) -> bool:
    server.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        server.recv(1)
        return True
    return False


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    json.dump(run(Path(sys.argv[1])), sys.stdout)
