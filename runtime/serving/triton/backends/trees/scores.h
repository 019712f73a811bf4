/* What a forest's scores become: classes, or the scores themselves. */

#pragma once

static double score_at(const EngineModel *own, const Work *work, size_t at) {
  return own->wide ? ((const double *) work->scores.bytes)[at] : (double) ((const float *) work->scores.bytes)[at];
}

/* The position of a row's class: of several scores the first that is largest, of one whether it is over the threshold,
 * in the type of the scores. */
static size_t class_of(const EngineModel *own, const Work *work, size_t row) {
  size_t first = row * own->scores, best = 0;
  double threshold = own->wide ? own->threshold : (double) (float) own->threshold;
  if (own->scores == 1) return score_at(own, work, first) > threshold;
  for (size_t each = 1; each < own->scores; each++)
    if (score_at(own, work, first + each) > score_at(own, work, first + best)) best = each;
  return best;
}

/* Turns a row's margins into their softmax. */
static void softmax(double *row, size_t count) {
  double largest = row[0], sum = 0;
  for (size_t each = 1; each < count; each++) largest = row[each] > largest ? row[each] : largest;
  for (size_t each = 0; each < count; each++) sum += row[each] = exp(row[each] - largest);
  for (size_t each = 0; each < count; each++) row[each] /= sum;
}

static void write_number(char *to, size_t at, int type, double value) {
  if (type == TYPE_FP32) ((float *) to)[at] = (float) value;
  else ((double *) to)[at] = value;
}

static void write_class(const EngineModel *own, char *to, size_t at, int type, size_t class) {
  int64_t value = own->classes ? own->classes[class] : (int64_t) class;
  if (type == TYPE_FP32 || type == TYPE_FP64) write_number(to, at, type, (double) value);
  else memcpy(to + at * SIZES[type], &value, SIZES[type]); /* little-endian: the low bytes come first */
}

/* Writes a row of scores; a binary classifier's only one after what is left of 1 if both are declared. */
static void write_scores(const EngineModel *own, const Work *work, char *to, int type, size_t width, size_t row) {
  double scores[SCORES_MOST];
  size_t first = row * width + width - own->scores;
  for (size_t each = 0; each < own->scores; each++) {
    double score = score_at(own, work, row * own->scores + each);
    scores[each] = own->subtracts ? own->subtracted_from - score : score;
  }
  if (own->softmax) softmax(scores, own->scores);
  if (width != own->scores) write_number(to, row * width, type, 1 - scores[0]);
  for (size_t each = 0; each < own->scores; each++) write_number(to, first + each, type, scores[each]);
}

/* Writes an output of all rows into its buffer. */
static Error *fill_answer(Instance *instance, size_t at) {
  const EngineModel *own = &instance->model->engine;
  const Content *content = &own->contents[at];
  Work *work = instance->engine.work;
  int type = instance->model->outputs.all[at].type;
  TRY(grow(&work->answers[at], (work->rows * content->width + 1) * SIZES[type]));
  char *to = work->answers[at].bytes;
  for (size_t row = 0; row < work->rows; row++)
    if (content->is_class) write_class(own, to, row, type, class_of(own, work, row));
    else write_scores(own, work, to, type, content->width, row);
  return NULL;
}
