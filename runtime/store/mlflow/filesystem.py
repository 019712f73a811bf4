"""MLflow's artifact proxy as a filesystem of fsspec: `mlflow-artifacts://HOST:PORT/FOLDER`.

With it, a cluster needs no object storage: every process that can reach the registry can store artifacts there. It
implements only what `ArtifactStore` calls. `mlflow-artifacts+https://` uses TLS. Certificates, credentials and
time-outs are those of every request to an MLflow server: see `settings`.
"""

import io
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
from fsspec import AbstractFileSystem

from shiplift.runtime.store.mlflow.artifact_proxy import SCHEME, ArtifactEntry, ArtifactProxy
from shiplift.runtime.store.mlflow.connection import Connection

_CHUNK = 1 << 20
_SERVER = "the artifact store"


class MlflowArtifacts(AbstractFileSystem):  # type: ignore[misc] # fsspec is untyped
    """The files behind MLflow servers' artifact proxies; a path begins with `host:port`.

    Every method raises `Temporary` if the server does not respond, and `FileNotFoundError` if it has no such file.
    """

    protocol = (SCHEME, f"{SCHEME}+https")
    cachable = True

    def __init__(self, scheme: str = "http", **options: Any) -> None:
        super().__init__(**options)
        self._scheme = scheme
        self._connected = lru_cache(maxsize=8)(self._connect)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"scheme": "https"} if path.startswith(f"{SCHEME}+https:") else {}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Writes `value` to a file, replacing earlier content."""
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        proxy, inside = self._at(path)
        proxy.write(inside, value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Uploads a local file in chunks, replacing earlier content."""
        proxy, inside = self._at(rpath)
        proxy.upload(inside, Path(lpath))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file, or of a part of it."""
        proxy, inside = self._at(path)
        return proxy.read(inside)[slice(start, end)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        """Opens a file for sequential reading."""
        if mode != "rb":
            raise NotImplementedError(
                f"mode {mode!r} is not supported: read with 'rb', write with put_file or pipe_file"
            )
        proxy, inside = self._at(path)
        return io.BufferedReader(_Download(proxy.connection, proxy.open(inside), inside), _CHUNK)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """A path's `name`, `size` in bytes (None for a folder) and `type`."""
        plain = self._strip_protocol(path)
        for entry in self.ls(plain.rpartition("/")[0]):
            if entry["name"] == plain:
                return dict(entry)
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """A folder's entries, in the format of `info`."""
        host = self._strip_protocol(path).partition("/")[0]
        proxy, inside = self._at(path)
        entries = [_described(host, entry) for entry in proxy.list(inside)]
        return entries if detail else [entry["name"] for entry in entries]

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        proxy, inside = self._at(path)
        proxy.remove(inside)

    def _at(self, path: str) -> tuple[ArtifactProxy, str]:
        """The server that a path names, and the path on it."""
        host, _, inside = self._strip_protocol(path).partition("/")
        return self._connected(host), inside

    def _connect(self, host: str) -> ArtifactProxy:
        return ArtifactProxy(Connection(f"{self._scheme}://{host}", server=_SERVER))


class _Download(io.RawIOBase):
    """A response's body as a stream; closing it releases the connection."""

    def __init__(self, connection: Connection, response: httpx.Response, path: str) -> None:
        self._connection, self._response, self._path = connection, response, path
        self._buffer = b""
        self._chunks = response.iter_bytes(_CHUNK)

    def readable(self) -> bool:
        """Always True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Copies the rest of a chunk into `buffer`; returns the number of bytes, 0 at the end."""
        if not self._buffer:
            with self._connection.reading(self._path):
                self._buffer = next(self._chunks, b"")
        count = min(len(buffer), len(self._buffer))
        buffer[:count], self._buffer = self._buffer[:count], self._buffer[count:]
        return count

    def close(self) -> None:
        """Ends the download."""
        if not self.closed:
            self._response.close()
        super().close()


def _described(host: str, entry: ArtifactEntry) -> dict[str, Any]:
    size = None if entry.is_dir else entry.file_size
    return {"name": f"{host}/{entry.path}", "size": size, "type": "directory" if entry.is_dir else "file"}
