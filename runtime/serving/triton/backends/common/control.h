/* What the server and a model's worker say to each other over a pair of sockets: while the model loads, and for each
 * instance. A message is its kind, the length of its body and the body; a ring's file travels with `ATTACH`. */

#pragma once
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tensor.h"

enum { CONTROL = 3, LOAD = 1, ATTACH = 2, READY = 3, FAILED = 4, BODY_MOST = 16 << 20 };

/* What the worker loads; the model's configuration follows it as JSON. `folder` is the backend's own, and
 * `accepted` names what of the confinement the site does without. */
typedef struct { char path[4096], name[256], folder[4096], accepted[64]; } Loading;

/* A tensor of the model; its name follows it. */
typedef struct { int32_t type; uint32_t length; } Described;

typedef struct { uint32_t kind, size; } Envelope;

static bool send_all(int socket, const void *bytes, size_t size) {
  const char *at = bytes;
  while (size) {
    ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, size -= (size_t) sent;
  }
  return true;
}

/* Receives bytes before `until`, in nanoseconds; 0: whenever they come. */
static bool receive_all(int socket, void *bytes, size_t size, uint64_t until) {
  char *at = bytes;
  while (size) {
    struct pollfd waits = {socket, POLLIN, 0};
    uint64_t now = nanoseconds();
    if (until && (now >= until || poll(&waits, 1, (int) ((until - now) / 1000000u) + 1) < 1)) {
      if (now >= until || errno != EINTR) return false;
      continue;
    }
    ssize_t got = read(socket, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got, size -= (size_t) got;
  }
  return true;
}

static bool send_message(int socket, uint32_t kind, const void *body, size_t size) {
  Envelope envelope = {kind, (uint32_t) size};
  return send_all(socket, &envelope, sizeof envelope) && send_all(socket, body, size);
}

/* Receives a message into memory of its own, which ends with a zero. */
static char *receive_message(int socket, Envelope *envelope, uint64_t until) {
  if (!receive_all(socket, envelope, sizeof *envelope, until) || envelope->size > BODY_MOST) return NULL;
  char *body = calloc(1, envelope->size + 1);
  if (body && !receive_all(socket, body, envelope->size, until)) free(body), body = NULL;
  return body;
}

/* One byte with a file, from the server to the worker. */
static inline bool send_file(int socket, int file) {
  char byte = 0, room[CMSG_SPACE(sizeof file)] = {0};
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *own = CMSG_FIRSTHDR(&message);
  own->cmsg_level = SOL_SOCKET, own->cmsg_type = SCM_RIGHTS, own->cmsg_len = CMSG_LEN(sizeof file);
  memcpy(CMSG_DATA(own), &file, sizeof file);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

static inline int receive_file(int socket) {
  int file = -1;
  char byte, room[CMSG_SPACE(sizeof file)];
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  struct cmsghdr *own = CMSG_FIRSTHDR(&message);
  if (own && own->cmsg_type == SCM_RIGHTS) memcpy(&file, CMSG_DATA(own), sizeof file);
  return file;
}
