"""Requests that get an error instead of an answer, in the form that MLflow's scoring server gives it."""

import json

from shiplift.runtime.base.text import printable

BAD_REQUEST, UNAVAILABLE, UNKNOWN = "BAD_REQUEST", "TEMPORARILY_UNAVAILABLE", "RESOURCE_DOES_NOT_EXIST"
_LONGEST = 4000  # characters: MLflow's messages quote the whole request


class ScoringProblem(Exception):
    """A request that is refused: with an HTTP status, and one of MLflow's error codes. `plain`: as text, not JSON."""

    def __init__(self, status: int, message: str, *, code: str = BAD_REQUEST, plain: bool = False) -> None:
        text = printable(message, lines=True)
        super().__init__(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
        self.status, self.code, self.plain = status, code, plain

    @property
    def body(self) -> bytes:
        """The body of the answer."""
        text = str(self) if self.plain else json.dumps({"error_code": self.code, "message": str(self)})
        return text.encode()

    @property
    def media_type(self) -> str:
        """The type of the body."""
        return "text/plain; charset=utf-8" if self.plain else "application/json"
