"""Forked processes: one that returns a value, and one that may crash, loop forever or end silently."""

import contextlib
import os
import pickle
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_WALL_FACTOR = 20  # what waits takes no CPU time, so there is a limit of wall time too, far above a busy machine's
CRASHED = 70


def isolated(action: Callable[[], T]) -> T:
    """What the action returns in a separate process, whose output is discarded: its imports and changes end with it.

    Raises:
        RuntimeError: the action raised an error, which is quoted, or the process ended without an answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(action, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        body = pipe.read()
    os.waitpid(child, 0)
    if not body:
        raise RuntimeError("the process ended without an answer")
    answer: tuple[T, None] | tuple[None, str] = pickle.loads(body)
    if answer[1] is not None:
        raise RuntimeError(answer[1])
    return answer[0]


def _answer(action: Callable[[], T], writing: int) -> None:
    """Runs the action, writes its answer or its error into the pipe, and ends the process."""
    try:
        _silence()
        body = pickle.dumps((action(), None))
    except BaseException:
        body = pickle.dumps((None, traceback.format_exc()))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(body)
    os._exit(0)


def survives(action: Callable[[], bool], cpu_s: float) -> bool:
    """Whether the action is true in a forked process, and takes at most so much CPU time there; wherever else it ends.

    The limit is one of CPU time, so that a busy machine doesn't change an answer.
    """
    child = os.fork()
    if child == 0:
        _run(action, cpu_s)
    watched = os.pidfd_open(child)
    select.select([watched], [], [], _WALL_FACTOR * cpu_s)
    os.close(watched)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests started, too
    _, status = os.waitpid(child, 0)
    return status == 0


def _run(action: Callable[[], bool], cpu_s: float) -> None:
    """Ends this process with 0 if the action is true."""
    code = CRASHED
    try:
        os.setpgid(0, 0)
        limit = max(1, round(cpu_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        _silence()
        code = 0 if action() else 1
    finally:
        os._exit(code)


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in (0, 1, 2):
        os.dup2(nothing, number)
