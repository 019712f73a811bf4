"""What the engine says, for many browsers: one thread at a time asks each question, and a page waits for seconds.

While the registry is away, a page shows what was known before, and says since when. It never hangs. A question that
takes long, such as that for every model of a large registry, is asked in the background: pages show its last answer at
once, and it rests longer than it takes.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from shiplift.runtime.base.errors import NotFound, ShipliftError, Temporary
from shiplift.runtime.records.failure import Failure

T = TypeVar("T")
_THREADS = 16
_KEPT = 512  # answers
_GIVEN_UP_S = 15.0  # a question that hangs for so long is asked again beside it: the registry may be back
_REST, _LATE = 3, 3  # from one asking to the next, and until an answer is late, in times of what the last one took


@dataclass(frozen=True, kw_only=True)
class CachedAnswer(Generic[T]):
    """An answer, and when it was given, in seconds since the epoch; `problem` says why there is no newer one."""

    value: T
    at: float
    problem: str = ""


@dataclass
class _Question:
    told: CachedAnswer[Any] | None = None
    error: ShipliftError | None = None
    asked_at: float = float("-inf")
    took_s: float = 0.0
    forgotten: bool = False
    running: asyncio.Task[None] | None = None


class AnswerCache:
    """Asks questions in threads. An answer is fresh for `fresh_s`; a page waits `patience_s` for a newer one.

    It does not wait for one that took longer than `slow_s` the last time, unless something was changed since.
    """

    def __init__(self, *, fresh_s: float = 1.0, patience_s: float = 4.0, slow_s: float = 0.3) -> None:
        self._fresh_s, self._patience_s, self._slow_s = fresh_s, patience_s, slow_s
        self._questions: OrderedDict[Hashable, _Question] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="asking")

    async def ask(
        self, key: Hashable, ask: Callable[[], T], *, fresh_s: float = 0.0, patience_s: float | None = None
    ) -> CachedAnswer[T]:
        """The answer to a question, which `key` names; `patience_s` is for one that the page can do without at first.

        Raises:
            NotFound: what was asked about does not exist.
            ShipliftError: there is no answer, not even an earlier one.
        """
        question = self._question(key)
        self._begin(question, ask, max(fresh_s, self._fresh_s))
        if question.running and not self._goes_on_with_the_last(question):
            await asyncio.wait({question.running}, timeout=self._patience_s if patience_s is None else patience_s)
        problem = self._problem(question)
        if isinstance(problem, NotFound) or (problem and question.told is None):
            raise problem
        assert question.told is not None  # noqa: S101 - else there is a problem
        told = question.told
        return CachedAnswer(value=told.value, at=told.at, problem=str(problem) if problem else "")

    def forget(self) -> None:
        """Makes the next questions be asked again: something was changed."""
        for question in self._questions.values():
            question.asked_at, question.forgotten = float("-inf"), True

    def _goes_on_with_the_last(self, question: _Question) -> bool:
        return question.told is not None and question.took_s > self._slow_s and not question.forgotten

    def _rest_s(self, question: _Question) -> float:
        return _REST * question.took_s if question.took_s > self._slow_s else 0.0

    def _late_s(self, question: _Question) -> float:
        """How long an answer may take until pages say that there is none."""
        return max(self._patience_s, _LATE * question.took_s)

    def _question(self, key: Hashable) -> _Question:
        question = self._questions.setdefault(key, _Question())
        self._questions.move_to_end(key)
        if len(self._questions) > _KEPT:
            self._questions.popitem(last=False)
        return question

    def _begin(self, question: _Question, ask: Callable[[], Any], fresh_s: float) -> None:
        age = time.monotonic() - question.asked_at
        hangs = question.running is not None and age > max(_GIVEN_UP_S, self._late_s(question))
        if hangs or (question.running is None and age > max(fresh_s, self._rest_s(question))):
            question.asked_at = time.monotonic()
            question.running = asyncio.create_task(self._answer(question, ask))

    async def _answer(self, question: _Question, ask: Callable[[], Any]) -> None:
        task, asked_at = asyncio.current_task(), time.monotonic()
        try:
            value = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
            question.told, question.error = CachedAnswer(value=value, at=time.time()), None
            question.took_s, question.forgotten = time.monotonic() - asked_at, question.asked_at > asked_at
        except ShipliftError as error:
            question.error = error
        except Exception as error:  # our own bug: the other pages go on
            structlog.get_logger().exception("a question failed")
            question.error = Failure.of(error).error()
        finally:
            if question.running is task:
                question.running = None

    def _problem(self, question: _Question) -> ShipliftError | None:
        late = time.monotonic() - question.asked_at > self._late_s(question)
        if question.running and (late or not self._goes_on_with_the_last(question)):
            return Temporary(f"no answer for {self._late_s(question):.2g} s", do="This page asks again by itself.")
        return question.error
