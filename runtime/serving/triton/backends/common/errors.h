/* Triton's errors: returned to the caller, or logged where they can't be returned. */

#pragma once
#include <stdio.h>

#include "triton.h"

#define TRY(call) do { Error *error_ = (call); if (error_) return error_; } while (0)

static Error *error_with(int code, const char *format, const char *what) {
  char text[1024];
  snprintf(text, sizeof text, format, what);
  return TRITONSERVER_ErrorNew(code, text);
}

static void log_error(Error *error) {
  if (!error) return;
  TRITONSERVER_LogMessage(LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

static Error *no_memory(void) { return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "out of memory"); }
