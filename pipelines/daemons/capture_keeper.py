"""Keeps what a cluster's pods capture, and answers who may read or delete it. The only process that writes these rows.

Pods send with the token of senders, which lets them only add. Commands and releases ask with the token of readers,
which the API server gives to those who may read the Secret. The values of hashed columns never leave this process.
"""

import argparse
import asyncio
import hmac
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import structlog
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from shiplift.pipelines.engines.attempt import failure_of
from shiplift.runtime.base.daemon import log_as_json, run_main
from shiplift.runtime.base.errors import DataInvalid, NotFound, ShipliftError, StorageFull
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.capture import asked
from shiplift.runtime.capture.elsewhere import FAILED, Deletion, KeptFiles
from shiplift.runtime.capture.folder import CaptureFolder, File
from shiplift.runtime.capture.keeping import Keeper, KeptPackage
from shiplift.runtime.capture.parts import HASHES, MOST_BYTES, PATH, READER, SENDER, SERVED, TOKEN_HEADER, part_of
from shiplift.runtime.host.listeners import ConnectionLimits, listener, serve_until_stopped
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict
from shiplift.runtime.serving.kubernetes.kinds import TRITON_REVISION
from shiplift.runtime.serving.operator import declared
from shiplift.runtime.serving.operator.resources import RevisionSpec

_PARTS, _PART_S = 8, 25.0  # parts in memory at once; each may have as many bytes as a ring
_FRESH_S, _TIDY_S = 5.0, 60.0
_REFUSED = {NotFound: 404, DataInvalid: 422, StorageFull: 507}  # for senders
_LIMITS = ConnectionLimits(connections=512, connections_per_source=64, header_timeout_s=10)


class CapturedPackages:
    """The packages of a namespace's revisions whose requests are kept. It looks every few seconds at most."""

    def __init__(self, api: KubernetesClient, steady: Callable[[], float] = time.monotonic) -> None:
        self._api, self._steady = api, steady
        self._lock = threading.Lock()
        self._known: dict[str, KeptPackage] = {}
        self._looked_at = -_FRESH_S

    def find(self, digest: str) -> KeptPackage | None:
        """A package by its digest; None if none is captured.

        Raises:
            Temporary: the cluster does not answer.
        """
        with self._lock:
            if self._steady() - self._looked_at >= _FRESH_S:
                found = _captured(self._api.find(TRITON_REVISION))
                self._known = {package.repository.sha256: kept for package, kept in found}
                self._looked_at = self._steady()
            return self._known.get(digest)

    def served(self) -> dict[str, Capturing]:
        """What is kept of the models that serve, by served name."""
        revisions = {service.status.revision or service.spec.revision for service in declared.everything(self._api)}
        bodies = [body for body in self._api.find(TRITON_REVISION) if body["metadata"]["name"] in revisions]
        return {kept.served: kept.capturing for _, kept in _captured(bodies)}


def _captured(bodies: Iterable[dict[str, object]]) -> Iterator[tuple[Package, KeptPackage]]:
    for body in bodies:
        with suppress(ValidationError):  # of a newer version of Shiplift
            spec = RevisionSpec.model_validate(body["spec"])
            packages = [spec.parsed(), *(Package.model_validate(each.package) for each in spec.other_groups or ())]
            for package in packages:
                if capturing := package.capturing:
                    name = serving_name(package.model)
                    yield package, KeptPackage(served=name, capturing=capturing)


class KeeperApp:
    """The keeper's HTTP interface: `sender` and `reader` are the tokens of those who add, and of those who ask."""

    def __init__(
        self, keeper: Keeper, served: Callable[[], dict[str, Capturing]], *, secret: str, sender: str, reader: str
    ) -> None:
        self._keeper, self._served, self._secret = keeper, served, secret
        self._at_once = asyncio.Semaphore(_PARTS)
        at = "/captured/{served}"
        self.asgi = Starlette(
            routes=[
                Route("/healthz", self._healthy),
                Route(PATH, self._for(sender, self._put), methods=["POST"]),
                Route(at, self._for(reader, self._summary)),
                Route(f"{at}/files", self._for(reader, self._files)),
                Route(f"{at}/files/{{name}}", self._for(reader, self._file)),
                Route(f"{at}/delete", self._for(reader, self._delete), methods=["POST"]),
            ]
        )

    @staticmethod
    def _for(token: str, act: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """A handler for those who have a token; without one, for nobody."""

        async def checked(request: Request) -> Response:
            given = request.headers.get(TOKEN_HEADER, "")
            if not token or not hmac.compare_digest(given.encode(), token.encode()):
                return PlainTextResponse("the token is wrong\n", 401)
            try:
                return await act(request)
            except (ShipliftError, Conflict, OSError) as error:
                return Response(failure_of(error).model_dump_json(), FAILED, media_type="application/json")

        return checked

    @staticmethod
    async def _healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _put(self, request: Request) -> Response:
        try:
            async with self._at_once, asyncio.timeout(_PART_S):
                return await self._received(request)
        except TimeoutError:
            return PlainTextResponse(f"it took more than {_PART_S:.0f} s\n", 503)

    async def _received(self, request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                return PlainTextResponse(f"more than {MOST_BYTES} bytes\n", 413)
        try:
            part = part_of(request.headers)
            end = await run_in_threadpool(self._keeper.put, part, bytes(body))
        except ValueError as error:
            return PlainTextResponse(f"{error}\n"[:500], 400)
        except (ShipliftError, OSError) as error:
            status = _REFUSED.get(type(error), 503) if isinstance(error, ShipliftError) else 503
            structlog.get_logger().warning("not kept", model=part.model, error=str(error))
            return PlainTextResponse(f"{error}\n", status)
        return Response(f'{{"end": {end}}}', media_type="application/json")

    async def _summary(self, request: Request) -> Response:
        served, model = request.path_params["served"], request.query_params.get("model", "")

        def ask() -> str:
            return asked.summary(self._folder(served), model, self._served().get(served)).model_dump_json()

        return Response(await run_in_threadpool(ask), media_type="application/json")

    async def _files(self, request: Request) -> Response:
        folder, since = self._folder(request.path_params["served"]), float(request.query_params.get("since", "0"))

        def ask() -> str:
            if (settings := folder.settings()) is None:
                return KeptFiles(settings=None, files=()).model_dump_json()
            with folder.locked():
                files = [file.path.name for file in folder.files() if file.until >= since * 1e6]
            return KeptFiles(settings=settings, files=tuple(files)).model_dump_json()

        return Response(await run_in_threadpool(ask), media_type="application/json")

    async def _file(self, request: Request) -> Response:
        file = File.named(request.path_params["name"], self._folder(request.path_params["served"]).path)
        if file is None or not file.path.is_file():
            return PlainTextResponse("it was joined with others, or deleted\n", 404)
        return FileResponse(file.path)

    async def _delete(self, request: Request) -> Response:
        try:
            order = Deletion.model_validate_json(await request.body())
        except ValidationError as error:
            return PlainTextResponse(f"{error}\n"[:500], 400)
        folder = self._folder(request.path_params["served"])
        gone = await run_in_threadpool(asked.delete, folder, order.model, order.value, self._secret)
        structlog.get_logger().info("deleted", model=order.model, rows=gone.deleted)
        return Response(gone.model_dump_json(), media_type="application/json")

    def _folder(self, served: str) -> CaptureFolder:
        """The folder of a model that may have one.

        Raises:
            NotFound: the name is no served name.
        """
        if not re.fullmatch(SERVED, served):
            raise asked.nothing_kept(served)
        return self._keeper.folder(served)


def _tidy(keeper: Keeper, served: Callable[[], dict[str, Capturing]], pause: Callable[[float], object]) -> None:
    """Keeps the rows within their limits, and notes what specs say now, as long as the process lives."""
    log = structlog.get_logger()
    while True:
        try:
            keeper.settle(served())
        except (ShipliftError, Conflict, OSError) as error:
            log.warning("failed", part="settings", error=str(error))
        for name, problem in keeper.tidy().items():
            log.warning("failed", part="tidying", model=name, error=problem)
        pause(_TIDY_S)


def main() -> None:
    """Keeps the rows of a namespace's models."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--serving-namespace", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where rows are kept")
    parser.add_argument("--limit-mb", type=int, default=0, help="what all rows may have together; 0: no limit")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    log_as_json()
    os.umask(0o077)
    tokens = {name: os.environ.get(name, "") for name in (SENDER, READER, HASHES)}
    packages = CapturedPackages(KubernetesClient(arguments.serving_namespace))
    keeper = Keeper(arguments.folder, tokens[HASHES], packages.find, limit_bytes=arguments.limit_mb * 1_000_000)
    app = KeeperApp(keeper, packages.served, secret=tokens[HASHES], sender=tokens[SENDER], reader=tokens[READER])
    threading.Thread(target=_tidy, args=(keeper, packages.served, time.sleep), daemon=True).start()
    serve_until_stopped(uvicorn.Server(listener(app.asgi, "0.0.0.0", arguments.port, _LIMITS, keep_alive_s=60)))  # noqa: S104 - pods must reach it


if __name__ == "__main__":
    run_main(main)
