"""MLflow's artifact proxy as a filesystem, without MLflow: `mlflow-artifacts://HOST:PORT/FOLDER`.

With it a cluster needs no object storage: whoever can reach the registry can store artifacts there. It implements only
what `ArtifactStore` calls. `mlflow-artifacts+https://` uses TLS. Credentials come from MLFLOW_TRACKING_TOKEN, or from
MLFLOW_TRACKING_USERNAME and _PASSWORD, as for MLflow's own client.
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

from shiplift.runtime.base.errors import RegistryDenied, Temporary

PROTOCOL = "mlflow-artifacts"
_CHUNK = 1 << 20
_CONNECT_RETRIES = 2  # at once; anything else is for the caller to retry: an engine waits between attempts
_TIMEOUT = httpx.Timeout(60, connect=5)


class MlflowArtifacts(AbstractFileSystem):  # type: ignore[misc] # fsspec is untyped
    """The files of an MLflow server's artifact proxy; a path begins with `host:port`.

    Every method raises `Temporary` if the server does not respond, and `FileNotFoundError` if it has no such file.
    """

    protocol = (PROTOCOL, f"{PROTOCOL}+https")
    cachable = True

    def __init__(self, scheme: str = "http", **options: Any) -> None:
        super().__init__(**options)
        transport = httpx.HTTPTransport(retries=_CONNECT_RETRIES)
        self._scheme = scheme
        self._client = httpx.Client(transport=transport, timeout=_TIMEOUT, trust_env=False)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"scheme": "https"} if path.startswith(f"{PROTOCOL}+https:") else {}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Writes `value` to a file, replacing what was there."""
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        self._send("PUT", path, content=value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Uploads a local file in chunks, replacing what was there."""
        with Path(lpath).open("rb") as file:
            size = str(os.fstat(file.fileno()).st_size)
            self._send("PUT", rpath, content=iter(lambda: file.read(_CHUNK), b""), headers={"Content-Length": size})

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file, or of a part of it."""
        return self._send("GET", path).content[slice(start, end)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        """Opens a file for sequential reading."""
        if mode != "rb":
            raise NotImplementedError(
                f"mode {mode!r} is not supported: read with 'rb', write with put_file or pipe_file"
            )
        return io.BufferedReader(_Download(self._client, self._request("GET", path)), _CHUNK)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """A path's `name`, `size` in bytes (None for a folder) and `type`."""
        plain = self._strip_protocol(path)
        for entry in self._list(posixpath.dirname(plain)):
            if entry["name"] == plain:
                return entry
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """A folder's entries, in the format of `info`."""
        entries = list(self._list(self._strip_protocol(path)))
        return entries if detail else [entry["name"] for entry in entries]

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        self._send("DELETE", path)

    def _list(self, folder: str) -> Iterator[dict[str, Any]]:
        host, _, path = folder.partition("/")
        with _translated(folder):
            request = self._client.build_request(
                "GET", self._url(host, ""), params={"path": path} if path else {}, headers=identity()
            )
            response = _checked(self._client.send(request), folder)
            files = response.json().get("files", [])
        for file in files:
            kind = "directory" if file.get("is_dir") else "file"
            size = int(file["file_size"]) if file.get("file_size") is not None and kind == "file" else None
            yield {"name": f"{folder}/{posixpath.basename(file['path'])}", "size": size, "type": kind}

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        with _translated(path):
            return _checked(self._client.send(self._request(method, path, **options)), path)

    def _request(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, content: Any = None
    ) -> httpx.Request:
        host, _, inside = self._strip_protocol(path).partition("/")
        return self._client.build_request(
            method, self._url(host, f"/{quote(inside)}"), content=content, headers={**identity(), **(headers or {})}
        )

    def _url(self, host: str, path: str) -> str:
        return f"{self._scheme}://{host}/api/2.0/mlflow-artifacts/artifacts{path}"


class _Download(io.RawIOBase):
    """A response's body as a stream; closing it releases the connection."""

    def __init__(self, client: httpx.Client, request: httpx.Request) -> None:
        self._path = request.url.path
        self._buffer = b""
        with _translated(self._path):
            self._response = client.send(request, stream=True)
            try:
                _checked(self._response, self._path)
            except BaseException:
                self._response.close()
                raise
        self._chunks = self._response.iter_bytes(_CHUNK)

    def readable(self) -> bool:
        """Always True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Copies what is left of a chunk into `buffer`; returns the number of bytes, 0 at the end."""
        if not self._buffer:
            with _translated(self._path):
                self._buffer = next(self._chunks, b"")
        count = min(len(buffer), len(self._buffer))
        buffer[:count], self._buffer = self._buffer[:count], self._buffer[count:]
        return count

    def close(self) -> None:
        """Ends the download."""
        if not self.closed:
            self._response.close()
        super().close()


def identity() -> dict[str, str]:
    """The authorization header of this process's account; read for each request, since platforms renew tokens."""
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        auth = httpx.BasicAuth(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
        signed = next(auth.auth_flow(httpx.Request("GET", "http://localhost")))
        return {"Authorization": signed.headers["Authorization"]}
    return {}


def _checked(response: httpx.Response, path: str) -> httpx.Response:
    """The response, if it is a success.

    Raises:
        FileNotFoundError: the server has no such file.
        RegistryDenied: the server wants other credentials.
        Temporary: the server answered with another error.
    """
    if response.status_code == 404:
        raise FileNotFoundError(path)
    if response.status_code in (401, 403):
        raise RegistryDenied(
            f"the artifact store answered {response.status_code} for {path[-80:]}",
            do="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of an account that may do this.",
        )
    if response.is_error:
        raise _unavailable(path, f"it answered {response.status_code}")
    return response


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, httpx.StreamError, ValueError) as error:  # ValueError: the body is not JSON
        raise _unavailable(path, error) from error


def _unavailable(path: str, cause: object) -> Temporary:
    reason = " ".join(str(cause).split())[:200] or type(cause).__name__
    return Temporary(
        f"the artifact store does not answer for {path[-80:]}: {reason}",
        do="Check that MLflow is up and accepts the credentials in MLFLOW_TRACKING_*, then run the same command again.",
    )
