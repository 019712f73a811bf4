/* A limit on how long one execution may take. An engine that is asked to stop does so between two nodes of the graph. A
 * single endless kernel never gets there: the server ends the worker a moment later. */

#pragma once
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "tensor.h"

enum { LOOK_MS = 100 };

/* The executions of one instance, one after another; `deadline` is 0 between them. Those that run at the same time share
 * the process's CPU time, which is looked at now and then: `spent_ns` is right to some `LOOK_MS`. */
typedef struct Execution {
  struct Execution *next;
  void *run; /* what the engine stops a run by */
  const char *model;
  uint64_t limit_ns, deadline;
  uint64_t cpu_limit_ns, spent_ns; /* no limit: 0 */
  uint64_t stopped_at;
  uint32_t stopped; /* why */
} Execution;

static Error *engine_stop(void *run); /* asks the engine to end what it runs now */
static Error *engine_resume(void *run); /* lets it run again after that */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  Execution *first;
  uint64_t spent_ns;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Called with the lock held: while the engine is asked to stop a run, the execution can't end and free it. */
static void look_at(Execution *execution, uint64_t now) {
  if (!execution->deadline) return;
  if (execution->stopped) {
    /* The server ends a worker that stays beyond the limit of time, but doesn't see its CPU time. */
    if (execution->stopped == OUT_OF_CPU_TIME && now > execution->stopped_at + GRACE_S * 1000000000ull) _exit(SPENT);
    return;
  }
  bool spent = execution->cpu_limit_ns && execution->spent_ns > execution->cpu_limit_ns;
  if (now < execution->deadline && !spent) return;
  execution->stopped = spent ? OUT_OF_CPU_TIME : OUT_OF_TIME, execution->stopped_at = now;
  fprintf(stderr, "shiplift: %s ran for over %.1f s%s, the limit of a request: it is stopped\n", execution->model,
          (double) (spent ? execution->cpu_limit_ns : execution->limit_ns) / 1e9, spent ? " of CPU time" : "");
  log_error(engine_stop(execution->run));
}

/* Shares the CPU time since the last look among the executions that run. */
static void share_cpu_time(void) {
  struct timespec time;
  uint64_t running = 0;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  uint64_t now = (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec, spent = now - watch.spent_ns;
  watch.spent_ns = now;
  for (Execution *each = watch.first; each; each = each->next) running += each->deadline != 0;
  for (Execution *each = watch.first; each; each = each->next)
    if (each->deadline) each->spent_ns += spent / running;
}

static void *keep_watch(void *unused) {
  (void) unused;
  pthread_mutex_lock(&watch.lock);
  while (true) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000l;
    until.tv_sec += until.tv_nsec / 1000000000l, until.tv_nsec %= 1000000000l;
    if (watch.first) pthread_cond_clockwait(&watch.changed, &watch.lock, CLOCK_MONOTONIC, &until);
    else pthread_cond_wait(&watch.changed, &watch.lock);
    uint64_t now = nanoseconds();
    share_cpu_time();
    for (Execution *each = watch.first; each; each = each->next) look_at(each, now);
  }
  return NULL;
}

/* Starts the thread that looks at all executions, as long as the worker lives. */
static Error *start_watch(void) {
  pthread_t thread;
  if (!pthread_create(&thread, NULL, keep_watch, NULL)) return NULL;
  return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the thread that limits executions can't be started");
}

static void add_execution(Execution *execution) {
  pthread_mutex_lock(&watch.lock);
  execution->next = watch.first;
  watch.first = execution;
  pthread_cond_signal(&watch.changed);
  pthread_mutex_unlock(&watch.lock);
}

static void remove_execution(Execution *execution) {
  pthread_mutex_lock(&watch.lock);
  for (Execution **at = &watch.first; *at; at = &(*at)->next)
    if (*at == execution) {
      *at = execution->next;
      break;
    }
  pthread_mutex_unlock(&watch.lock);
}

static void begin_execution(Execution *execution, uint64_t now) {
  pthread_mutex_lock(&watch.lock);
  execution->deadline = now + execution->limit_ns, execution->spent_ns = 0;
  pthread_mutex_unlock(&watch.lock);
}

/* Ends an execution; why it was stopped, or `IN_TIME`. */
static uint32_t end_execution(Execution *execution) {
  pthread_mutex_lock(&watch.lock);
  uint32_t stopped = execution->stopped;
  execution->deadline = 0;
  execution->stopped = IN_TIME;
  if (stopped) log_error(engine_resume(execution->run));
  pthread_mutex_unlock(&watch.lock);
  return stopped;
}
