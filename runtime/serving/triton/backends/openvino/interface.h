/* The part of OpenVINO's C interface that the backend uses (openvino/c/openvino.h), declared here so that the backend
 * compiles with libc's headers alone. OpenVINO renumbers element types between releases: these are `OV_RELEASE`'s. */

#pragma once
#include <dlfcn.h>

#include "../common/errors.h"

#define OV_RELEASE "2026."
enum { MESSAGE = 800 };

typedef struct { int64_t rank; int64_t *dims; } OvShape;
typedef struct { const char *build, *description; } OvVersion;

#define OV_FUNCTIONS(function) \
  function(const char *, ov_get_error_info, (int status)) \
  function(const char *, ov_get_last_err_msg, (void)) \
  function(void, ov_free, (const char *text)) \
  function(int, ov_get_openvino_version, (OvVersion *version)) \
  function(void, ov_version_free, (OvVersion *version)) \
  function(int, ov_core_create, (void **core)) \
  function(void, ov_core_free, (void *core)) \
  function(int, ov_core_get_property, (void *core, const char *device, const char *key, char **value)) \
  function( \
      int, ov_core_compile_model_from_file, \
      (void *core, const char *path, const char *device, size_t arguments, void **compiled, ...)) \
  function(int, ov_compiled_model_inputs_size, (void *compiled, size_t *size)) \
  function(int, ov_compiled_model_input_by_name, (void *compiled, const char *name, void **port)) \
  function(int, ov_compiled_model_output_by_name, (void *compiled, const char *name, void **port)) \
  function(int, ov_compiled_model_create_infer_request, (void *compiled, void **request)) \
  function(void, ov_compiled_model_free, (void *compiled)) \
  function(int, ov_port_get_element_type, (void *port, int *type)) \
  function(void, ov_output_const_port_free, (void *port)) \
  function(int, ov_infer_request_set_tensor_by_const_port, (void *request, void *port, void *tensor)) \
  function(int, ov_infer_request_get_tensor_by_const_port, (void *request, void *port, void **tensor)) \
  function(int, ov_infer_request_start_async, (void *request)) \
  function(int, ov_infer_request_wait, (void *request)) \
  function(int, ov_infer_request_cancel, (void *request)) \
  function(void, ov_infer_request_free, (void *request)) \
  function(int, ov_tensor_create_from_host_ptr, (int type, OvShape shape, void *bytes, void **tensor)) \
  function(int, ov_tensor_get_element_type, (void *tensor, int *type)) \
  function(int, ov_tensor_get_shape, (void *tensor, OvShape *shape)) \
  function(int, ov_tensor_data, (void *tensor, void **bytes)) \
  function(void, ov_tensor_free, (void *tensor)) \
  function(int, ov_shape_free, (OvShape *shape))

#define MEMBER(type, name, parameters) type(*name) parameters;
static struct { OV_FUNCTIONS(MEMBER) } ov;

/* By Triton's number of a data type, OpenVINO's number of the element type; 0 if this backend does not serve it. */
static const uint8_t OV_TYPES[TYPES_KNOWN] = {
  [1] = 1, [2] = 16, [3] = 17, [4] = 18, [5] = 19, [6] = 7, [7] = 8, [8] = 9, [9] = 10, [10] = 3, [11] = 4, [12] = 5,
  [14] = 2,
};

static int triton_type(int type) {
  for (int each = 1; each < TYPES_KNOWN; each++)
    if (type && OV_TYPES[each] == type) return each;
  return 0;
}

/* Writes why the last call failed, in one line. */
static void describe_failure(int status, char *into, size_t size) {
  const char *text = ov.ov_get_last_err_msg();
  snprintf(into, size, "%s", text ? text : ov.ov_get_error_info(status));
  if (text) ov.ov_free(text);
  for (char *at = into; *at; at++)
    if (*at == '\n' || *at == '\r' || *at == '\t') *at = ' ';
}

static Error *from_ov(int status) {
  char text[MESSAGE];
  if (!status) return NULL;
  describe_failure(status, text, sizeof text);
  return error_with(ERROR_INTERNAL, "OpenVINO: %s", text);
}

#define TRY_OV(call) TRY(from_ov(call))

/* Loads OpenVINO's library. The link is followed first: the library looks for its plugins next to its own file. */
static Error *load_openvino(const char *folder) {
  char link[4096], path[4096];
  OvVersion version;
  snprintf(link, sizeof link, "%s/libopenvino_c.so", folder);
  void *library = dlopen(realpath(link, path) ? path : link, RTLD_NOW | RTLD_LOCAL);
  if (!library) return error_with(ERROR_INTERNAL, "OpenVINO can't be loaded: %.800s", dlerror());
#define LOAD(type, name, parameters) \
  if (!(ov.name = (type(*) parameters) dlsym(library, #name))) \
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "libopenvino_c.so is too old: it lacks " #name);
  OV_FUNCTIONS(LOAD)
  TRY_OV(ov.ov_get_openvino_version(&version));
  bool known = !strncmp(version.build, OV_RELEASE, strlen(OV_RELEASE));
  Error *error = known ? NULL : error_with(
      ERROR_UNSUPPORTED, "this backend is for OpenVINO " OV_RELEASE "x, its library is %s", version.build);
  ov.ov_version_free(&version);
  return error;
}
