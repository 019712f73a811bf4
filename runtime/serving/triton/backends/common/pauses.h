/* How a model is kept from its neighbours after it crashed: pauses before its worker starts again, and the requests that
 * it crashed on. Nothing here knows a process or a server. */

#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { FIRST_PAUSE_S = 1, LONGEST_PAUSE_S = 300, HEALTHY_S = 3600, SUSPECTS_MOST = 64, GUILTY = 2 };

/* The crashes in a row, in seconds of any clock: after `HEALTHY_S` without one, the next counts as the first. */
typedef struct { uint32_t count; double last; } Crashes;

/* Counts a crash; returns how many seconds the worker waits: 1, then twice as long each time, up to 5 min. */
static double count_crash(Crashes *crashes, double now) {
  if (crashes->count && now - crashes->last > HEALTHY_S) crashes->count = 0;
  uint32_t before = crashes->count++;
  crashes->last = now;
  double pause = FIRST_PAUSE_S * (double) (UINT64_C(1) << (before < 16 ? before : 16));
  return pause < LONGEST_PAUSE_S ? pause : LONGEST_PAUSE_S;
}

/* Requests during which a worker crashed, by digest, with the number of times and the last; the oldest gives way. */
typedef struct {
  struct { uint64_t digest, worker; uint32_t crashes; } all[SUSPECTS_MOST];
  size_t count;
} Suspects;

static uint32_t crashes_of(const Suspects *suspects, uint64_t digest) {
  for (size_t at = 0; at < suspects->count; at++)
    if (suspects->all[at].digest == digest) return suspects->all[at].crashes;
  return 0;
}

static void acquit(Suspects *suspects, uint64_t digest) {
  for (size_t at = 0; at < suspects->count; at++)
    if (suspects->all[at].digest == digest) {
      size_t after = suspects->count - at - 1;
      memmove(&suspects->all[at], &suspects->all[at + 1], after * sizeof *suspects->all);
      suspects->count--;
      return;
    }
}

/* Counts the crash of a worker, by its number, once: equal requests may have been in flight together. */
static void suspect(Suspects *suspects, uint64_t digest, uint64_t worker) {
  uint32_t before = crashes_of(suspects, digest);
  for (size_t at = 0; at < suspects->count; at++)
    if (suspects->all[at].digest == digest && suspects->all[at].worker == worker) return;
  acquit(suspects, digest);
  if (suspects->count == SUSPECTS_MOST) acquit(suspects, suspects->all[0].digest);
  suspects->all[suspects->count].digest = digest, suspects->all[suspects->count].worker = worker;
  suspects->all[suspects->count++].crashes = before + 1;
}

/* --- digests ----------------------------------------------------------------------------------------------------- */

/* SipHash-2-4 with a key of its own, so that nobody can make two requests that share a digest. */
typedef struct { uint64_t v[4], word, length; } Digest;

static uint64_t rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

static void sip_round(uint64_t *v) {
  v[0] += v[1], v[1] = rotated(v[1], 13) ^ v[0], v[0] = rotated(v[0], 32);
  v[2] += v[3], v[3] = rotated(v[3], 16) ^ v[2];
  v[0] += v[3], v[3] = rotated(v[3], 21) ^ v[0];
  v[2] += v[1], v[1] = rotated(v[1], 17) ^ v[2], v[2] = rotated(v[2], 32);
}

static Digest new_digest(const uint64_t key[2]) {
  return (Digest) {{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                    key[1] ^ 0x7465646279746573}, 0, 0};
}

static void absorb(Digest *digest, uint64_t word) {
  digest->v[3] ^= word;
  sip_round(digest->v), sip_round(digest->v);
  digest->v[0] ^= word;
}

static void add_bytes(Digest *digest, const void *bytes, size_t size) {
  const uint8_t *at = bytes;
  for (; size && digest->length % 8; size--, at++) {
    digest->word |= (uint64_t) *at << 8 * (digest->length++ % 8);
    if (digest->length % 8 == 0) absorb(digest, digest->word), digest->word = 0;
  }
  for (uint64_t word; size >= 8; size -= 8, at += 8, digest->length += 8) {
    memcpy(&word, at, 8);
    absorb(digest, word);
  }
  for (; size; size--, at++) digest->word |= (uint64_t) *at << 8 * (digest->length++ % 8);
}

static uint64_t digest_of(Digest digest) {
  absorb(&digest, digest.word | digest.length << 56);
  digest.v[2] ^= 0xff;
  for (int each = 0; each < 4; each++) sip_round(digest.v);
  return digest.v[0] ^ digest.v[1] ^ digest.v[2] ^ digest.v[3];
}
