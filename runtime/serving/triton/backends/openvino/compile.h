/* Compiling a model can take OpenVINO minutes and can't be interrupted. So it runs in its own thread, and the caller
 * gives it up at a deadline. That thread then runs to its end and frees what it made. */

#pragma once
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "../common/limits.h"
#include "interface.h"

enum { SETTING = CACHE_MOST }; /* of a cache, the longest */

/* OpenVINO's properties, as text. */
typedef struct { char precision[8], streams[16], threads[16], hint[32], cache[SETTING]; } Properties;

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t ended_now;
  void *core, *compiled;
  char path[4096], failure[MESSAGE];
  Properties properties;
  cpu_set_t cores;
  bool pinned, ended, abandoned;
} Compilation;

static void free_compilation(Compilation *compilation) {
  if (compilation->compiled) ov.ov_compiled_model_free(compilation->compiled);
  pthread_cond_destroy(&compilation->ended_now);
  pthread_mutex_destroy(&compilation->lock);
  free(compilation);
}

static void *compile_in_thread(void *argument) {
  Compilation *own = argument;
  const Properties *set = &own->properties;
  if (own->pinned) sched_setaffinity(0, sizeof own->cores, &own->cores); /* its streams' threads inherit it */
  /* The number counts the strings after it, keys and values. The cache comes last, so 10 leave it out. */
  int status = ov.ov_core_compile_model_from_file(
      own->core, own->path, "CPU", (size_t) (set->cache[0] ? 12 : 10), &own->compiled, "INFERENCE_PRECISION_HINT",
      set->precision, "NUM_STREAMS", set->streams, "INFERENCE_NUM_THREADS", set->threads, "PERFORMANCE_HINT",
      set->hint, "ENABLE_CPU_PINNING", "NO", "CACHE_DIR", set->cache);
  if (status) describe_failure(status, own->failure, sizeof own->failure);
  pthread_mutex_lock(&own->lock);
  own->ended = true;
  bool abandoned = own->abandoned;
  pthread_cond_signal(&own->ended_now);
  pthread_mutex_unlock(&own->lock);
  if (abandoned) free_compilation(own);
  return NULL;
}

/* Waits until the compilation has ended. False if it is late: from then on its thread owns it and frees it. */
static bool wait_for(Compilation *compilation, int64_t limit_ms) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += limit_ms / 1000, until.tv_nsec += limit_ms % 1000 * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&compilation->lock);
  int status = 0;
  while (!compilation->ended && status != ETIMEDOUT)
    status = pthread_cond_clockwait(&compilation->ended_now, &compilation->lock, CLOCK_MONOTONIC, &until);
  bool ended = compilation->ended;
  compilation->abandoned = !ended;
  pthread_mutex_unlock(&compilation->lock);
  return ended;
}

static Error *result_of(Compilation *compilation, int64_t limit_ms, void **compiled) {
  char limit[32];
  if (!wait_for(compilation, limit_ms)) {
    snprintf(limit, sizeof limit, "%g", (double) limit_ms / 1e3);
    return error_with(
        ERROR_INTERNAL, "OpenVINO did not compile the model within %s s, its limit (parameter COMPILE_TIMEOUT_MS)",
        limit);
  }
  Error *error = compilation->compiled ? NULL : error_with(
      ERROR_INVALID_ARG, "OpenVINO can't read or compile the model: %s", compilation->failure);
  *compiled = compilation->compiled;
  compilation->compiled = NULL;
  free_compilation(compilation);
  return error;
}

static Error *compile_model(
    void *core, const char *path, const Properties *properties, const cpu_set_t *cores, int64_t limit_ms,
    void **compiled) {
  pthread_t thread;
  Compilation *compilation = calloc(1, sizeof *compilation);
  if (!compilation) return no_memory();
  compilation->core = core;
  compilation->properties = *properties;
  snprintf(compilation->path, sizeof compilation->path, "%s", path);
  if ((compilation->pinned = cores)) compilation->cores = *cores;
  pthread_mutex_init(&compilation->lock, NULL);
  pthread_cond_init(&compilation->ended_now, NULL);
  if (pthread_create(&thread, NULL, compile_in_thread, compilation)) {
    free_compilation(compilation);
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the thread that compiles a model can't be started");
  }
  pthread_detach(thread);
  return result_of(compilation, limit_ms, compiled);
}
