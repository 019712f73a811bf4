/* A limit on how long one execution may take. An engine that is asked to stop does so between two nodes of the graph. A
 * single endless kernel never gets there, and nothing in this process can end it: a gauge reports it to the watchdog,
 * which loads the model again, or restarts the server. */

#pragma once
#include <pthread.h>
#include <time.h>

#include "errors.h"

enum { LOOK_MS = 100, GRACE_S = 2, LIMIT_MS = 30000 };

/* The executions of one instance, one after another; `deadline` is 0 between them. */
typedef struct Execution {
  struct Execution *next;
  void *run, *stopped, *stuck; /* what the engine stops a run by; the model's metrics, or NULL */
  const char *model;
  uint64_t limit_ns, deadline;
  bool terminated, overdue;
} Execution;

static Error *engine_stop(void *run); /* asks the engine to end what it runs now */
static Error *engine_resume(void *run); /* lets it run again after that */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t thread;
  Execution *first;
  void *stopped, *stuck; /* families of metrics, or NULL if the server has none */
  bool running;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static void report(const Execution *execution, int level, const char *what) {
  char text[512];
  snprintf(text, sizeof text, "shiplift: %s ran for over %.1f s, the limit of a request: %s", execution->model,
           (double) execution->limit_ns / 1e9, what);
  log_error(TRITONSERVER_LogMessage(level, __FILE__, __LINE__, text));
}

static void count(void *metric, double by) {
  if (metric) log_error(TRITONSERVER_MetricIncrement(metric, by));
}

/* Called with the lock held: while the engine is asked to stop a run, the execution can't end and free it. */
static void look_at(Execution *execution, uint64_t now) {
  if (!execution->deadline || now < execution->deadline) return;
  if (!execution->terminated) {
    execution->terminated = true;
    log_error(engine_stop(execution->run));
    count(execution->stopped, 1);
    report(execution, LOG_WARN, "it is stopped");
  } else if (!execution->overdue && now > execution->deadline + GRACE_S * 1000000000ull) {
    execution->overdue = true;
    count(execution->stuck, 1);
    report(execution, LOG_ERROR, "it does not stop, so its instance is stuck");
  }
}

static void *keep_watch(void *unused) {
  (void) unused;
  pthread_mutex_lock(&watch.lock);
  while (watch.running) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000l;
    until.tv_sec += until.tv_nsec / 1000000000l, until.tv_nsec %= 1000000000l;
    if (watch.first) pthread_cond_clockwait(&watch.changed, &watch.lock, CLOCK_MONOTONIC, &until);
    else pthread_cond_wait(&watch.changed, &watch.lock);
    uint64_t now = nanoseconds();
    for (Execution *each = watch.first; each; each = each->next) look_at(each, now);
  }
  pthread_mutex_unlock(&watch.lock);
  return NULL;
}

/* --- metrics ----------------------------------------------------------------------------------------------------- */

static void *family(int kind, const char *name, const char *description) {
  void *made = NULL;
  Error *error = TRITONSERVER_MetricFamilyNew(&made, kind, name, description);
  if (error) TRITONSERVER_ErrorDelete(error); /* the server was started without metrics */
  return error ? NULL : made;
}

static void *metric(void *of, const char *model) {
  void *made = NULL;
  if (!of) return NULL;
  const void *label = TRITONSERVER_ParameterNew("model", PARAMETER_STRING, model);
  if (!label) return NULL;
  Error *error = TRITONSERVER_MetricNew(&made, of, &label, 1);
  TRITONSERVER_ParameterDelete(label);
  log_error(error);
  return error ? NULL : made;
}

static void delete_metric(void *of) {
  if (of) log_error(TRITONSERVER_MetricDelete(of));
}

/* --- what a backend calls -------------------------------------------------------------------------------------- */

static Error *start_watch(void) {
  watch.stopped = family(METRIC_COUNTER, "shiplift_stopped_executions_total", "Executions stopped at their time limit");
  watch.stuck = family(METRIC_GAUGE, "shiplift_stuck_executions", "Executions that did not stop at their time limit");
  watch.running = true;
  if (!pthread_create(&watch.thread, NULL, keep_watch, NULL)) return NULL;
  watch.running = false;
  return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the thread that limits executions can't be started");
}

static void end_watch(void) {
  pthread_mutex_lock(&watch.lock);
  bool running = watch.running;
  watch.running = false;
  pthread_cond_signal(&watch.changed);
  pthread_mutex_unlock(&watch.lock);
  if (running) pthread_join(watch.thread, NULL);
  if (watch.stopped) log_error(TRITONSERVER_MetricFamilyDelete(watch.stopped));
  if (watch.stuck) log_error(TRITONSERVER_MetricFamilyDelete(watch.stuck));
  watch.stopped = watch.stuck = NULL;
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
  execution->deadline = now + execution->limit_ns;
  pthread_mutex_unlock(&watch.lock);
}

/* Ends an execution. If it was stopped, the error says so instead of what the engine says. */
static Error *end_execution(Execution *execution, Error *error) {
  char limit[32];
  pthread_mutex_lock(&watch.lock);
  bool terminated = execution->terminated;
  if (execution->overdue) count(execution->stuck, -1);
  execution->deadline = 0;
  execution->terminated = execution->overdue = false;
  if (terminated) log_error(engine_resume(execution->run));
  pthread_mutex_unlock(&watch.lock);
  if (!terminated || !error) return error; /* no error: it finished before the engine could stop it */
  TRITONSERVER_ErrorDelete(error);
  snprintf(limit, sizeof limit, "%g", (double) execution->limit_ns / 1e9);
  return error_with(
      ERROR_INTERNAL, "the request was stopped after %s s, its limit (serving.request_timeout_s in the model's spec)",
      limit);
}
