/* What one model may use, from its configuration's parameters. The worker limits itself before it loads the model, and
 * the server looks at what it uses (`usage.h`). */

#pragma once
#include <stdio.h>
#include <unistd.h>

#include "config.h"
#include "tensor.h"

enum { LOAD_LIMIT_MS = 180000, THREADS_MOST = 512, FILES_MOST = 512, TEMPORARY_MB = 512, CACHE_MOST = 600 };

/* A `cpu_ms` of 0 means no limit. `memory_mb` is resident, shared pages included. `cache` is the folder in which the engine
 * may keep files, or empty. */
typedef struct {
  int64_t run_ms, load_ms, cpu_ms, memory_mb, threads, files, temporary_mb;
  char cache[CACHE_MOST];
} Limits;

/* Half of the machine's. */
static int64_t half_of_memory_mb(void) {
  return (int64_t) sysconf(_SC_PHYS_PAGES) / 2 * (int64_t) sysconf(_SC_PAGESIZE) >> 20;
}

static int64_t setting(const char *config, const char *key, int64_t otherwise) {
  char text[64];
  return parameter(config, key, text, sizeof text) ? atoll(text) : otherwise;
}

/* The limits of the model `name`, which has a cache of its own. */
static Limits read_limits(const char *config, const char *name) {
  char cache[256];
  Limits limits = {
    .run_ms = setting(config, "request_timeout_ms", LIMIT_MS),
    .load_ms = setting(config, "load_timeout_ms", LOAD_LIMIT_MS),
    .cpu_ms = setting(config, "cpu_time_ms", 0),
    .memory_mb = setting(config, "memory_mb", half_of_memory_mb()),
    .threads = setting(config, "max_threads", THREADS_MOST),
    .files = setting(config, "max_open_files", FILES_MOST),
    .temporary_mb = setting(config, "temporary_mb", TEMPORARY_MB),
  };
  if (parameter(config, "CACHE_DIR", cache, sizeof cache))
    snprintf(limits.cache, sizeof limits.cache, "%s/%s", cache, name);
  return limits;
}
