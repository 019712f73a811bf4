/* Tensors, as the server and a model's worker both know them. */

#pragma once
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "errors.h"

enum { LIMIT_MS = 30000, GRACE_S = 2 }; /* of a request, unless the configuration says otherwise; then it is ended */
enum { IN_TIME, OUT_OF_TIME, OUT_OF_CPU_TIME }; /* why an execution was stopped */
enum { SPENT = 3 }; /* how a worker exits with an execution that did not stop at the limit of its CPU time */

/* `type` is Triton's number. A `ragged` input is filled up with `pad`, and such an output cut back. */
typedef struct { char *name; int type; bool ragged; uint8_t pad[8]; } Tensor;

typedef struct { Tensor *all; size_t count; } Tensors;

typedef struct { char *bytes; size_t capacity; } Buffer;

/* One input of all requests as one tensor, with its size in bytes. `last` is the last request's input, in `parts`. */
typedef struct { int64_t shape[RANK_MOST]; uint32_t rank, parts; uint64_t size; Input *last; } Batch;

/* One output of all requests; `row` is the size of a row in bytes, and without batching it is a single row. */
typedef struct { char *bytes; int64_t shape[RANK_MOST]; size_t rank, row; int type; bool batched; } Answer;

static Error *new_tensors(Tensors *tensors, size_t count) {
  tensors->all = calloc(count + 1, sizeof *tensors->all);
  if (!tensors->all) return no_memory();
  tensors->count = count;
  return NULL;
}

static inline void free_tensors(Tensors *tensors) {
  for (size_t at = 0; tensors->all && at < tensors->count; at++) free(tensors->all[at].name);
  free(tensors->all);
}

/* The size in bytes of a tensor with this shape; UINT64_MAX if the shape is negative or too large. */
static uint64_t size_of(const int64_t *dims, size_t rank, int type) {
  uint64_t size = SIZES[type];
  for (size_t dim = 0; dim < rank; dim++)
    if (dims[dim] < 0 || __builtin_mul_overflow(size, (uint64_t) dims[dim], &size)) return UINT64_MAX;
  return size;
}

static uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}
