/* Triton's `openvino` backend for the bundled server: ONNX files, on CPUs. It has the same name and the same parameters
 * in config.pbtxt as NVIDIA's, and a few more. Instances share one compiled model, so the weights are in memory once.
 * Each has an asynchronous request, which one of the model's streams computes; with fewer streams than instances, a
 * stream always has work waiting.
 *
 * After a run that failed or was cancelled, OpenVINO 2026.4 keeps the shapes of some tensors of that run: the next
 * run in that stream fails too, or answers wrongly. So the model is compiled again before the next run. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "compile.h"

/* One instance's request, made when it is first needed; `suspect`: its last run failed. */
typedef struct EngineInstance {
  struct EngineInstance *next;
  void *request;
  bool suspect, listed;
} EngineInstance;

typedef struct {
  pthread_rwlock_t lock; /* a run reads what is compiled, and compiling again writes it */
  Properties properties;
  int64_t compile_limit_ms;
  void *compiled, **input_ports, **output_ports;
  EngineInstance *instances;
} EngineModel;

#define MODEL_FILE "model.onnx"
#include "../common/worker.h"

static void *core;

/* --- parameters -------------------------------------------------------------------------------------------------- */

/* The precision to compute in: f32 unless the configuration says otherwise. OpenVINO's default depends on the CPU. */
static Error *read_precision(const char *config, char *into, size_t size) {
  char text[16], *capabilities;
  bool bf16 = parameter(config, "HINT_BF16", text, sizeof text) && !strcasecmp(text, "yes");
  snprintf(into, size, "%s", bf16 ? "bf16" : "f32");
  if (parameter(config, "INFERENCE_PRECISION_HINT", text, sizeof text)) snprintf(into, size, "%.7s", text);
  if (!strcmp(into, "f32")) return NULL;
  const char *name = !strcmp(into, "bf16") ? "BF16" : !strcmp(into, "f16") ? "FP16" : NULL;
  if (!name) return error_with(ERROR_INVALID_ARG, "INFERENCE_PRECISION_HINT is f32, bf16 or f16, not '%s'", text);
  TRY_OV(ov.ov_core_get_property(core, "CPU", "OPTIMIZATION_CAPABILITIES", &capabilities));
  bool native = strstr(capabilities, name);
  ov.ov_free(capabilities);
  if (native) return NULL;
  return error_with(ERROR_UNSUPPORTED, "the package is for CPUs that compute in %s, which this one does not", into);
}

static Error *read_count(const char *config, const char *key, const char *otherwise, char *into, size_t size) {
  if (!parameter(config, key, into, size)) snprintf(into, size, "%s", otherwise);
  if (into[0] && !into[strspn(into, "0123456789")]) return NULL;
  if (!strcmp(key, "NUM_STREAMS") && (!strcasecmp(into, "auto") || !strcasecmp(into, "numa"))) return NULL;
  return error_with(ERROR_INVALID_ARG, "parameter %s is not a number", key);
}

/* Whether the cache's file system has ample room for a compiled model, so that caching does not fill it up. */
static bool has_room(const char *cache, const char *model) {
  struct statvfs room;
  struct stat file;
  char weights[4200];
  uint64_t size = 0;
  snprintf(weights, sizeof weights, "%s.data", model);
  if (!stat(model, &file)) size += (uint64_t) file.st_size;
  if (!stat(weights, &file)) size += (uint64_t) file.st_size;
  return *cache && !statvfs(cache, &room) && (uint64_t) room.f_bavail * room.f_frsize > 4 * size;
}

static Error *read_properties(const Model *model, const char *config, Properties *to) {
  TRY(read_precision(config, to->precision, sizeof to->precision));
  TRY(read_count(config, "NUM_STREAMS", "1", to->streams, sizeof to->streams));
  TRY(read_count(config, "INFERENCE_NUM_THREADS", "0", to->threads, sizeof to->threads));
  if (!parameter(config, "PERFORMANCE_HINT", to->hint, sizeof to->hint)) strcpy(to->hint, "LATENCY");
  snprintf(to->cache, sizeof to->cache, "%s", has_room(model->limits.cache, model->path) ? model->limits.cache : "");
  return NULL;
}

/* --- a model ----------------------------------------------------------------------------------------------------- */

static Error *find_port(const EngineModel *own, bool input, const char *name, void **port) {
  int status = input ? ov.ov_compiled_model_input_by_name(own->compiled, name, port)
                     : ov.ov_compiled_model_output_by_name(own->compiled, name, port);
  if (!status) return NULL;
  return error_with(ERROR_INVALID_ARG, "the model has no tensor '%s', which its configuration names", name);
}

static Error *describe_tensor(const EngineModel *own, bool input, const char *entry, Tensor *tensor, void **port) {
  char name[512];
  int type;
  if (!text_of(member(entry, "name"), name, sizeof name) || !(tensor->name = strdup(name)))
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "a tensor of the configuration has no name, or a very long one");
  TRY(find_port(own, input, name, port));
  TRY_OV(ov.ov_port_get_element_type(*port, &type));
  tensor->type = triton_type(type);
  if (tensor->type) return NULL;
  return error_with(ERROR_UNSUPPORTED, "only the Python backend serves the data type of '%s'", name);
}

/* Reads the tensors that the configuration names: OpenVINO may know a tensor by several names. */
static Error *read_tensors(Model *model, bool inputs, const char *config, Tensors *to, void ***ports) {
  const char *list = member(config, inputs ? "input" : "output");
  size_t count = 0;
  while (element(list, count)) count++;
  TRY(new_tensors(to, count));
  *ports = calloc(count + 1, sizeof **ports);
  if (!*ports) return no_memory();
  for (size_t at = 0; at < count; at++)
    TRY(describe_tensor(&model->engine, inputs, element(list, at), &to->all[at], &(*ports)[at]));
  return NULL;
}

static Error *compile(Model *model) {
  EngineModel *own = &model->engine;
  return compile_model(
      core, model->path, &own->properties, model->pinned ? &model->cores : NULL, own->compile_limit_ms,
      &own->compiled);
}

/* A lock that prefers a waiting writer to new readers: with glibc's default, a busy model is never compiled again. */
static void make_lock(EngineModel *own) {
  pthread_rwlockattr_t kind;
  pthread_rwlockattr_init(&kind);
  pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&own->lock, &kind);
  pthread_rwlockattr_destroy(&kind);
}

static Error *engine_open_model(Model *model, const char *config) {
  size_t inputs;
  EngineModel *own = &model->engine;
  make_lock(own);
  TRY(read_properties(model, config, &own->properties));
  own->compile_limit_ms = setting(config, "COMPILE_TIMEOUT_MS", model->limits.load_ms * 2 / 3);
  TRY(compile(model));
  TRY(read_tensors(model, true, config, &model->inputs, &own->input_ports));
  TRY(read_tensors(model, false, config, &model->outputs, &own->output_ports));
  TRY_OV(ov.ov_compiled_model_inputs_size(own->compiled, &inputs));
  if (inputs == model->inputs.count) return NULL;
  return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "the model has more inputs than its configuration names");
}

static void free_ports(void **ports, size_t count) {
  for (size_t at = 0; ports && at < count; at++) {
    if (ports[at]) ov.ov_output_const_port_free(ports[at]);
    ports[at] = NULL;
  }
}

/* Frees the compiled model and everything that belongs to it. */
static void free_compiled(Model *model) {
  EngineModel *own = &model->engine;
  for (EngineInstance *each = own->instances; each; each = each->next) {
    if (each->request) ov.ov_infer_request_free(each->request);
    each->request = NULL;
  }
  free_ports(own->input_ports, model->inputs.count);
  free_ports(own->output_ports, model->outputs.count);
  if (own->compiled) ov.ov_compiled_model_free(own->compiled);
  own->compiled = NULL;
}

static Error *find_ports(Model *model) {
  EngineModel *own = &model->engine;
  for (size_t at = 0; at < model->inputs.count; at++)
    TRY(find_port(own, true, model->inputs.all[at].name, &own->input_ports[at]));
  for (size_t at = 0; at < model->outputs.count; at++)
    TRY(find_port(own, false, model->outputs.all[at].name, &own->output_ports[at]));
  return NULL;
}

/* Compiles the model again, when no run uses it. If that fails, the next run tries again. */
static Error *compile_again(Model *model) {
  EngineModel *own = &model->engine;
  pthread_rwlock_wrlock(&own->lock);
  free_compiled(model);
  Error *error = compile(model);
  if (!error) error = find_ports(model);
  if (error) free_compiled(model);
  pthread_rwlock_unlock(&own->lock);
  return error;
}

/* --- an instance ------------------------------------------------------------------------------------------------- */

static Error *engine_open_instance(Instance *instance) {
  EngineModel *shared = &instance->model->engine;
  EngineInstance *own = &instance->engine;
  instance->execution.run = own;
  pthread_rwlock_wrlock(&shared->lock);
  own->next = shared->instances;
  shared->instances = own;
  own->listed = true;
  pthread_rwlock_unlock(&shared->lock);
  return NULL;
}

static void engine_close_instance(Instance *instance) {
  EngineModel *shared = &instance->model->engine;
  EngineInstance *own = &instance->engine;
  pthread_rwlock_wrlock(&shared->lock);
  for (EngineInstance **at = &shared->instances; own->listed && *at; at = &(*at)->next)
    if (*at == own) {
      *at = own->next;
      break;
    }
  pthread_rwlock_unlock(&shared->lock);
  if (own->request) ov.ov_infer_request_free(own->request);
}

/* --- a run ------------------------------------------------------------------------------------------------------- */

static Error *engine_begin_run(Instance *instance) {
  EngineModel *shared = &instance->model->engine;
  pthread_rwlock_rdlock(&shared->lock);
  while (!shared->compiled) { /* a loop, because another run may fail while the lock is released */
    pthread_rwlock_unlock(&shared->lock);
    TRY(compile_again(instance->model));
    pthread_rwlock_rdlock(&shared->lock);
  }
  int status = instance->engine.request ? 0
      : ov.ov_compiled_model_create_infer_request(shared->compiled, &instance->engine.request);
  if (status) pthread_rwlock_unlock(&shared->lock);
  return from_ov(status);
}

static Error *engine_give_input(Instance *instance, size_t at, const void *bytes, const Batch *batch) {
  int64_t dims[RANK_MOST];
  EngineInstance *own = &instance->engine;
  memcpy(dims, batch->shape, batch->rank * sizeof *dims);
  TRY_OV(ov.ov_tensor_create_from_host_ptr(
      OV_TYPES[instance->model->inputs.all[at].type], (OvShape) {batch->rank, dims}, (void *) bytes,
      &instance->inputs[at]));
  return from_ov(ov.ov_infer_request_set_tensor_by_const_port(
      own->request, instance->model->engine.input_ports[at], instance->inputs[at]));
}

/* Starts a run and waits for it. With the CPU plugin, `ov_infer_request_infer` succeeds even if the model failed or was
 * cancelled. */
static Error *engine_run(Instance *instance) {
  EngineInstance *own = &instance->engine;
  int status = ov.ov_infer_request_start_async(own->request);
  if (!status) status = ov.ov_infer_request_wait(own->request);
  own->suspect = status != 0;
  return from_ov(status);
}

static Error *engine_read_output(Instance *instance, size_t at, Answer *answer) {
  int type;
  void **tensor = &instance->outputs[at];
  OvShape shape = {0};
  TRY_OV(ov.ov_infer_request_get_tensor_by_const_port(
      instance->engine.request, instance->model->engine.output_ports[at], tensor));
  TRY_OV(ov.ov_tensor_get_element_type(*tensor, &type));
  TRY_OV(ov.ov_tensor_data(*tensor, (void **) &answer->bytes));
  TRY_OV(ov.ov_tensor_get_shape(*tensor, &shape));
  answer->type = triton_type(type);
  answer->rank = (size_t) shape.rank;
  bool fits = shape.rank <= RANK_MOST;
  if (fits && shape.rank) memcpy(answer->shape, shape.dims, answer->rank * sizeof *shape.dims);
  if (shape.dims) ov.ov_shape_free(&shape);
  return fits ? NULL : TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "an output has too many dimensions");
}

static void free_tensors_of(void **tensors, size_t count) {
  for (size_t at = 0; at < count; at++) {
    if (tensors[at]) ov.ov_tensor_free(tensors[at]);
    tensors[at] = NULL;
  }
}

static void engine_end_run(Instance *instance) {
  EngineInstance *own = &instance->engine;
  bool suspect = own->suspect;
  own->suspect = false;
  free_tensors_of(instance->inputs, instance->model->inputs.count);
  free_tensors_of(instance->outputs, instance->model->outputs.count);
  pthread_rwlock_unlock(&instance->model->engine.lock);
  if (suspect) log_error(compile_again(instance->model));
}

static Error *engine_stop(void *run) { return from_ov(ov.ov_infer_request_cancel(((EngineInstance *) run)->request)); }

static Error *engine_resume(void *run) {
  (void) run; /* nothing to undo: the model is compiled again, and the instance gets a new request */
  return NULL;
}

/* --- the library ------------------------------------------------------------------------------------------------- */

static Error *engine_load(const char *folder) {
  TRY(load_openvino(folder));
  return from_ov(ov.ov_core_create(&core));
}
