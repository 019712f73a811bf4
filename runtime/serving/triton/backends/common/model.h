/* What the server has of a model and of its instances: no engine, but a worker that has one. */

#pragma once
#include <pthread.h>
#include <sched.h>

#include "control.h"
#include "cores.h"
#include "limits.h"
#include "pauses.h"
#include "ring.h"

enum { BUCKETS_MOST = 32, LINES_MOST = 600, WHY_MOST = 256 };

typedef struct Instance Instance;

/* A model's worker process, which a thread starts, listens to, and starts again when it has ended. `listed` is the lock
 * of the list of instances, and `lock` that of what the thread shares with others. */
typedef struct {
  pthread_mutex_t lock, listed;
  pthread_cond_t changed;
  pthread_t keeper;
  enum { STARTING, RUNNING, PAUSED, CLOSING } state;
  pid_t pid;
  int control, output; /* sockets to talk by, and the pipe of what it prints */
  uint64_t number; /* how many were started */
  bool kept, loaded; /* whether there is a keeper, and whether the model was loaded once */
  Error *failure; /* why the first one did not load the model */
  Crashes crashes;
  uint64_t paused_until;
  char why[WHY_MOST], lines[LINES_MOST]; /* how it ended, or failed to load; the last that it printed */
  char beyond[WHY_MOST]; /* the limit for which it was ended, or empty */
  Instance *instances;
} Worker;

/* What a guard compares: whole numbers of 64 bits, or floating-point numbers. */
typedef union { int64_t whole; double number; } Bound;

/* Which values an input takes, or its column on the second axis; with -1, all of it. See guards.h. */
typedef struct {
  size_t input, count; /* the input's place among the model's, and how many values there are; none: all are taken */
  int64_t column;
  bool whole, no_nan, no_infinite;
  Bound low, high, *values; /* sorted */
} Guard;

typedef struct {
  char folder[4096], path[4096], name[256], *config;
  uint64_t version;
  Limits limits;
  int64_t max_batch, buckets[BUCKETS_MOST];
  size_t bucket_count;
  cpu_set_t cores;
  bool pinned;
  void *stopped, *crashed; /* metrics */
  Tensors inputs, outputs;
  Guard *guards;
  size_t guard_count;
  Worker worker;
  Suspects suspects;
} Model;

struct Instance {
  Model *model;
  Instance *next;
  pthread_mutex_t lock; /* of the ring: held for a run, and while another worker is given the instance */
  Ring ring;
  uint32_t turn;
  uint64_t worker; /* the number of the one that it was given to */
  bool attached, placed, answered; /* answered: whether the worker outlived the last run */
  Response **responses;
  int64_t *rows, *lengths; /* one per request; of lengths, all that Triton handed over */
  const int64_t *own; /* the lengths of the requests that are run now, or NULL if they are not padded */
  int64_t padded; /* the length that these are padded to */
  uint64_t filled; /* how much of the ring the inputs take */
  uint32_t capacity;
};
