/* What a worker gives up before it loads anything: files but those that it needs, other processes, sockets, memory
 * beyond its model's. The server around it is confined already; this keeps models from each other. */

#pragma once
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "limits.h"
#include "ring.h"

enum { FILE_GB = 16, HEADROOM_MB = 1024 };

/* Landlock's interface, which the headers of older systems lack (landlock(7)). */
enum { LANDLOCK_CREATE = 444, LANDLOCK_ADD = 445, LANDLOCK_RESTRICT = 446, RULE_PATH = 1, VERSION = 1 };
enum { FS_EXECUTE = 1, FS_WRITE = 2, FS_READ_FILE = 4, FS_READ_DIR = 8 };
enum { FS_OF_CACHE = 0x7fff & ~(1 << 6 | 1 << 9 | 1 << 10 | 1 << 11), FS_OF_FILE = 1 | 2 | 4 | 1 << 14 };

typedef struct { uint64_t files, net, scoped; } Ruleset;
typedef struct __attribute__((packed)) { uint64_t allowed; int32_t parent; } Rule;

static const uint64_t FS_OF_VERSION[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff};

static void allow(int ruleset, const char *path, uint64_t access) {
  struct stat entry;
  Rule rule = {access, open(path, O_PATH | O_CLOEXEC)};
  if (rule.parent < 0) return;
  if (!fstat(rule.parent, &entry) && !S_ISDIR(entry.st_mode)) rule.allowed &= FS_OF_FILE;
  syscall(LANDLOCK_ADD, ruleset, RULE_PATH, &rule, 0);
  close(rule.parent);
}

/* Lets the worker read the system's libraries, the server's environment around `folder`, and `model`; and write below
 * `cache`, if that is not empty. */
static bool lock_files(const char *folder, const char *model, const char *cache) {
  static const char *const system[] = {
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/sys", "/proc/self", "/proc/cpuinfo",
    "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/proc/version", "/dev/null", "/dev/zero", "/dev/urandom",
  };
  static const char *const parts[] = {"", "/lib", "/libraries", "/backends"}; /* of the environment, some are links */
  char part[4200];
  long version = syscall(LANDLOCK_CREATE, NULL, 0, VERSION);
  if (version < 1) return false;
  size_t known = (size_t) version < 5 ? (size_t) version : 5;
  Ruleset rules = {FS_OF_VERSION[known], 3, 3}; /* TCP: neither bind nor connect; signals and abstract sockets: own */
  int ruleset = (int) syscall(LANDLOCK_CREATE, &rules, version < 4 ? 8 : version < 6 ? 16 : 24, 0);
  if (ruleset < 0) return false;
  uint64_t reading = FS_EXECUTE | FS_READ_FILE | FS_READ_DIR;
  for (size_t at = 0; at < sizeof system / sizeof *system; at++) allow(ruleset, system[at], reading);
  allow(ruleset, "/dev/null", reading | FS_WRITE);
  for (size_t at = 0; at < sizeof parts / sizeof *parts; at++) {
    snprintf(part, sizeof part, "%s/../..%s", folder, parts[at]);
    allow(ruleset, part, reading);
  }
  allow(ruleset, model, reading);
  if (*cache) allow(ruleset, cache, FS_OF_CACHE & FS_OF_VERSION[known]);
  bool locked = !syscall(LANDLOCK_RESTRICT, ruleset, 0);
  close(ruleset);
  return locked;
}

#define DENY(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
#define FIELD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))

/* Allows a call only if its first argument, a process, is 0 or this one. */
#define OWN(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 5), FIELD(args[0]), \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, own, 1, 0), \
  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* Refuses processes, programs and sockets, signals to any process but this one, and whatever else changes another: its
 * cores, priority, limits or memory. The rest of the kernel is the server's own filter's. */
static bool filter_calls(void) {
  const uint32_t thread = 0x10000, own = (uint32_t) getpid(), x32 = 0x40000000;
  struct sock_filter filter[] = {
    FIELD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    FIELD(nr),
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, x32, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    DENY(SYS_fork), DENY(SYS_vfork), DENY(SYS_execve), DENY(SYS_execveat), DENY(SYS_socket), DENY(SYS_socketpair),
    DENY(SYS_connect), DENY(SYS_bind), DENY(SYS_listen), DENY(SYS_accept), DENY(SYS_accept4), DENY(SYS_memfd_create),
    DENY(SYS_kill), DENY(SYS_tkill), DENY(SYS_pidfd_open), DENY(SYS_pidfd_send_signal), DENY(SYS_rt_sigqueueinfo),
    DENY(SYS_rt_tgsigqueueinfo), DENY(SYS_ptrace), DENY(SYS_process_vm_readv), DENY(SYS_process_vm_writev),
    DENY(SYS_pidfd_getfd), DENY(SYS_process_madvise), DENY(SYS_move_pages), DENY(SYS_migrate_pages), DENY(SYS_kcmp),
    DENY(SYS_setpriority), DENY(SYS_ioprio_set), DENY(SYS_sched_setscheduler), DENY(SYS_sched_setparam),
    DENY(SYS_sched_setattr), DENY(SYS_io_uring_setup), DENY(SYS_shmget), DENY(SYS_semget), DENY(SYS_msgget),
    DENY(SYS_mq_open), DENY(SYS_unshare), DENY(SYS_setns), DENY(SYS_bpf), DENY(SYS_perf_event_open),
    DENY(SYS_userfaultfd), DENY(SYS_add_key), DENY(SYS_request_key), DENY(SYS_keyctl),
    OWN(SYS_prlimit64), OWN(SYS_sched_setaffinity),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3), FIELD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, thread, 5, 0), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 3), FIELD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, own, 1, 0), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static void limit(int resource, uint64_t most) {
  struct rlimit now;
  if (getrlimit(resource, &now)) return;
  rlim_t value = most < now.rlim_max ? most : now.rlim_max;
  setrlimit(resource, &(struct rlimit) {value, value});
}

/* NULL, or what the kernel lacks and the site does not accept to be without: `accepted` are the names that it does. */
static const char *guard(
    const char *folder, const char *model, const Limits *limits, const char *accepted) {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_NOFILE, (uint64_t) limits->files);
  limit(RLIMIT_FSIZE, (uint64_t) FILE_GB << 30);
  limit(RLIMIT_DATA, (uint64_t) (limits->memory_mb + HEADROOM_MB) << 20);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return "no new privileges";
  if (!lock_files(folder, model, limits->cache) && !strstr(accepted, "landlock")) return "landlock";
  return filter_calls() || strstr(accepted, "seccomp") ? NULL : "seccomp";
}
