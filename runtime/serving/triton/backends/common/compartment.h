/* A model's worker process, from its start to its end, and again after a pause when it has crashed.
 *
 * A thread per model keeps the worker: it starts the process, lets it load the model, gives it the instances, and reads
 * what it prints, until it ends. How often and why it ended stands in a file of the server's own /tmp for whoever
 * watches the server. */

#pragma once
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "metrics.h"
#include "model.h"
#include "usage.h"

enum { PROCESS_MOST = 8192, POLICE_MS = 250 }; /* how often what a worker uses is looked at */

#define STATES "/tmp/shiplift-workers"
#define ENDED "the model's worker ended"

static char backend_folder[4096];

static void log_text(int level, const char *format, const char *name, const char *what) {
  char text[1024];
  snprintf(text, sizeof text, format, name, what);
  log_error(TRITONSERVER_LogMessage(level, __FILE__, __LINE__, text));
}

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

/* --- what it printed, and the file ----------------------------------------------------------------------------------- */

/* Keeps the end of what a worker printed, as one line of plain characters. */
static void keep_lines(Worker *worker, const char *text, size_t size) {
  size_t length = strlen(worker->lines), most = sizeof worker->lines - 1;
  if (size > most) text += size - most, size = most;
  if (length + size > most) {
    size_t gone = length + size - most;
    memmove(worker->lines, worker->lines + gone, length - gone + 1);
    length -= gone;
  }
  for (size_t at = 0; at < size; at++) {
    unsigned char each = (unsigned char) text[at];
    worker->lines[length + at] = (char) (each < ' ' || each > '~' ? ' ' : each == '"' || each == '\\' ? '\'' : each);
  }
  worker->lines[length + size] = 0;
}

static void name_state(const Model *model, const char *ending, char *into, size_t size) {
  snprintf(into, size, STATES "/%s-%llu%s", model->name, (unsigned long long) model->version, ending);
}

/* Notes the crashes, or with none removes the file. */
static void note_state(const Model *model, double pause) {
  char file[512], partial[512];
  const Worker *worker = &model->worker;
  name_state(model, ".json", file, sizeof file);
  name_state(model, ".new", partial, sizeof partial);
  if (!worker->crashes.count) {
    unlink(file);
    return;
  }
  mkdir(STATES, 0700);
  FILE *to = fopen(partial, "we");
  if (!to) return;
  fprintf(to, "{\"model\": \"%s\", \"version\": %llu, \"crashes\": %u, \"at\": %.3f, \"pause_s\": %.0f, \"why\": \"%s\", "
          "\"lines\": \"%s\"}\n", model->name, (unsigned long long) model->version, worker->crashes.count,
          worker->crashes.last, pause, worker->why, worker->lines);
  fclose(to);
  rename(partial, file);
}

/* --- starting -------------------------------------------------------------------------------------------------------- */

static void copy_variable(const char *name, char *into, size_t size) {
  const char *value = getenv(name);
  snprintf(into, size, "%s=%s", name, value ? value : "");
}

/* Starts the process: its end of the sockets is descriptor 3, and what it prints goes to the pipe. */
static bool start_process(Worker *worker) {
  char program[4200];
  char *const words[] = {program, NULL};
  int talk[2], print[2];
  char path[4096], threads[64];
  char *variables[] = {path, threads, NULL};
  posix_spawn_file_actions_t actions;
  copy_variable("LD_LIBRARY_PATH", path, sizeof path);
  copy_variable("OMP_NUM_THREADS", threads, sizeof threads);
  snprintf(program, sizeof program, "%s/model_worker", backend_folder);
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk)) return false;
  if (pipe2(print, O_CLOEXEC)) {
    close(talk[0]), close(talk[1]);
    return false;
  }
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, print[1], 1);
  posix_spawn_file_actions_adddup2(&actions, print[1], 2);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, talk[1], CONTROL);
  int status = posix_spawn(&worker->pid, program, &actions, NULL, words, variables);
  posix_spawn_file_actions_destroy(&actions);
  close(talk[1]), close(print[1]);
  worker->control = talk[0], worker->output = print[0];
  if (!status) return true;
  worker->pid = 0;
  close(talk[0]), close(print[0]);
  return false;
}

static void end_process(const Worker *worker) {
  if (worker->pid > 0) kill(worker->pid, SIGKILL);
}

static bool asked_to_load(Model *model) {
  const char *accepted = getenv("SHIPLIFT_ALLOW_WITHOUT"), *missing = getenv("SHIPLIFT_MISSING");
  size_t size = strlen(model->config) + 1;
  char *body = calloc(1, sizeof(Loading) + size);
  if (!body) return false;
  Loading *loading = (Loading *) body;
  memcpy(loading->path, model->path, sizeof loading->path);
  memcpy(loading->name, model->name, sizeof loading->name);
  memcpy(loading->folder, backend_folder, sizeof loading->folder);
  snprintf(loading->accepted, sizeof loading->accepted, "%s %s", accepted ? accepted : "", missing ? missing : "");
  memcpy(body + sizeof(Loading), model->config, size);
  bool sent = send_message(model->worker.control, LOAD, body, sizeof(Loading) + size);
  free(body);
  return sent;
}

/* What the worker answers: NULL if it is ready, with the message's body in `body` if that is asked for. */
static Error *answer_of(Worker *worker, uint64_t until, char **body, uint32_t *size) {
  Envelope envelope;
  char *text = receive_message(worker->control, &envelope, until);
  if (!text)
    return TRITONSERVER_ErrorNew(
        ERROR_INTERNAL, nanoseconds() >= until ? "the model's worker did not answer in time" : ENDED);
  Error *error = NULL;
  if (envelope.kind != READY) {
    int code;
    memcpy(&code, text, sizeof code);
    error = TRITONSERVER_ErrorNew(code, envelope.size > sizeof code ? text + sizeof code : "the worker failed");
  } else if (body) {
    *body = text, *size = envelope.size;
    return NULL;
  }
  free(text);
  return error;
}

/* Reads a side's tensors from what the worker described; the number of bytes, or 0 if it makes no sense. */
static Error *read_side(Tensors *to, uint32_t count, const char **at, const char *end) {
  TRY(new_tensors(to, count));
  for (uint32_t each = 0; each < count; each++) {
    Described described;
    if ((size_t) (end - *at) < sizeof described) break;
    memcpy(&described, *at, sizeof described), *at += sizeof described;
    bool known = described.type > 0 && described.type < TYPES_KNOWN && SIZES[described.type];
    if (!known || described.length > (size_t) (end - *at)) break;
    if (!(to->all[each].name = strndup(*at, described.length))) return no_memory();
    to->all[each].type = described.type, *at += described.length;
  }
  bool whole = !count || to->all[count - 1].name;
  return whole ? NULL : TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the model's worker describes no tensors");
}

static Error *read_tensors(Model *model, const char *body, uint32_t size) {
  uint32_t counts[2] = {0};
  const char *at = body + sizeof counts, *end = body + size;
  if (size < sizeof counts) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the model's worker describes no tensors");
  memcpy(counts, body, sizeof counts);
  if (counts[0] > SLOTS_MOST || counts[1] > SLOTS_MOST - counts[0])
    return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "the model has more than 1024 tensors");
  TRY(read_side(&model->inputs, counts[0], &at, end));
  return read_side(&model->outputs, counts[1], &at, end);
}

/* Gives the worker an instance, with a new ring: the last worker may still have written to the old one. */
static Error *attach(Instance *instance, uint64_t until) {
  Worker *worker = &instance->model->worker;
  pthread_mutex_lock(&instance->lock);
  close_ring(&instance->ring);
  instance->turn = 0, instance->attached = false, instance->worker = worker->number;
  Ring *ring = &instance->ring;
  ring->file = memfd_create("shiplift", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  Error *error = ring->file >= 0 && extend(ring, BEGINNING) && !fcntl(ring->file, F_ADD_SEALS, F_SEAL_SHRINK)
      ? NULL : no_memory();
  if (!error && !(send_message(worker->control, ATTACH, "", 0) && send_file(worker->control, ring->file)))
    error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, ENDED);
  if (!error) error = answer_of(worker, until, NULL, NULL);
  instance->attached = !error;
  pthread_mutex_unlock(&instance->lock);
  return error;
}

/* Lets the worker load the model, the first time with its tensors. */
static Error *load(Model *model, uint64_t until) {
  Worker *worker = &model->worker;
  char *body;
  uint32_t size;
  if (!asked_to_load(model)) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, ENDED);
  TRY(answer_of(worker, until, &body, &size));
  Error *error = worker->loaded ? NULL : read_tensors(model, body, size);
  free(body);
  return error;
}

/* --- keeping --------------------------------------------------------------------------------------------------------- */

static void enter(Worker *worker, int state) {
  worker->state = state;
  pthread_cond_broadcast(&worker->changed);
}

/* Ends a worker that is beyond its model's limits. */
static void police(Model *model) {
  Worker *worker = &model->worker;
  pthread_mutex_lock(&worker->lock);
  if (worker->pid > 0 && exceeds(&model->limits, worker->pid, worker->beyond, sizeof worker->beyond)) end_process(worker);
  pthread_mutex_unlock(&worker->lock);
}

/* Passes on what the worker prints, and keeps its end. Returns false once the worker has closed its pipe. */
static bool pass_on(Worker *worker) {
  char text[4096];
  ssize_t size = read(worker->output, text, sizeof text);
  if (size <= 0) return size < 0 && errno == EINTR;
  if (write(2, text, (size_t) size) < 0) return true; /* the server's log may be full */
  pthread_mutex_lock(&worker->lock);
  keep_lines(worker, text, (size_t) size);
  pthread_mutex_unlock(&worker->lock);
  return true;
}

/* Listens to the worker, and looks at what it uses, until it closes its pipe: then it has ended, or it is ended. */
static void *listen_to(void *argument) {
  Model *model = argument;
  Worker *worker = &model->worker;
  struct pollfd printed = {worker->output, POLLIN, 0};
  uint64_t looked = nanoseconds();
  while (poll(&printed, 1, POLICE_MS) <= 0 || pass_on(worker)) {
    if (nanoseconds() - looked < POLICE_MS * 1000000ull) continue;
    police(model);
    looked = nanoseconds();
  }
  pthread_mutex_lock(&worker->lock);
  end_process(worker);
  pthread_mutex_unlock(&worker->lock);
  return NULL;
}

static void describe_end(Worker *worker, int status) {
  static const char *const names[32] = {
    [SIGILL] = "SIGILL", [SIGABRT] = "SIGABRT", [SIGBUS] = "SIGBUS", [SIGFPE] = "SIGFPE", [SIGKILL] = "SIGKILL",
    [SIGSEGV] = "SIGSEGV", [SIGTERM] = "SIGTERM", [SIGXFSZ] = "SIGXFSZ", [SIGSYS] = "SIGSYS",
  };
  int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (*worker->beyond) snprintf(worker->why, sizeof worker->why, "%s", worker->beyond);
  else if (number > 0 && number < 32 && names[number]) snprintf(worker->why, sizeof worker->why, "died of %s", names[number]);
  else if (number) snprintf(worker->why, sizeof worker->why, "died of signal %d", number);
  else if (WEXITSTATUS(status) == SPENT)
    snprintf(worker->why, sizeof worker->why, "was ended: a request did not stop at serving.limits.cpu_s of the model's spec");
  else snprintf(worker->why, sizeof worker->why, "ended with exit code %d", WEXITSTATUS(status));
}

/* Loads the model and gives the worker the instances. Meanwhile no instance is made or closed. */
static Error *begin_service(Model *model) {
  Worker *worker = &model->worker;
  uint64_t until = nanoseconds() + (uint64_t) model->limits.load_ms * 1000000u;
  TRY(load(model, until));
  Error *error = NULL;
  pthread_mutex_lock(&worker->listed);
  for (Instance *each = worker->instances; each && !error; each = each->next) error = attach(each, until);
  pthread_mutex_lock(&worker->lock);
  if (!error) worker->loaded = true;
  if (!error && worker->state != CLOSING) enter(worker, RUNNING);
  pthread_mutex_unlock(&worker->lock);
  pthread_mutex_unlock(&worker->listed);
  return error;
}

/* Waits until the process has ended. It is reaped with the lock held, so that nobody kills another by its number. */
static void await_end(Worker *worker) {
  siginfo_t unused;
  int status = 0;
  while (waitid(P_PID, (id_t) worker->pid, &unused, WEXITED | WNOWAIT) < 0 && errno == EINTR) continue;
  pthread_mutex_lock(&worker->lock);
  waitpid(worker->pid, &status, 0);
  worker->pid = 0;
  describe_end(worker, status);
  if (worker->state != CLOSING) enter(worker, PAUSED);
  pthread_mutex_unlock(&worker->lock);
}

/* Starts a worker and lets it serve until it ends; called and left with the lock held. Returns why the model could not
 * be loaded. */
static Error *serve_with(Model *model) {
  Worker *worker = &model->worker;
  pthread_t listener;
  worker->lines[0] = worker->beyond[0] = 0, worker->number++;
  if (!start_process(worker)) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the model's worker can't be started");
  bool listened = !pthread_create(&listener, NULL, listen_to, model);
  pthread_mutex_unlock(&worker->lock); /* loading takes long, and whoever closes the model ends the process */
  Error *error = listened ? begin_service(model) : no_memory();
  pthread_mutex_lock(&worker->lock);
  if (error) end_process(worker);
  pthread_mutex_unlock(&worker->lock);
  await_end(worker);
  if (listened) pthread_join(listener, NULL);
  pthread_mutex_lock(&worker->lock);
  close(worker->control), close(worker->output);
  return error;
}

/* Wakes the runs that wait for an answer of a worker that has ended. */
static void wake_all(Worker *worker) {
  pthread_mutex_lock(&worker->listed);
  for (Instance *each = worker->instances; each; each = each->next)
    if (each->ring.base) syscall(SYS_futex, &header_of(&each->ring)->answered, FUTEX_WAKE, 1, NULL, NULL, 0);
  pthread_mutex_unlock(&worker->listed);
}

static void pause_for(Worker *worker, double pause) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += (time_t) pause;
  worker->paused_until = nanoseconds() + (uint64_t) (pause * 1e9);
  while (worker->state != CLOSING)
    if (pthread_cond_clockwait(&worker->changed, &worker->lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT) break;
}

/* Says how the worker ended. What the engine said of the model comes first. */
static void conclude(Worker *worker, Error *error) {
  if (!error) return;
  const char *text = TRITONSERVER_ErrorMessage(error);
  if (strcmp(text, ENDED)) snprintf(worker->why, sizeof worker->why, "did not load the model: %s", text);
  if (worker->loaded) TRITONSERVER_ErrorDelete(error);
  else worker->failure = error;
}

/* Keeps a worker going until the model is closed. The first one must load the model, or nobody tries again here. */
static void *keep(void *argument) {
  Model *model = argument;
  Worker *worker = &model->worker;
  pthread_mutex_lock(&worker->lock);
  while (worker->state != CLOSING) {
    enter(worker, STARTING);
    conclude(worker, serve_with(model));
    pthread_mutex_unlock(&worker->lock);
    wake_all(worker);
    pthread_mutex_lock(&worker->lock);
    if (worker->state == CLOSING || !worker->loaded) break;
    double pause = count_crash(&worker->crashes, seconds_now());
    count(model->crashed);
    log_text(LOG_ERROR, "shiplift: the worker of %s %s", model->name, worker->why);
    note_state(model, pause);
    pause_for(worker, pause);
  }
  enter(worker, CLOSING);
  pthread_mutex_unlock(&worker->lock);
  return NULL;
}

/* Why the first worker did not load the model; the caller owns it. */
static Error *failure_of(Worker *worker) {
  Error *error = worker->failure;
  worker->failure = NULL;
  if (!error) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, ENDED);
  if (strcmp(TRITONSERVER_ErrorMessage(error), ENDED)) return error;
  TRITONSERVER_ErrorDelete(error);
  return error_with(ERROR_INTERNAL, "the model's worker %s while it loaded the model", worker->why);
}

/* Starts the model's first worker, and waits until it has loaded the model. */
static Error *open_worker(Model *model) {
  Worker *worker = &model->worker;
  pthread_mutex_init(&worker->lock, NULL);
  pthread_mutex_init(&worker->listed, NULL);
  pthread_cond_init(&worker->changed, NULL);
  if (pthread_create(&worker->keeper, NULL, keep, model)) return no_memory();
  worker->kept = true;
  pthread_mutex_lock(&worker->lock);
  while (worker->state != CLOSING && worker->state != RUNNING) pthread_cond_wait(&worker->changed, &worker->lock);
  Error *error = worker->loaded ? NULL : failure_of(worker);
  pthread_mutex_unlock(&worker->lock);
  return error;
}

static void close_worker(Model *model) {
  Worker *worker = &model->worker;
  if (!worker->kept) return;
  pthread_mutex_lock(&worker->lock);
  enter(worker, CLOSING);
  end_process(worker);
  pthread_mutex_unlock(&worker->lock);
  pthread_join(worker->keeper, NULL);
  worker->crashes.count = 0;
  note_state(model, 0);
}
