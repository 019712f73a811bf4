/* What a worker has of its model, and the functions that each engine implements. An engine's file defines `EngineModel`,
 * `EngineInstance` and `MODEL_FILE`, the name of a model's file, includes `worker.h`, and implements the functions
 * below. */

#pragma once
#include "cores.h"
#include "deadlines.h"
#include "limits.h"
#include "tensor.h"

typedef struct {
  char path[4096], name[256];
  int64_t max_batch;
  Limits limits;
  cpu_set_t cores;
  bool pinned;
  Tensors inputs, outputs;
  EngineModel engine;
} Model;

typedef struct {
  Model *model;
  void **inputs, **outputs; /* a run's tensors, which the engine makes and frees */
  Execution execution;
  EngineInstance engine;
} Instance;

/* --- what an engine implements ----------------------------------------------------------------------------------- */

/* Loads the engine's library, which is linked from the backend's folder. */
static Error *engine_load(const char *folder);

/* Reads the engine's own parameters, loads the file and describes its tensors, for as long as the process lives. */
static Error *engine_open_model(Model *model, const char *config);

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

static inline Error *grow(Buffer *buffer, size_t size) {
  if (size <= buffer->capacity) return NULL;
  size_t capacity = (size + size / 2 + ALIGNED - 1) / ALIGNED * ALIGNED;
  char *bytes = aligned_alloc(ALIGNED, capacity);
  if (!bytes) return no_memory();
  free(buffer->bytes);
  *buffer = (Buffer) {bytes, capacity};
  return NULL;
}
