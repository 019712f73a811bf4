"""Signed webhooks in, releases out, exactly once.

Of a delivery only the model's name and the version's number are used, after the signature, the age and the size were
checked; the registry is asked whether that version exists. The answer comes when the release exists, not before.
MLflow's scheme: `v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`, keyed by the webhook's secret.
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog
import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines import stack as stacks
from pipelines.releases import Releases
from runtime.errors import NotAdmitted, ShipliftError, StorageFull, Temporary
from runtime.keys import load_secrets
from runtime.records import Request as ReleaseRequest
from runtime.records import Trigger
from runtime.registry import check_name, version_exists
from runtime.storage import room_for

MAX_BODY_BYTES = 64 * 1024
MAX_AGE_S = 300
_KEEP_DELIVERIES_S = 2 * MAX_AGE_S

Exists = Callable[[str, int], bool]


class VersionCreated(BaseModel):
    """The part of `model_version.created` that is used."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=256)]
    version: Annotated[int, Field(ge=1, le=2**31)]


class Event(BaseModel):
    """A webhook's body."""

    model_config = ConfigDict(extra="ignore")

    entity: Literal["model_version"]
    action: Literal["created"]
    data: VersionCreated


class Deliveries:
    """Delivery ids seen lately, as files: claimed by exactly one request, over any number of processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, delivery: str) -> bool:
        """Whether this call is the first with that id."""
        file = self._file(delivery)
        try:
            with room_for("a delivery's id", self._folder):
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        self._forget_old()
        return True

    def release(self, delivery: str) -> None:
        """Gives an id back: its delivery failed, and the sender will try again with the same one."""
        self._file(delivery).unlink(missing_ok=True)

    def _file(self, delivery: str) -> Path:
        return self._folder / hashlib.sha256(delivery.encode()).hexdigest()

    def _forget_old(self) -> None:
        limit = time.time() - _KEEP_DELIVERIES_S
        for file in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < limit:
                    file.unlink()


def create_app(secret: str, releases: Releases, deliveries: Deliveries, exists: Exists) -> FastAPI:
    """The receiver. `exists` asks the registry for a version."""
    app = FastAPI(title="Shiplift receiver", docs_url=None, redoc_url=None, openapi_url=None)
    log = structlog.get_logger()

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """Whether the receiver is up."""
        return {"status": "ok"}

    @app.post("/webhooks/mlflow")
    async def mlflow(request: Request) -> Response:
        """One delivery of MLflow's."""
        body = await read_body(request)
        if body is None:
            return _answer(413, f"the body is over {MAX_BODY_BYTES} bytes")
        refusal = check_signature(secret, dict(request.headers), body, now=time.time())
        if refusal:
            log.warning("delivery refused", reason=refusal[1], source=request.client.host if request.client else "")
            return _answer(*refusal)
        delivery = request.headers["x-mlflow-delivery-id"]
        answer = await _in_thread(accept, body, delivery, releases, deliveries, exists)
        log.info("delivery", id=delivery, status=answer[0], said=answer[1])
        return _answer(*answer)

    return app


async def read_body(request: Request) -> bytes | None:
    """The body; None if it is too large, whatever its length header says."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            return None
    return body


def check_signature(secret: str, headers: dict[str, str], body: bytes, *, now: float) -> tuple[int, str] | None:
    """Why a delivery is refused, as an HTTP status and a sentence; None: it is genuine and fresh."""
    delivery, sent = headers.get("x-mlflow-delivery-id", ""), headers.get("x-mlflow-timestamp", "")
    given = headers.get("x-mlflow-signature", "")
    if not (delivery and sent and given):
        return 401, "the delivery is not signed"
    digest = hmac.new(secret.encode(), f"{delivery}.{sent}.".encode() + body, hashlib.sha256).digest()
    right = f"v1,{base64.b64encode(digest).decode()}"
    if not any(hmac.compare_digest(right.encode(), one.encode()) for one in given.split()):
        return 401, "the signature does not match"
    if not (sent.isdecimal() and len(sent) <= 12) or abs(now - int(sent)) > MAX_AGE_S:
        return 409, f"the delivery is older than {MAX_AGE_S} s: it was replayed, or clocks differ"
    return None


def accept(body: bytes, delivery: str, releases: Releases, deliveries: Deliveries, exists: Exists) -> tuple[int, str]:
    """Turns a genuine delivery into a release; gives the HTTP status and a sentence."""
    try:
        event = Event.model_validate_json(body)
        check_name(event.data.name)
    except (ValidationError, NotAdmitted):
        return 200, "ignored: not a new model version"
    try:
        if not deliveries.claim(delivery):
            return 409, "this delivery was received before"
        if not exists(event.data.name, event.data.version):
            return 200, "ignored: the registry has no such version"
        trigger = Trigger(kind="webhook", delivery=delivery, requested_at=time.time())
        accepted = releases.accept(ReleaseRequest(model=event.data.name, version=event.data.version), trigger)
    except (Temporary, StorageFull) as error:
        deliveries.release(delivery)
        return 503, error.what
    except BaseException:
        deliveries.release(delivery)
        raise
    return 202, f"{'accepted' if accepted.created else 'already there'}: {accepted.name}"


async def _in_thread(function: Callable[..., tuple[int, str]], *arguments: Any) -> tuple[int, str]:
    from starlette.concurrency import run_in_threadpool  # noqa: PLC0415 - comes with fastapi

    return await run_in_threadpool(function, *arguments)


def _answer(status: int, said: str) -> Response:
    headers = {"Retry-After": "2"} if status == 503 else {}
    return Response(said + "\n", status_code=status, media_type="text/plain", headers=headers)


def main() -> None:
    """Serves one home's webhooks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    words = parser.parse_args()
    stack = stacks.read(words.home)
    if stack is None:
        raise SystemExit(f"no stack in {words.home}")
    structlog.configure(processors=[structlog.processors.TimeStamper(fmt="iso"), structlog.processors.JSONRenderer()])
    app = create_app(
        load_secrets(words.home).webhook,
        Releases(words.home),
        Deliveries(words.home / "deliveries"),
        lambda name, version: version_exists(stack.registry_uri, name, version),
    )
    uvicorn.run(app, host=words.host, port=words.port, log_level="warning", access_log=False, timeout_keep_alive=5)


if __name__ == "__main__":
    try:
        main()
    except ShipliftError as error:
        raise SystemExit(error.exit_code) from error
