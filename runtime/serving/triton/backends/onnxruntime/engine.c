/* Triton's `onnxruntime` backend for the bundled server, whose wheel brings only the Python backend. It has the same
 * name and the same parameters in config.pbtxt as NVIDIA's, so a package means the same on both servers. A request
 * needs no other process and no Python. Single-threaded instances share a session, so weights are in memory once. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interface.h"

typedef struct {
  int threads, graph;
  bool taken;
  void *session; /* shared by single-threaded instances; otherwise used by the first instance that takes it */
  const char **input_names, **output_names;
} EngineModel;

typedef struct {
  void *session, *options;
  bool own, took;
} EngineInstance;

#define MODEL_FILE "model.onnx"
#include "../common/worker.h"

static struct { void *environment, *memory; } engine;

/* --- a model ----------------------------------------------------------------------------------------------------- */

static Error *configure_options(Model *model, void *options) {
  TRY_ORT(ORT(ORT_SET_INTRA_OP_THREADS, options, model->engine.threads));
  TRY_ORT(ORT(ORT_SET_INTER_OP_THREADS, options, 1));
  TRY_ORT(ORT(ORT_SET_GRAPH_LEVEL, options, model->engine.graph));
  /* Idle instances must not spin on the cores that the others need. */
  return from_ort(ORT(ORT_ADD_CONFIG, options, "session.intra_op.allow_spinning", "0"));
}

/* Makes a session. Threads inherit the affinity of the thread that starts them, so this one moves to the model's cores
 * first, and back afterwards. */
static Error *new_session(Model *model, void **session) {
  void *options = NULL;
  cpu_set_t before;
  TRY_ORT(ORT(ORT_CREATE_SESSION_OPTIONS, &options));
  Error *error = configure_options(model, options);
  bool moved = !error && model->pinned && !sched_getaffinity(0, sizeof before, &before) &&
               !sched_setaffinity(0, sizeof model->cores, &model->cores);
  if (!error) error = from_ort(ORT(ORT_CREATE_SESSION, engine.environment, model->path, options, session));
  if (moved) sched_setaffinity(0, sizeof before, &before);
  ORT_VOID(ORT_RELEASE_OPTIONS, options);
  return error;
}

static Error *describe_tensor(void *session, bool inputs, size_t at, Tensor *tensor) {
  void *allocator, *type = NULL;
  const void *info = NULL;
  int number = 0;
  TRY_ORT(ORT(ORT_DEFAULT_ALLOCATOR, &allocator));
  TRY_ORT(ORT(inputs ? ORT_INPUT_NAME : ORT_OUTPUT_NAME, session, at, allocator, &tensor->name));
  TRY_ORT(ORT(inputs ? ORT_INPUT_TYPE : ORT_OUTPUT_TYPE, session, at, &type));
  Error *error = from_ort(ORT(ORT_TENSOR_INFO_OF, type, &info));
  if (!error && info) error = from_ort(ORT(ORT_ELEMENT_TYPE, info, &number));
  ORT_VOID(ORT_RELEASE_TYPE, type);
  if (error) return error;
  if (!info) return error_with(ERROR_UNSUPPORTED, "'%s' is not a tensor", tensor->name);
  tensor->type = triton_type(number);
  if (!tensor->type)
    return error_with(ERROR_UNSUPPORTED, "only the Python backend serves the data type of '%s'", tensor->name);
  return NULL;
}

static Error *read_tensors(void *session, bool inputs, Tensors *to, const char ***names) {
  size_t count;
  TRY_ORT(ORT(inputs ? ORT_INPUT_COUNT : ORT_OUTPUT_COUNT, session, &count));
  TRY(new_tensors(to, count));
  *names = calloc(count + 1, sizeof **names);
  if (!*names) return no_memory();
  for (size_t at = 0; at < count; at++) {
    TRY(describe_tensor(session, inputs, at, &to->all[at]));
    (*names)[at] = to->all[at].name;
  }
  return NULL;
}

static Error *engine_open_model(Model *model, const char *config) {
  char text[64];
  EngineModel *own = &model->engine;
  int64_t level = number(member(member(member(config, "optimization"), "graph"), "level"), 0);
  own->threads = parameter(config, "intra_op_thread_count", text, sizeof text) ? atoi(text) : 1;
  own->graph = level < 0 ? GRAPH_OFF : level == 1 ? GRAPH_BASIC : GRAPH_ALL;
  TRY(new_session(model, &own->session));
  TRY(read_tensors(own->session, true, &model->inputs, &own->input_names));
  return read_tensors(own->session, false, &model->outputs, &own->output_names);
}

/* --- an instance ------------------------------------------------------------------------------------------------- */

/* A session has one pool of threads, for all that run in it. So instances with several threads have a session each; the
 * first takes the model's own. Single-threaded ones compute in Triton's threads and share it. */
static Error *engine_open_instance(Instance *instance) {
  EngineModel *shared = &instance->model->engine;
  EngineInstance *own = &instance->engine;
  TRY_ORT(ORT(ORT_CREATE_RUN_OPTIONS, &own->options));
  instance->execution.run = own->options;
  own->took = shared->threads != 1 && !__atomic_exchange_n(&shared->taken, true, __ATOMIC_ACQ_REL);
  own->own = shared->threads != 1 && !own->took;
  own->session = own->own ? NULL : shared->session;
  return own->own ? new_session(instance->model, &own->session) : NULL;
}

static void engine_close_instance(Instance *instance) {
  EngineInstance *own = &instance->engine;
  if (own->options) ORT_VOID(ORT_RELEASE_RUN_OPTIONS, own->options);
  if (own->own && own->session) ORT_VOID(ORT_RELEASE_SESSION, own->session);
  if (own->took) __atomic_store_n(&instance->model->engine.taken, false, __ATOMIC_RELEASE);
}

/* --- a run ------------------------------------------------------------------------------------------------------- */

static Error *engine_begin_run(Instance *instance) {
  (void) instance;
  return NULL;
}

static Error *engine_give_input(Instance *instance, size_t at, const void *bytes, const Batch *batch) {
  return from_ort(ORT(
      ORT_TENSOR_OF_DATA, engine.memory, bytes, (size_t) batch->size, batch->shape, (size_t) batch->rank,
      ORT_TYPES[instance->model->inputs.all[at].type], &instance->inputs[at]));
}

static Error *engine_run(Instance *instance) {
  Model *model = instance->model;
  EngineInstance *own = &instance->engine;
  return from_ort(ORT(
      ORT_RUN, own->session, own->options, model->engine.input_names, instance->inputs, model->inputs.count,
      model->engine.output_names, model->outputs.count, instance->outputs));
}

static Error *read_shape(void *info, Answer *answer, const char *name) {
  int type;
  TRY_ORT(ORT(ORT_ELEMENT_TYPE, info, &type));
  TRY_ORT(ORT(ORT_RANK, info, &answer->rank));
  answer->type = triton_type(type);
  if (answer->rank > RANK_MOST) return error_with(ERROR_UNSUPPORTED, "output '%s' has too many dimensions", name);
  return from_ort(ORT(ORT_SHAPE, info, answer->shape, answer->rank));
}

static Error *engine_read_output(Instance *instance, size_t at, Answer *answer) {
  void *value = instance->outputs[at];
  void *info = NULL;
  TRY_ORT(ORT(ORT_TENSOR_DATA, value, &answer->bytes));
  TRY_ORT(ORT(ORT_TYPE_AND_SHAPE, value, &info));
  Error *error = read_shape(info, answer, instance->model->outputs.all[at].name);
  ORT_VOID(ORT_RELEASE_SHAPE, info);
  return error;
}

static void release_values(void **values, size_t count) {
  for (size_t at = 0; at < count; at++) {
    if (values[at]) ORT_VOID(ORT_RELEASE_VALUE, values[at]);
    values[at] = NULL;
  }
}

static void engine_end_run(Instance *instance) {
  release_values(instance->inputs, instance->model->inputs.count);
  release_values(instance->outputs, instance->model->outputs.count);
}

static Error *engine_stop(void *run) { return from_ort(ORT(ORT_SET_TERMINATE, run)); }

static Error *engine_resume(void *run) { return from_ort(ORT(ORT_UNSET_TERMINATE, run)); }

/* --- the library ------------------------------------------------------------------------------------------------- */

static Error *engine_load(const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/libonnxruntime.so", folder);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return error_with(ERROR_INTERNAL, "ONNX Runtime can't be loaded: %s", dlerror());
  const ApiBase *(*base)(void) = (const ApiBase *(*)(void)) dlsym(library, "OrtGetApiBase");
  if (!base || !(ort = base()->api(ORT_API_VERSION)))
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "libonnxruntime.so is too old, or is not ONNX Runtime");
  TRY_ORT(ORT(ORT_CREATE_ENV, ORT_WARNING, "onnxruntime", &engine.environment));
  return from_ort(ORT(ORT_CPU_MEMORY, ORT_DEVICE_ALLOCATOR, ORT_MEMORY_DEFAULT, &engine.memory));
}
