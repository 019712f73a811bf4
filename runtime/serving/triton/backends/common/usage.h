/* What a worker's process uses, seen from the server: the model may have taken the process over, which then limits
 * itself no more. */

#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "limits.h"

static size_t read_of(pid_t pid, const char *name, char *into, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", (int) pid, name);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? 0 : read(file, into, size - 1);
  if (file >= 0) close(file);
  into[got > 0 ? got : 0] = 0;
  return got > 0 ? (size_t) got : 0;
}

static int64_t resident_mb(pid_t pid) {
  char text[256];
  long long pages = 0;
  if (read_of(pid, "statm", text, sizeof text)) sscanf(text, "%*d %lld", &pages);
  return pages * (int64_t) sysconf(_SC_PAGESIZE) >> 20;
}

/* The 18th number after the name of the program, which is in parentheses. */
static int64_t threads_of(pid_t pid) {
  char text[1024];
  long long threads = 0;
  const char *at = read_of(pid, "stat", text, sizeof text) ? strrchr(text, ')') : NULL;
  if (at) sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %lld", &threads);
  return threads;
}

/* The size of the files in a folder, without those in folders below it: an engine makes none. */
static int64_t kept_mb(const char *folder) {
  DIR *open = *folder ? opendir(folder) : NULL;
  struct dirent *each;
  struct stat file;
  int64_t blocks = 0;
  while (open && (each = readdir(open)))
    if (!fstatat(dirfd(open), each->d_name, &file, AT_SYMLINK_NOFOLLOW)) blocks += (int64_t) file.st_blocks;
  if (open) closedir(open);
  return blocks * 512 >> 20;
}

/* Whether a model's process is beyond its limits, and in `why` which. */
static bool exceeds(const Limits *limits, pid_t pid, char *why, size_t size) {
  const struct { const char *what, *name; int64_t used, most; } all[] = {
    {"MiB of memory", "memory_mb", resident_mb(pid), limits->memory_mb},
    {"threads", "threads", threads_of(pid), limits->threads},
    {"MiB of temporary files", "temporary_mb", kept_mb(limits->cache), limits->temporary_mb},
  };
  for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
    if (all[at].used <= all[at].most) continue;
    snprintf(why, size, "was ended: it used %lld %s, its limit is %lld (serving.limits.%s in the model's spec)",
             (long long) all[at].used, all[at].what, (long long) all[at].most, all[at].name);
    return true;
  }
  return false;
}
