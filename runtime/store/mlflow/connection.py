"""Requests to an MLflow server. Only this module makes the HTTP client, repeats requests and translates errors.

The registry (`runtime.store.registry`) and artifacts (`artifact_proxy`, `filesystem`) use it, so that certificates,
credentials, repetitions and time-outs hold for both. MLflow's own client would take 1.3 s of CPU time and 170 MB in
each of a release's pods.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import tenacity

from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.store.mlflow.failures import REGISTRY, unreachable, untrusted
from shiplift.runtime.store.mlflow.settings import RequestSettings, identity, read_settings, trusted

_CHUNK = 1 << 20
_CONNECT_S = 5.0
_PASSING = (429, 502, 503, 504)  # statuses of a server that is busy or starting


class Connection:
    """Requests to the server at `uri`. Each is repeated as the settings say if the server is away or busy.

    Every method raises `Temporary` if the server can't be reached. The caller handles other statuses than success.
    """

    def __init__(
        self,
        uri: str,
        *,
        server: str = REGISTRY,
        settings: RequestSettings | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`server` is its name in errors; `transport` is a way to reach it other than a direct connection.

        Raises:
            UsageError: a setting is malformed, or a certificate file can't be read.
        """
        self.server = server
        self._settings = settings or read_settings()
        timeout_s = self._settings.timeout_s
        self._client = httpx.Client(
            base_url=uri.rstrip("/"),
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S)),
            trust_env=False,
            verify=trusted() if uri.startswith("https:") else NO_AUTHORITIES,
            transport=transport,
        )

    def send(self, method: str, path: str, *, once: bool = False, **content: Any) -> httpx.Response:
        """The server's response, whatever its status. A request that must not happen twice is sent `once`."""
        return self._repeated(lambda: self._ask(method, path, **content), f"{method} {path}", once=once)

    def upload(self, path: str, file: Path) -> httpx.Response:
        """Puts a local file there, in chunks."""

        def attempt() -> httpx.Response:
            with file.open("rb") as source:
                size = str(os.fstat(source.fileno()).st_size)
                chunks = iter(lambda: source.read(_CHUNK), b"")
                return self._ask("PUT", path, content=chunks, headers={"Content-Length": size})

        return self._repeated(attempt, f"PUT {path}")

    def download(self, path: str, to: Path) -> httpx.Response:
        """Writes a response's body to the file `to`, if the status is 200."""

        def attempt() -> httpx.Response:
            response = self._ask("GET", path, stream=True)
            if response.status_code == 200:
                with closing(response), to.open("wb") as file:
                    for chunk in response.iter_bytes(_CHUNK):
                        file.write(chunk)
            return response

        return self._repeated(attempt, f"GET {path}")

    def open(self, path: str) -> httpx.Response:
        """A response whose body is unread if the status is 200; the caller reads it within `reading`."""
        return self._repeated(lambda: self._ask("GET", path, stream=True), f"GET {path}")

    @contextmanager
    def reading(self, subject: str) -> Iterator[None]:
        """Translates the errors of reading a body."""
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise unreachable(subject, error, server=self.server) from error

    def _ask(
        self, method: str, path: str, *, stream: bool = False, headers: dict[str, str] | None = None, **content: Any
    ) -> httpx.Response:
        request = self._client.build_request(method, path, headers={**identity(), **(headers or {})}, **content)
        response = self._client.send(request, stream=stream)
        if stream and response.status_code != 200:
            response.read()  # which closes it
        return response

    def _repeated(self, attempt: Callable[[], httpx.Response], subject: str, *, once: bool = False) -> httpx.Response:
        repeating = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass)
            | tenacity.retry_if_result(lambda response: response.status_code in _PASSING),
            wait=tenacity.wait_exponential(self._settings.pause_s),
            stop=tenacity.stop_after_attempt(1 if once else 1 + self._settings.repeats),
            retry_error_callback=_last,
        )
        with self.reading(subject):
            return repeating(attempt)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, httpx.TransportError) and not untrusted(error)


def _last(state: tenacity.RetryCallState) -> Any:
    """What the last attempt returned or raised."""
    assert state.outcome is not None  # noqa: S101 - it ended
    return state.outcome.result()
