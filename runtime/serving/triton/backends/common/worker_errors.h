/* Errors and messages of a worker's process. In the server they are Triton's, and code that both run calls them by the
 * same names. */

#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring.h"
#include "triton.h"

struct Error { int code; char text[TEXT_MOST]; };

Error *TRITONSERVER_ErrorNew(int code, const char *message) {
  static Error none = {ERROR_INTERNAL, "out of memory"};
  Error *error = malloc(sizeof *error);
  if (!error) return &none; /* is never deleted */
  error->code = code;
  snprintf(error->text, sizeof error->text, "%s", message);
  return error;
}

void TRITONSERVER_ErrorDelete(Error *error) {
  if (error && strcmp(error->text, "out of memory")) free(error);
}

const char *TRITONSERVER_ErrorMessage(Error *error) { return error->text; }

Error *TRITONSERVER_LogMessage(int level, const char *file, int line, const char *message) {
  (void) level, (void) file, (void) line;
  fprintf(stderr, "shiplift: %s\n", message);
  return NULL;
}
