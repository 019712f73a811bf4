/* The part of Triton's stable C interface that the backends use (tritonbackend.h, API 1), declared here so that they
 * compile with libc's headers alone: the bundled server's wheel brings none. The functions are the server's own, which
 * loads the backend into its process. */

#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Error Error;
typedef struct Request Request;
typedef struct Response Response;
typedef struct Input Input;
typedef struct Output Output;
typedef struct Message Message;

enum { API_MAJOR = 1, ERROR_INTERNAL = 1, ERROR_INVALID_ARG = 3, ERROR_UNSUPPORTED = 5, MEMORY_GPU = 2 };
enum { RELEASE_ALL = 1, RESPONSE_FINAL = 1, LOG_WARN = 1, LOG_ERROR = 2 };
enum { METRIC_COUNTER = 0, METRIC_GAUGE = 1, PARAMETER_STRING = 0 };

Error *TRITONSERVER_ErrorNew(int code, const char *message);
void TRITONSERVER_ErrorDelete(Error *);
const char *TRITONSERVER_ErrorMessage(Error *);
Error *TRITONSERVER_LogMessage(int level, const char *file, int line, const char *message);
Error *TRITONSERVER_MessageSerializeToJson(Message *, const char **base, size_t *size);
Error *TRITONSERVER_MessageDelete(Message *);
const void *TRITONSERVER_ParameterNew(const char *name, int type, const void *value);
void TRITONSERVER_ParameterDelete(const void *parameter);
Error *TRITONSERVER_MetricFamilyNew(void **family, int kind, const char *name, const char *description);
Error *TRITONSERVER_MetricFamilyDelete(void *family);
Error *TRITONSERVER_MetricNew(void **metric, void *family, const void **labels, uint64_t count);
Error *TRITONSERVER_MetricDelete(void *metric);
Error *TRITONSERVER_MetricIncrement(void *metric, double by);
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

/* By Triton's number of a data type, the size of an element in bytes; 0 if these backends do not serve it. */
static const uint8_t SIZES[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2};
enum { TYPE_BOOL = 1, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64 };
enum { TYPE_INT8 = 6, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP32 = 11, TYPE_FP64 };
enum { TYPES_KNOWN = sizeof SIZES, RANK_MOST = 32, ALIGNED = 64, ENOUGH = 16 };
