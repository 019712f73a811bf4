/* What the backends have in common: a model, its instances, and the functions that each engine implements. An engine's
 * file defines `EngineModel`, `EngineInstance` and `MODEL_FILE`, the name of a model's file, includes `backend.h`, and
 * implements the functions below. */

#pragma once
#include <sched.h>

#include "cores.h"
#include "limit.h"

enum { BUCKETS_MOST = 32 };

/* `type` is Triton's number. A `ragged` input is filled up with `pad`, and such an output cut back. */
typedef struct { char *name; int type; bool ragged; uint8_t pad[8]; } Tensor;

typedef struct { Tensor *all; size_t count; } Tensors;

typedef struct {
  char path[4096], name[256];
  int64_t max_batch, limit_ms, buckets[BUCKETS_MOST];
  size_t bucket_count;
  cpu_set_t cores;
  bool pinned;
  void *stopped, *stuck; /* metrics */
  Tensors inputs, outputs;
  EngineModel engine;
} Model;

typedef struct { char *bytes; size_t capacity; } Buffer;

typedef struct {
  Model *model;
  bool placed;
  Buffer *buffers; /* one per input, for a batch */
  void **inputs, **outputs; /* a run's tensors, which the engine makes and frees */
  Response **responses;
  int64_t *rows, *lengths; /* one per request; of lengths, all that Triton handed over */
  const int64_t *own; /* the lengths of the requests that are run now, or NULL if they are not padded */
  int64_t padded; /* the length that these are padded to */
  uint32_t capacity;
  Execution execution;
  EngineInstance engine;
} Instance;

/* One input of all requests as one tensor, with its size in bytes. `last` is the last request's input, in `parts`. */
typedef struct { int64_t shape[RANK_MOST]; uint32_t rank, parts; uint64_t size; Input *last; } Batch;

/* One output of all requests; `row` is the size of a row in bytes, and without batching it is a single row. */
typedef struct { char *bytes; int64_t shape[RANK_MOST]; size_t rank, row; int type; bool batched; } Answer;

/* --- what an engine implements ----------------------------------------------------------------------------------- */

/* Loads the engine's library, which is linked from the backend's folder; later frees what it made of it. */
static Error *engine_load(const char *folder);
static void engine_unload(void);

/* Reads the engine's own parameters, loads the file and describes its tensors; what it made is freed in any case. */
static Error *engine_open_model(Model *model, const char *config);
static void engine_close_model(Model *model);

/* Prepares to run, and sets `execution.run`; what it made is freed in any case. */
static Error *engine_open_instance(Instance *instance);
static void engine_close_instance(Instance *instance);

/* Begins a run, which `engine_end_run` ends unless this failed. */
static Error *engine_begin_run(Instance *instance);

/* Takes an input, whose bytes stay where they are until the run is over. */
static Error *engine_give_input(Instance *instance, size_t at, const void *bytes, const Batch *batch);
static Error *engine_run(Instance *instance);

/* The type (Triton's), shape and bytes of an output, which stay where they are until `engine_end_run`. */
static Error *engine_read_output(Instance *instance, size_t at, Answer *answer);
static void engine_end_run(Instance *instance);

/* --- tensors ----------------------------------------------------------------------------------------------------- */

static Error *new_tensors(Tensors *tensors, size_t count) {
  tensors->all = calloc(count + 1, sizeof *tensors->all);
  if (!tensors->all) return no_memory();
  tensors->count = count;
  return NULL;
}

static void free_tensors(Tensors *tensors) {
  for (size_t at = 0; tensors->all && at < tensors->count; at++) free(tensors->all[at].name);
  free(tensors->all);
}
