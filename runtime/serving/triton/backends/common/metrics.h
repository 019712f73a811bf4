/* Metrics per model, if the server was started with any. */

#pragma once
#include "errors.h"

static struct { void *stopped, *crashed; } families;

static void *family(int kind, const char *name, const char *description) {
  void *made = NULL;
  Error *error = TRITONSERVER_MetricFamilyNew(&made, kind, name, description);
  if (error) TRITONSERVER_ErrorDelete(error); /* the server was started without metrics */
  return error ? NULL : made;
}

static void *metric(void *of, const char *model) {
  void *made = NULL;
  if (!of) return NULL;
  const void *label = TRITONSERVER_ParameterNew("model", PARAMETER_STRING, model);
  if (!label) return NULL;
  Error *error = TRITONSERVER_MetricNew(&made, of, &label, 1);
  TRITONSERVER_ParameterDelete(label);
  log_error(error);
  return error ? NULL : made;
}

static void delete_metric(void *of) {
  if (of) log_error(TRITONSERVER_MetricDelete(of));
}

static void count(void *metric) {
  if (metric) log_error(TRITONSERVER_MetricIncrement(metric, 1));
}

static void make_families(void) {
  families.stopped = family(
      METRIC_COUNTER, "shiplift_stopped_executions_total", "Executions stopped at their time limit");
  families.crashed = family(METRIC_COUNTER, "shiplift_worker_crashes_total", "Workers of a model that ended by themselves");
}

static void delete_families(void) {
  if (families.stopped) log_error(TRITONSERVER_MetricFamilyDelete(families.stopped));
  if (families.crashed) log_error(TRITONSERVER_MetricFamilyDelete(families.crashed));
  families.stopped = families.crashed = NULL;
}
