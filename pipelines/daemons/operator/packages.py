"""Hands the packages in production to pods that start with them, even while the registry is down.

It implements the part of MLflow's artifact proxy that `ArtifactStore` uses, so a pod reads from it as it reads from
MLflow, with the same account. An account is required: those who may read the registry may read this.
"""

import hmac
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from wsgiref.util import FileWrapper

import structlog

from shiplift.runtime.base.errors import ArtifactCorrupt, ShipliftError
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes.workloads import golden_of
from shiplift.runtime.serving.operator.cluster.observing import Snapshot
from shiplift.runtime.store.mlflow.artifact_proxy import API
from shiplift.runtime.store.mlflow.settings import identity
from shiplift.runtime.store.package_cache import PackageCache

_FOLDER, _BLOB = re.compile(r"sha256/[0-9a-f]{2}"), re.compile(r"/sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_CHUNK = 1 << 20
_EVERY_S = 30.0


def packages_of(snapshot: Snapshot) -> dict[str, str]:
    """The packages that serve, or should serve, by digest, each with the store that has it."""
    packages = {}
    for body in snapshot.services.values():
        status = body.get("status") or {}
        names = {str((body.get("spec") or {}).get("revision", "")), str(status.get("revision", ""))}
        names |= {str(weight.get("revision", "")) for weight in status.get("weights") or ()}
        for name in names:
            seen = snapshot.revisions.get(name)
            if seen and seen.package:
                packages[seen.package.repository.sha256] = seen.artifacts_uri
                packages |= {each.package.repository.sha256: each.artifacts_uri for each in seen.others}
    return packages


class PackageKeeper:
    """Keeps copies of the packages in production up to date, in its own thread, because a package may be large."""

    def __init__(self, cache: PackageCache) -> None:
        self._cache = cache
        self._wanted: dict[str, str] = {}
        self._changed = threading.Event()
        self._log = structlog.get_logger()

    def listed(self, snapshot: Snapshot) -> None:
        """Takes a new list of the services."""
        wanted = packages_of(snapshot)
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    def run(self, stop: threading.Event) -> None:
        """Works until `stop` is set, and retries packages that could not be copied."""
        self._changed.wait(_EVERY_S)  # before the first list, it is unknown which copies to keep
        while not stop.is_set():
            self._changed.clear()
            if self._wanted:
                self._keep()
            self._changed.wait(_EVERY_S)

    def golden(self, package: Package, artifacts_uri: str) -> Arrays:
        """A package's golden requests, from the copy if there is one."""
        try:
            return golden_of(package, self._cache.uri)
        except ArtifactCorrupt:
            return golden_of(package, artifacts_uri)

    def _keep(self) -> None:
        try:
            problems = self._cache.keep(self._wanted)
        except (ShipliftError, OSError) as error:
            problems = {"": str(error)}
        for digest, problem in problems.items():
            self._log.warning("failed", part="packages", package=digest[:12], error=problem)


def serve_packages(folder: Path) -> Callable[..., Iterable[bytes]]:
    """A WSGI application that serves the blobs of an artifacts folder to clients with this process's account."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        if environ.get("REQUEST_METHOD") != "GET" or not path.startswith(API):
            return _refuse(start, "404 Not Found")
        if not _is_known(str(environ.get("HTTP_AUTHORIZATION", ""))):
            return _refuse(start, "401 Unauthorized")
        inside = path.removeprefix(API)
        if not inside:
            return _list(folder, parse_qs(str(environ.get("QUERY_STRING", ""))).get("path", [""])[0], start)
        return _send(folder, inside, start)

    return answer


def _is_known(authorization: str) -> bool:
    expected = identity().get("Authorization", "")
    return bool(expected) and hmac.compare_digest(expected.encode(), authorization.encode())


def _list(folder: Path, path: str, start: Callable[..., Any]) -> Iterable[bytes]:
    there = folder / path if _FOLDER.fullmatch(path) else None
    files = [
        {"path": file.name, "is_dir": False, "file_size": file.stat().st_size}
        for file in (sorted(there.iterdir()) if there and there.is_dir() else ())
        if "." not in file.name
    ]
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"files": files}).encode()]


def _send(folder: Path, path: str, start: Callable[..., Any]) -> Iterable[bytes]:
    file = folder / path.lstrip("/")
    if not _BLOB.fullmatch(path) or not file.is_file():
        return _refuse(start, "404 Not Found")
    stream = file.open("rb")
    size = str(file.stat().st_size)
    start("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", size)])
    return _chunks(stream)


def _chunks(stream: Any) -> Iterator[bytes]:
    with stream:
        yield from FileWrapper(stream, _CHUNK)


def _refuse(start: Callable[..., Any], status: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{status}\n".encode()]
