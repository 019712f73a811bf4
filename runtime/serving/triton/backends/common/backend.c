/* The backend: the functions that Triton calls, the same for every engine. They open models and instances, and take a
 * batch of requests from its inputs to its responses; the model's worker computes it. Text tensors are left to the Python
 * backend.
 *
 * Triton loads the backend as a shared library and finds these functions by name. Each returns NULL or an error,
 * which then is Triton's to delete. What a backend keeps for a model or an instance is a pointer that Triton holds for
 * it (SetState, State). */

#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>

#include "compartment.h"
#include "guards.h"
#include "magic.h"
#include "outputs.h"

enum { NAP_MS = 50 };

/* --- a model ----------------------------------------------------------------------------------------------------- */

static Error *read_config(Model *model, const char *config) {
  model->max_batch = number(member(config, "max_batch_size"), 0);
  model->limits = read_limits(config, model->name);
  return read_cores(config, &model->cores, &model->pinned);
}

static Error *locate_model(Model *model, void *triton) {
  const char *folder, *name;
  int kind;
  TRY(TRITONBACKEND_ModelRepository(triton, &kind, &folder));
  TRY(TRITONBACKEND_ModelVersion(triton, &model->version));
  TRY(TRITONBACKEND_ModelName(triton, &name));
  snprintf(model->name, sizeof model->name, "%s", name);
  snprintf(model->path, sizeof model->path, "%s/%llu", folder, (unsigned long long) model->version);
  model->stopped = metric(families.stopped, name);
  model->crashed = metric(families.crashed, name);
  return NULL;
}

static Error *open_model(Model *model, void *triton) {
  Message *message;
  const char *json;
  size_t size;
  TRY(locate_model(model, triton));
  TRY(TRITONBACKEND_ModelConfig(triton, 1, &message));
  Error *error = TRITONSERVER_MessageSerializeToJson(message, &json, &size);
  model->config = error ? NULL : strndup(json, size);
  TRITONSERVER_MessageDelete(message);
  if (error) return error;
  if (!model->config) return no_memory();
  TRY(read_config(model, model->config));
  TRY(open_worker(model));
  TRY(read_lengths(model, model->config));
  return read_guards(model);
}

static void close_model(Model *model) {
  close_worker(model);
  free_guards(model);
  free_tensors(&model->inputs);
  free_tensors(&model->outputs);
  delete_metric(model->stopped);
  delete_metric(model->crashed);
  free(model->config);
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

/* Tells the worker that it may forget the instance. */
static void dismiss(Instance *instance) {
  if (!instance->attached) return;
  Header *header = header_of(&instance->ring);
  header->task = CLOSE;
  signal_turn(&header->asked, instance->turn + 1, &header->worker_sleeps);
}

static void close_instance(Instance *instance) {
  Worker *worker = &instance->model->worker;
  pthread_mutex_lock(&worker->listed);
  for (Instance **at = &worker->instances; *at; at = &(*at)->next)
    if (*at == instance) {
      *at = instance->next;
      break;
    }
  pthread_mutex_unlock(&worker->listed);
  dismiss(instance);
  close_ring(&instance->ring);
  free(instance->responses);
  free(instance->rows);
  free(instance->lengths);
  free(instance);
}

static int state_of(const Worker *worker) { return __atomic_load_n((const int *) &worker->state, __ATOMIC_ACQUIRE); }

/* Adds the instance to its model, and gives it to the worker. One that just starts is given all of them later. */
static Error *open_instance(Instance *instance) {
  Worker *worker = &instance->model->worker;
  uint64_t until = nanoseconds() + (uint64_t) instance->model->limits.load_ms * 1000000u;
  pthread_mutex_lock(&worker->listed);
  instance->next = worker->instances;
  worker->instances = instance;
  Error *error = NULL;
  if (state_of(worker) == RUNNING) error = attach(instance, until);
  else if (state_of(worker) != STARTING) error = error_with(ERROR_INTERNAL, "the model's worker %s", worker->why);
  pthread_mutex_unlock(&worker->listed);
  return error;
}

Error *TRITONBACKEND_ModelInstanceInitialize(void *triton) {
  void *model, *state;
  TRY(TRITONBACKEND_ModelInstanceModel(triton, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  Instance *instance = calloc(1, sizeof *instance);
  if (!instance) return no_memory();
  instance->model = state;
  instance->ring.file = -1;
  pthread_mutex_init(&instance->lock, NULL);
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

/* Why a model that has no worker now can't answer. */
static Error *absence(Worker *worker) {
  char why[WHY_MOST + 64];
  pthread_mutex_lock(&worker->lock);
  uint64_t now = nanoseconds();
  double pause = worker->paused_until > now ? (double) (worker->paused_until - now) / 1e9 : 0;
  if (worker->state == PAUSED && pause > 0) snprintf(why, sizeof why, "%s: it starts again in %.1f s", worker->why, pause);
  else snprintf(why, sizeof why, "%s: it is starting again", worker->why);
  pthread_mutex_unlock(&worker->lock);
  return error_with(ERROR_INTERNAL, "the model's worker %s", why);
}

/* The error for a run during which the worker died. It is on its way, so this waits until it is known how. */
static Error *death(Worker *worker) {
  char why[WHY_MOST];
  pthread_mutex_lock(&worker->lock);
  snprintf(why, sizeof why, "%s", worker->why);
  pthread_mutex_unlock(&worker->lock);
  return error_with(ERROR_INTERNAL, "the model's worker %s while it ran the request", why);
}

/* The error for a run that was stopped at the limit of its time, or of its CPU time. */
static Error *overdue(Model *model, uint32_t why) {
  char limit[128];
  bool cpu = why == OUT_OF_CPU_TIME;
  count(model->stopped);
  snprintf(limit, sizeof limit, "%g s%s, its limit (serving.%s", (double) (cpu ? model->limits.cpu_ms : model->limits.run_ms) / 1e3,
           cpu ? " of CPU time" : "", cpu ? "limits.cpu_s" : "request_timeout_s");
  return error_with(ERROR_INTERNAL, "the request was stopped after %s in the model's spec)", limit);
}

/* Waits for the worker's answer. One that dies is accused with its requests; one that is late is ended, and so too. */
static Error *await_answer(Instance *instance, Request **requests, uint32_t count) {
  Model *model = instance->model;
  Worker *worker = &model->worker;
  uint64_t limit = nanoseconds() + (uint64_t) model->limits.run_ms * 1000000u + GRACE_S * 1000000000ull;
  bool late = false;
  while (true) {
    Header *header = header_of(&instance->ring);
    if (await(&header->answered, instance->turn, &header->server_sleeps, NAP_MS * 1000000u)) break;
    if (state_of(worker) != RUNNING) {
      accuse(instance, requests, count);
      return late ? overdue(model, OUT_OF_TIME) : death(worker);
    }
    if (late || nanoseconds() < limit) continue;
    late = true;
    pthread_mutex_lock(&worker->lock);
    end_process(worker);
    pthread_mutex_unlock(&worker->lock);
  }
  return NULL;
}

/* Reads why the worker could not compute the batch; NULL if it did. */
static Error *failure(Instance *instance) {
  char text[TEXT_MOST];
  const Header *header = header_of(&instance->ring);
  if (!header->failed) return NULL;
  if (header->stopped) return overdue(instance->model, header->stopped);
  int code = header->code <= ERROR_UNSUPPORTED ? (int) header->code : ERROR_INTERNAL;
  memcpy(text, header->text, sizeof text);
  text[sizeof text - 1] = 0;
  return TRITONSERVER_ErrorNew(code, text);
}

static Error *compute(Instance *instance, Request **requests, uint32_t count, uint64_t *began, uint64_t *ended) {
  instance->filled = BEGINNING;
  for (size_t at = 0; at < instance->model->inputs.count; at++) TRY(gather_input(instance, at, requests, count));
  Header *header = header_of(&instance->ring);
  *began = nanoseconds();
  header->task = RUN;
  signal_turn(&header->asked, ++instance->turn, &header->worker_sleeps);
  Error *error = await_answer(instance, requests, count);
  *ended = nanoseconds();
  instance->answered = !error;
  return error ? error : failure(instance);
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
  pthread_mutex_lock(&instance->lock);
  bool serves = instance->attached && state_of(&instance->model->worker) == RUNNING;
  Error *error = serves ? compute(instance, requests, count, &times[1], &times[2]) : absence(&instance->model->worker);
  for (uint32_t each = 0; each < count; each++) rows += instance->rows[each];
  if (!error) error = write_answers(instance, requests, count, rows);
  if (instance->ring.base) trim(&instance->ring);
  pthread_mutex_unlock(&instance->lock);
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

static Error *serve_all(void *triton, Instance *instance, Request **requests, uint32_t count) {
  if (instance->model->max_batch > 0)
    return (instance->model->bucket_count ? serve_by_length : serve)(triton, instance, requests, count);
  for (uint32_t each = 0; each < count; each++) log_error(serve(triton, instance, requests + each, 1));
  return NULL;
}

/* Refuses the requests that a guard does; returns how many others there are, which come first then. */
static uint32_t admit(void *triton, const Model *model, Request **requests, uint32_t count) {
  uint32_t others = 0;
  for (uint32_t each = 0; each < count; each++) {
    Error *error = refused_by_guards(model, requests[each]);
    if (error) refuse(triton, requests[each], error);
    else requests[others++] = requests[each];
  }
  return others;
}

/* Refuses the requests that the worker dies of, and runs those alone of which it may have died; returns how many others
 * there are, which come first then. */
static uint32_t sift(void *triton, Instance *instance, Request **requests, uint32_t count) {
  Model *model = instance->model;
  uint32_t others = 0;
  for (uint32_t each = 0; each < count; each++) {
    uint64_t digest = digest_request(model, requests[each]);
    uint32_t crashes = record_of(model, digest);
    if (!crashes) requests[others++] = requests[each];
    else if (crashes >= GUILTY)
      refuse(triton, requests[each], TRITONSERVER_ErrorNew(
          ERROR_INVALID_ARG, "the model's worker died each time it ran this request: it is not run again"));
    else {
      instance->answered = false;
      log_error(serve_all(triton, instance, requests + each, 1));
      if (instance->answered) clear_of_blame(model, digest);
    }
  }
  return others;
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
  TRY(reserve(instance, count));
  if (instance->model->guard_count) count = admit(triton, instance->model, requests, count);
  if (__atomic_load_n(&instance->model->suspects.count, __ATOMIC_RELAXED))
    count = sift(triton, instance, requests, count);
  if (count) log_error(serve_all(triton, instance, requests, count));
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
  snprintf(backend_folder, sizeof backend_folder, "%s", folder);
  if (getrandom(digest_key, sizeof digest_key, 0) != sizeof digest_key) return no_memory();
  make_families();
  return NULL;
}

Error *TRITONBACKEND_Finalize(void *triton) {
  (void) triton;
  delete_families();
  return NULL;
}
