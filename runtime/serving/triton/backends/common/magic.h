/* Requests on which the model's worker dies. After its first death, those that were in flight are run alone, so that the
 * second one shows which it was: that one is refused from then on. */

#pragma once
#include <sys/random.h>

#include "inputs.h"

static uint64_t digest_key[2];

/* A digest of a request's inputs; 0 if they can't be read. */
static uint64_t digest_request(const Model *model, Request *request) {
  Digest digest = new_digest(digest_key);
  for (size_t at = 0; at < model->inputs.count; at++) {
    Input *input;
    const char *name;
    const int64_t *dims;
    int type;
    uint32_t rank, parts;
    uint64_t size;
    Error *error = TRITONBACKEND_RequestInput(request, model->inputs.all[at].name, &input);
    if (!error) error = TRITONBACKEND_InputProperties(input, &name, &type, &dims, &rank, &size, &parts);
    if (!error) add_bytes(&digest, dims, rank * sizeof *dims);
    for (uint32_t part = 0; !error && part < parts; part++) {
      const void *from;
      int memory = 0;
      int64_t id = 0;
      error = TRITONBACKEND_InputBuffer(input, part, &from, &size, &memory, &id);
      if (!error && memory != MEMORY_GPU) add_bytes(&digest, from, size);
    }
    if (error) {
      TRITONSERVER_ErrorDelete(error);
      return 0;
    }
  }
  return digest_of(digest);
}

static void accuse(const Instance *instance, Request **requests, uint32_t count) {
  Model *model = instance->model;
  for (uint32_t each = 0; each < count; each++) {
    uint64_t digest = digest_request(model, requests[each]);
    pthread_mutex_lock(&model->worker.lock);
    suspect(&model->suspects, digest, instance->worker);
    pthread_mutex_unlock(&model->worker.lock);
  }
}

/* How often the worker died while it ran this request. */
static uint32_t record_of(Model *model, uint64_t digest) {
  pthread_mutex_lock(&model->worker.lock);
  uint32_t crashes = crashes_of(&model->suspects, digest);
  pthread_mutex_unlock(&model->worker.lock);
  return crashes;
}

static void clear_of_blame(Model *model, uint64_t digest) {
  pthread_mutex_lock(&model->worker.lock);
  acquit(&model->suspects, digest);
  pthread_mutex_unlock(&model->worker.lock);
}
