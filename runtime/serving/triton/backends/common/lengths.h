/* Requests of different lengths in one batch. Each is padded to the smallest bucket that holds it, and those of a
 * bucket are run together, so that a short request is never computed at the length of a long one. A length is the size
 * of the first dimension after the batch, the same in all padded inputs of a request. */

#pragma once
#include "model.h"

static Error *read_buckets(Model *model, const char *text) {
  int64_t last = 0;
  while (*text) {
    char *end;
    int64_t bucket = strtoll(text, &end, 10);
    if (end == text || (*end && *end != ',') || bucket <= last)
      return error_with(ERROR_INVALID_ARG, "parameter length_buckets is not a rising list of lengths: '%s'", text);
    if (model->bucket_count == BUCKETS_MOST) {
      char most[16];
      snprintf(most, sizeof most, "%d", BUCKETS_MOST);
      return error_with(ERROR_INVALID_ARG, "parameter length_buckets has more than %s lengths", most);
    }
    model->buckets[model->bucket_count++] = last = bucket;
    text = *end ? end + 1 : end;
  }
  return NULL;
}

/* Writes a whole number as an element of an integer type; false if the type can't hold it. */
static bool write_whole(double number, int type, uint8_t *to) {
  bool with_sign = type >= TYPE_INT8;
  double span = (double) (UINT64_C(1) << (8 * SIZES[type] - 1)) * (with_sign ? 1 : 2);
  if (!(number >= (with_sign ? -span : 0) && number < (type == TYPE_BOOL ? 2 : span))) return false;
  int64_t whole = with_sign ? (int64_t) number : (int64_t) (uint64_t) number;
  return (with_sign ? (double) whole : (double) (uint64_t) whole) == number
      && memcpy(to, &whole, SIZES[type]); /* little-endian: the low bytes come first */
}

/* Writes a number as an element of Triton's data type; false if the type can't hold it. Zero is the same bytes in every
 * type. */
static bool write_element(const char *text, int type, uint8_t *to) {
  char *end;
  double number = strtod(text, &end);
  float single = (float) number;
  if (end == text || *end || number - number != 0) return false; /* infinite, or NaN */
  if (number == 0) return true;
  if (type == TYPE_FP64) return memcpy(to, &number, sizeof number);
  if (type == TYPE_FP32) return single - single == 0 && memcpy(to, &single, sizeof single);
  return type <= TYPE_INT64 && write_whole(number, type, to);
}

/* Reads the buckets, what each padded input is filled up with, and which outputs are cut back. */
static Error *read_lengths(Model *model, const char *config) {
  char key[600], text[512];
  bool pads = false;
  if (!member(member(config, "parameters"), "length_buckets")) return NULL;
  if (!parameter(config, "length_buckets", text, sizeof text))
    return TRITONSERVER_ErrorNew(
        ERROR_INVALID_ARG, "parameter length_buckets is longer than 511 characters, or not a string");
  TRY(read_buckets(model, text));
  for (size_t at = 0; at < model->inputs.count; at++) {
    Tensor *tensor = &model->inputs.all[at];
    snprintf(key, sizeof key, "length_pad.%s", tensor->name);
    pads |= tensor->ragged = parameter(config, key, text, sizeof text);
    if (tensor->ragged && !write_element(text, tensor->type, tensor->pad))
      return error_with(
          ERROR_INVALID_ARG, "parameter length_pad.%s is not a number of the input's data type", tensor->name);
  }
  if (!pads)
    return TRITONSERVER_ErrorNew(
        ERROR_INVALID_ARG, "parameter length_buckets is set, but no length_pad.INPUT says what to fill inputs up with");
  for (size_t at = 0; at < model->outputs.count; at++) {
    snprintf(key, sizeof key, "length_cut.%s", model->outputs.all[at].name);
    model->outputs.all[at].ragged = parameter(config, key, text, sizeof text);
  }
  return NULL;
}

/* The length that a request is run at: a bucket, or its own if none holds it. */
static int64_t padded_length(const Model *model, int64_t length) {
  for (size_t at = 0; length && at < model->bucket_count; at++)
    if (length <= model->buckets[at]) return model->buckets[at];
  return length;
}

static Error *read_length(const Model *model, Request *request, int64_t *length) {
  *length = -1;
  for (size_t at = 0; at < model->inputs.count; at++) {
    const Tensor *tensor = &model->inputs.all[at];
    const char *name;
    const int64_t *dims;
    Input *input;
    int type;
    uint32_t rank, parts;
    uint64_t size;
    if (!tensor->ragged) continue;
    TRY(TRITONBACKEND_RequestInput(request, tensor->name, &input));
    TRY(TRITONBACKEND_InputProperties(input, &name, &type, &dims, &rank, &size, &parts));
    if (rank < 2) return error_with(ERROR_INVALID_ARG, "input '%s' has no dimension after the batch", name);
    if (*length >= 0 && dims[1] != *length)
      return error_with(ERROR_INVALID_ARG, "input '%s' has a different length than the request's others", name);
    *length = dims[1];
  }
  return NULL;
}

/* Sorts requests by the length that they run at; those of the same length keep their order. A batch is short, so
 * insertion sort will do. */
static void sort_by_length(const Model *model, Request **requests, int64_t *lengths, uint32_t count) {
  for (uint32_t next = 1; next < count; next++) {
    Request *request = requests[next];
    int64_t length = lengths[next], padded = padded_length(model, length);
    uint32_t at = next;
    for (; at && padded_length(model, lengths[at - 1]) > padded; at--)
      requests[at] = requests[at - 1], lengths[at] = lengths[at - 1];
    requests[at] = request, lengths[at] = length;
  }
}

/* Spreads rows that lie side by side to `wide` bytes each, and fills each one up. `to` has room for all of them. */
static void spread(char *to, int64_t rows, size_t own, size_t wide, const Tensor *tensor) {
  size_t element = SIZES[tensor->type];
  for (int64_t row = rows - 1; row >= 0; row--) { /* from the last, so that none is overwritten before it is moved */
    char *at = to + (size_t) row * wide;
    memmove(at, to + (size_t) row * own, own);
    for (size_t filled = own; filled < wide; filled += element) memcpy(at + filled, tensor->pad, element);
  }
}
