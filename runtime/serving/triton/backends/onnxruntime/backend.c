/* Triton's `onnxruntime` backend for the bundled server, which comes with the Python backend alone. It has the same
 * name and the same parameters in config.pbtxt as NVIDIA's, so a package means the same on both servers. A request
 * needs no other process and no Python: the inputs of a single request are read where Triton holds them, a batch costs
 * one copy of each input, and single-threaded instances share a session, so its weights are in memory once. Text
 * tensors are left to the Python backend. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config.h"
#include "cores.h"
#include "errors.h"
#include "interfaces.h"

/* --- state ------------------------------------------------------------------------------------------------------- */

typedef struct { void *library, *environment, *memory; } Backend;

typedef struct { char *name; int type; } Tensor;

typedef struct { Tensor *all; const char **names; size_t count; } Tensors;

typedef struct {
  Backend *backend;
  char path[4096];
  int64_t max_batch;
  int threads, graph;
  cpu_set_t cores;
  bool pinned, taken;
  void *session; /* shared by single-threaded instances; otherwise used by the first instance that takes it */
  Tensors inputs, outputs;
} Model;

typedef struct { char *bytes; size_t capacity; } Buffer;

typedef struct {
  Model *model;
  void *session;
  bool own, took, placed;
  Buffer *buffers; /* one per input, for a batch */
  Value **input_values, **output_values;
  Response **responses;
  int64_t *rows; /* one count per request */
  uint32_t capacity;
} Instance;

/* --- a model ----------------------------------------------------------------------------------------------------- */

static Error *configure_options(Model *model, void *options) {
  TRY_ORT(ORT(ORT_SET_INTRA_OP_THREADS, options, model->threads));
  TRY_ORT(ORT(ORT_SET_INTER_OP_THREADS, options, 1));
  TRY_ORT(ORT(ORT_SET_GRAPH_LEVEL, options, model->graph));
  /* Idle instances must not spin on the cores that the others need. */
  return from_ort(ORT(ORT_ADD_CONFIG, options, "session.intra_op.allow_spinning", "0"));
}

/* Makes a session. Its threads stay on the model's cores, because they inherit the affinity of the starting thread. */
static Error *new_session(Model *model, void **session) {
  void *options = NULL;
  cpu_set_t before;
  TRY_ORT(ORT(ORT_CREATE_SESSION_OPTIONS, &options));
  Error *error = configure_options(model, options);
  bool moved = !error && model->pinned && !sched_getaffinity(0, sizeof before, &before) &&
               !sched_setaffinity(0, sizeof model->cores, &model->cores);
  if (!error) error = from_ort(ORT(ORT_CREATE_SESSION, model->backend->environment, model->path, options, session));
  if (moved) sched_setaffinity(0, sizeof before, &before);
  ORT_VOID(ORT_RELEASE_OPTIONS, options);
  return error;
}

static Error *describe_tensor(void *session, bool inputs, size_t at, Tensor *tensor) {
  void *allocator, *type = NULL;
  const void *info = NULL;
  TRY_ORT(ORT(ORT_DEFAULT_ALLOCATOR, &allocator));
  TRY_ORT(ORT(inputs ? ORT_INPUT_NAME : ORT_OUTPUT_NAME, session, at, allocator, &tensor->name));
  TRY_ORT(ORT(inputs ? ORT_INPUT_TYPE : ORT_OUTPUT_TYPE, session, at, &type));
  Error *error = from_ort(ORT(ORT_TENSOR_INFO_OF, type, &info));
  if (!error && info) error = from_ort(ORT(ORT_ELEMENT_TYPE, info, &tensor->type));
  ORT_VOID(ORT_RELEASE_TYPE, type);
  if (error) return error;
  if (!info) return error_with(ERROR_UNSUPPORTED, "'%s' is not a tensor", tensor->name);
  if (tensor->type < 0 || tensor->type >= TYPES_KNOWN || !TYPES[tensor->type].triton)
    return error_with(ERROR_UNSUPPORTED, "only the Python backend serves the data type of '%s'", tensor->name);
  return NULL;
}

static Error *read_tensors(void *session, bool inputs, Tensors *to) {
  TRY_ORT(ORT(inputs ? ORT_INPUT_COUNT : ORT_OUTPUT_COUNT, session, &to->count));
  to->all = calloc(to->count + 1, sizeof *to->all);
  to->names = calloc(to->count + 1, sizeof *to->names);
  if (!to->all || !to->names) return no_memory();
  for (size_t at = 0; at < to->count; at++) {
    TRY(describe_tensor(session, inputs, at, &to->all[at]));
    to->names[at] = to->all[at].name;
  }
  return NULL;
}

static Error *read_config(Model *model, const char *config) {
  char text[64];
  int64_t level = number(member(member(member(config, "optimization"), "graph"), "level"), 0);
  model->max_batch = number(member(config, "max_batch_size"), 0);
  model->threads = parameter(config, "intra_op_thread_count", text, sizeof text) ? atoi(text) : 1;
  model->graph = level < 0 ? GRAPH_OFF : level == 1 ? GRAPH_BASIC : GRAPH_ALL;
  return read_cores(config, &model->cores, &model->pinned);
}

static Error *open_model(Model *model, void *triton) {
  Message *message;
  const char *json, *folder;
  size_t size;
  int kind;
  uint64_t version;
  void *backend, *state;
  TRY(TRITONBACKEND_ModelBackend(triton, &backend));
  TRY(TRITONBACKEND_BackendState(backend, &state));
  model->backend = state;
  TRY(TRITONBACKEND_ModelRepository(triton, &kind, &folder));
  TRY(TRITONBACKEND_ModelVersion(triton, &version));
  snprintf(model->path, sizeof model->path, "%s/%llu/model.onnx", folder, (unsigned long long) version);
  TRY(TRITONBACKEND_ModelConfig(triton, 1, &message));
  Error *error = TRITONSERVER_MessageSerializeToJson(message, &json, &size);
  char *config = error ? NULL : strndup(json, size);
  TRITONSERVER_MessageDelete(message);
  if (error) return error;
  if (!config) return no_memory();
  error = read_config(model, config);
  free(config);
  if (error) return error;
  TRY(new_session(model, &model->session));
  TRY(read_tensors(model->session, true, &model->inputs));
  return read_tensors(model->session, false, &model->outputs);
}

static void free_tensors(Tensors *tensors) {
  for (size_t at = 0; tensors->all && at < tensors->count; at++) free(tensors->all[at].name);
  free(tensors->all);
  free(tensors->names);
}

static void close_model(Model *model) {
  if (model->session) ORT_VOID(ORT_RELEASE_SESSION, model->session);
  free_tensors(&model->inputs);
  free_tensors(&model->outputs);
  free(model);
  malloc_trim(0); /* otherwise the memory of an unloaded model still counts as the server's */
}

Error *TRITONBACKEND_ModelInitialize(void *triton) {
  Model *model = calloc(1, sizeof *model);
  if (!model) return no_memory();
  Error *error = open_model(model, triton);
  if (!error) error = TRITONBACKEND_ModelSetState(triton, model);
  if (error) close_model(model);
  return error;
}

Error *TRITONBACKEND_ModelFinalize(void *triton) {
  void *model;
  TRY(TRITONBACKEND_ModelState(triton, &model));
  if (model) close_model(model);
  return NULL;
}

/* --- an instance ------------------------------------------------------------------------------------------------- */

static void close_instance(Instance *instance) {
  if (instance->own && instance->session) ORT_VOID(ORT_RELEASE_SESSION, instance->session);
  if (instance->took) __atomic_store_n(&instance->model->taken, false, __ATOMIC_RELEASE);
  for (size_t at = 0; instance->buffers && at < instance->model->inputs.count; at++) free(instance->buffers[at].bytes);
  free(instance->buffers);
  free(instance->input_values);
  free(instance->output_values);
  free(instance->responses);
  free(instance->rows);
  free(instance);
}

static Error *open_instance(Instance *instance) {
  Model *model = instance->model;
  instance->buffers = calloc(model->inputs.count + 1, sizeof *instance->buffers);
  instance->input_values = calloc(model->inputs.count + 1, sizeof *instance->input_values);
  instance->output_values = calloc(model->outputs.count + 1, sizeof *instance->output_values);
  if (!instance->buffers || !instance->input_values || !instance->output_values) return no_memory();
  instance->took = model->threads != 1 && !__atomic_exchange_n(&model->taken, true, __ATOMIC_ACQ_REL);
  instance->own = model->threads != 1 && !instance->took;
  instance->session = instance->own ? NULL : model->session;
  return instance->own ? new_session(model, &instance->session) : NULL;
}

Error *TRITONBACKEND_ModelInstanceInitialize(void *triton) {
  void *model, *state;
  TRY(TRITONBACKEND_ModelInstanceModel(triton, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  Instance *instance = calloc(1, sizeof *instance);
  if (!instance) return no_memory();
  instance->model = state;
  Error *error = open_instance(instance);
  if (!error) error = TRITONBACKEND_ModelInstanceSetState(triton, instance);
  if (error) close_instance(instance);
  return error;
}

Error *TRITONBACKEND_ModelInstanceFinalize(void *triton) {
  void *instance;
  TRY(TRITONBACKEND_ModelInstanceState(triton, &instance));
  if (instance) close_instance(instance);
  return NULL;
}

static Error *reserve(Instance *instance, uint32_t count) {
  if (count <= instance->capacity) return NULL;
  Response **responses = realloc(instance->responses, count * sizeof *responses);
  if (responses) instance->responses = responses;
  int64_t *rows = realloc(instance->rows, count * sizeof *rows);
  if (rows) instance->rows = rows;
  if (!responses || !rows) return no_memory();
  instance->capacity = count;
  return NULL;
}

/* --- inputs ------------------------------------------------------------------------------------------------------ */

static Error *grow(Buffer *buffer, size_t size) {
  if (size <= buffer->capacity) return NULL;
  size_t capacity = (size + size / 2 + ALIGNED - 1) / ALIGNED * ALIGNED;
  char *bytes = aligned_alloc(ALIGNED, capacity);
  if (!bytes) return no_memory();
  free(buffer->bytes);
  *buffer = (Buffer) {bytes, capacity};
  return NULL;
}

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

/* One input of all requests as one tensor, with its size in bytes. `last` is the last request's input, in `parts`. */
typedef struct { int64_t shape[RANK_MOST]; uint32_t rank, parts; uint64_t size; Input *last; } Batch;

/* The bytes of the only request's input where Triton holds them, or NULL if they must be copied. */
static const void *in_place(const Batch *batch) {
  const void *bytes = NULL;
  uint64_t size;
  int memory = 0;
  int64_t id = 0;
  if (batch->parts != 1) return NULL;
  Error *error = TRITONBACKEND_InputBuffer(batch->last, 0, &bytes, &size, &memory, &id);
  if (error) TRITONSERVER_ErrorDelete(error);
  return error || memory == MEMORY_GPU || (uintptr_t) bytes % ENOUGH ? NULL : bytes;
}

/* Reads the shape and size of an input over all requests, and writes each request's share to `instance->rows`. */
static Error *inspect_input(Instance *instance, size_t at, Request **requests, uint32_t count, Batch *batch) {
  Tensor *tensor = &instance->model->inputs.all[at];
  int64_t rows = 0;
  for (uint32_t each = 0; each < count; each++) {
    const char *name;
    const int64_t *dims;
    int type;
    uint64_t size;
    TRY(TRITONBACKEND_RequestInput(requests[each], tensor->name, &batch->last));
    TRY(TRITONBACKEND_InputProperties(batch->last, &name, &type, &dims, &batch->rank, &size, &batch->parts));
    if (type != TYPES[tensor->type].triton)
      return error_with(ERROR_INVALID_ARG, "input '%s' has a different data type than the model's", name);
    if (batch->rank > RANK_MOST) return error_with(ERROR_INVALID_ARG, "input '%s' has too many dimensions", name);
    if (!each) memcpy(batch->shape, dims, batch->rank * sizeof *dims);
    else if (batch->rank && memcmp(batch->shape + 1, dims + 1, (batch->rank - 1) * sizeof *dims))
      return error_with(ERROR_INVALID_ARG, "requests of one batch differ in the shape of '%s'", name);
    int64_t own = batch->rank ? dims[0] : 1;
    if (!at) instance->rows[each] = own;
    rows += own;
    batch->size += size;
  }
  if (batch->rank && count > 1) batch->shape[0] = rows;
  return NULL;
}

static Error *copy_batch(Buffer *buffer, const char *name, Request **requests, uint32_t count, uint64_t total) {
  uint64_t filled = 0;
  TRY(grow(buffer, total));
  for (uint32_t each = 0; each < count; each++) {
    Input *input;
    const int64_t *dims;
    int type;
    uint32_t rank, parts;
    uint64_t size;
    TRY(TRITONBACKEND_RequestInput(requests[each], name, &input));
    TRY(TRITONBACKEND_InputProperties(input, &name, &type, &dims, &rank, &size, &parts));
    TRY(copy_input(input, parts, buffer->bytes + filled, size));
    filled += size;
  }
  return NULL;
}

static Error *gather_input(Instance *instance, size_t at, Request **requests, uint32_t count) {
  Tensor *tensor = &instance->model->inputs.all[at];
  Buffer *buffer = &instance->buffers[at];
  Batch batch = {0};
  TRY(inspect_input(instance, at, requests, count, &batch));
  const void *bytes = count == 1 ? in_place(&batch) : NULL;
  if (!bytes) {
    TRY(copy_batch(buffer, tensor->name, requests, count, batch.size));
    bytes = buffer->bytes;
  }
  return from_ort(ORT(
      ORT_TENSOR_OF_DATA, instance->model->backend->memory, bytes, (size_t) batch.size, batch.shape,
      (size_t) batch.rank, tensor->type, &instance->input_values[at]));
}

/* --- outputs ----------------------------------------------------------------------------------------------------- */

/* One output of all requests; `row` is the size of a row in bytes, and without batching it is a single row. */
typedef struct { char *bytes; int64_t shape[RANK_MOST]; size_t rank, row; int type; bool batched; } Answer;

static Error *read_shape(void *info, Answer *answer, const char *name) {
  TRY_ORT(ORT(ORT_ELEMENT_TYPE, info, &answer->type));
  TRY_ORT(ORT(ORT_RANK, info, &answer->rank));
  if (answer->rank > RANK_MOST) return error_with(ERROR_UNSUPPORTED, "output '%s' has too many dimensions", name);
  return from_ort(ORT(ORT_SHAPE, info, answer->shape, answer->rank));
}

/* Reads an output and the size of its rows; with batching it must have as many `rows` as the inputs. */
static Error *read_answer(Instance *instance, size_t at, int64_t rows, Answer *answer) {
  const char *name = instance->model->outputs.all[at].name;
  void *info = NULL;
  TRY_ORT(ORT(ORT_TENSOR_DATA, instance->output_values[at], &answer->bytes));
  TRY_ORT(ORT(ORT_TYPE_AND_SHAPE, instance->output_values[at], &info));
  Error *error = read_shape(info, answer, name);
  ORT_VOID(ORT_RELEASE_SHAPE, info);
  if (error) return error;
  answer->batched = instance->model->max_batch > 0;
  if (answer->batched && (!answer->rank || answer->shape[0] != rows))
    return error_with(ERROR_INTERNAL, "output '%s' has a different batch size than the inputs", name);
  answer->row = (size_t) TYPES[answer->type].size;
  for (size_t dim = answer->batched; dim < answer->rank; dim++) answer->row *= (size_t) answer->shape[dim];
  return NULL;
}

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

static Error *write_output(Response *response, const char *name, Answer *answer, int64_t from, int64_t rows) {
  Output *output;
  void *to;
  int memory = 0;
  int64_t id = 0, shape[RANK_MOST];
  size_t size = answer->row * (size_t) rows;
  memcpy(shape, answer->shape, answer->rank * sizeof *shape);
  if (answer->batched) shape[0] = rows;
  TRY(TRITONBACKEND_ResponseOutput(
      response, &output, name, TYPES[answer->type].triton, shape, (uint32_t) answer->rank));
  TRY(TRITONBACKEND_OutputBuffer(output, &to, size, &memory, &id));
  if (memory == MEMORY_GPU) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "an output is requested in GPU memory");
  memcpy(to, answer->bytes + answer->row * (size_t) from, size);
  return NULL;
}

/* --- a batch ----------------------------------------------------------------------------------------------------- */

static uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static Error *compute(Instance *instance, Request **requests, uint32_t count, uint64_t *began, uint64_t *ended) {
  Model *model = instance->model;
  for (size_t at = 0; at < model->inputs.count; at++) TRY(gather_input(instance, at, requests, count));
  *began = nanoseconds();
  Error *error = from_ort(ORT(
      ORT_RUN, instance->session, NULL, model->inputs.names, instance->input_values, model->inputs.count,
      model->outputs.names, model->outputs.count, instance->output_values));
  *ended = nanoseconds();
  return error;
}

static Error *write_answers(Instance *instance, Request **requests, uint32_t count, int64_t rows) {
  Tensors *outputs = &instance->model->outputs;
  for (size_t at = 0; at < outputs->count; at++) {
    const char *name = outputs->all[at].name;
    Answer answer;
    int64_t from = 0;
    TRY(read_answer(instance, at, rows, &answer));
    for (uint32_t each = 0; each < count; each++) {
      int64_t own = answer.batched ? instance->rows[each] : 1;
      if (instance->responses[each] && is_requested(requests[each], name, outputs->count))
        TRY(write_output(instance->responses[each], name, &answer, from, own));
      from += own;
    }
  }
  return NULL;
}

static void release_values(Value **values, size_t count) {
  for (size_t at = 0; at < count; at++) {
    if (values[at]) ORT_VOID(ORT_RELEASE_VALUE, values[at]);
    values[at] = NULL;
  }
}

static void send_responses(
    void *triton, Instance *instance, Request **requests, uint32_t count, Error *error, uint64_t *times) {
  for (uint32_t each = 0; each < count; each++) {
    Error *own = error ? TRITONSERVER_ErrorNew(ERROR_INTERNAL, TRITONSERVER_ErrorMessage(error)) : NULL;
    if (instance->responses[each])
      log_error(TRITONBACKEND_ResponseSend(instance->responses[each], RESPONSE_FINAL, own));
    if (own) TRITONSERVER_ErrorDelete(own);
    log_error(TRITONBACKEND_ModelInstanceReportStatistics(
        triton, requests[each], !error, times[0], times[1], times[2], nanoseconds()));
    log_error(TRITONBACKEND_RequestRelease(requests[each], RELEASE_ALL));
  }
}

static Error *serve(void *triton, Instance *instance, Request **requests, uint32_t count) {
  uint64_t times[3];
  int64_t rows = 0;
  TRY(reserve(instance, count));
  times[0] = times[1] = times[2] = nanoseconds();
  for (uint32_t each = 0; each < count; each++) {
    instance->responses[each] = NULL;
    instance->rows[each] = 1;
    log_error(TRITONBACKEND_ResponseNew(&instance->responses[each], requests[each]));
  }
  Error *error = compute(instance, requests, count, &times[1], &times[2]);
  for (uint32_t each = 0; each < count; each++) rows += instance->rows[each];
  if (!error) error = write_answers(instance, requests, count, rows);
  release_values(instance->input_values, instance->model->inputs.count);
  release_values(instance->output_values, instance->model->outputs.count);
  send_responses(triton, instance, requests, count, error, times);
  if (error) TRITONSERVER_ErrorDelete(error);
  else
    log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        triton, (uint64_t) rows, times[0], times[1], times[2], nanoseconds()));
  return NULL;
}

/* Until `serve` starts, a returned error leaves the requests to Triton; after that, each is answered here anyway. */
Error *TRITONBACKEND_ModelInstanceExecute(void *triton, Request **requests, uint32_t count) {
  void *state;
  TRY(TRITONBACKEND_ModelInstanceState(triton, &state));
  Instance *instance = state;
  if (!instance->placed && instance->model->pinned) /* not earlier: only this is the instance's own thread */
    sched_setaffinity(0, sizeof instance->model->cores, &instance->model->cores);
  instance->placed = true;
  if (instance->model->max_batch > 0) return serve(triton, instance, requests, count);
  TRY(reserve(instance, 1));
  for (uint32_t each = 0; each < count; each++) log_error(serve(triton, instance, requests + each, 1));
  return NULL;
}

/* --- the backend ------------------------------------------------------------------------------------------------- */

static Error *load_library(Backend *backend, const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/libonnxruntime.so", folder);
  backend->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!backend->library) return error_with(ERROR_INTERNAL, "ONNX Runtime can't be loaded: %s", dlerror());
  const ApiBase *(*base)(void) = (const ApiBase *(*)(void)) dlsym(backend->library, "OrtGetApiBase");
  if (!base || !(ort = base()->api(ORT_API_VERSION)))
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "libonnxruntime.so is too old, or is not ONNX Runtime");
  TRY_ORT(ORT(ORT_CREATE_ENV, ORT_WARNING, "onnxruntime", &backend->environment));
  return from_ort(ORT(ORT_CPU_MEMORY, ORT_DEVICE_ALLOCATOR, ORT_MEMORY_DEFAULT, &backend->memory));
}

Error *TRITONBACKEND_Initialize(void *triton) {
  uint32_t major, minor;
  int kind;
  const char *folder;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != API_MAJOR)
    return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "this onnxruntime backend is for Triton's backend API 1");
  TRY(TRITONBACKEND_BackendArtifacts(triton, &kind, &folder));
  Backend *backend = calloc(1, sizeof *backend);
  if (!backend) return no_memory();
  Error *error = load_library(backend, folder);
  if (error) {
    free(backend);
    return error;
  }
  return TRITONBACKEND_BackendSetState(triton, backend);
}

/* ONNX Runtime stays loaded: its threads may still be ending, and Triton calls this as the process exits. */
Error *TRITONBACKEND_Finalize(void *triton) {
  void *state;
  TRY(TRITONBACKEND_BackendState(triton, &state));
  Backend *backend = state;
  if (!backend) return NULL;
  ORT_VOID(ORT_RELEASE_MEMORY, backend->memory);
  ORT_VOID(ORT_RELEASE_ENV, backend->environment);
  free(backend);
  return NULL;
}
