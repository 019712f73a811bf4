/* The inputs of a batch of requests, each copied as one tensor into the instance's ring.
 *
 * Triton may hold an input in several parts, and in any memory: its own, or a region that a client shares. `memory`
 * asks for a kind and returns the kind that it is. */

#pragma once
#include "lengths.h"

static Error *copy_input(Input *input, uint32_t parts, char *to, size_t room) {
  for (uint32_t part = 0; part < parts; part++) {
    const void *from;
    uint64_t size;
    int memory = 0;
    int64_t id = 0;
    TRY(TRITONBACKEND_InputBuffer(input, part, &from, &size, &memory, &id));
    if (memory == MEMORY_GPU) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "an input is in GPU memory");
    if (size > room) return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "an input is longer than its shape says");
    memcpy(to, from, size);
    to += size, room -= size;
  }
  return NULL;
}

static Error *check_size(const int64_t *dims, uint32_t rank, const Tensor *tensor, uint64_t size) {
  if (size_of(dims, rank, tensor->type) == size && size != UINT64_MAX) return NULL;
  return error_with(ERROR_INVALID_ARG, "input '%s' has a different size than its shape says", tensor->name);
}

/* Whether a request's input has the shape of the batch's others. The batch dimension and a padded length may differ. */
static bool same_shape(const Batch *batch, const int64_t *dims, bool ragged) {
  for (uint32_t dim = ragged ? 2 : 1; dim < batch->rank; dim++)
    if (batch->shape[dim] != dims[dim]) return false;
  return true;
}

/* Reads the shape and size of an input over all requests, and writes each request's rows to `instance->rows`. Engines
 * read as many bytes as the shape says, so a wrong shape would let them read past the end: the batch's is checked, or
 * each request's if inputs are padded. */
static Error *inspect_input(Instance *instance, size_t at, Request **requests, uint32_t count, Batch *batch) {
  Tensor *tensor = &instance->model->inputs.all[at];
  bool ragged = instance->own && tensor->ragged;
  int64_t rows = 0;
  for (uint32_t each = 0; each < count; each++) {
    const char *name;
    const int64_t *dims;
    int type;
    uint64_t size;
    TRY(TRITONBACKEND_RequestInput(requests[each], tensor->name, &batch->last));
    TRY(TRITONBACKEND_InputProperties(batch->last, &name, &type, &dims, &batch->rank, &size, &batch->parts));
    if (type != tensor->type)
      return error_with(ERROR_INVALID_ARG, "input '%s' has a different data type than the model's", name);
    if (batch->rank > RANK_MOST) return error_with(ERROR_INVALID_ARG, "input '%s' has too many dimensions", name);
    if (!each) memcpy(batch->shape, dims, batch->rank * sizeof *dims);
    else if (!same_shape(batch, dims, ragged))
      return error_with(ERROR_INVALID_ARG, "requests of one batch differ in the shape of '%s'", name);
    if (ragged) TRY(check_size(dims, batch->rank, tensor, size));
    int64_t own = batch->rank ? dims[0] : 1;
    if (!at) instance->rows[each] = own;
    rows += own;
    batch->size += size;
  }
  if (batch->rank && count > 1) batch->shape[0] = rows;
  if (!ragged) return check_size(batch->shape, batch->rank, tensor, batch->size);
  batch->shape[1] = instance->padded;
  batch->size = size_of(batch->shape, batch->rank, tensor->type);
  return batch->size == UINT64_MAX ? no_memory() : NULL;
}

/* Copies the input of all requests, one after the other; `wide` is the size of a padded row, or 0 without padding. */
static Error *copy_batch(Instance *instance, size_t at, Request **requests, uint32_t count, char *to, size_t wide) {
  Tensor *tensor = &instance->model->inputs.all[at];
  for (uint32_t each = 0; each < count; each++) {
    Input *input;
    const char *name;
    const int64_t *dims;
    int type;
    uint32_t rank, parts;
    uint64_t size;
    TRY(TRITONBACKEND_RequestInput(requests[each], tensor->name, &input));
    TRY(TRITONBACKEND_InputProperties(input, &name, &type, &dims, &rank, &size, &parts));
    TRY(copy_input(input, parts, to, size));
    if (wide && size) spread(to, dims[0], size / (uint64_t) dims[0], wide, tensor);
    to += wide ? wide * (uint64_t) dims[0] : size;
  }
  return NULL;
}

/* Whether any request of this run is shorter than the length that it is padded to. */
static bool is_padded(const Instance *instance, uint32_t count) {
  for (uint32_t each = 0; instance->own && each < count; each++)
    if (instance->own[each] != instance->padded) return true;
  return false;
}

static Error *gather_input(Instance *instance, size_t at, Request **requests, uint32_t count) {
  Batch batch = {0};
  TRY(inspect_input(instance, at, requests, count, &batch));
  bool padded = instance->model->inputs.all[at].ragged && is_padded(instance, count);
  size_t wide = padded && batch.shape[0] ? batch.size / (uint64_t) batch.shape[0] : 0;
  Ring *ring = &instance->ring;
  uint64_t offset = aligned(instance->filled);
  if (batch.size > INT64_MAX / 4 || !extend(ring, offset + batch.size + ALIGNED)) return no_memory();
  TRY(copy_batch(instance, at, requests, count, ring->base + offset, wide));
  Slot *slot = &header_of(ring)->slots[at];
  *slot = (Slot) {.offset = offset, .size = batch.size, .rank = batch.rank};
  memcpy(slot->shape, batch.shape, batch.rank * sizeof *batch.shape);
  instance->filled = offset + batch.size;
  return NULL;
}
