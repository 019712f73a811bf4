/* Which values a model takes. A request with another one is refused before it joins a batch, so that its neighbours are
 * answered: the model's author's code raises an error there, and the graph would answer, or fail with the whole batch.
 *
 * `guards.json` in the version's folder lists the guards, if there are any: runtime/guest/graphs/guards.py explains them,
 * and checks them where a model runs in the Python backend. Guards of texts are left to that. */

#pragma once
#include <limits.h>
#include <math.h>
#include <sys/stat.h>

#include "config.h"
#include "inputs.h"

enum { GUARDS_MOST = 2000, VALUES_MOST = 1000, GUARD_BYTES_MOST = 8 << 20, GUARD_TEXT = 400, VALUES_SHOWN = 8 };

/* --- reading --------------------------------------------------------------------------------------------------------- */

/* The file's text, or NULL if there is none; the caller owns it. */
static Error *read_guard_file(const Model *model, char **text) {
  char file[4200];
  struct stat entry;
  *text = NULL;
  snprintf(file, sizeof file, "%s/guards.json", model->path);
  FILE *from = fopen(file, "re");
  if (!from) return NULL;
  bool known = !fstat(fileno(from), &entry) && S_ISREG(entry.st_mode) && entry.st_size <= GUARD_BYTES_MOST;
  size_t size = known ? (size_t) entry.st_size : 0, got = 0;
  if (known && (*text = calloc(1, size + 1))) got = fread(*text, 1, size, from);
  fclose(from);
  if (*text && got == size) return NULL;
  free(*text);
  *text = NULL;
  return known ? no_memory() : TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "guards.json has more than 8 MiB");
}

static bool whole_type(int type) { return type > TYPE_BOOL && type <= TYPE_INT64; }

static bool guarded_type(int type) { return whole_type(type) || type == TYPE_FP32 || type == TYPE_FP64; }

/* Reads a number of the kind that the guard has; false if there is none, or what is there is none. */
static bool read_bound(const char *at, bool whole, Bound *to) {
  char *end;
  if (!at || !strchr("-0123456789", *at)) return false;
  if (whole) to->whole = strtoll(at, &end, 10); /* clamps to what 64 bits hold */
  else to->number = strtod(at, &end);
  return end != at && strchr(",]} \t\r\n", *end);
}

static int by_whole(const void *left, const void *right) {
  int64_t one = ((const Bound *) left)->whole, other = ((const Bound *) right)->whole;
  return (one > other) - (one < other);
}

static int by_number(const void *left, const void *right) {
  double one = ((const Bound *) left)->number, other = ((const Bound *) right)->number;
  return (one > other) - (one < other);
}

/* Reads the list of values, and sorts it. */
static bool read_values(const char *at, Guard *guard) {
  if (!at) return true;
  if (*at != '[' || !(guard->values = calloc(VALUES_MOST, sizeof *guard->values))) return false;
  for (at = space(at + 1); *at && *at != ']'; at = space(at)) {
    if (guard->count == VALUES_MOST || !read_bound(at, guard->whole, &guard->values[guard->count++])) return false;
    at = space(past_value(at));
    if (*at == ',') at++;
  }
  qsort(guard->values, guard->count, sizeof *guard->values, guard->whole ? by_whole : by_number);
  return *at == ']' && guard->count;
}

static bool is_false(const char *at) { return at && !strncmp(at, "false", 5); }

/* Reads a limit that may be missing. */
static bool read_limit(const char *at, bool whole, Bound *to, Bound otherwise) {
  *to = otherwise;
  return !at || read_bound(at, whole, to);
}

/* Reads one guard; one of an input that is not the model's, or of texts, is left out. */
static bool read_guard(Model *model, const char *at) {
  char name[600];
  Guard *guard = &model->guards[model->guard_count];
  if (*at != '{' || !text_of(member(at, "input"), name, sizeof name)) return false;
  for (guard->input = 0; guard->input < model->inputs.count; guard->input++)
    if (!strcmp(model->inputs.all[guard->input].name, name)) break;
  if (guard->input == model->inputs.count || !guarded_type(model->inputs.all[guard->input].type)) return true;
  model->guard_count++;
  guard->whole = whole_type(model->inputs.all[guard->input].type);
  guard->column = number(member(at, "column"), -1);
  guard->no_nan = is_false(member(at, "missing")), guard->no_infinite = is_false(member(at, "infinite"));
  Bound lowest = guard->whole ? (Bound) {.whole = INT64_MIN} : (Bound) {.number = -INFINITY};
  Bound highest = guard->whole ? (Bound) {.whole = INT64_MAX} : (Bound) {.number = INFINITY};
  return read_limit(member(at, "low"), guard->whole, &guard->low, lowest)
      && read_limit(member(at, "high"), guard->whole, &guard->high, highest)
      && read_values(member(at, "values"), guard);
}

static Error *read_guards(Model *model) {
  char *text;
  TRY(read_guard_file(model, &text));
  if (!text) return NULL;
  const char *at = space(text);
  bool good = *at == '[' && (model->guards = calloc(GUARDS_MOST, sizeof *model->guards));
  for (at = good ? space(at + 1) : at; good && *at && *at != ']'; at = space(at)) {
    good = model->guard_count < GUARDS_MOST && read_guard(model, at);
    at = space(past_value(at));
    if (*at == ',') at++;
  }
  good = good && *at == ']';
  free(text);
  return good ? NULL : TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "guards.json in the model's package can't be read");
}

static void free_guards(Model *model) {
  for (size_t at = 0; at < model->guard_count; at++) free(model->guards[at].values);
  free(model->guards);
}

/* --- checking -------------------------------------------------------------------------------------------------------- */

/* Whether a sorted list has a value; `side` is the bound's. Halves without a branch that could be mispredicted. */
#define HAS(name, side, element) \
  static inline bool name(const Guard *guard, element value) { \
    const Bound *from = guard->values; \
    for (size_t count = guard->count; count > 1; count -= count / 2) \
      from += from[count / 2].side <= value ? count / 2 : 0; \
    return from->side == value; \
  }

HAS(has_number, number, double)
HAS(has_whole, whole, int64_t)

static inline bool refuses_number(const Guard *guard, double value) {
  if (__builtin_expect(value - value != 0, 0)) { /* NaN, or infinite */
    if (value != value) return guard->no_nan;
    if (guard->no_infinite) return true;
  }
  if (value < guard->low.number || value > guard->high.number) return true;
  return guard->count && !has_number(guard, value);
}

static inline bool refuses_whole(const Guard *guard, int64_t value) {
  if (value < guard->low.whole || value > guard->high.whole) return true;
  return guard->count && !has_whole(guard, value);
}

static inline bool refuses_unsigned(const Guard *guard, uint64_t value) {
  return refuses_whole(guard, value > INT64_MAX ? INT64_MAX : (int64_t) value);
}

/* The first element of `count`, each `step` after the last, that a guard refuses; `count` if it refuses none. What the
 * client sent may lie anywhere, so elements are copied. */
#define FIRST_REFUSED(element, refuses) do { \
  element value; \
  for (uint64_t place = 0; place < count; place++) { \
    memcpy(&value, from + place * step * sizeof value, sizeof value); \
    if (refuses(guard, value)) return place; \
  } \
  return count; \
} while (0)

static uint64_t first_refused(const Guard *guard, int type, const char *from, uint64_t count, uint64_t step) {
  switch (type) {
    case TYPE_FP32: FIRST_REFUSED(float, refuses_number);
    case TYPE_FP64: FIRST_REFUSED(double, refuses_number);
    case TYPE_UINT8: FIRST_REFUSED(uint8_t, refuses_unsigned);
    case TYPE_UINT16: FIRST_REFUSED(uint16_t, refuses_unsigned);
    case TYPE_UINT32: FIRST_REFUSED(uint32_t, refuses_unsigned);
    case TYPE_UINT64: FIRST_REFUSED(uint64_t, refuses_unsigned);
    case TYPE_INT8: FIRST_REFUSED(int8_t, refuses_whole);
    case TYPE_INT16: FIRST_REFUSED(int16_t, refuses_whole);
    case TYPE_INT32: FIRST_REFUSED(int32_t, refuses_whole);
    default: FIRST_REFUSED(int64_t, refuses_whole);
  }
}

/* An element as a bound, to be compared and shown. */
static Bound element_at(int type, const char *from) {
  double number;
  float single;
  int64_t whole = 0;
  if (type == TYPE_FP64) return memcpy(&number, from, sizeof number), (Bound) {.number = number};
  if (type == TYPE_FP32) return memcpy(&single, from, sizeof single), (Bound) {.number = (double) single};
  memcpy(&whole, from, SIZES[type]); /* little-endian */
  int unused = 64 - 8 * SIZES[type];
  if (type >= TYPE_INT8) whole = (int64_t) ((uint64_t) whole << unused) >> unused;
  else if (whole < 0) whole = INT64_MAX;
  return (Bound) {.whole = whole};
}

static void show(char *to, size_t size, int type, Bound value) {
  if (whole_type(type)) snprintf(to, size, "%lld", (long long) value.whole);
  else snprintf(to, size, type == TYPE_FP32 ? "%.9g" : "%.17g", value.number);
}

/* Writes what a guard with a list of values takes. */
static void show_values(char *to, size_t size, int type, const Guard *guard) {
  char value[40];
  size_t used = (size_t) snprintf(
      to, size, ", none of the %zu values that the model takes: send one of", guard->count);
  for (size_t at = 0; at < guard->count && at < VALUES_SHOWN && used < size; at++) {
    show(value, sizeof value, type, guard->values[at]);
    used += (size_t) snprintf(to + used, size - used, "%s %s", at ? "," : "", value);
  }
  if (guard->count > VALUES_SHOWN && used < size) snprintf(to + used, size - used, ", ...");
}

/* Writes why an element is refused, and what to send. */
static void show_reason(char *to, size_t size, int type, const Guard *guard, Bound value) {
  char end[40];
  bool low = guard->whole ? value.whole < guard->low.whole : value.number < guard->low.number;
  bool high = guard->whole ? value.whole > guard->high.whole : value.number > guard->high.number;
  if (!guard->whole && value.number != value.number)
    snprintf(to, size, ", which is not taken: send a number");
  else if (!guard->whole && value.number - value.number != 0 && guard->no_infinite)
    snprintf(to, size, ", which is not taken: send a finite number");
  else if (!low && !high) show_values(to, size, type, guard);
  else {
    show(end, sizeof end, type, low ? guard->low : guard->high);
    snprintf(to, size, ", and the %s that the model takes is %s", low ? "least" : "most", end);
  }
}

/* One input of a request, as it lies in memory. `own` is a copy, if it came in several parts. */
typedef struct { const char *bytes; char *own; const int64_t *dims; uint32_t rank; uint64_t size; } Given;

/* Finds an input; false if there is nothing to check, because it is missing, or what its run will refuse. */
static bool find_given(Request *request, const Tensor *tensor, Given *given) {
  const char *name;
  Input *input;
  int type, memory = 0;
  int64_t id = 0;
  uint32_t parts;
  uint64_t size;
  const void *from = NULL;
  *given = (Given) {0};
  Error *error = TRITONBACKEND_RequestInput(request, tensor->name, &input);
  if (!error) error = TRITONBACKEND_InputProperties(input, &name, &type, &given->dims, &given->rank, &given->size, &parts);
  bool usable = !error && type == tensor->type && given->size && given->rank <= RANK_MOST
      && size_of(given->dims, given->rank, type) == given->size;
  if (usable && parts == 1) {
    error = TRITONBACKEND_InputBuffer(input, 0, &from, &size, &memory, &id);
    usable = !error && size == given->size && memory != MEMORY_GPU;
    given->bytes = from;
  } else if (usable) {
    usable = (given->own = malloc(given->size)) && !(error = copy_input(input, parts, given->own, given->size));
    given->bytes = given->own;
  }
  if (error) TRITONSERVER_ErrorDelete(error);
  return usable;
}

static Error *refusal(const Guard *guard, const Tensor *tensor, const Given *given, uint64_t element) {
  char text[GUARD_TEXT + 700], where[60] = "", value[40], why[GUARD_TEXT];
  uint64_t rows = given->rank && given->dims[0] > 0 ? (uint64_t) given->dims[0] : 1;
  uint64_t width = given->size / SIZES[tensor->type] / rows;
  Bound found = element_at(tensor->type, given->bytes + element * SIZES[tensor->type]);
  if (given->rank == 2 && width > 1) snprintf(where, sizeof where, ", column %llu", (unsigned long long) (element % width));
  show(value, sizeof value, tensor->type, found);
  show_reason(why, sizeof why, tensor->type, guard, found);
  snprintf(text, sizeof text, "input '%s', row %llu%s is %s%s", tensor->name, (unsigned long long) (element / width),
           where, value, why);
  return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, text);
}

/* Why an input is refused by a guard; NULL if it isn't. A guard of a column is one of a matrix. */
static Error *against(const Guard *guard, const Tensor *tensor, const Given *given) {
  uint64_t elements = given->size / SIZES[tensor->type], column = (uint64_t) guard->column;
  if (guard->column < 0) {
    uint64_t at = first_refused(guard, tensor->type, given->bytes, elements, 1);
    return at < elements ? refusal(guard, tensor, given, at) : NULL;
  }
  if (given->rank != 2 || guard->column >= given->dims[1]) return NULL;
  uint64_t width = (uint64_t) given->dims[1], rows = (uint64_t) given->dims[0];
  uint64_t row = first_refused(guard, tensor->type, given->bytes + column * SIZES[tensor->type], rows, width);
  return row < rows ? refusal(guard, tensor, given, row * width + column) : NULL;
}

/* Why a request is refused; NULL if it isn't. */
static Error *refused_by_guards(const Model *model, Request *request) {
  Given given = {0};
  Error *error = NULL;
  bool usable = false;
  size_t last = SIZE_MAX;
  for (size_t at = 0; at < model->guard_count && !error; at++) {
    const Guard *guard = &model->guards[at];
    const Tensor *tensor = &model->inputs.all[guard->input];
    if (guard->input != last) { /* guards of an input are next to each other */
      free(given.own);
      usable = find_given(request, tensor, &given);
      last = guard->input;
    }
    if (usable) error = against(guard, tensor, &given);
  }
  free(given.own);
  return error;
}
