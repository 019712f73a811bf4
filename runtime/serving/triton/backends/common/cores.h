/* The cores that a model's instances may run on: those that its configuration names and the server may use. */

#pragma once
#include <sched.h>

#include "config.h"
#include "errors.h"

static void add_cores(const char *text, cpu_set_t *to) {
  while (*text) {
    char *end;
    long first = strtol(text, &end, 10), last = first;
    if (end == text) return;
    if (*end == '-') last = strtol(end + 1, &end, 10);
    for (long core = first; core <= last && core < CPU_SETSIZE; core++) CPU_SET(core, to);
    text = *end == ',' ? end + 1 : end;
    if (*text == '\n') return;
  }
}

static Error *node_cores(const char *node, cpu_set_t *to) {
  char path[320], list[1024];
  snprintf(path, sizeof path, "/sys/devices/system/node/node%s/cpulist", node);
  FILE *file = fopen(path, "r");
  bool read = file && fgets(list, sizeof list, file);
  if (file) fclose(file);
  if (!read) return error_with(ERROR_INVALID_ARG, "%s can't be read: this machine has no such NUMA node", path);
  add_cores(list, to);
  return NULL;
}

static Error *read_cores(const char *config, cpu_set_t *cores, bool *pinned) {
  char text[256];
  cpu_set_t allowed;
  CPU_ZERO(cores);
  if (parameter(config, "numa_node", text, sizeof text)) TRY(node_cores(text, cores));
  if (parameter(config, "cpu_cores", text, sizeof text)) {
    CPU_ZERO(cores);
    add_cores(text, cores);
  }
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return NULL;
  CPU_AND(cores, cores, &allowed);
  *pinned = CPU_COUNT(cores) > 0; /* none left, or none named: instances run wherever the server may */
  return NULL;
}
