/* A model's worker: a process that loads one model with one engine and runs the batches of the server's instances, each
 * in a thread of its own. What a model does to its process ends here. An engine's file includes this.
 *
 * Whatever the engine or the model prints goes to standard error, which the server reads. */

#pragma once
#include <libgen.h>
#include <stdio.h>

#include "control.h"
#include "guard.h"
#include "engine.h"
#include "worker_errors.h"

/* --- an instance ------------------------------------------------------------------------------------------------- */

typedef struct { Instance instance; Ring ring; } Attached;

static void detach(Attached *own) {
  Instance *instance = &own->instance;
  if (instance->execution.run) remove_execution(&instance->execution);
  engine_close_instance(instance);
  free(instance->inputs);
  free(instance->outputs);
  close_ring(&own->ring);
  free(own);
}

static Error *open_instance(Instance *instance) {
  Model *model = instance->model;
  instance->inputs = calloc(model->inputs.count + 1, sizeof *instance->inputs);
  instance->outputs = calloc(model->outputs.count + 1, sizeof *instance->outputs);
  if (!instance->inputs || !instance->outputs) return no_memory();
  instance->execution = (Execution) {
    .model = model->name, .limit_ns = (uint64_t) model->limits.run_ms * 1000000u,
    .cpu_limit_ns = (uint64_t) model->limits.cpu_ms * 1000000u,
  };
  TRY(engine_open_instance(instance));
  add_execution(&instance->execution);
  return NULL;
}

static Error *give_inputs(Attached *own) {
  Instance *instance = &own->instance;
  for (size_t at = 0; at < instance->model->inputs.count; at++) {
    const Slot *slot = &header_of(&own->ring)->slots[at];
    Batch batch = {.rank = slot->rank, .parts = 1, .size = slot->size};
    if (!reach(&own->ring, slot->offset + slot->size)) return no_memory();
    slot = &header_of(&own->ring)->slots[at]; /* it may have moved */
    memcpy(batch.shape, slot->shape, sizeof batch.shape);
    TRY(engine_give_input(instance, at, own->ring.base + slot->offset, &batch));
  }
  return NULL;
}

/* Copies the answer behind the inputs. */
static Error *take_outputs(Attached *own, uint64_t from) {
  Instance *instance = &own->instance;
  size_t inputs = instance->model->inputs.count;
  for (size_t at = 0; at < instance->model->outputs.count; at++) {
    Answer answer = {0};
    TRY(engine_read_output(instance, at, &answer));
    uint64_t size = size_of(answer.shape, answer.rank, answer.type), offset = aligned(from);
    if (size > INT64_MAX / 4 || !extend(&own->ring, offset + size)) return no_memory();
    Slot *slot = &header_of(&own->ring)->slots[inputs + at];
    *slot = (Slot) {.offset = offset, .size = size, .rank = (uint32_t) answer.rank, .type = answer.type};
    memcpy(slot->shape, answer.shape, answer.rank * sizeof *answer.shape);
    if (size) memcpy(own->ring.base + offset, answer.bytes, size);
    from = offset + size;
  }
  return NULL;
}

/* Where the inputs end. Reached before the engine is given any, because reaching may move what it was given. */
static Error *end_of_inputs(Attached *own, uint64_t *end) {
  const Header *header = header_of(&own->ring);
  *end = BEGINNING;
  for (size_t at = 0; at < own->instance.model->inputs.count; at++) {
    uint64_t last = header->slots[at].offset + header->slots[at].size;
    *end = last > *end ? last : *end;
  }
  return reach(&own->ring, *end) ? NULL : no_memory();
}

static Error *run(Attached *own) {
  Instance *instance = &own->instance;
  uint64_t end;
  TRY(end_of_inputs(own, &end));
  TRY(engine_begin_run(instance));
  Error *error = give_inputs(own);
  begin_execution(&instance->execution, nanoseconds());
  if (!error) error = engine_run(instance);
  uint32_t stopped = end_execution(&instance->execution);
  if (!error) error = take_outputs(own, end);
  header_of(&own->ring)->stopped = error ? stopped : IN_TIME;
  engine_end_run(instance);
  return error;
}

static void answer(Attached *own, uint32_t turn) {
  Error *error = run(own);
  Header *header = header_of(&own->ring);
  header->failed = error != NULL;
  if (error) {
    header->code = (uint32_t) error->code;
    snprintf(header->text, sizeof header->text, "%s", error->text);
    TRITONSERVER_ErrorDelete(error);
  }
  signal_turn(&header->answered, turn, &header->server_sleeps);
}

static void *serve(void *argument) {
  Attached *own = argument;
  const Model *model = own->instance.model;
  if (model->pinned) sched_setaffinity(0, sizeof model->cores, &model->cores);
  for (uint32_t turn = 1;; turn++) {
    while (true) {
      Header *header = header_of(&own->ring);
      if (await(&header->asked, turn, &header->worker_sleeps, 0)) break;
    }
    if (header_of(&own->ring)->task == CLOSE) break;
    answer(own, turn);
  }
  detach(own);
  return NULL;
}

static Error *start_instance(Model *model, int file) {
  pthread_t thread;
  pthread_attr_t attributes;
  Attached *own = calloc(1, sizeof *own);
  if (!own) return no_memory();
  own->instance.model = model;
  own->ring.file = file;
  Error *error = map_ring(&own->ring, BEGINNING) ? open_instance(&own->instance) : no_memory();
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (!error && pthread_create(&thread, &attributes, serve, own))
    error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, "an instance's thread can't be started");
  pthread_attr_destroy(&attributes);
  if (error) detach(own);
  return error;
}

/* --- the process ------------------------------------------------------------------------------------------------- */

static bool report(Error *error) {
  bool told = error ? send_message(CONTROL, FAILED, error, sizeof *error) : send_message(CONTROL, READY, "", 0);
  if (error) TRITONSERVER_ErrorDelete(error);
  return told;
}

/* Makes the model's cache in the folder of all caches. */
static void make_cache(char *cache) {
  char *name = strrchr(cache, '/');
  if (!name) return;
  *name = 0;
  mkdir(cache, 0700);
  *name = '/';
  mkdir(cache, 0700);
}

static Error *open_model(Model *model, const Loading *loading, const char *config) {
  snprintf(model->name, sizeof model->name, "%s", loading->name);
  snprintf(model->path, sizeof model->path, "%.4000s/%s", loading->path, MODEL_FILE);
  model->max_batch = number(member(config, "max_batch_size"), 0);
  model->limits = read_limits(config, model->name);
  TRY(read_cores(config, &model->cores, &model->pinned));
  make_cache(model->limits.cache);
  const char *missing = guard(loading->folder, loading->path, &model->limits, loading->accepted);
  if (missing)
    return error_with(ERROR_INTERNAL, "the model's worker can't be confined: the kernel has no %s", missing);
  TRY(start_watch());
  TRY(engine_load(loading->folder));
  return engine_open_model(model, config);
}

/* Describes the model's tensors: how many inputs and outputs, then each. */
static bool describe(const Model *model) {
  const Tensors *sides[] = {&model->inputs, &model->outputs};
  uint32_t counts[] = {(uint32_t) model->inputs.count, (uint32_t) model->outputs.count};
  size_t size = sizeof counts;
  for (int side = 0; side < 2; side++)
    for (size_t at = 0; at < sides[side]->count; at++) size += sizeof(Described) + strlen(sides[side]->all[at].name);
  char *body = malloc(size), *to = body;
  if (!body) return false;
  memcpy(to, counts, sizeof counts), to += sizeof counts;
  for (int side = 0; side < 2; side++)
    for (size_t at = 0; at < sides[side]->count; at++) {
      const Tensor *tensor = &sides[side]->all[at];
      Described described = {tensor->type, (uint32_t) strlen(tensor->name)};
      memcpy(to, &described, sizeof described), to += sizeof described;
      memcpy(to, tensor->name, described.length), to += described.length;
    }
  bool told = send_message(CONTROL, READY, body, size);
  free(body);
  return told;
}

/* Ends with the server, and at once: the engine's threads may still run. */
int main(void) {
  Envelope envelope;
  Model *model = calloc(1, sizeof *model);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  syscall(SYS_close_range, CONTROL + 1, ~0u, 0);
  char *body = receive_message(CONTROL, &envelope, 0);
  if (!model || !body || envelope.kind != LOAD || envelope.size < sizeof(Loading)) _exit(1);
  Error *error = open_model(model, (const Loading *) body, body + sizeof(Loading));
  free(body);
  if (error) {
    report(error);
    _exit(1);
  }
  if (!describe(model)) _exit(1);
  while ((body = receive_message(CONTROL, &envelope, 0))) {
    free(body);
    int file = envelope.kind == ATTACH ? receive_file(CONTROL) : -1;
    if (file < 0 || !report(start_instance(model, file))) break;
  }
  _exit(0);
}
