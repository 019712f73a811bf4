/* The rows that a forest reads: the inputs of a batch side by side, as numbers of the forest's type. */

#pragma once

static double number_at(const void *bytes, size_t at, int type) {
  switch (type) {
    case 1: case 2: return ((const uint8_t *) bytes)[at];
    case 3: return ((const uint16_t *) bytes)[at];
    case 4: return ((const uint32_t *) bytes)[at];
    case 5: return (double) ((const uint64_t *) bytes)[at];
    case 6: return ((const int8_t *) bytes)[at];
    case 7: return ((const int16_t *) bytes)[at];
    case 8: return ((const int32_t *) bytes)[at];
    case 9: return (double) ((const int64_t *) bytes)[at];
    case TYPE_FP32: return (double) ((const float *) bytes)[at];
    default: return ((const double *) bytes)[at];
  }
}

/* Writes one input into its columns of the rows. */
static void copy_columns(const EngineModel *own, Work *work, const Given *given, int type, size_t column) {
  for (size_t row = 0; row < work->rows; row++)
    for (size_t each = 0; each < given->width; each++) {
      double value = number_at(given->bytes, row * given->width + each, type);
      if (fabs(value) <= own->zero_within) value = 0;
      size_t at = row * own->features + column + each;
      if (!own->wide) ((float *) work->features.bytes)[at] = (float) value;
      else ((double *) work->features.bytes)[at] = own->rounded ? (double) (float) value : value;
    }
}

/* The rows: where Triton holds them if nothing has to be changed, or else a copy. */
static Error *join_features(Instance *instance, const char **rows) {
  const EngineModel *own = &instance->model->engine;
  const Tensors *inputs = &instance->model->inputs;
  Work *work = instance->engine.work;
  size_t width = 0;
  for (size_t at = 0; at < inputs->count; at++) width += work->given[at].width;
  if (width != own->features)
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "the inputs have another number of columns than the forest");
  *rows = work->given[0].bytes;
  int same = own->wide ? TYPE_FP64 : TYPE_FP32;
  if (inputs->count == 1 && inputs->all[0].type == same && own->zero_within < 0 && !(own->wide && own->rounded)) return NULL;
  TRY(grow(&work->features, (work->rows * own->features + 1) * (own->wide ? sizeof(double) : sizeof(float))));
  for (size_t at = 0, column = 0; at < inputs->count; column += work->given[at++].width)
    copy_columns(own, work, &work->given[at], inputs->all[at].type, column);
  *rows = work->features.bytes;
  return NULL;
}
