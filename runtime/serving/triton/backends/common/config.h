/* Reads the few values that a backend needs from a model's configuration, which Triton passes as JSON. It is done by
 * hand because backends link nothing but libc. Triton wrote the JSON, so it is well formed. */

#pragma once
#include <stdlib.h>
#include <string.h>

#include "triton.h"

static const char *space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *past_text(const char *at) {
  for (at++; *at && *at != '"'; at++)
    if (*at == '\\' && at[1]) at++;
  return *at ? at + 1 : at;
}

static const char *past_value(const char *at) {
  at = space(at);
  if (*at == '"') return past_text(at);
  if (*at != '{' && *at != '[') return at + strcspn(at, ",]} \t\r\n");
  int depth = 0;
  do {
    if (*at == '"') { at = past_text(at); continue; }
    if (*at == '{' || *at == '[') depth++;
    if (*at == '}' || *at == ']') depth--;
    at++;
  } while (*at && depth);
  return at;
}

/* The value of a key of the object at `at`, or NULL. */
static const char *member(const char *at, const char *key) {
  if (!at || *(at = space(at)) != '{') return NULL;
  for (at = space(at + 1); *at == '"'; at = space(at)) {
    size_t length = strlen(key);
    bool matches = !strncmp(at + 1, key, length) && at[1 + length] == '"';
    at = space(past_text(at));
    at = space(*at == ':' ? at + 1 : at);
    if (matches) return at;
    at = space(past_value(at));
    if (*at == ',') at = space(at + 1);
  }
  return NULL;
}

/* The element of the array at `at` with this index, or NULL. */
static inline const char *element(const char *at, size_t index) {
  if (!at || *(at = space(at)) != '[') return NULL;
  for (at = space(at + 1); *at && *at != ']'; at = space(at)) {
    if (!index--) return at;
    at = space(past_value(at));
    if (*at == ',') at++;
  }
  return NULL;
}

/* Copies a string that has no escapes; false if the value is not such a string, or does not fit. */
static bool text_of(const char *at, char *into, size_t size) {
  if (!at || *at != '"') return false;
  size_t length = (size_t) (past_text(at) - at) - 2;
  if (length >= size || memchr(at, '\\', length + 1)) return false;
  memcpy(into, at + 1, length);
  into[length] = 0;
  return true;
}

static bool parameter(const char *config, const char *key, char *into, size_t size) {
  return text_of(member(member(member(config, "parameters"), key), "string_value"), into, size);
}

static int64_t number(const char *at, int64_t otherwise) {
  if (!at) return otherwise;
  return strtoll(*at == '"' ? at + 1 : at, NULL, 10); /* 64-bit numbers are strings in protobuf's JSON */
}
