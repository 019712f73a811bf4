/* The part of ONNX Runtime's stable C interface that the backend uses (onnxruntime_c_api.h, a table that only ever
 * grows), declared here so that the backend compiles with libc's headers alone. */

#pragma once
#include "../common/errors.h"

typedef struct Status Status;

/* The positions of its functions in the table, which stay the same in every version. */
enum {
  ORT_GET_ERROR_MESSAGE = 2, ORT_CREATE_ENV = 3, ORT_CREATE_SESSION = 7, ORT_RUN = 9, ORT_CREATE_SESSION_OPTIONS = 10,
  ORT_SET_GRAPH_LEVEL = 23, ORT_SET_INTRA_OP_THREADS = 24, ORT_SET_INTER_OP_THREADS = 25, ORT_INPUT_COUNT = 30,
  ORT_OUTPUT_COUNT = 31, ORT_INPUT_TYPE = 33, ORT_OUTPUT_TYPE = 34, ORT_INPUT_NAME = 36, ORT_OUTPUT_NAME = 37,
  ORT_CREATE_RUN_OPTIONS = 39, ORT_SET_TERMINATE = 46, ORT_UNSET_TERMINATE = 47, ORT_TENSOR_OF_DATA = 49,
  ORT_TENSOR_DATA = 51, ORT_TENSOR_INFO_OF = 55, ORT_ELEMENT_TYPE = 60, ORT_RANK = 61,
  ORT_SHAPE = 62, ORT_TYPE_AND_SHAPE = 65, ORT_CPU_MEMORY = 69, ORT_DEFAULT_ALLOCATOR = 78, 
  ORT_RELEASE_STATUS = 93, ORT_RELEASE_SESSION = 95, ORT_RELEASE_VALUE = 96,
  ORT_RELEASE_RUN_OPTIONS = 97, ORT_RELEASE_TYPE = 98, ORT_RELEASE_SHAPE = 99, ORT_RELEASE_OPTIONS = 100,
  ORT_ADD_CONFIG = 130,
};
enum { ORT_API_VERSION = 16, ORT_WARNING = 2, ORT_DEVICE_ALLOCATOR = 0, ORT_MEMORY_DEFAULT = 0 };
enum { GRAPH_OFF = 0, GRAPH_BASIC = 1, GRAPH_ALL = 99 };

typedef struct {
  const void *const *(*api)(uint32_t version);
  const char *(*version)(void);
} ApiBase;

static const void *const *ort; /* the table */

/* Calls without prototypes, so that not every function needs a type. That is safe here: every argument is a pointer, an
 * int or a size_t, which promotion leaves unchanged. */
#define ORT(at, ...) ((Status * (*)()) ort[at])(__VA_ARGS__)
#define ORT_VOID(at, ...) ((void (*)()) ort[at])(__VA_ARGS__)

/* By Triton's number of a data type, ONNX Runtime's number of the element type; 0 if this backend does not serve it. */
static const uint8_t ORT_TYPES[TYPES_KNOWN] = {
  [1] = 9, [2] = 2, [3] = 4, [4] = 12, [5] = 13, [6] = 3, [7] = 5, [8] = 6, [9] = 7, [10] = 10, [11] = 1, [12] = 11,
  [14] = 16,
};

static int triton_type(int type) {
  for (int each = 1; each < TYPES_KNOWN; each++)
    if (type && ORT_TYPES[each] == type) return each;
  return 0;
}

static Error *from_ort(Status *status) {
  if (!status) return NULL;
  Error *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, ((const char *(*)(Status *)) ort[ORT_GET_ERROR_MESSAGE])(status));
  ORT_VOID(ORT_RELEASE_STATUS, status);
  return error;
}

#define TRY_ORT(call) TRY(from_ort(call))
