/* Triton's `onnxruntime` backend for the bundled server, which comes with none but Python's: the same name and the same
 * parameters in config.pbtxt as NVIDIA's backend, so that a package says the same on both servers. A request costs no
 * other process and no Python: inputs of a single request are read where Triton holds them, a batch costs one copy of
 * each input, and instances of one thread share a session, so its weights lie in memory once. Tensors of text are left
 * to the Python backend. */

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

/* --- what is kept ------------------------------------------------------------------------------------------------ */

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
  void *session; /* shared by instances of one thread; else of the one that took it */
  Tensors inputs, outputs;
} Model;

typedef struct { char *bytes; size_t capacity; } Buffer;

typedef struct {
  Model *model;
  void *session;
  bool own, took, placed;
  Buffer *buffers; /* a batch of each input */
  Value **given, **made;
  Response **responses;
  int64_t *rows; /* of each request */
  uint32_t capacity;
} Instance;

/* --- a model ----------------------------------------------------------------------------------------------------- */

static Error *configured_options(Model *model, void *options) {
  TRY_ORT(ORT(ORT_SET_INTRA_OP_THREADS, options, model->threads));
  TRY_ORT(ORT(ORT_SET_INTER_OP_THREADS, options, 1));
  TRY_ORT(ORT(ORT_SET_GRAPH_LEVEL, options, model->graph));
  /* Idle instances must not spin on the cores that the others need. */
  return from_ort(ORT(ORT_ADD_CONFIG, options, "session.intra_op.allow_spinning", "0"));
}

/* A session; its threads keep to the model's cores, because they are begun by a thread that does. */
static Error *new_session(Model *model, void **session) {
  void *options = NULL;
  cpu_set_t before;
  TRY_ORT(ORT(ORT_CREATE_SESSION_OPTIONS, &options));
  Error *error = configured_options(model, options);
  bool moved = !error && model->pinned && !sched_getaffinity(0, sizeof before, &before) &&
               !sched_setaffinity(0, sizeof model->cores, &model->cores);
  if (!error) error = from_ort(ORT(ORT_CREATE_SESSION, model->backend->environment, model->path, options, session));
  if (moved) sched_setaffinity(0, sizeof before, &before);
  ORT_VOID(ORT_RELEASE_OPTIONS, options);
  return error;
}

static Error *described(void *session, bool inputs, size_t at, Tensor *tensor) {
  void *allocator, *type = NULL;
  const void *info = NULL;
  TRY_ORT(ORT(ORT_DEFAULT_ALLOCATOR, &allocator));
  TRY_ORT(ORT(inputs ? ORT_INPUT_NAME : ORT_OUTPUT_NAME, session, at, allocator, &tensor->name));
  TRY_ORT(ORT(inputs ? ORT_INPUT_TYPE : ORT_OUTPUT_TYPE, session, at, &type));
  Error *error = from_ort(ORT(ORT_TENSOR_INFO_OF, type, &info));
  if (!error && info) error = from_ort(ORT(ORT_ELEMENT_TYPE, info, &tensor->type));
  ORT_VOID(ORT_RELEASE_TYPE, type);
  if (error) return error;
  if (!info) return fault(ERROR_UNSUPPORTED, "'%s' is not a tensor", tensor->name);
  if (tensor->type < 0 || tensor->type >= TYPES_KNOWN || !TYPES[tensor->type].triton)
    return fault(ERROR_UNSUPPORTED, "the data type of '%s' is served by the Python backend alone", tensor->name);
  return NULL;
}

static Error *read_tensors(void *session, bool inputs, Tensors *to) {
  TRY_ORT(ORT(inputs ? ORT_INPUT_COUNT : ORT_OUTPUT_COUNT, session, &to->count));
  to->all = calloc(to->count + 1, sizeof *to->all);
  to->names = calloc(to->count + 1, sizeof *to->names);
  if (!to->all || !to->names) return no_memory();
  for (size_t at = 0; at < to->count; at++) {
    TRY(described(session, inputs, at, &to->all[at]));
    to->names[at] = to->all[at].name;
  }
  return NULL;
}

static Error *read_config(Model *model, const char *config) {
  char said[64];
  int64_t level = number(member(member(member(config, "optimization"), "graph"), "level"), 0);
  model->max_batch = number(member(config, "max_batch_size"), 0);
  model->threads = parameter(config, "intra_op_thread_count", said, sizeof said) ? atoi(said) : 1;
  model->graph = level < 0 ? GRAPH_OFF : level == 1 ? GRAPH_BASIC : GRAPH_ALL;
  return read_cores(config, &model->cores, &model->pinned);
}

static Error *opened(Model *model, void *triton) {
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
  malloc_trim(0); /* else a model that is gone still counts as memory of the server */
}

Error *TRITONBACKEND_ModelInitialize(void *triton) {
  Model *model = calloc(1, sizeof *model);
  if (!model) return no_memory();
  Error *error = opened(model, triton);
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
  free(instance->given);
  free(instance->made);
  free(instance->responses);
  free(instance->rows);
  free(instance);
}

static Error *begun(Instance *instance) {
  Model *model = instance->model;
  instance->buffers = calloc(model->inputs.count + 1, sizeof *instance->buffers);
  instance->given = calloc(model->inputs.count + 1, sizeof *instance->given);
  instance->made = calloc(model->outputs.count + 1, sizeof *instance->made);
  if (!instance->buffers || !instance->given || !instance->made) return no_memory();
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
  Error *error = begun(instance);
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

static Error *room_for(Instance *instance, uint32_t count) {
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

static Error *grown(Buffer *buffer, size_t size) {
  if (size <= buffer->capacity) return NULL;
  size_t capacity = (size + size / 2 + ALIGNED - 1) / ALIGNED * ALIGNED;
  char *bytes = aligned_alloc(ALIGNED, capacity);
  if (!bytes) return no_memory();
  free(buffer->bytes);
  *buffer = (Buffer) {bytes, capacity};
  return NULL;
}

static Error *copied(Input *input, uint32_t parts, char *to, size_t room) {
  for (uint32_t part = 0; part < parts; part++) {
    const void *from;
    uint64_t size;
    int memory = 0;
    int64_t id = 0;
    TRY(TRITONBACKEND_InputBuffer(input, part, &from, &size, &memory, &id));
    if (memory == MEMORY_GPU) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "an input lies in a GPU's memory");
    if (size > room) return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "an input is longer than its shape says");
    memcpy(to, from, size);
    to += size, room -= size;
  }
  return NULL;
}

/* One input of all requests, as one tensor: its shape, and its size in bytes. `last` is the last request's, in parts. */
typedef struct { int64_t shape[RANK_MOST]; uint32_t rank, parts; uint64_t size; Input *last; } Batch;

/* The bytes of the only request's input where Triton holds them; NULL: they must be copied. */
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

/* What the requests give for an input; `instance->rows` says how much of it is each one's. */
static Error *looked_at(Instance *instance, size_t at, Request **requests, uint32_t count, Batch *batch) {
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
      return fault(ERROR_INVALID_ARG, "input '%s' has another data type than the model's", name);
    if (batch->rank > RANK_MOST) return fault(ERROR_INVALID_ARG, "input '%s' has too many dimensions", name);
    if (!each) memcpy(batch->shape, dims, batch->rank * sizeof *dims);
    else if (batch->rank && memcmp(batch->shape + 1, dims + 1, (batch->rank - 1) * sizeof *dims))
      return fault(ERROR_INVALID_ARG, "requests of one batch differ in the shape of '%s'", name);
    int64_t own = batch->rank ? dims[0] : 1;
    if (!at) instance->rows[each] = own;
    rows += own;
    batch->size += size;
  }
  if (batch->rank && count > 1) batch->shape[0] = rows;
  return NULL;
}

static Error *copied_together(Buffer *buffer, const char *name, Request **requests, uint32_t count, uint64_t total) {
  uint64_t filled = 0;
  TRY(grown(buffer, total));
  for (uint32_t each = 0; each < count; each++) {
    Input *input;
    const int64_t *dims;
    int type;
    uint32_t rank, parts;
    uint64_t size;
    TRY(TRITONBACKEND_RequestInput(requests[each], name, &input));
    TRY(TRITONBACKEND_InputProperties(input, &name, &type, &dims, &rank, &size, &parts));
    TRY(copied(input, parts, buffer->bytes + filled, size));
    filled += size;
  }
  return NULL;
}

static Error *gathered(Instance *instance, size_t at, Request **requests, uint32_t count) {
  Tensor *tensor = &instance->model->inputs.all[at];
  Buffer *buffer = &instance->buffers[at];
  Batch batch = {0};
  TRY(looked_at(instance, at, requests, count, &batch));
  const void *bytes = count == 1 ? in_place(&batch) : NULL;
  if (!bytes) {
    TRY(copied_together(buffer, tensor->name, requests, count, batch.size));
    bytes = buffer->bytes;
  }
  return from_ort(ORT(
      ORT_TENSOR_OF_DATA, instance->model->backend->memory, bytes, (size_t) batch.size, batch.shape,
      (size_t) batch.rank, tensor->type, &instance->given[at]));
}

/* --- outputs ----------------------------------------------------------------------------------------------------- */

/* An output of all requests; one that is not batched is a single row. */
typedef struct { char *bytes; int64_t shape[RANK_MOST]; size_t rank, row; int type; bool batched; } Answer;

static Error *read_shape(void *info, Answer *answer, const char *name) {
  TRY_ORT(ORT(ORT_ELEMENT_TYPE, info, &answer->type));
  TRY_ORT(ORT(ORT_RANK, info, &answer->rank));
  if (answer->rank > RANK_MOST) return fault(ERROR_UNSUPPORTED, "output '%s' has too many dimensions", name);
  return from_ort(ORT(ORT_SHAPE, info, answer->shape, answer->rank));
}

/* An output with the bytes of a row; `rows` it must have, unless the model is not batched. */
static Error *read_answer(Instance *instance, size_t at, int64_t rows, Answer *answer) {
  const char *name = instance->model->outputs.all[at].name;
  void *info = NULL;
  TRY_ORT(ORT(ORT_TENSOR_DATA, instance->made[at], &answer->bytes));
  TRY_ORT(ORT(ORT_TYPE_AND_SHAPE, instance->made[at], &info));
  Error *error = read_shape(info, answer, name);
  ORT_VOID(ORT_RELEASE_SHAPE, info);
  if (error) return error;
  answer->batched = instance->model->max_batch > 0;
  if (answer->batched && (!answer->rank || answer->shape[0] != rows))
    return fault(ERROR_INTERNAL, "output '%s' has another batch size than the inputs", name);
  answer->row = (size_t) TYPES[answer->type].size;
  for (size_t dim = answer->batched; dim < answer->rank; dim++) answer->row *= (size_t) answer->shape[dim];
  return NULL;
}

static bool wanted(Request *request, const char *name, size_t outputs) {
  uint32_t count = 0;
  const char *asked;
  Error *error = TRITONBACKEND_RequestOutputCount(request, &count);
  if (error) TRITONSERVER_ErrorDelete(error);
  if (error || count == outputs) return true;
  for (uint32_t at = 0; at < count; at++)
    if (!(error = TRITONBACKEND_RequestOutputName(request, at, &asked))) {
      if (!strcmp(asked, name)) return true;
    } else TRITONSERVER_ErrorDelete(error);
  return false;
}

static Error *written(Response *response, const char *name, Answer *answer, int64_t from, int64_t rows) {
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
  if (memory == MEMORY_GPU) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "an output is wanted in a GPU's memory");
  memcpy(to, answer->bytes + answer->row * (size_t) from, size);
  return NULL;
}

/* --- a batch ----------------------------------------------------------------------------------------------------- */

static uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static Error *computed(Instance *instance, Request **requests, uint32_t count, uint64_t *began, uint64_t *ended) {
  Model *model = instance->model;
  for (size_t at = 0; at < model->inputs.count; at++) TRY(gathered(instance, at, requests, count));
  *began = nanoseconds();
  Error *error = from_ort(ORT(
      ORT_RUN, instance->session, NULL, model->inputs.names, instance->given, model->inputs.count, model->outputs.names,
      model->outputs.count, instance->made));
  *ended = nanoseconds();
  return error;
}

static Error *answered(Instance *instance, Request **requests, uint32_t count, int64_t rows) {
  Tensors *outputs = &instance->model->outputs;
  for (size_t at = 0; at < outputs->count; at++) {
    const char *name = outputs->all[at].name;
    Answer answer;
    int64_t from = 0;
    TRY(read_answer(instance, at, rows, &answer));
    for (uint32_t each = 0; each < count; each++) {
      int64_t own = answer.batched ? instance->rows[each] : 1;
      if (instance->responses[each] && wanted(requests[each], name, outputs->count))
        TRY(written(instance->responses[each], name, &answer, from, own));
      from += own;
    }
  }
  return NULL;
}

static void let_go(Value **values, size_t count) {
  for (size_t at = 0; at < count; at++) {
    if (values[at]) ORT_VOID(ORT_RELEASE_VALUE, values[at]);
    values[at] = NULL;
  }
}

static void sent(void *triton, Instance *instance, Request **requests, uint32_t count, Error *error, uint64_t *times) {
  for (uint32_t each = 0; each < count; each++) {
    Error *own = error ? TRITONSERVER_ErrorNew(ERROR_INTERNAL, TRITONSERVER_ErrorMessage(error)) : NULL;
    if (instance->responses[each]) logged(TRITONBACKEND_ResponseSend(instance->responses[each], RESPONSE_FINAL, own));
    if (own) TRITONSERVER_ErrorDelete(own);
    logged(TRITONBACKEND_ModelInstanceReportStatistics(
        triton, requests[each], !error, times[0], times[1], times[2], nanoseconds()));
    logged(TRITONBACKEND_RequestRelease(requests[each], RELEASE_ALL));
  }
}

static Error *serve(void *triton, Instance *instance, Request **requests, uint32_t count) {
  uint64_t times[3];
  int64_t rows = 0;
  TRY(room_for(instance, count));
  times[0] = times[1] = times[2] = nanoseconds();
  for (uint32_t each = 0; each < count; each++) {
    instance->responses[each] = NULL;
    instance->rows[each] = 1;
    logged(TRITONBACKEND_ResponseNew(&instance->responses[each], requests[each]));
  }
  Error *error = computed(instance, requests, count, &times[1], &times[2]);
  for (uint32_t each = 0; each < count; each++) rows += instance->rows[each];
  if (!error) error = answered(instance, requests, count, rows);
  let_go(instance->given, instance->model->inputs.count);
  let_go(instance->made, instance->model->outputs.count);
  sent(triton, instance, requests, count, error, times);
  if (error) TRITONSERVER_ErrorDelete(error);
  else
    logged(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        triton, (uint64_t) rows, times[0], times[1], times[2], nanoseconds()));
  return NULL;
}

/* An error that is returned leaves the requests to Triton; after that each is answered here, whatever happens. */
Error *TRITONBACKEND_ModelInstanceExecute(void *triton, Request **requests, uint32_t count) {
  void *state;
  TRY(TRITONBACKEND_ModelInstanceState(triton, &state));
  Instance *instance = state;
  if (!instance->placed && instance->model->pinned) /* here, because only now it is the instance's own thread */
    sched_setaffinity(0, sizeof instance->model->cores, &instance->model->cores);
  instance->placed = true;
  if (instance->model->max_batch > 0) return serve(triton, instance, requests, count);
  TRY(room_for(instance, 1));
  for (uint32_t each = 0; each < count; each++) logged(serve(triton, instance, requests + each, 1));
  return NULL;
}

/* --- the backend ------------------------------------------------------------------------------------------------- */

static Error *loaded(Backend *backend, const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/libonnxruntime.so", folder);
  backend->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!backend->library) return fault(ERROR_INTERNAL, "ONNX Runtime can't be loaded: %s", dlerror());
  const ApiBase *(*base)(void) = (const ApiBase *(*)(void)) dlsym(backend->library, "OrtGetApiBase");
  if (!base || !(ort = base()->api(ORT_API_VERSION)))
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "libonnxruntime.so is too old, or is something else");
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
  Error *error = loaded(backend, folder);
  if (error) {
    free(backend);
    return error;
  }
  return TRITONBACKEND_BackendSetState(triton, backend);
}

/* ONNX Runtime stays loaded: its threads may still be ending, and Triton calls this as its process ends. */
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
