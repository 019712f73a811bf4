/* What config.pbtxt says of a forest: its parameters, and its tensors, which a checkpoint does not name. */

#pragma once

static const char *const TYPE_NAMES[TYPES_KNOWN] = {
  [1] = "BOOL", [2] = "UINT8", [3] = "UINT16", [4] = "UINT32", [5] = "UINT64", [6] = "INT8", [7] = "INT16",
  [8] = "INT32", [9] = "INT64", [11] = "FP32", [12] = "FP64",
};

static bool is_true(const char *config, const char *key) {
  char text[16];
  return parameter(config, key, text, sizeof text) && (!strcasecmp(text, "true") || !strcmp(text, "1"));
}

static Error *read_classes(EngineModel *own, const char *config) {
  const char *at = member(member(member(config, "parameters"), "classes"), "string_value");
  if (!at || *at != '"') return NULL;
  if (!(own->classes = calloc(SCORES_MOST, sizeof *own->classes))) return no_memory();
  for (at++; *at && *at != '"'; at += *at == ',') {
    char *end;
    if (own->class_count == SCORES_MOST) break;
    own->classes[own->class_count++] = strtoll(at, &end, 10);
    if (end == at || (*end != ',' && *end != '"')) break;
    at = end;
  }
  if (*at == '"' && own->class_count) return NULL;
  return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "parameter classes is not a list of at most 4096 whole numbers");
}

/* A parameter that is a number; without it, the number stays what it is. */
static Error *read_number(const char *config, const char *key, double *to) {
  char text[64], what[128], *end;
  if (!parameter(config, key, text, sizeof text)) return NULL;
  *to = strtod(text, &end);
  if (end != text && !*end) return NULL;
  snprintf(what, sizeof what, "%s is not a number: '%s'", key, text);
  return error_with(ERROR_INVALID_ARG, "parameter %s", what);
}

static Error *read_parameters(EngineModel *own, const char *config) {
  char text[64];
  bool named = parameter(config, "model_type", text, sizeof text);
  if (!named || strcmp(text, "treelite_checkpoint"))
    return error_with(
        ERROR_UNSUPPORTED, "parameter model_type is treelite_checkpoint, not '%s': this backend has no other format",
        named ? text : "");
  own->threads = parameter(config, "cpu_nthread", text, sizeof text) ? atoi(text) : 1;
  if (own->threads < 1) return error_with(ERROR_INVALID_ARG, "parameter cpu_nthread is not a number above 0: '%s'", text);
  own->rounded = parameter(config, "feature_type", text, sizeof text) && !strcmp(text, "FP32");
  own->threshold = 0.5, own->zero_within = -1;
  TRY(read_number(config, "threshold", &own->threshold));
  TRY(read_number(config, "zero_within", &own->zero_within));
  own->subtracts = parameter(config, "subtracted_from", text, sizeof text);
  TRY(read_number(config, "subtracted_from", &own->subtracted_from));
  return read_classes(own, config);
}

/* --- tensors ----------------------------------------------------------------------------------------------------- */

/* Triton's number of the data type of a tensor in the configuration; 0: not served here. */
static int type_of(const char *tensor) {
  char text[32];
  if (!text_of(member(tensor, "data_type"), text, sizeof text) || strncmp(text, "TYPE_", 5)) return 0;
  for (int type = 1; type < TYPES_KNOWN; type++)
    if (TYPE_NAMES[type] && !strcmp(TYPE_NAMES[type], text + 5)) return type;
  return 0;
}

/* How many numbers a row of a tensor has; 0: any. */
static size_t width_of(const char *tensor) {
  const char *dims = member(tensor, "dims"), *dim;
  size_t width = 1;
  for (size_t at = 0; (dim = element(dims, at)); at++) {
    int64_t size = number(dim, -1);
    width = size < 0 ? 0 : width * (size_t) size;
  }
  return width;
}

static Error *read_tensors(const char *config, const char *side, Tensors *to) {
  const char *all = member(config, side);
  char text[600];
  size_t count = 0;
  while (element(all, count)) count++;
  TRY(new_tensors(to, count));
  for (size_t at = 0; at < count; at++) {
    const char *tensor = element(all, at);
    bool named = text_of(member(tensor, "name"), text, sizeof text);
    if (!named || !(to->all[at].name = strdup(text))) return no_memory();
    to->all[at].type = type_of(tensor);
    if (!to->all[at].type) return error_with(ERROR_UNSUPPORTED, "trees have no data type like that of '%s'", text);
  }
  return count ? NULL : error_with(ERROR_INVALID_ARG, "the configuration names no %s", side);
}

/* What an output holds: what its own parameter says, or what NVIDIA's parameters say of the only one. */
static Error *read_content(Model *model, const char *config, const char *tensor, size_t at) {
  EngineModel *own = &model->engine;
  Content *content = &own->contents[at];
  const Tensor *output = &model->outputs.all[at];
  char key[700], text[16];
  size_t declared = width_of(tensor);
  bool several = is_true(config, "predict_proba");
  snprintf(key, sizeof key, "answer.%s", output->name);
  content->is_class = (is_true(config, "output_class") || is_true(config, "is_classifier")) && !several;
  if (parameter(config, key, text, sizeof text)) content->is_class = !strcmp(text, "class");
  bool both = !content->is_class && own->scores == 1 && declared == 2; /* of a binary classifier with one score */
  content->flat = member(tensor, "reshape") != NULL;
  content->width = content->is_class ? 1 : both ? 2 : own->scores;
  if (declared && declared != content->width)
    return error_with(ERROR_INVALID_ARG, "output '%s' has other dimensions than the forest's scores", output->name);
  if (content->is_class && own->several)
    return error_with(ERROR_UNSUPPORTED, "output '%s' holds a class, and the forest has several targets", output->name);
  if (!content->is_class && output->type != TYPE_FP32 && output->type != TYPE_FP64)
    return error_with(ERROR_INVALID_ARG, "output '%s' holds scores, which are FP32 or FP64", output->name);
  return NULL;
}

static Error *read_contents(Model *model, const char *config) {
  EngineModel *own = &model->engine;
  size_t classes = own->scores == 1 ? 2 : own->scores;
  if (own->class_count && own->class_count != classes)
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "parameter classes has another number of classes than the forest");
  if (!(own->contents = calloc(model->outputs.count, sizeof *own->contents))) return no_memory();
  for (size_t at = 0; at < model->outputs.count; at++)
    TRY(read_content(model, config, element(member(config, "output"), at), at));
  return NULL;
}
