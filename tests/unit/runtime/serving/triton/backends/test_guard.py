"""What a model's worker can still do once it has guarded itself: a program with the same guard tries, in C."""

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from shiplift.runtime.serving.triton.building import native

ATTEMPTS = {
    "read its model": "open(own, O_RDONLY)",
    "read a neighbour's model": "open(neighbour, O_RDONLY)",
    "list a neighbour's folder": "open(folder, O_RDONLY | O_DIRECTORY)",
    "write into its model": "open(own, O_WRONLY)",
    "make a file beside its model": "open(beside, O_WRONLY | O_CREAT, 0600)",
    "make a file in its cache": "open(cached, O_WRONLY | O_CREAT, 0600)",
    "read its parent's environment": "open(environment, O_RDONLY)",
    "read its parent's memory": "open(memory, O_RDONLY)",
    "make a socket": "socket(AF_INET, SOCK_STREAM, 0)",
    "make a pair of sockets": "socketpair(AF_UNIX, SOCK_STREAM, 0, pair)",
    "fork": "(int) syscall(SYS_fork)",
    "clone a process": "(int) syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)",
    "run a program": 'execl("/usr/bin/true", "true", NULL)',
    "signal its parent": "kill(getppid(), 0)",
    "signal its parent's thread": "(int) syscall(SYS_tgkill, getppid(), getppid(), 0)",
    "signal itself": "(int) syscall(SYS_tgkill, getpid(), getpid(), 0)",
    "trace its parent": "(int) syscall(SYS_ptrace, 16, getppid(), 0, 0)",
    "fork by another table of calls": "(int) syscall(0x40000000 | 57)",
    "clone a process the new way": "(int) syscall(435, &clone3, sizeof clone3)",
    "pin its parent": "sched_setaffinity(getppid(), sizeof cores, &cores)",
    "pin itself": "sched_setaffinity(0, sizeof cores, &cores)",
    "pin itself by number": "sched_setaffinity(getpid(), sizeof cores, &cores)",
    "limit its parent": "prlimit(getppid(), RLIMIT_NOFILE, &same, NULL)",
    "read its own limits": "prlimit(getpid(), RLIMIT_NOFILE, NULL, &same)",
    "slow its parent down": "setpriority(PRIO_PROCESS, getppid(), 19)",
    "slow its parent's disk down": "(int) syscall(SYS_ioprio_set, 1, getppid(), 3 << 13)",
    "reschedule its parent": "sched_setscheduler(getppid(), SCHED_IDLE, &parameter)",
    "take its parent's descriptors": "(int) syscall(SYS_pidfd_getfd, 0, 1, 0)",
    "make a file without a name": 'memfd_create("x", 0)',
    "use a ring": "(int) syscall(SYS_io_uring_setup, 8, zeros)",
    "share memory by a number": "shmget(0x0815, 4096, IPC_CREAT | 0600)",
    "leave its namespaces": "unshare(CLONE_NEWUSER)",
    "run a program from memory": '(int) syscall(SYS_execveat, 0, "", NULL, NULL, 0x1000)',
    "take more memory": "mmap(NULL, 3ul << 30, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0",
}
ALLOWED = {
    "read its model",
    "make a file in its cache",
    "signal itself",
    "pin itself",
    "pin itself by number",
    "read its own limits",
}


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler on this machine")
def test_a_worker_reads_its_model_writes_its_cache_and_can_do_nothing_else(tmp_path: Path) -> None:
    own, neighbour, cache = (tmp_path / name for name in ("own", "neighbour", "cache"))
    for folder in (own, neighbour):
        folder.mkdir()
        (folder / "model.onnx").write_text("a graph")
    cache.mkdir()
    paths = {
        "own": own / "model.onnx",
        "neighbour": neighbour / "model.onnx",
        "folder": neighbour,
        "beside": own / "new",
        "cached": cache / "new",
    }
    tries = "".join(f'  errno = 0; TRY_TO("{name}", {call})\n' for name, call in ATTEMPTS.items())
    (tmp_path / "attempts.c").write_text(f"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include "{native.COMMON / "ring.h"}"
#include "{native.COMMON / "guard.h"}"
Error *TRITONSERVER_ErrorNew(int code, const char *text) {{ (void) code, (void) text; abort(); }}
const char *TRITONSERVER_ErrorMessage(Error *error) {{ (void) error; abort(); }}
void TRITONSERVER_ErrorDelete(Error *error) {{ (void) error; abort(); }}
Error *TRITONSERVER_LogMessage(int level, const char *file, int line, const char *text) {{
  (void) level, (void) file, (void) line, (void) text; abort();
}}
#define TRY_TO(name, call) printf("%s=%d\\n", name, (call) < 0 ? errno : 0); fflush(stdout);
int main(void) {{
  int pair[2];
  cpu_set_t cores;
  struct rlimit same;
  struct sched_param parameter = {{0}};
  char zeros[120] = {{0}};
  struct {{ uint64_t flags, pidfd, child, parent, signal, stack, size, tls; }} clone3 = {{.signal = SIGCHLD}};
  sched_getaffinity(0, sizeof cores, &cores);
  getrlimit(RLIMIT_NOFILE, &same);
  char environment[64], memory[64];
{"".join(f'  const char *{name} = "{path}";' for name, path in paths.items())}
  snprintf(environment, sizeof environment, "/proc/%d/environ", getppid());
  snprintf(memory, sizeof memory, "/proc/%d/mem", getppid());
  Limits limits = {{.memory_mb = 512, .files = 64, .cache = "{cache}"}};
  const char *missing = guard("{tmp_path}/server/backends/x", "{own}", &limits, "");
  if (missing) return puts(missing), 1;
  (void) pair, (void) zeros, (void) parameter;
{tries}
  return 0;
}}
""")
    program = tmp_path / "attempts"
    subprocess.run(["cc", *native.FLAGS, "-w", "-o", program, tmp_path / "attempts.c"], check=True)
    (tmp_path / "server" / "backends" / "x").mkdir(parents=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    found = {name: int(code) for name, _, code in (line.partition("=") for line in done.stdout.splitlines())}
    assert {name for name, code in found.items() if code == 0} == ALLOWED
    assert found.pop("take more memory") == errno.ENOMEM
    refused = {name: errno.errorcode[code] for name, code in found.items() if code}
    assert set(refused.values()) <= {"EACCES", "EPERM", "ENOSYS"}, refused
