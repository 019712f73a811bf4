/* Copies requests and their answers into a ring for each captured model, from where a process of its own writes them to
 * files. Another reader, such as one that asks a challenger the same, has a ring of its own. It is preloaded into the server, and stands between its front ends (gRPC and HTTP) and its core: so it sees what
 * clients send and get, whatever the model's backend, and nothing that the server does by itself.
 *
 * A model is captured if `FOLDER/NAME.ring` or `FOLDER/NAME@READER.ring` exists and has a share; `ring.h` says what it
 * contains. Without any ring, a request costs one comparison. A request never waits: what finds no room is counted and
 * dropped. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"

#define FOLDER "/tmp/shiplift-capture"
#define OWN_REQUESTS "shiplift-check" /* the id of golden requests, which are no client's */

enum { RINGS_MOST = 1024, READERS_MOST = 4, INPUTS_MOST = 1024, LOOK_MS = 200, MEMORY_GPU = 2, FINAL = 1 };

typedef struct Error Error;
typedef void Request;
typedef void Response;
typedef void (*OnResponse)(Response *, uint32_t flags, void *userp);

/* --- the rings ------------------------------------------------------------------------------------------------------- */

static struct { char name[256]; size_t model; Ring *ring; uint64_t size; } rings[RINGS_MOST]; /* `model`: its length */
static uint32_t ring_count; /* they are only added, while the server lives */

static bool has_ring(const char *name) {
  uint32_t count = __atomic_load_n(&ring_count, __ATOMIC_ACQUIRE);
  for (uint32_t at = 0; at < count; at++)
    if (!strcmp(rings[at].name, name)) return true;
  return false;
}

static bool is_of(uint32_t ring, const char *model) {
  return !strncmp(rings[ring].name, model, rings[ring].model) && !model[rings[ring].model];
}

/* Maps a ring; a file that is none, or that is linked, is left alone. */
static void add_ring(int folder, const char *file, const char *name) {
  struct stat entry;
  if (ring_count == RINGS_MOST) return;
  int opened = openat(folder, file, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) return;
  bool whole = !fstat(opened, &entry) && S_ISREG(entry.st_mode) && entry.st_size > RING_HEADER;
  Ring *ring = whole ? mmap(NULL, (size_t) entry.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0) : MAP_FAILED;
  close(opened);
  if (ring == MAP_FAILED) return;
  uint64_t capacity = (uint64_t) entry.st_size - RING_HEADER;
  if (ring->magic != RING_MAGIC || ring->capacity != capacity || capacity % 8) {
    munmap(ring, (size_t) entry.st_size);
    return;
  }
  snprintf(rings[ring_count].name, sizeof rings[ring_count].name, "%s", name);
  rings[ring_count].model = strcspn(rings[ring_count].name, "@");
  rings[ring_count].ring = ring, rings[ring_count].size = capacity;
  __atomic_store_n(&ring_count, ring_count + 1, __ATOMIC_RELEASE);
}

static void look(void) {
  DIR *folder = opendir(FOLDER);
  if (!folder) return;
  for (struct dirent *each; (each = readdir(folder));) {
    char name[256];
    size_t length = strlen(each->d_name);
    if (length < 6 || strcmp(each->d_name + length - 5, ".ring")) continue;
    snprintf(name, sizeof name, "%.*s", (int) length - 5, each->d_name);
    if (!has_ring(name)) add_ring(dirfd(folder), each->d_name, name);
  }
  closedir(folder);
}

static void *keep_looking(void *unused) {
  struct timespec pause = {0, LOOK_MS * 1000000};
  (void) unused;
  while (true) {
    look();
    nanosleep(&pause, NULL);
  }
  return NULL;
}

/* --- what is captured of a request ----------------------------------------------------------------------------------- */

typedef struct { char *name; int type; uint32_t rank; int64_t *shape; const void *from; uint64_t size; } Part;

/* Some of an input's bytes: HTTP's come in several pieces. */
typedef struct { uint32_t input; const void *from; size_t size; } Piece;

/* A request that is captured. Its inputs' bytes are the front end's until the core has it, so they are copied then.
 * `whole`: all of it was understood so far. `began` is when the core got it, in microseconds of CLOCK_MONOTONIC. */
typedef struct {
  Request *request;
  Ring *into[READERS_MOST];
  uint32_t readers;
  uint64_t began;
  Part *inputs;
  Piece *pieces;
  uint32_t count, piece_count;
  bool whole, own;
  char *kept; /* the inputs, as a record has them */
  uint64_t kept_size;
  OnResponse on_response;
  void *userp;
} Captured;

static _Thread_local Captured *current; /* front ends make and hand over a request on one thread */
static _Thread_local uint64_t lot;

static void forget(Captured *captured) {
  for (uint32_t at = 0; at < captured->count; at++) free(captured->inputs[at].name), free(captured->inputs[at].shape);
  free(captured->inputs), free(captured->pieces);
  free(captured->kept);
  free(captured);
}

static void drop_current(void) {
  if (current) forget(current);
  current = NULL;
}

/* Whether this request is one of the share; xorshift64*, with a seed for each thread. */
static bool drawn(uint32_t share) {
  if (!lot && (getrandom(&lot, sizeof lot, 0) != sizeof lot || !lot)) lot = 88172645463325252ull;
  lot ^= lot >> 12, lot ^= lot << 25, lot ^= lot >> 27;
  return share == UINT32_MAX || (uint32_t) ((lot * 2685821657736338717ull) >> 32) < share;
}

static uint64_t microseconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t) now.tv_sec * 1000000u + (uint64_t) now.tv_nsec / 1000u;
}

/* Whether a ring's reader gets this request. */
static bool wanted(Ring *ring) {
  uint32_t share = __atomic_load_n(&ring->share, __ATOMIC_RELAXED);
  if (!share || !drawn(share)) return false;
  uint64_t until = __atomic_load_n(&ring->until, __ATOMIC_RELAXED);
  return !until || microseconds(CLOCK_MONOTONIC) < until;
}

static void begin(Request *request, const char *model) {
  drop_current();
  uint32_t count = __atomic_load_n(&ring_count, __ATOMIC_ACQUIRE);
  for (uint32_t at = 0; at < count; at++) {
    if (!is_of(at, model) || !wanted(rings[at].ring)) continue;
    if (!current && !(current = calloc(1, sizeof *current))) return;
    current->request = request, current->whole = true;
    if (current->readers < READERS_MOST) current->into[current->readers++] = rings[at].ring;
  }
}

static void add_input(Request *request, const char *name, int type, const int64_t *shape, uint64_t rank) {
  if (!current || current->request != request) return;
  current->whole = current->whole && name && type && rank <= RANK_MOST && current->count < INPUTS_MOST;
  if (!current->whole) return;
  Part *parts = realloc(current->inputs, (current->count + 1) * sizeof *parts);
  if (parts) current->inputs = parts;
  int64_t *dims = parts ? malloc((rank + 1) * sizeof *dims) : NULL;
  char *copy = dims ? strdup(name) : NULL;
  if (!copy) {
    free(dims);
    current->whole = false;
    return;
  }
  memcpy(dims, shape, rank * sizeof *dims);
  parts[current->count++] = (Part) {.name = copy, .type = type, .rank = (uint32_t) rank, .shape = dims};
}

static void add_bytes(Request *request, const char *name, const void *base, size_t size, int memory) {
  if (!current || current->request != request || !current->whole) return;
  uint32_t at = 0;
  while (at < current->count && strcmp(current->inputs[at].name, name)) at++;
  Piece *pieces = at < current->count && memory != MEMORY_GPU
      ? realloc(current->pieces, (current->piece_count + 1) * sizeof *pieces) : NULL;
  if (!pieces) {
    current->whole = false;
    return;
  }
  current->pieces = pieces, current->inputs[at].size += size;
  pieces[current->piece_count++] = (Piece) {at, base, size};
}

/* --- records --------------------------------------------------------------------------------------------------------- */

static uint64_t entry_size(const char *name, uint64_t rank, uint64_t size) {
  return sizeof(Entry) + rank * sizeof(int64_t) + padded(strlen(name)) + padded(size);
}

/* Writes an entry but for its bytes; returns where these belong. */
static char *put_entry(char *to, bool answer, const Part *part) {
  size_t length = strlen(part->name);
  Entry entry = {.answer = answer, .type = (uint8_t) part->type, .name = (uint16_t) length, .rank = part->rank, .size = part->size};
  memcpy(to, &entry, sizeof entry), to += sizeof entry;
  memcpy(to, part->shape, part->rank * sizeof(int64_t)), to += part->rank * sizeof(int64_t);
  memcpy(to, part->name, length);
  return to + padded(length);
}

static char *put_input(char *to, const Captured *captured, uint32_t input) {
  char *at = put_entry(to, false, &captured->inputs[input]);
  to = at + padded(captured->inputs[input].size);
  for (uint32_t each = 0; each < captured->piece_count; each++) {
    const Piece *piece = &captured->pieces[each];
    if (piece->input == input && piece->size) memcpy(at, piece->from, piece->size), at += piece->size;
  }
  return to;
}

static bool fits(const Ring *ring, uint64_t size) { return size <= ring->capacity / LARGEST_SHARE; }

/* Copies the inputs while the front end still has them. Without them the request is not captured after all. */
static void keep_inputs(Captured *captured) {
  uint32_t kept = 0;
  for (uint32_t at = 0; at < captured->count; at++)
    captured->kept_size += entry_size(captured->inputs[at].name, captured->inputs[at].rank, captured->inputs[at].size);
  if (captured->own) captured->whole = false;
  else for (uint32_t at = 0; at < captured->readers; at++) {
    Ring *ring = captured->into[at];
    if (captured->whole && fits(ring, captured->kept_size)) captured->into[kept++] = ring;
    else __atomic_fetch_add(&ring->too_large, 1, __ATOMIC_RELAXED);
  }
  captured->readers = kept;
  captured->whole = captured->whole && kept && (captured->kept = calloc(1, captured->kept_size + 8));
  char *to = captured->kept;
  for (uint32_t at = 0; captured->whole && at < captured->count; at++) to = put_input(to, captured, at);
}

/* Takes `size` bytes of the ring, in one piece; NULL if there is no room. The mutex is the server's alone. */
static Record *reserve(Ring *ring, uint64_t size) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  Record *record = NULL;
  pthread_mutex_lock(&lock);
  uint64_t head = ring->head, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE), at = head % ring->capacity;
  uint64_t left = ring->capacity - at, skipped = size > left ? left : 0;
  if (head - tail + skipped + size <= ring->capacity) {
    char *records = (char *) ring + RING_HEADER;
    if (skipped) {
      uint32_t *rest = (uint32_t *) (records + at); /* which may be shorter than a record */
      rest[0] = SKIPPED, rest[1] = (uint32_t) skipped;
      at = 0;
    }
    record = (Record *) (records + at);
    *record = (Record) {.state = FILLING, .size = (uint32_t) size};
    __atomic_store_n(&ring->head, head + skipped + size, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return record;
}

Error *TRITONSERVER_InferenceResponseError(Response *);
Error *TRITONSERVER_InferenceResponseModel(Response *, const char **name, int64_t *version);
Error *TRITONSERVER_InferenceResponseOutputCount(Response *, uint32_t *count);
Error *TRITONSERVER_InferenceResponseOutput(
    Response *, uint32_t at, const char **name, int *type, const int64_t **shape, uint64_t *rank, const void **base,
    size_t *size, int *memory, int64_t *memory_id, void **userp);
Error *TRITONSERVER_BufferAttributesByteSize(void *attributes, size_t *size);
Error *TRITONSERVER_BufferAttributesMemoryType(void *attributes, int *memory);
void TRITONSERVER_ErrorDelete(Error *);
#pragma weak TRITONSERVER_BufferAttributesByteSize
#pragma weak TRITONSERVER_BufferAttributesMemoryType
#pragma weak TRITONSERVER_InferenceResponseError
#pragma weak TRITONSERVER_InferenceResponseModel
#pragma weak TRITONSERVER_InferenceResponseOutputCount
#pragma weak TRITONSERVER_InferenceResponseOutput
#pragma weak TRITONSERVER_ErrorDelete

static bool good(Error *error) {
  if (error) TRITONSERVER_ErrorDelete(error);
  return !error;
}

static bool read_output(Response *response, uint32_t at, Part *part) {
  const char *name;
  const int64_t *shape;
  uint64_t rank;
  size_t size;
  int memory;
  int64_t id;
  void *userp;
  if (!good(TRITONSERVER_InferenceResponseOutput(
          response, at, &name, &part->type, &shape, &rank, &part->from, &size, &memory, &id, &userp)))
    return false;
  part->name = (char *) name, part->shape = (int64_t *) shape, part->rank = (uint32_t) rank, part->size = size;
  return memory != MEMORY_GPU && rank <= RANK_MOST && strlen(name) < UINT16_MAX;
}

/* Writes the record of a request and one of its answers into a ring. */
static void put(Ring *ring, const Captured *captured, Record head, const Part *outputs, uint32_t count, uint64_t size) {
  Record *to = fits(ring, size) ? reserve(ring, size) : NULL;
  if (!to) {
    __atomic_fetch_add(fits(ring, size) ? &ring->dropped : &ring->too_large, 1, __ATOMIC_RELAXED);
    return;
  }
  head.state = FILLING, head.size = to->size, *to = head;
  char *bytes = (char *) (to + 1);
  memcpy(bytes, captured->kept, captured->kept_size), bytes += captured->kept_size;
  for (uint32_t at = 0; at < count; at++) {
    bytes = put_entry(bytes, true, &outputs[at]);
    if (outputs[at].size) memcpy(bytes, outputs[at].from, outputs[at].size);
    bytes += padded(outputs[at].size);
  }
  __atomic_fetch_add(&ring->captured, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&to->state, READY, __ATOMIC_RELEASE);
}

/* Gives a request and one of its answers to every reader. */
static void record(const Captured *captured, Response *response) {
  uint64_t took = microseconds(CLOCK_MONOTONIC) - captured->began;
  Part outputs[OUTPUTS_MOST];
  const char *model;
  int64_t version = 0;
  uint32_t count = 0;
  bool failed = !good(TRITONSERVER_InferenceResponseError(response)); /* a copy, whatever its documentation says */
  if (!good(TRITONSERVER_InferenceResponseModel(response, &model, &version))) version = 0;
  if (!failed && !good(TRITONSERVER_InferenceResponseOutputCount(response, &count))) count = 0;
  uint64_t size = count <= OUTPUTS_MOST ? sizeof(Record) + captured->kept_size : UINT64_MAX;
  for (uint32_t at = 0; at < count && size != UINT64_MAX; at++)
    if (read_output(response, at, &outputs[at])) size += entry_size(outputs[at].name, outputs[at].rank, outputs[at].size);
    else size = UINT64_MAX; /* no ring takes that */
  Record head = {.at = microseconds(CLOCK_REALTIME), .version = version, .failed = failed, .entries = captured->count + count, .took = took};
  for (uint32_t at = 0; at < captured->readers; at++) put(captured->into[at], captured, head, outputs, count, size);
}

/* Stands between the core and the front end's own function, which owns the answer from then on. */
static void respond(Response *response, uint32_t flags, void *userp) {
  Captured *captured = userp;
  OnResponse on_response = captured->on_response;
  void *own = captured->userp;
  if (response && captured->whole) record(captured, response);
  if (flags & FINAL) forget(captured);
  on_response(response, flags, own);
}

/* --- what the front ends call ---------------------------------------------------------------------------------------- */

#define CORE(name) ({ \
    static typeof(&name) found; \
    typeof(&name) core = __atomic_load_n(&found, __ATOMIC_ACQUIRE); \
    if (!core) __atomic_store_n(&found, core = (typeof(&name)) dlsym(RTLD_NEXT, #name), __ATOMIC_RELEASE); \
    core; })

Error *TRITONSERVER_InferenceRequestNew(Request **request, void *server, const char *model, int64_t version) {
  Error *error = CORE(TRITONSERVER_InferenceRequestNew)(request, server, model, version);
  if (!error) begin(*request, model);
  return error;
}

Error *TRITONSERVER_InferenceRequestSetId(Request *request, const char *id) {
  if (current && current->request == request && id && !strcmp(id, OWN_REQUESTS)) current->own = true;
  return CORE(TRITONSERVER_InferenceRequestSetId)(request, id);
}

Error *TRITONSERVER_InferenceRequestAddInput(
    Request *request, const char *name, int type, const int64_t *shape, uint64_t rank) {
  Error *error = CORE(TRITONSERVER_InferenceRequestAddInput)(request, name, type, shape, rank);
  if (!error) add_input(request, name, type, shape, rank);
  return error;
}

Error *TRITONSERVER_InferenceRequestAddRawInput(Request *request, const char *name) {
  if (current && current->request == request) current->whole = false; /* its shape is the model's, and not known here */
  return CORE(TRITONSERVER_InferenceRequestAddRawInput)(request, name);
}

Error *TRITONSERVER_InferenceRequestAppendInputData(
    Request *request, const char *name, const void *base, size_t size, int memory, int64_t id) {
  Error *error = CORE(TRITONSERVER_InferenceRequestAppendInputData)(request, name, base, size, memory, id);
  if (!error) add_bytes(request, name, base, size, memory);
  return error;
}

Error *TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    Request *request, const char *name, const void *base, void *attributes) {
  size_t size;
  int memory;
  Error *error = CORE(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes)(request, name, base, attributes);
  if (error || !current || current->request != request) return error;
  if (good(TRITONSERVER_BufferAttributesByteSize(attributes, &size)) &&
      good(TRITONSERVER_BufferAttributesMemoryType(attributes, &memory)))
    add_bytes(request, name, base, size, memory);
  else current->whole = false;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetResponseCallback(
    Request *request, void *allocator, void *allocated, OnResponse on_response, void *userp) {
  Captured *captured = current && current->request == request ? current : NULL;
  if (captured) captured->on_response = on_response, captured->userp = userp, on_response = respond, userp = captured;
  return CORE(TRITONSERVER_InferenceRequestSetResponseCallback)(request, allocator, allocated, on_response, userp);
}

/* From here on the answer may come, on another thread, and `captured` is that one's. */
Error *TRITONSERVER_ServerInferAsync(void *server, Request *request, void *trace) {
  Captured *captured = current && current->request == request ? current : NULL;
  if (captured && !captured->on_response) drop_current(), captured = NULL;
  if (captured) current = NULL, keep_inputs(captured), captured->began = microseconds(CLOCK_MONOTONIC);
  Error *error = CORE(TRITONSERVER_ServerInferAsync)(server, request, trace);
  if (error && captured) forget(captured); /* no answer comes */
  return error;
}

Error *TRITONSERVER_InferenceRequestDelete(Request *request) {
  if (current && current->request == request) drop_current();
  return CORE(TRITONSERVER_InferenceRequestDelete)(request);
}

/* --- the beginning --------------------------------------------------------------------------------------------------- */

/* Only in the server: what it starts, and what starts it, is left alone. */
__attribute__((constructor)) static void start(void) {
  pthread_t thread;
  if (strcmp(program_invocation_short_name, "tritonserver")) return;
  unsetenv("LD_PRELOAD");
  mkdir(FOLDER, 0700);
  if (!pthread_create(&thread, NULL, keep_looking, NULL)) pthread_detach(thread);
}
