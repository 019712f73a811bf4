/* What the backend uses of two stable C interfaces, declared here so that it compiles with no headers but libc's:
 * Triton's (tritonbackend.h, API 1) and ONNX Runtime's (onnxruntime_c_api.h, a table that only ever grows). */

#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- Triton ------------------------------------------------------------------------------------------------------ */

typedef struct Error Error;
typedef struct Request Request;
typedef struct Response Response;
typedef struct Input Input;
typedef struct Output Output;
typedef struct Message Message;

enum { API_MAJOR = 1, ERROR_INTERNAL = 1, ERROR_INVALID_ARG = 3, ERROR_UNSUPPORTED = 5, LOG_ERROR = 2, MEMORY_GPU = 2 };
enum { RELEASE_ALL = 1, RESPONSE_FINAL = 1 };

Error *TRITONSERVER_ErrorNew(int code, const char *message);
void TRITONSERVER_ErrorDelete(Error *);
const char *TRITONSERVER_ErrorMessage(Error *);
Error *TRITONSERVER_LogMessage(int level, const char *file, int line, const char *message);
Error *TRITONSERVER_MessageSerializeToJson(Message *, const char **base, size_t *size);
Error *TRITONSERVER_MessageDelete(Message *);
Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor);
Error *TRITONBACKEND_BackendArtifacts(void *backend, int *kind, const char **location);
Error *TRITONBACKEND_BackendState(void *backend, void **state);
Error *TRITONBACKEND_BackendSetState(void *backend, void *state);
Error *TRITONBACKEND_ModelName(void *model, const char **name);
Error *TRITONBACKEND_ModelVersion(void *model, uint64_t *version);
Error *TRITONBACKEND_ModelRepository(void *model, int *kind, const char **location);
Error *TRITONBACKEND_ModelConfig(void *model, uint32_t version, Message **config);
Error *TRITONBACKEND_ModelBackend(void *model, void **backend);
Error *TRITONBACKEND_ModelState(void *model, void **state);
Error *TRITONBACKEND_ModelSetState(void *model, void *state);
Error *TRITONBACKEND_ModelInstanceModel(void *instance, void **model);
Error *TRITONBACKEND_ModelInstanceState(void *instance, void **state);
Error *TRITONBACKEND_ModelInstanceSetState(void *instance, void *state);
Error *TRITONBACKEND_ModelInstanceReportStatistics(
    void *instance, Request *, bool success, uint64_t began, uint64_t compute_began, uint64_t compute_ended,
    uint64_t ended);
Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    void *instance, uint64_t size, uint64_t began, uint64_t compute_began, uint64_t compute_ended, uint64_t ended);
Error *TRITONBACKEND_RequestInput(Request *, const char *name, Input **);
Error *TRITONBACKEND_RequestOutputCount(Request *, uint32_t *count);
Error *TRITONBACKEND_RequestOutputName(Request *, uint32_t at, const char **name);
Error *TRITONBACKEND_RequestRelease(Request *, uint32_t flags);
Error *TRITONBACKEND_InputProperties(
    Input *, const char **name, int *type, const int64_t **shape, uint32_t *rank, uint64_t *size, uint32_t *buffers);
Error *TRITONBACKEND_InputBuffer(
    Input *, uint32_t at, const void **buffer, uint64_t *size, int *memory, int64_t *memory_id);
Error *TRITONBACKEND_ResponseNew(Response **, Request *);
Error *TRITONBACKEND_ResponseOutput(
    Response *, Output **, const char *name, int type, const int64_t *shape, uint32_t rank);
Error *TRITONBACKEND_OutputBuffer(Output *, void **buffer, uint64_t size, int *memory, int64_t *memory_id);
Error *TRITONBACKEND_ResponseSend(Response *, uint32_t flags, Error *);

/* --- ONNX Runtime ------------------------------------------------------------------------------------------------ */

typedef struct Status Status;
typedef struct Value Value;

/* The positions of its functions in the table, which stay the same in every version. */
enum {
  ORT_GET_ERROR_MESSAGE = 2, ORT_CREATE_ENV = 3, ORT_CREATE_SESSION = 7, ORT_RUN = 9, ORT_CREATE_SESSION_OPTIONS = 10,
  ORT_SET_GRAPH_LEVEL = 23, ORT_SET_INTRA_OP_THREADS = 24, ORT_SET_INTER_OP_THREADS = 25, ORT_INPUT_COUNT = 30,
  ORT_OUTPUT_COUNT = 31, ORT_INPUT_TYPE = 33, ORT_OUTPUT_TYPE = 34, ORT_INPUT_NAME = 36, ORT_OUTPUT_NAME = 37,
  ORT_TENSOR_OF_DATA = 49, ORT_TENSOR_DATA = 51, ORT_TENSOR_INFO_OF = 55, ORT_ELEMENT_TYPE = 60, ORT_RANK = 61,
  ORT_SHAPE = 62, ORT_TYPE_AND_SHAPE = 65, ORT_CPU_MEMORY = 69, ORT_DEFAULT_ALLOCATOR = 78, ORT_RELEASE_ENV = 92,
  ORT_RELEASE_STATUS = 93, ORT_RELEASE_MEMORY = 94, ORT_RELEASE_SESSION = 95, ORT_RELEASE_VALUE = 96,
  ORT_RELEASE_TYPE = 98, ORT_RELEASE_SHAPE = 99, ORT_RELEASE_OPTIONS = 100, ORT_ADD_CONFIG = 130,
};
enum { ORT_API_VERSION = 16, ORT_WARNING = 2, ORT_DEVICE_ALLOCATOR = 0, ORT_MEMORY_DEFAULT = 0 };
enum { GRAPH_OFF = 0, GRAPH_BASIC = 1, GRAPH_ALL = 99 };

typedef struct {
  const void *const *(*api)(uint32_t version);
  const char *(*version)(void);
} ApiBase;

static const void *const *ort; /* the table */

/* Calls without prototypes: every argument is a pointer, an int or a size_t, which promotion leaves unchanged. */
#define ORT(at, ...) ((Status * (*)()) ort[at])(__VA_ARGS__)
#define ORT_VOID(at, ...) ((void (*)()) ort[at])(__VA_ARGS__)

/* By ONNX Runtime's number of an element type: Triton's number and the size in bytes; 0: not served here. */
static const struct { int triton, size; } TYPES[] = {
  [1] = {11, 4}, [2] = {2, 1}, [3] = {6, 1}, [4] = {3, 2}, [5] = {7, 2}, [6] = {8, 4}, [7] = {9, 8}, [9] = {1, 1},
  [10] = {10, 2}, [11] = {12, 8}, [12] = {4, 4}, [13] = {5, 8}, [16] = {14, 2},
};
enum { TYPES_KNOWN = sizeof TYPES / sizeof *TYPES, RANK_MOST = 32, ALIGNED = 64, ENOUGH = 16 };
