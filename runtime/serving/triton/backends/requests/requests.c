/* Refuses requests that would end the server or fill its memory. It is preloaded into the server, and stands between
 * clients' bytes and the HTTP front end, and between both front ends (HTTP and gRPC) and the core. HTTP's own code asks
 * it about JSON, in the places that `building/patches.py` changes. It also gives the server the keys of its closed APIs.
 *
 * A good request costs one look at each byte of its JSON, two comparisons for each input, and a few additions for each
 * piece that is read. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef struct Error Error;
typedef void Request;

enum { MIB = 1 << 20, RANK_MOST = 64, PARTS_MOST = 4096, LEVELS_MOST = 128, FILES_MOST = 65536, CONNECTIONS_MOST = 8192, INVALID_ARGUMENT = 3, TIDY_S = 5, STALLED_S = 10 };
#define VALUES_MOST (1ll << 40) /* of a shape: their bytes can be counted */
#define JSON_MOST (32ll * MIB)  /* Triton's objects take up to sixteen times as much memory; binary data is not JSON */
#define BODY_MOST (512ll * MIB) /* of an HTTP request, as it is sent and as it is decompressed */
#define ALL_MOST (2048ll * MIB) /* of all HTTP requests that were not answered yet */
#define GROWTH_MOST (64ll * MIB) /* of the server's memory, before what is free is given back to the system */
#define MUCH (16ll * MIB)       /* of what a connection sent, while the server has too much memory */
#define SMALL (64ll << 10)      /* what a request may have even if there is no room */

Error *TRITONSERVER_ErrorNew(int code, const char *message);
#pragma weak TRITONSERVER_ErrorNew

static bool serving; /* this process is the server, not what starts it or is started by it */

#define NEXT(name) ({ \
    static typeof(&name) found; \
    typeof(&name) next = __atomic_load_n(&found, __ATOMIC_ACQUIRE); \
    if (!next) __atomic_store_n(&found, next = (typeof(&name)) dlsym(RTLD_NEXT, #name), __ATOMIC_RELEASE); \
    next; })

__attribute__((format(printf, 1, 2))) static Error *refused(const char *format, ...) {
  char message[512];
  va_list words;
  va_start(words, format);
  vsnprintf(message, sizeof message, format, words);
  va_end(words);
  return TRITONSERVER_ErrorNew(INVALID_ARGUMENT, message);
}

/* --- what a request consists of ------------------------------------------------------------------------------------- */

static _Thread_local int64_t values, json_values; /* of the last shape, and of the last JSON */
static _Thread_local int parts;                   /* of the request that this thread makes */

/* How many values a shape has; -1 if they can't be counted. An axis of 0 hides no other's size. */
static int64_t count(const int64_t *shape, uint64_t rank) {
  int64_t product = 1;
  bool none = false;
  for (uint64_t axis = 0; axis < rank; axis++) {
    none = none || !shape[axis];
    if (shape[axis] < 0 || __builtin_mul_overflow(product, shape[axis] ? shape[axis] : 1, &product)) return -1;
    if (product > VALUES_MOST) return -1;
  }
  return none ? 0 : product;
}

Error *TRITONSERVER_InferenceRequestNew(Request **request, void *server, const char *model, int64_t version) {
  parts = 0;
  return NEXT(TRITONSERVER_InferenceRequestNew)(request, server, model, version);
}

/* Each part of a request is looked for among the others. */
static Error *one_more(void) {
  if (!serving || ++parts <= PARTS_MOST) return NULL;
  return refused("the request has over %d inputs, outputs and parameters", PARTS_MOST);
}

Error *TRITONSERVER_InferenceRequestAddInput(
    Request *request, const char *name, int type, const int64_t *shape, uint64_t rank) {
  Error *error = one_more();
  if (error) return error;
  if (serving && rank > RANK_MOST)
    return refused("the input '%.100s' has %" PRIu64 " dimensions, at most %d are read", name, rank, RANK_MOST);
  if (serving && (values = count(shape, rank)) < 0)
    return refused("the shape of the input '%.100s' is negative or too large", name);
  return NEXT(TRITONSERVER_InferenceRequestAddInput)(request, name, type, shape, rank);
}

Error *TRITONSERVER_InferenceRequestAddRequestedOutput(Request *request, const char *name) {
  Error *error = one_more();
  return error ? error : NEXT(TRITONSERVER_InferenceRequestAddRequestedOutput)(request, name);
}

#define PARAMETER(name, type) \
  Error *name(Request *request, const char *key, type value) { \
    Error *error = one_more(); \
    return error ? error : NEXT(name)(request, key, value); \
  }
PARAMETER(TRITONSERVER_InferenceRequestSetStringParameter, const char *)
PARAMETER(TRITONSERVER_InferenceRequestSetIntParameter, int64_t)
PARAMETER(TRITONSERVER_InferenceRequestSetBoolParameter, bool)
PARAMETER(TRITONSERVER_InferenceRequestSetDoubleParameter, double)

/* Only a client that loads a model from files of its own needs this parameter: it would run its code in the server. */
void *TRITONSERVER_ParameterBytesNew(const char *name, const void *bytes, uint64_t size) {
  return serving ? NULL : NEXT(TRITONSERVER_ParameterBytesNew)(name, bytes, size);
}

/* --- JSON, of which the executable asks ------------------------------------------------------------------------------ */

/* Asked with a text before it is parsed. Where it is not JSON, the count may be wrong, but then the parser stops there. */
static Error *about_json(void *unused, const char *text, size_t size) {
  static const int8_t steps[256] = {['['] = 1, ['{'] = 1, [']'] = -1, ['}'] = -1};
  int64_t depth = 0, deepest = 0, commas = 0;
  const char *end = text + size;
  (void) unused;
  if (size > JSON_MOST)
    return refused("the request's JSON has %zu MiB, at most %lld are read: send its tensors in binary form", size / MIB, JSON_MOST / MIB);
  for (const char *at = text; at < end; at++) {
    if (*at == '"') {
      do at++;
      while (at < end && *at != '"' && (*at != '\\' || ++at < end));
      continue;
    }
    depth += steps[(uint8_t) *at], commas += *at == ','; /* without branches: numbers and commas alternate */
    deepest = depth > deepest ? depth : deepest;
  }
  json_values = commas + 1;
  if (deepest > LEVELS_MOST)
    return refused("the request's JSON is nested %" PRId64 " levels deep, at most %d are read", deepest, LEVELS_MOST);
  return NULL;
}

/* Asked before the memory of an input's values is reserved; the last shape is this input's. */
static Error *about_data(void *unused, const char *unused_too, size_t unused_as_well) {
  (void) unused, (void) unused_too, (void) unused_as_well;
  if (values <= json_values) return NULL;
  return refused("the shape has %" PRId64 " values, and the request has fewer", values);
}

/* --- the sizes of bodies --------------------------------------------------------------------------------------------- */

typedef struct { /* zlib's z_stream: its wheel has no header */
  const void *next_in;
  unsigned available_in;
  unsigned long total_in;
  void *next_out;
  unsigned available_out;
  unsigned long total_out;
} Stream;

int inflate(Stream *stream, int flush);

int inflate(Stream *stream, int flush) {
  enum { STREAM_ERROR = -2 }; /* the one error after which Triton stops */
  if (serving && stream && stream->total_out > BODY_MOST) return STREAM_ERROR;
  return NEXT(inflate)(stream, flush);
}

/* --- connections ----------------------------------------------------------------------------------------------------- */

/* What a connection sent, and of that since its last answer (HTTP only: over gRPC, answers tell nothing), in bytes; and
 * when something came last, in seconds; 0: it is not a connection. */
static struct { int64_t sent, unanswered, last; } connections[FILES_MOST];
static int64_t all_unanswered, connection_count;
static int64_t memory_most = INT64_MAX; /* of the server, in bytes */

static bool known(int file) { return serving && file >= 0 && file < FILES_MOST; }

static int64_t seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec + 1;
}

static void answered(int connection) {
  int64_t had = __atomic_exchange_n(&connections[connection].unanswered, 0, __ATOMIC_RELAXED);
  if (had) __atomic_fetch_sub(&all_unanswered, had, __ATOMIC_RELAXED);
}

/* With too many connections, the one that nothing came from for longest ends. */
static void begin(int connection) {
  int oldest = -1;
  int64_t since = INT64_MAX, now = seconds();
  connections[connection].sent = 0;
  __atomic_store_n(&connections[connection].last, now, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&connection_count, 1, __ATOMIC_RELAXED) <= CONNECTIONS_MOST) return;
  for (int at = 0; at < FILES_MOST; at++) {
    int64_t last = __atomic_load_n(&connections[at].last, __ATOMIC_RELAXED);
    if (last && at != connection && last < since) oldest = at, since = last;
  }
  /* Until its thread has closed it, it is the youngest: then the next one that comes ends another. */
  if (oldest >= 0 && __atomic_compare_exchange_n(
                         &connections[oldest].last, &since, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    shutdown(oldest, SHUT_RDWR);
}

static void end(int connection) {
  if (!__atomic_load_n(&connections[connection].last, __ATOMIC_RELAXED)) return;
  answered(connection);
  if (__atomic_exchange_n(&connections[connection].last, 0, __ATOMIC_RELAXED))
    __atomic_fetch_sub(&connection_count, 1, __ATOMIC_RELAXED);
}

/* The server's resident memory, in bytes; 0 if it can't be read. */
static int64_t resident(void) {
  char text[128] = "";
  int64_t pages = 0;
  int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  if (read(file, text, sizeof text - 1) > 0) sscanf(text, "%*s %" SCNd64, &pages);
  close(file);
  return pages * sysconf(_SC_PAGESIZE);
}

/* Ends connections that sent much and then nothing: what they began may be what fills the memory. */
static void end_stalled(void) {
  int64_t before = seconds() - STALLED_S;
  for (int at = 0; at < FILES_MOST; at++) {
    int64_t last = __atomic_load_n(&connections[at].last, __ATOMIC_RELAXED);
    if (last && last < before && connections[at].sent > MUCH) shutdown(at, SHUT_RDWR);
  }
}

/* Takes note of bytes that a connection sent. While the server has too much memory, one that sent much before is not
 * listened to: this is false. The memory is looked at after each MUCH bytes of all connections. */
static bool heard(int connection, int64_t bytes) {
  static int64_t all;
  static bool crowded;
  if (!__atomic_load_n(&connections[connection].last, __ATOMIC_RELAXED)) return true;
  __atomic_store_n(&connections[connection].last, seconds(), __ATOMIC_RELAXED);
  int64_t sent = __atomic_add_fetch(&connections[connection].sent, bytes, __ATOMIC_RELAXED);
  int64_t before = __atomic_fetch_add(&all, bytes, __ATOMIC_RELAXED);
  bool crowd = __atomic_load_n(&crowded, __ATOMIC_RELAXED);
  if (before / MUCH != (before + bytes) / MUCH || (crowd && sent > MUCH)) {
    crowd = resident() > memory_most;
    __atomic_store_n(&crowded, crowd, __ATOMIC_RELAXED);
    if (crowd) end_stalled();
  }
  return !crowd || sent <= MUCH;
}

/* Whether there is room for so many more bytes. If not, the client is told, and the connection counts as broken. */
static bool fits(int connection, ssize_t more) {
  static const char answer[] = "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: 41\r\n\r\n{\"error\":\"the request's body is too big\"}";
  int64_t own = __atomic_add_fetch(&connections[connection].unanswered, more, __ATOMIC_RELAXED);
  int64_t all = __atomic_add_fetch(&all_unanswered, more, __ATOMIC_RELAXED);
  if (own <= SMALL || (own <= BODY_MOST && all <= ALL_MOST && all <= memory_most)) return true;
  send(connection, answer, sizeof answer - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  answered(connection);
  return false;
}

int accept4(int listener, struct sockaddr *restrict address, socklen_t *restrict length, int flags) {
  int connection = NEXT(accept4)(listener, address, length, flags);
  if (known(connection)) begin(connection);
  return connection;
}

int close(int file) {
  if (known(file)) end(file);
  return NEXT(close)(file);
}

/* HTTP */
ssize_t readv(int from, const struct iovec *pieces, int piece_count) {
  ssize_t got = NEXT(readv)(from, pieces, piece_count);
  if (got <= 0 || !known(from) || !connections[from].last) return got;
  if (heard(from, got) && fits(from, got)) return got;
  errno = ECONNRESET;
  return -1;
}

ssize_t writev(int to, const struct iovec *pieces, int piece_count) {
  if (known(to)) answered(to);
  return NEXT(writev)(to, pieces, piece_count);
}

/* gRPC */
ssize_t recvmsg(int from, struct msghdr *message, int flags) {
  ssize_t got = NEXT(recvmsg)(from, message, flags);
  if (got <= 0 || !known(from) || heard(from, got)) return got;
  errno = ECONNRESET;
  return -1;
}

/* --- the beginning --------------------------------------------------------------------------------------------------- */

/* Puts our functions into the slots of the executable, which is the first of all loaded files. */
static int ask_us(struct dl_phdr_info *executable, size_t size, void *done) {
  (void) size;
  for (int at = 0; at < executable->dlpi_phnum; at++) {
    const ElfW(Phdr) *part = &executable->dlpi_phdr[at];
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_X) || QUESTIONS - part->p_vaddr > part->p_memsz + 4096) continue;
    if (memcmp((char *) executable->dlpi_addr + QUESTIONS, MARK, sizeof MARK - 1)) break;
    Error *(**slots)(void *, const char *, size_t) = (void *) (executable->dlpi_addr + SLOTS);
    slots[0] = about_json, slots[1] = about_data;
    *(bool *) done = true;
  }
  return 1;
}

/* Each thread's heap would keep what its largest requests took. Some of it is still used when the growth is seen. */
static void *tidy(void *unused) {
  struct timespec pause = {TIDY_S, 0};
  int times = 0;
  (void) unused;
  for (int64_t least = resident();; nanosleep(&pause, NULL)) {
    int64_t now = resident();
    if (now > least + GROWTH_MOST) times = 4;
    if (times) times--, malloc_trim(0), now = resident();
    if (times || now < least) least = now;
  }
  return NULL;
}

/* Every account can read a command line, so ours has words where Triton expects keys; it is given copies with keys in
 * place of them: the owner's, which the environment has, and a random one that nobody knows. */
static bool put_keys(char **words) {
  char *given = getenv("SHIPLIFT_REPOSITORY_KEY"), not_kept[33], owners[65];
  uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random) return false;
  snprintf(not_kept, sizeof not_kept, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
  snprintf(owners, sizeof owners, "%s", given && *given ? given : not_kept);
  if (given) explicit_bzero(given, strlen(given)); /* what the server starts, and who reads its memory, finds none */
  unsetenv("SHIPLIFT_REPOSITORY_KEY");
  for (; *words; words++) {
    if (strncmp(*words, "--http-restricted-api=", 22) && strncmp(*words, "--grpc-restricted-protocol=", 27)) continue;
    char *word = strrchr(*words, '=') + 1;
    const char *key = !strncmp(word, "owners-", 7) ? owners : !strncmp(word, "not-kept-", 9) ? not_kept : word;
    if (asprintf(words, "%.*s%s", (int) (word - *words), *words, key) < 0) return false;
  }
  explicit_bzero(owners, sizeof owners), explicit_bzero(not_kept, sizeof not_kept);
  return true;
}

/* Only in the server: what it starts, and what starts it, is left alone. */
__attribute__((constructor)) static void start(int word_count, char **words) {
  (void) word_count;
  if (strcmp(program_invocation_short_name, "tritonserver")) return;
  unsetenv("LD_PRELOAD");
  if (!put_keys(words)) {
    fprintf(stderr, "the server can't be given its keys\n");
    _exit(1);
  }
  const char *most = getenv("SHIPLIFT_SERVER_MEMORY_MB");
  if (most && atoll(most) > 0) memory_most = atoll(most) * MIB;
  dl_iterate_phdr(ask_us, &serving);
  pthread_t thread;
  if (serving && !pthread_create(&thread, NULL, tidy, NULL) && !pthread_detach(thread)) return;
  fprintf(stderr, "requests can't be checked: this Triton is not patched, or no thread can be started\n");
  _exit(1);
}
