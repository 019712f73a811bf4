/* What the backend uses of treelite's C interface (treelite/c_api.h, version 4), declared here so that it compiles with
 * no headers but libc's. */

#pragma once
#include <dlfcn.h>

#include "../common/errors.h"

/* A field of a model, where treelite holds it. */
typedef struct { void *bytes; char *format; size_t item_size, count; } Field;

#define TREELITE_FUNCTIONS(function) \
  function(const char *, TreeliteGetLastError, (void)) \
  function(int, TreeliteDeserializeModelFromFile, (const char *path, void **forest)) \
  function(int, TreeliteFreeModel, (void *forest)) \
  function(int, TreeliteGetInputType, (void *forest, const char **name)) \
  function(int, TreeliteQueryNumFeature, (void *forest, int *count)) \
  function(int, TreeliteGetHeaderField, (void *forest, const char *name, Field *field)) \
  function(int, TreeliteGTILParseConfig, (const char *json, void **config)) \
  function(int, TreeliteGTILDeleteConfig, (void *config)) \
  function( \
      int, TreeliteGTILGetOutputShape, \
      (void *forest, uint64_t rows, void *config, const uint64_t **shape, uint64_t *rank)) \
  function( \
      int, TreeliteGTILPredict, \
      (void *forest, const void *features, const char *type, uint64_t rows, void *scores, void *config)) \
  function(void, omp_set_num_threads, (int count)) /* of the OpenMP that treelite brings */

#define MEMBER(type, name, parameters) type(*name) parameters;
static struct { TREELITE_FUNCTIONS(MEMBER) } treelite;

/* The first line of why a call failed; the others are a stack of addresses. */
static Error *from_treelite(int status) {
  char text[800];
  if (!status) return NULL;
  snprintf(text, sizeof text, "%s", treelite.TreeliteGetLastError());
  text[strcspn(text, "\r\n")] = 0;
  return error_with(ERROR_INTERNAL, "treelite: %s", text);
}

#define TRY_TREELITE(call) TRY(from_treelite(call))

/* Loads treelite's library, which finds its own libraries beside the file that the link leads to. */
static Error *load_treelite(const char *folder) {
  char link[4096], path[4096];
  snprintf(link, sizeof link, "%s/libtreelite.so", folder);
  void *library = dlopen(realpath(link, path) ? path : link, RTLD_NOW | RTLD_LOCAL);
  if (!library) return error_with(ERROR_INTERNAL, "treelite can't be loaded: %.800s", dlerror());
#define LOAD(type, name, parameters) \
  if (!(treelite.name = (type(*) parameters) dlsym(library, #name))) \
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "libtreelite.so is too old: it lacks " #name);
  TREELITE_FUNCTIONS(LOAD)
  return NULL;
}
