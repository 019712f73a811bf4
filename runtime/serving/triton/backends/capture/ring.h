/* A ring: a file that the server and the process that reads it both have. The server writes records at `head`, and the
 * reader moves `tail` once it has kept them. Offsets only grow; their place in the file is the remainder by `capacity`.
 * `runtime/capture/ring.py` reads it, makes it, and sets the share. All numbers are little-endian. */

#pragma once
#include <stdint.h>

#define RING_MAGIC 0x32676e6972707073ull

enum { RING_HEADER = 4096, RANK_MOST = 32, OUTPUTS_MOST = 256, LARGEST_SHARE = 4 };
enum { FILLING = 0, READY = 1, SKIPPED = 2 };

/* `share` of the requests is captured, in 2^32ths. `number` tells two rings of a model apart. The
 * counters are in requests: `captured` into the ring, `dropped` since there was no room, and `too_large` for it.
 * Nothing is captured after `until`, in microseconds of CLOCK_MONOTONIC; 0 means that it never ends. So a reader that has to move it on
 * leaves nothing behind when it is killed. */
typedef struct {
  uint64_t magic, capacity, head, tail, captured, dropped, too_large;
  uint32_t share, number;
  uint64_t until;
} Ring;

/* A request and an answer, `at` microseconds since the epoch, which `took` so many microseconds from when the server had
 * it until the first answer. After it, its entries: the inputs, then the outputs. */
typedef struct {
  uint32_t state, size;
  uint64_t at;
  int64_t version;
  uint32_t failed, entries;
  uint64_t took;
} Record;

/* A tensor. After it: its shape, its name and its bytes, both filled up to multiples of eight. */
typedef struct {
  uint8_t answer, type;
  uint16_t name;
  uint32_t rank;
  uint64_t size;
} Entry;

static uint64_t padded(uint64_t size) { return (size + 7) / 8 * 8; }
