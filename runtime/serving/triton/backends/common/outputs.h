/* The outputs of a batch, written into the response of each request. */

#pragma once
#include "inputs.h"

/* Finds an output in the ring. The worker may have written anything, so it is read once, and checked. */
static Error *find_answer(Instance *instance, size_t at, Answer *answer) {
  const Tensor *tensor = &instance->model->outputs.all[at];
  Slot slot = header_of(&instance->ring)->slots[instance->model->inputs.count + at];
  __asm__ volatile("" ::: "memory"); /* the copy, and not what it was copied from */
  bool known = slot.type > 0 && slot.type < TYPES_KNOWN && SIZES[slot.type] && slot.rank <= RANK_MOST;
  if (!known || size_of(slot.shape, slot.rank, slot.type) != slot.size || slot.offset < BEGINNING ||
      slot.size > INT64_MAX / 4 || slot.offset > INT64_MAX / 4 || !reach(&instance->ring, slot.offset + slot.size))
    return error_with(ERROR_INTERNAL, "the model's worker answers no tensor as '%s'", tensor->name);
  *answer = (Answer) {.bytes = instance->ring.base + slot.offset, .rank = slot.rank, .type = slot.type};
  memcpy(answer->shape, slot.shape, sizeof slot.shape);
  return NULL;
}

/* Reads an output and the size of its rows. With batching it must have as many `rows` as the inputs, and if it is `cut`
 * back, their padded length. Both depend on the model, so they are checked. */
static Error *read_answer(Instance *instance, size_t at, int64_t rows, bool cut, Answer *answer) {
  const char *name = instance->model->outputs.all[at].name;
  TRY(find_answer(instance, at, answer));
  answer->batched = instance->model->max_batch > 0;
  if (answer->batched && (!answer->rank || answer->shape[0] != rows))
    return error_with(ERROR_INTERNAL, "output '%s' has a different batch size than the inputs", name);
  if (cut && (answer->rank < 2 || answer->shape[1] != instance->padded))
    return error_with(ERROR_INTERNAL, "output '%s' has a different length than the inputs", name);
  answer->row = SIZES[answer->type];
  for (size_t dim = answer->batched; dim < answer->rank; dim++) answer->row *= (size_t) answer->shape[dim];
  return NULL;
}

/* Whether a request wants an output. If Triton can't say, it does. */
static bool is_requested(Request *request, const char *name, size_t outputs) {
  uint32_t count = 0;
  const char *requested;
  Error *error = TRITONBACKEND_RequestOutputCount(request, &count);
  if (error) TRITONSERVER_ErrorDelete(error);
  if (error || count == outputs) return true;
  for (uint32_t at = 0; at < count; at++)
    if (!(error = TRITONBACKEND_RequestOutputName(request, at, &requested))) {
      if (!strcmp(requested, name)) return true;
    } else TRITONSERVER_ErrorDelete(error);
  return false;
}

/* Writes `rows` of an answer, each cut back to `length`, or whole if that is -1. Triton allocates the buffer, in its
 * own memory or in a region that the client shares; `memory` asks for a kind and returns the kind that it is. */
static Error *write_output(
    Response *response, const char *name, Answer *answer, int64_t from, int64_t rows, int64_t length) {
  Output *output;
  void *to;
  int memory = 0;
  int64_t id = 0, shape[RANK_MOST];
  size_t row = length < 0 ? answer->row : answer->row / (size_t) answer->shape[1] * (size_t) length;
  memcpy(shape, answer->shape, answer->rank * sizeof *shape);
  if (answer->batched) shape[0] = rows;
  if (length >= 0) shape[1] = length;
  TRY(TRITONBACKEND_ResponseOutput(
      response, &output, name, answer->type, shape, (uint32_t) answer->rank));
  TRY(TRITONBACKEND_OutputBuffer(output, &to, row * (size_t) rows, &memory, &id));
  if (memory == MEMORY_GPU) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "an output is requested in GPU memory");
  const char *bytes = answer->bytes + answer->row * (size_t) from;
  if (row == answer->row) memcpy(to, bytes, row * (size_t) rows);
  else for (int64_t each = 0; each < rows; each++)
    memcpy((char *) to + row * (size_t) each, bytes + answer->row * (size_t) each, row);
  return NULL;
}

static Error *write_answers(Instance *instance, Request **requests, uint32_t count, int64_t rows) {
  Tensors *outputs = &instance->model->outputs;
  for (size_t at = 0; at < outputs->count; at++) {
    const char *name = outputs->all[at].name;
    Answer answer;
    int64_t from = 0;
    bool cut = outputs->all[at].ragged && is_padded(instance, count);
    TRY(read_answer(instance, at, rows, cut, &answer));
    for (uint32_t each = 0; each < count; each++) {
      int64_t own = answer.batched ? instance->rows[each] : 1;
      if (instance->responses[each] && is_requested(requests[each], name, outputs->count))
        TRY(write_output(instance->responses[each], name, &answer, from, own, cut ? instance->own[each] : -1));
      from += own;
    }
  }
  return NULL;
}
