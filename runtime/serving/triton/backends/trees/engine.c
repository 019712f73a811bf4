/* Triton's `trees` backend for the bundled server: forests of decision trees as a treelite checkpoint, computed as they
 * were trained, in 32 or 64 bits. It has the same file and the same parameters in config.pbtxt as NVIDIA's `fil` backend
 * (model_type, output_class or is_classifier, predict_proba, threshold, cpu_nthread), and a few more:
 *
 *   answer.OUTPUT    what an output holds, if there are several: `class` or `scores`
 *   classes          the values of the classes, such as `-1,1`; without it 0, 1, 2 ...
 *   feature_type     FP32: features are rounded to 32 bits before they are compared, as the author's library does
 *   zero_within      numbers up to this size are compared as 0, as LightGBM does
 *   subtracted_from  an only score is answered as this number less the score, as isolation forests decide
 *
 * Inputs are joined to rows of features, in their order in config.pbtxt. NaN is a missing value. Instances share the
 * forest. treelite trusts the positions in a checkpoint: the export checks them. */

#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interface.h"

enum { SCORES_MOST = 4096, BLOCK = 1024 };

/* What an output holds, and how many numbers a row of it has; a `flat` one has no dimension but the batch. */
typedef struct { bool is_class, flat; size_t width; } Content;

typedef struct {
  void *forest, *config;
  bool wide, rounded, several, softmax, subtracts; /* wide: it computes in 64 bits; several: it has several targets */
  size_t features, scores; /* of a row */
  double threshold, zero_within, subtracted_from;
  int64_t *classes;
  size_t class_count;
  int threads;
  Content *contents;
} EngineModel;

typedef struct { struct Work *work; } EngineInstance;

#define MODEL_FILE "checkpoint.tl"
#include "../common/worker.h"

typedef struct { const void *bytes; size_t width; } Given;

/* One instance's run: `given` are its inputs, `features` and `scores` its rows. */
typedef struct Work {
  bool stop, started;
  size_t rows;
  Given *given;
  Buffer features, scores, *answers; /* one answer per output */
} Work;

#include "features.h"
#include "parameters.h"
#include "scores.h"

/* --- a model ----------------------------------------------------------------------------------------------------- */

/* How treelite predicts: on as many threads as OpenMP gives the thread that asks, since it refuses to take fewer. */
static Error *new_config(const char *type, void **config) {
  char json[80];
  snprintf(json, sizeof json, "{\"predict_type\": \"%s\", \"nthread\": 0}", type);
  return from_treelite(treelite.TreeliteGTILParseConfig(json, config));
}

/* How many scores a row has, and whether treelite would compute their softmax: in 32 bits, whatever the forest's. */
static Error *describe_scores(EngineModel *own) {
  const uint64_t *shape;
  uint64_t rank;
  Field field = {0};
  void *plain;
  TRY(new_config("default", &plain));
  Error *error = from_treelite(treelite.TreeliteGTILGetOutputShape(own->forest, 1, plain, &shape, &rank));
  own->scores = error ? 0 : 1;
  for (uint64_t dim = 1; !error && dim < rank; dim++) own->scores *= shape[dim];
  own->several = !error && rank > 2 && shape[1] > 1;
  treelite.TreeliteGTILDeleteConfig(plain);
  if (error) return error;
  if (own->scores > SCORES_MOST) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "the forest has over 4096 scores");
  TRY_TREELITE(treelite.TreeliteGetHeaderField(own->forest, "postprocessor", &field));
  own->softmax = own->wide && !own->several && field.count == 7 && !memcmp(field.bytes, "softmax", 7);
  return NULL;
}

static Error *open_forest(Model *model) {
  EngineModel *own = &model->engine;
  const char *type;
  int features;
  TRY_TREELITE(treelite.TreeliteDeserializeModelFromFile(model->path, &own->forest));
  TRY_TREELITE(treelite.TreeliteGetInputType(own->forest, &type));
  TRY_TREELITE(treelite.TreeliteQueryNumFeature(own->forest, &features));
  own->wide = !strcmp(type, "float64");
  own->features = (size_t) features;
  TRY(describe_scores(own));
  return new_config(own->softmax ? "raw" : "default", &own->config);
}

static Error *engine_open_model(Model *model, const char *config) {
  if (model->max_batch == 0)
    return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "max_batch_size is at least 1: rows are the batch of trees");
  TRY(read_parameters(&model->engine, config));
  TRY(open_forest(model));
  if (model->engine.subtracts && model->engine.scores != 1)
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "parameter subtracted_from is for a forest with one score");
  TRY(read_tensors(config, "input", &model->inputs));
  TRY(read_tensors(config, "output", &model->outputs));
  return read_contents(model, config);
}

/* --- an instance ------------------------------------------------------------------------------------------------- */

static Error *engine_open_instance(Instance *instance) {
  Model *model = instance->model;
  Work *work = instance->engine.work = calloc(1, sizeof *work);
  if (!work) return no_memory();
  work->given = calloc(model->inputs.count + 1, sizeof *work->given);
  work->answers = calloc(model->outputs.count + 1, sizeof *work->answers);
  if (!work->given || !work->answers) return no_memory();
  instance->execution.run = work;
  return NULL;
}

static void engine_close_instance(Instance *instance) {
  Work *work = instance->engine.work;
  if (!work) return;
  for (size_t at = 0; work->answers && at < instance->model->outputs.count; at++) free(work->answers[at].bytes);
  free(work->features.bytes);
  free(work->scores.bytes);
  free(work->given);
  free(work->answers);
  free(work);
}

/* --- a run ------------------------------------------------------------------------------------------------------- */

static Error *engine_begin_run(Instance *instance) {
  instance->engine.work->rows = 0;
  return NULL;
}

static Error *engine_give_input(Instance *instance, size_t at, const void *bytes, const Batch *batch) {
  Work *work = instance->engine.work;
  size_t rows = batch->rank ? (size_t) batch->shape[0] : 1, width = 1;
  for (uint32_t dim = 1; dim < batch->rank; dim++) width *= (size_t) batch->shape[dim];
  if (at && rows != work->rows)
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "the inputs of a request differ in their number of rows");
  work->rows = rows;
  work->given[at] = (Given) {bytes, width};
  return NULL;
}

/* Computes the rows block by block, since treelite can't be stopped within one. */
static Error *engine_run(Instance *instance) {
  EngineModel *own = &instance->model->engine;
  Work *work = instance->engine.work;
  const char *features = NULL;
  size_t size = own->wide ? sizeof(double) : sizeof(float), block = BLOCK * (size_t) own->threads;
  if (!work->started) treelite.omp_set_num_threads(own->threads); /* for this thread */
  work->started = true;
  TRY(join_features(instance, &features));
  TRY(grow(&work->scores, (work->rows * own->scores + 1) * size));
  memset(work->scores.bytes, 0, work->rows * own->scores * size);
  for (size_t from = 0; from < work->rows; from += block) {
    if (__atomic_load_n(&work->stop, __ATOMIC_RELAXED)) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "stopped");
    TRY_TREELITE(treelite.TreeliteGTILPredict(
        own->forest, features + from * own->features * size, own->wide ? "float64" : "float32",
        work->rows - from < block ? work->rows - from : block, work->scores.bytes + from * own->scores * size,
        own->config));
  }
  return NULL;
}

static Error *engine_read_output(Instance *instance, size_t at, Answer *answer) {
  const Content *content = &instance->model->engine.contents[at];
  answer->type = instance->model->outputs.all[at].type;
  answer->rank = content->flat ? 1 : 2;
  answer->shape[0] = (int64_t) instance->engine.work->rows;
  answer->shape[1] = (int64_t) content->width;
  TRY(fill_answer(instance, at));
  answer->bytes = instance->engine.work->answers[at].bytes;
  return NULL;
}

static void engine_end_run(Instance *instance) { (void) instance; }

static Error *engine_stop(void *run) {
  __atomic_store_n(&((Work *) run)->stop, true, __ATOMIC_RELAXED);
  return NULL;
}

static Error *engine_resume(void *run) {
  __atomic_store_n(&((Work *) run)->stop, false, __ATOMIC_RELAXED);
  return NULL;
}

/* --- the library ------------------------------------------------------------------------------------------------- */

static Error *engine_load(const char *folder) { return load_treelite(folder); }
