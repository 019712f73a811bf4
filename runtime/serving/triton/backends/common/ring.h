/* The memory that an instance in the server shares with its thread in the model's worker: a file without a name that
 * both map. The server writes a batch and counts `asked` up; the worker writes the answer and counts `answered` up. Who
 * waits sleeps on the counter. Neither side can make the file shorter. The server believes
 * nothing that it reads here. */

#pragma once
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tensor.h"

enum { SLOTS_MOST = 1024, TEXT_MOST = 1024, RUN = 0, CLOSE = 1, KEPT = 64 << 20 };

/* A tensor; its bytes are at `offset` in the file. */
typedef struct { int64_t shape[RANK_MOST]; uint64_t offset, size; uint32_t rank; int32_t type; } Slot;

/* The file's beginning: the inputs' slots, and after them the outputs'. */
typedef struct {
  uint32_t asked, answered, worker_sleeps, server_sleeps;
  uint32_t task, failed, code, stopped;
  char text[TEXT_MOST]; /* why it failed */
  Slot slots[SLOTS_MOST];
} Header;

typedef struct { int file; char *base; size_t size; } Ring;

enum { BEGINNING = (sizeof(Header) + 4095) / 4096 * 4096 };

static Header *header_of(const Ring *ring) { return (Header *) ring->base; }

static size_t aligned(size_t size) { return (size + ALIGNED - 1) / ALIGNED * ALIGNED; }

static bool map_ring(Ring *ring, size_t size) {
  void *base = ring->base ? mremap(ring->base, ring->size, size, MREMAP_MAYMOVE)
                          : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring->file, 0);
  if (base == MAP_FAILED) return false;
  ring->base = base, ring->size = size;
  return true;
}

static inline void close_ring(Ring *ring) {
  if (ring->base) munmap(ring->base, ring->size);
  if (ring->file >= 0) close(ring->file);
  *ring = (Ring) {-1, NULL, 0};
}

/* Maps the file as far as `end`; false if it is not so long. */
static bool reach(Ring *ring, uint64_t end) {
  struct stat file;
  if (end <= ring->size) return true;
  return !fstat(ring->file, &file) && end <= (uint64_t) file.st_size && map_ring(ring, (size_t) file.st_size);
}

/* Makes the file at least `end` bytes long. */
static inline bool extend(Ring *ring, uint64_t end) {
  if (reach(ring, end)) return true;
  return end < INT64_MAX / 2 && !ftruncate(ring->file, (off_t) (end + end / 2 + 4095) / 4096 * 4096) && reach(ring, end);
}

/* Gives back what a large batch took. */
static inline void trim(Ring *ring) {
  if (ring->size > KEPT)
    fallocate(ring->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, KEPT, (off_t) (ring->size - KEPT));
}

/* Sleeps until `word` is `turn` or something else wakes it, for `nap_ns` at most, or 0: for ever; says whether it is.
 * It does not spin first: on a busy machine that keeps the other side, which often waits for this core, from running. */
static bool await(uint32_t *word, uint32_t turn, uint32_t *sleeps, uint64_t nap_ns) {
  struct timespec nap = {(time_t) (nap_ns / 1000000000u), (long) (nap_ns % 1000000000u)};
  __atomic_store_n(sleeps, 1, __ATOMIC_SEQ_CST);
  uint32_t seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
  if (seen != turn) syscall(SYS_futex, word, FUTEX_WAIT, seen, nap_ns ? &nap : NULL, NULL, 0);
  __atomic_store_n(sleeps, 0, __ATOMIC_SEQ_CST);
  return __atomic_load_n(word, __ATOMIC_ACQUIRE) == turn;
}

static void signal_turn(uint32_t *word, uint32_t turn, uint32_t *sleeps) {
  __atomic_store_n(word, turn, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(sleeps, __ATOMIC_SEQ_CST)) syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
