"""What signal handlers raise in a stage, on both engines.

A step calls libraries that catch `Exception` and go on. What ends a stage from outside therefore is no `Exception`; it
becomes the error it carries where the stage was started.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shiplift.runtime.base.errors import ShipliftError


class Interrupted(BaseException):
    """A signal came: the stage is to clean up and end with `error`."""

    def __init__(self, error: ShipliftError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def as_error() -> Iterator[None]:
    """An `Interrupted` leaves this block as the error it carries."""
    try:
        yield
    except Interrupted as stopped:
        raise stopped.error from None
