"""MLflow's artifact proxy as a filesystem, without MLflow: `mlflow-artifacts://HOST:PORT/FOLDER`.

A cluster needs no object storage of its own this way: what can reach the registry can store artifacts in it. Only
what the store asks of a filesystem is here. With `mlflow-artifacts+https://` the server is asked over TLS. Who we are
comes from MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD, as for MLflow's own client.
"""

import io
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from fsspec import AbstractFileSystem

from shiplift.runtime.base.errors import Temporary

PROTOCOL = "mlflow-artifacts"
_CHUNK = 1 << 20
# Connecting is tried again at once; everything else is for who called: an engine waits between attempts.
_CONNECTS = 2
_TIMEOUT = httpx.Timeout(60, connect=5)


class MlflowArtifacts(AbstractFileSystem):  # type: ignore[misc] # fsspec is untyped
    """The files behind an MLflow server's artifact proxy; a path begins with `host:port`.

    Every method raises `Temporary` where the server does not answer, and `FileNotFoundError` for what it doesn't have.
    """

    protocol = (PROTOCOL, f"{PROTOCOL}+https")
    cachable = True

    def __init__(self, scheme: str = "http", **options: Any) -> None:
        super().__init__(**options)
        transport = httpx.HTTPTransport(retries=_CONNECTS)
        self._scheme = scheme
        self._client = httpx.Client(transport=transport, timeout=_TIMEOUT, trust_env=False)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"scheme": "https"} if path.startswith(f"{PROTOCOL}+https:") else {}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Writes `value`, over what was there."""
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        self._send("PUT", path, content=value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Writes a local file in pieces, over what was there."""
        with Path(lpath).open("rb") as file:
            size = str(os.fstat(file.fileno()).st_size)
            self._send("PUT", rpath, content=iter(lambda: file.read(_CHUNK), b""), headers={"Content-Length": size})

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file, or of a part of it."""
        return self._send("GET", path).content[slice(start, end)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        """A file to read in pieces, from its beginning to its end."""
        if mode != "rb":
            raise NotImplementedError(f"mode {mode!r}: files are read with 'rb', written with put_file or pipe_file")
        return io.BufferedReader(_Download(self._client, self._request("GET", path)), _CHUNK)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Its `name`, `size` in bytes (None for a folder) and `type`."""
        plain = self._strip_protocol(path)
        for found in self._list(posixpath.dirname(plain)):
            if found["name"] == plain:
                return found
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What a folder holds, as `info` says it."""
        found = list(self._list(self._strip_protocol(path)))
        return found if detail else [one["name"] for one in found]

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        self._send("DELETE", path)

    def _list(self, folder: str) -> Iterator[dict[str, Any]]:
        host, _, path = folder.partition("/")
        with _translated(folder):
            request = self._client.build_request(
                "GET", self._url(host, ""), params={"path": path} if path else {}, headers=_identity()
            )
            answer = _checked(self._client.send(request), folder)
            files = answer.json().get("files", [])
        for one in files:
            kind = "directory" if one.get("is_dir") else "file"
            size = int(one["file_size"]) if one.get("file_size") is not None and kind == "file" else None
            yield {"name": f"{folder}/{posixpath.basename(one['path'])}", "size": size, "type": kind}

    def _send(self, method: str, path: str, **how: Any) -> httpx.Response:
        with _translated(path):
            return _checked(self._client.send(self._request(method, path, **how)), path)

    def _request(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, content: Any = None
    ) -> httpx.Request:
        host, _, inside = self._strip_protocol(path).partition("/")
        return self._client.build_request(
            method, self._url(host, f"/{quote(inside)}"), content=content, headers={**_identity(), **(headers or {})}
        )

    def _url(self, host: str, path: str) -> str:
        return f"{self._scheme}://{host}/api/2.0/mlflow-artifacts/artifacts{path}"


class _Download(io.RawIOBase):
    """A response's body as it comes; the connection is given back when it is closed."""

    def __init__(self, client: httpx.Client, request: httpx.Request) -> None:
        self._path = request.url.path
        self._rest = b""
        with _translated(self._path):
            self._response = client.send(request, stream=True)
            try:
                _checked(self._response, self._path)
            except BaseException:
                self._response.close()
                raise
        self._pieces = self._response.iter_bytes(_CHUNK)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills as much of `buffer` as one piece gives; 0 at the end."""
        if not self._rest:
            with _translated(self._path):
                self._rest = next(self._pieces, b"")
        taken = min(len(buffer), len(self._rest))
        buffer[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        return taken

    def close(self) -> None:
        """Ends the download."""
        if not self.closed:
            self._response.close()
        super().close()


def _identity() -> dict[str, str]:
    """Read for each request: a token that a platform renews is taken up."""
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        auth = httpx.BasicAuth(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
        signed = next(auth.auth_flow(httpx.Request("GET", "http://localhost")))
        return {"Authorization": signed.headers["Authorization"]}
    return {}


def _checked(answer: httpx.Response, path: str) -> httpx.Response:
    """The answer, if it is a good one.

    Raises:
        FileNotFoundError: the server has no such file.
        Temporary: it can't or won't answer.
    """
    if answer.status_code == 404:
        raise FileNotFoundError(path)
    if answer.is_error:
        raise _unavailable(path, f"it answered {answer.status_code}")
    return answer


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, httpx.StreamError, ValueError) as error:  # ValueError: an answer that is no JSON
        raise _unavailable(path, error) from error


def _unavailable(path: str, why: object) -> Temporary:
    said = " ".join(str(why).split())[:200] or type(why).__name__
    return Temporary(
        f"the artifact store does not answer for {path[-80:]}: {said}",
        do="Check that MLflow is up and lets us in (MLFLOW_TRACKING_*), then run the same command again.",
    )
