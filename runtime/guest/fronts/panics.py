"""Panics of libraries in Rust: PyO3 raises them as a BaseException, which passes every `except Exception`.

They are the model's failure, as any other exception of its library, and end no thread and no process. What asks this
process itself to end keeps its meaning.

Process: Triton's Python backend or a process beside it, as `panics.py`; Shiplift's sandbox.
Python: the server's
Packages: none
"""

from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (KeyboardInterrupt, SystemExit, GeneratorExit)


def panicked(error: BaseException) -> bool:
    """Whether a library raised something that is neither an exception nor a request to end."""
    return not isinstance(error, (Exception, *_ENDING))


@contextmanager
def contained(kind: type[Exception], what: str) -> Iterator[None]:
    """Raises `kind` instead of a panic, with `what` failed."""
    try:
        yield
    except BaseException as error:
        if not panicked(error):
            raise
        raise kind(f"{what} failed: {' '.join(str(error).split())[:200]}") from None
