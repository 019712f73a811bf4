/* The functions that Triton calls, whatever the engine: they open models and instances, and take a batch of requests
 * from its inputs to its responses. Text tensors are left to the Python backend.
 *
 * Triton loads the backend as a shared library and finds these functions by name. Each returns NULL or an error,
 * which then is Triton's to delete. What a backend keeps for a model or an instance is a pointer that Triton holds for
 * it (SetState, State). */

#pragma once
#include <malloc.h>
#include <stdio.h>

#include "inputs.h"
#include "outputs.h"

/* --- a model ----------------------------------------------------------------------------------------------------- */

static Error *read_config(Model *model, const char *config) {
  char text[64];
  model->max_batch = number(member(config, "max_batch_size"), 0);
  model->limit_ms = parameter(config, "request_timeout_ms", text, sizeof text) ? atoll(text) : LIMIT_MS;
  return read_cores(config, &model->cores, &model->pinned);
}

static Error *locate_model(Model *model, void *triton) {
  const char *folder, *name;
  int kind;
  uint64_t version;
  TRY(TRITONBACKEND_ModelRepository(triton, &kind, &folder));
  TRY(TRITONBACKEND_ModelVersion(triton, &version));
  TRY(TRITONBACKEND_ModelName(triton, &name));
  snprintf(model->name, sizeof model->name, "%s", name);
  snprintf(model->path, sizeof model->path, "%s/%llu/" MODEL_FILE, folder, (unsigned long long) version);
  model->stopped = metric(watch.stopped, name);
  model->stuck = metric(watch.stuck, name);
  return NULL;
}

static Error *open_model(Model *model, void *triton) {
  Message *message;
  const char *json;
  size_t size;
  TRY(locate_model(model, triton));
  TRY(TRITONBACKEND_ModelConfig(triton, 1, &message));
  Error *error = TRITONSERVER_MessageSerializeToJson(message, &json, &size);
  char *config = error ? NULL : strndup(json, size);
  TRITONSERVER_MessageDelete(message);
  if (error) return error;
  if (!config) return no_memory();
  error = read_config(model, config);
  if (!error) error = engine_open_model(model, config);
  if (!error) error = read_lengths(model, config);
  free(config);
  return error;
}

static void close_model(Model *model) {
  engine_close_model(model);
  free_tensors(&model->inputs);
  free_tensors(&model->outputs);
  delete_metric(model->stopped);
  delete_metric(model->stuck);
  free(model);
  malloc_trim(0); /* or glibc keeps an unloaded model's memory, and it still counts as the server's */
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
  remove_execution(&instance->execution);
  engine_close_instance(instance);
  for (size_t at = 0; instance->buffers && at < instance->model->inputs.count; at++) free(instance->buffers[at].bytes);
  free(instance->buffers);
  free(instance->inputs);
  free(instance->outputs);
  free(instance->responses);
  free(instance->rows);
  free(instance->lengths);
  free(instance);
}

static Error *open_instance(Instance *instance) {
  Model *model = instance->model;
  instance->buffers = calloc(model->inputs.count + 1, sizeof *instance->buffers);
  instance->inputs = calloc(model->inputs.count + 1, sizeof *instance->inputs);
  instance->outputs = calloc(model->outputs.count + 1, sizeof *instance->outputs);
  if (!instance->buffers || !instance->inputs || !instance->outputs) return no_memory();
  instance->execution = (Execution) {
    .model = model->name, .limit_ns = (uint64_t) model->limit_ms * 1000000u, .stopped = model->stopped,
    .stuck = model->stuck,
  };
  TRY(engine_open_instance(instance));
  add_execution(&instance->execution);
  return NULL;
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
  /* Each pointer is stored at once: if a later one fails, `close_instance` still frees it. */
  Response **responses = realloc(instance->responses, count * sizeof *responses);
  if (responses) instance->responses = responses;
  int64_t *rows = realloc(instance->rows, count * sizeof *rows);
  if (rows) instance->rows = rows;
  int64_t *lengths = realloc(instance->lengths, count * sizeof *lengths);
  if (lengths) instance->lengths = lengths;
  if (!responses || !rows || !lengths) return no_memory();
  instance->capacity = count;
  return NULL;
}

/* --- a batch ----------------------------------------------------------------------------------------------------- */

static Error *compute(Instance *instance, Request **requests, uint32_t count, uint64_t *began, uint64_t *ended) {
  for (size_t at = 0; at < instance->model->inputs.count; at++) TRY(gather_input(instance, at, requests, count));
  *began = nanoseconds();
  begin_execution(&instance->execution, *began);
  Error *error = engine_run(instance);
  *ended = nanoseconds();
  return end_execution(&instance->execution, error);
}

/* Answers and releases each request. Sending a response does not take its error over, so each gets a copy that is
 * deleted here. Triton counts a request only after its response was sent, so statistics that are read at once may miss
 * it. */
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
    instance->responses[each] = NULL; /* and stays it if Triton can't make one: the request is released all the same */
    instance->rows[each] = 1;
    log_error(TRITONBACKEND_ResponseNew(&instance->responses[each], requests[each]));
  }
  Error *error = engine_begin_run(instance);
  if (!error) {
    error = compute(instance, requests, count, &times[1], &times[2]);
    for (uint32_t each = 0; each < count; each++) rows += instance->rows[each];
    if (!error) error = write_answers(instance, requests, count, rows);
    engine_end_run(instance);
  }
  send_responses(triton, instance, requests, count, error, times);
  if (error) TRITONSERVER_ErrorDelete(error);
  else
    log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        triton, (uint64_t) rows, times[0], times[1], times[2], nanoseconds()));
  return NULL;
}

/* Answers a request with an error before it joins a batch. */
static void refuse(void *triton, Request *request, Error *error) {
  Response *response = NULL;
  uint64_t now = nanoseconds();
  log_error(TRITONBACKEND_ResponseNew(&response, request));
  if (response) log_error(TRITONBACKEND_ResponseSend(response, RESPONSE_FINAL, error));
  log_error(TRITONBACKEND_ModelInstanceReportStatistics(triton, request, false, now, now, now, now));
  log_error(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
  TRITONSERVER_ErrorDelete(error);
}

/* Runs the requests of each padded length together, the shortest first. */
static Error *serve_by_length(void *triton, Instance *instance, Request **requests, uint32_t count) {
  uint32_t usable = 0, end;
  TRY(reserve(instance, count));
  for (uint32_t each = 0; each < count; each++) {
    Error *error = read_length(instance->model, requests[each], &instance->lengths[usable]);
    if (error) refuse(triton, requests[each], error);
    else requests[usable++] = requests[each];
  }
  sort_by_length(instance->model, requests, instance->lengths, usable);
  for (uint32_t from = 0; from < usable; from = end) {
    instance->own = instance->lengths + from;
    instance->padded = padded_length(instance->model, *instance->own);
    for (end = from + 1; end < usable; end++)
      if (padded_length(instance->model, instance->lengths[end]) != instance->padded) break;
    log_error(serve(triton, instance, requests + from, end - from));
  }
  return NULL;
}

/* A returned error tells Triton that it still owns all the requests and must answer them. So errors are returned only
 * before the first request is answered. After that they are logged, since each request is answered here. */
Error *TRITONBACKEND_ModelInstanceExecute(void *triton, Request **requests, uint32_t count) {
  void *state;
  TRY(TRITONBACKEND_ModelInstanceState(triton, &state));
  Instance *instance = state;
  if (!instance->placed && instance->model->pinned) /* here, because only this runs on the instance's own thread */
    sched_setaffinity(0, sizeof instance->model->cores, &instance->model->cores);
  instance->placed = true;
  if (instance->model->max_batch > 0)
    return (instance->model->bucket_count ? serve_by_length : serve)(triton, instance, requests, count);
  TRY(reserve(instance, 1));
  for (uint32_t each = 0; each < count; each++) log_error(serve(triton, instance, requests + each, 1));
  return NULL;
}

/* --- the backend ------------------------------------------------------------------------------------------------- */

Error *TRITONBACKEND_Initialize(void *triton) {
  uint32_t major, minor;
  int kind;
  const char *folder;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != API_MAJOR)
    return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "this backend is for version 1 of Triton's backend API");
  TRY(TRITONBACKEND_BackendArtifacts(triton, &kind, &folder));
  TRY(engine_load(folder));
  return start_watch();
}

/* The engine's library stays loaded: Triton calls this as the process exits, and the engine's threads may still run. */
Error *TRITONBACKEND_Finalize(void *triton) {
  (void) triton;
  end_watch();
  engine_unload();
  return NULL;
}
